"""Navigation's best return for each share of trajectories without side effects, by a dynamic program.

    python benchmarks/frontier.py [--step 0.05] [--rollouts 100000]

A trajectory is free of side effects when at most one of its steps is in the dirty zone. So position, clock and the
number n = 0, 1, 2 (or more) of dirty steps so far are all that a best policy has to know. For a price p of side effects

    W_t^n(s) = -|s - goal| + max_a E[G_{t+1}^n(s')],   s' ~ Normal(s + deceleration(s) a, 0.05)
    G_t^n(s) = W_t^n(s) where s is clean, W_t^{n+1}(s) where it is dirty, and p less where n goes from 1 to 2

on a grid of positions. Expectations are products with matrices of Gaussian probabilities of the grid's cells, taken at
the points of a grid that is finer; in between they are interpolated. The greedy policy's return R(p) and share of side
effects P(p) are carried along. No policy with a share of at most q does better than R(p) - p P(p) + p q, whatever p is:
the least of these over the prices is the limit. Each policy is then rolled out in the package's own simulator.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from bounds import write_limits
from runner import RESULTS, parser, results
from scipy.stats import norm

import sidestep
from sidestep.labels.rules import load_rule
from sidestep.models.domains.navigation.rule import DIRTY_X, DIRTY_Y
from sidestep.reproduce.jobs import Figures, Job
from sidestep.reproduce.tables import heading, write_table

Row = Figures
HORIZON, GOAL, START, DEVIATION = 20, (8.0, 9.0), (1.0, 1.0), np.sqrt(0.05)
SLOW_ZONES = (((5.0, 4.5), 1.15), ((1.5, 3.0), 1.2))  # centre and decay
X_RANGE, Y_RANGE = (-1.5, 10.0), (-2.5, 11.5)  # of positions; the ends of the dirty zone fall between cells
FINE_STEP = 0.0125  # of the points at which expectations are taken
COARSE_MOVES, REFINED_MOVES = 17, 9  # values of a move on each axis: of all, then around the best
PRICES = (0.0, 20.0, 25.0, 29.0, 33.0, 38.0, 45.0, 55.0, 65.0, 80.0)
SHARES = (0.95, 0.958, 0.969, 0.982)  # without side effects, for which limits are printed
CHUNK = 2000  # trajectories rolled out at a time


def deceleration(x, y):
    factor = 1.0
    for (cx, cy), decay in SLOW_ZONES:
        factor = factor * (2.0 / (1.0 + jnp.exp(-decay * jnp.hypot(x - cx, y - cy))) - 1.0)
    return factor


def dirty(x, y):
    return (x >= DIRTY_X[0]) & (x <= DIRTY_X[1]) & (y >= DIRTY_Y[0]) & (y <= DIRTY_Y[1])


@dataclass(frozen=True)
class Axis:
    """One axis of the grid: its cells' centres, the finer points, and the chance of each cell from each point."""

    centres: np.ndarray
    points: np.ndarray
    chances: np.ndarray

    @classmethod
    def over(cls, low: float, high: float, step: float) -> "Axis":
        edges = np.linspace(low, high, round((high - low) / step) + 1)
        points = np.linspace(low, high, round((high - low) / FINE_STEP) + 1)
        inner = norm.cdf((edges[None, 1:-1] - points[:, None]) / DEVIATION)
        below = np.concatenate([np.zeros((len(points), 1)), inner, np.ones((len(points), 1))], axis=1)
        return cls((edges[:-1] + edges[1:]) / 2, points, np.diff(below, axis=1))


def interpolate(tables, x, y, which=0):
    """Bilinear, of one of the tables (..., x, y) over the finer points; beyond their ends as at the ends."""
    columns, rows = tables.shape[-2:]
    i = jnp.clip((x - X_RANGE[0]) / (X_RANGE[1] - X_RANGE[0]) * (columns - 1), 0.0, columns - 1.001)
    j = jnp.clip((y - Y_RANGE[0]) / (Y_RANGE[1] - Y_RANGE[0]) * (rows - 1), 0.0, rows - 1.001)
    left, low = i.astype(int), j.astype(int)
    u, v = i - left, j - low
    flat = tables.ravel()
    first = (which * columns + left) * rows + low
    second = first + rows
    return (1 - u) * ((1 - v) * flat[first] + v * flat[first + 1]) + u * ((1 - v) * flat[second] + v * flat[second + 1])


def best_move(expected, x, y, which=0):
    """The move with the largest expected value from one position, and where it leads on average."""
    slowed = deceleration(x, y)

    def best(dx, dy):
        dx, dy = (one.ravel() for one in jnp.meshgrid(dx, dy, indexing="ij"))
        chosen = jnp.argmax(interpolate(expected, x + slowed * dx, y + slowed * dy, which))
        return dx[chosen], dy[chosen]

    coarse = jnp.linspace(-1.0, 1.0, COARSE_MOVES)
    around = jnp.linspace(-1.0, 1.0, REFINED_MOVES) / (COARSE_MOVES - 1)
    dx, dy = best(coarse, coarse)
    dx, dy = best(jnp.clip(dx + around, -1.0, 1.0), jnp.clip(dy + around, -1.0, 1.0))
    return dx, dy, x + slowed * dx, y + slowed * dy


@jax.jit
def backward(price, chances_x, chances_y, x, y):
    """Expected values (clock, n, x, y) of the greedy policy at the finer points, and its return and share of side
    effects from the start."""
    xs, ys = (one.ravel() for one in jnp.meshgrid(x, y, indexing="ij"))
    is_dirty = dirty(xs, ys).reshape(len(x), len(y))
    reward = -jnp.hypot(xs - GOAL[0], ys - GOAL[1])

    def at_points(cells):
        return chances_x @ cells @ chances_y.T

    def after_move(returns, shares):
        """E[G^n] at the finer points, from W^n: what arriving in a cell is worth, its own dirt counted. The second
        dirty step is the side effect; those that follow change nothing."""
        arrived_return = [jnp.where(is_dirty, returns[min(n + 1, 2)], returns[n]) for n in range(3)]
        arrived_share = [
            jnp.where(is_dirty, shares[1], shares[0]),
            jnp.where(is_dirty, 1.0, shares[1]),
            jnp.zeros_like(shares[0]),
        ]
        return tuple(jax.vmap(at_points)(jnp.stack(part)) for part in (arrived_return, arrived_share))

    def moved(table_return, table_share):
        expected = table_return - price * table_share

        def one(px, py):
            _, _, to_x, to_y = best_move(expected, px, py)
            return interpolate(table_return, to_x, to_y), interpolate(table_share, to_x, to_y)

        found = jax.lax.map(lambda p: one(*p), (xs, ys), batch_size=4096)
        return (found[0] + reward).reshape(is_dirty.shape), found[1].reshape(is_dirty.shape)

    def step(carry, _):
        expected = after_move(*carry)
        found = [moved(expected[0][n], expected[1][n]) for n in range(3)]
        return tuple(jnp.stack(part) for part in zip(*found, strict=True)), expected

    last = jnp.broadcast_to(reward.reshape(is_dirty.shape), (3, *is_dirty.shape))
    _, expected = jax.lax.scan(step, (last, jnp.zeros_like(last)), None, length=HORIZON - 1)
    returns, shares = (table[::-1] for table in expected)  # by the clock at which the move is made
    _, _, to_x, to_y = best_move(returns[0, 0] - price * shares[0, 0], *START)
    first = -jnp.hypot(START[0] - GOAL[0], START[1] - GOAL[1])
    answer = first + interpolate(returns[0, 0], to_x, to_y), interpolate(shares[0, 0], to_x, to_y)
    return returns - price * shares, answer


class Greedy(sidestep.Policy):
    """The policy of the dynamic program: it remembers how many of its steps were dirty."""

    expected: jax.Array  # (clock, n, x, y)

    def start(self):
        return jnp.zeros((), int)

    def act(self, state, clock, memory, key):
        count = jnp.minimum(memory + dirty(state[0], state[1]), 2)
        which = 3 * jnp.minimum(clock, HORIZON - 2) + count
        dx, dy, _, _ = best_move(self.expected, state[0], state[1], which)
        return jnp.stack([dx, dy]), count

    def mean(self):
        return self


def rolled_out(model: Any, policy: Greedy, count: int, seed: int) -> Row:
    """Mean return and share without side effects in the package's simulator, each with its standard error."""
    rule = load_rule(None, model)
    roll = jax.jit(lambda key, policy: sidestep.rollout(model, policy, key, CHUNK))
    returns, free = [], []
    for key in jax.random.split(jax.random.key(seed), max(count // CHUNK, 1)):
        trajectory = roll(key, policy)
        returns.append(np.asarray(trajectory.returns()))
        free.append(np.asarray(rule.label(trajectory)) == 0)
    found = {}
    for name, parts in (("return", returns), ("free", free)):
        values = np.concatenate(parts).astype(float)
        found[f"{name}, rolled out"] = float(values.mean())
        found[f"error of {name}"] = float(values.std() / np.sqrt(len(values)))
    return found


def solve(step: float) -> Iterator[tuple[Row, Greedy]]:
    """For each price what its policy earns on a grid with this step, and the policy."""
    x, y = Axis.over(*X_RANGE, step), Axis.over(*Y_RANGE, step)
    parts = [jnp.asarray(part, jnp.float32) for part in (x.chances, y.chances, x.centres, y.centres)]
    for price in PRICES:
        began = time.perf_counter()
        expected, (total, share) = backward(price, *parts)
        row = {"price": price, "return": float(total), "free": 1.0 - float(share)}
        spent = time.perf_counter() - began
        print(f"step {step:g}, price {price:g}: {row['return']:.3f}, {row['free']:.4f} ({spent:.0f} s)", flush=True)
        yield row, Greedy(expected)


def limit(rows: list[Row], free: float) -> float:
    """No policy that is free of side effects this often does better: the least bound over the prices."""
    return min(row["return"] + row["price"] * (row["free"] - free) for row in rows)


def limit_rows(rows: list[Row], rough: list[Row]) -> list[Row]:
    """The limits, and by how much they change when the grid's step is doubled."""
    found = [{"constraint": "", "limit": rows[0]["return"], "of twice the step": rough[0]["return"]}]
    for free in SHARES:
        constraint = f"none>={free:g}"
        found.append({"constraint": constraint, "limit": limit(rows, free), "of twice the step": limit(rough, free)})
    return [row | {"error": abs(row["limit"] - row["of twice the step"])} for row in found]


@dataclass(frozen=True)
class Frontier:
    """The policies of all prices on a grid with this step; rolled out, unless `rollouts` is 0."""

    step: float
    rollouts: int
    seed: int

    def run(self, out: Path) -> Figures:
        model = sidestep.load_model("navigation")
        solved = solve(self.step)
        if not self.rollouts:
            return {"policies": [row for row, _ in solved]}
        return {"policies": [row | rolled_out(model, policy, self.rollouts, self.seed) for row, policy in solved]}


def publish(about: Figures, limits: list[Row], policies: list[Row]) -> None:
    """The tables beside those of other benchmarks, and the limits where the domain keeps its own."""
    note = {"error": "the change when the grid's step is doubled", "policies": "frontier-policies.md"}
    write_table(RESULTS, "frontier", limits, about | note)
    title = "Navigation: the policies that the limits come from, on the grid and rolled out in the package's simulator"
    write_table(RESULTS, "frontier-policies", policies, about | {"title": title})
    best, error = ({row["constraint"]: round(row[what], 3) for row in limits} for what in ("limit", "error"))
    write_limits("navigation", about, {"best": best, "error": error})


def main() -> None:
    made = parser(__doc__, "frontier")
    made.add_argument("--step", type=float, default=0.05, help="of the grid; the error is told by twice this step")
    made.add_argument("--rollouts", type=int, default=100_000, help="of each policy")
    made.add_argument("--seed", type=int, default=0)
    asked = made.parse_args()
    rough = Job("rough", Frontier(2 * asked.step, 0, asked.seed))
    fine = Job("fine", Frontier(asked.step, asked.rollouts, asked.seed))
    rough_policies, policies = (found["policies"] for found in results([rough, fine], asked))
    rows = limit_rows(policies, rough_policies)
    about = heading("Navigation: the best return for each share of trajectories without side effects", [asked.seed])
    publish(about, rows, policies)


if __name__ == "__main__":
    main()
