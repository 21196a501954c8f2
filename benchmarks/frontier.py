"""Navigation's best return for each share of trajectories without side effects, by a dynamic program.

    python benchmarks/frontier.py [--step 0.05] [--rollouts 100000]

A trajectory is free of side effects when at most one of its steps is in the dirty zone: `dynamic_program.py` has the
equations. The limit at a share q is the least, over the prices, of what no policy with that share can pass. Each policy
is then rolled out in the package's own simulator.
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
from dynamic_program import Greedy, Plane, counting, limit, solve
from runner import RESULTS, parser, results

import sidestep
from sidestep.cluster.jobs import Figures, Job
from sidestep.labels.rules import load_rule
from sidestep.models.domains.navigation.rule import DIRTY_X, DIRTY_Y
from sidestep.reproduce.tables import heading, write_table

Row = Figures
GOAL, DEVIATION = (8.0, 9.0), float(np.sqrt(0.05))
SLOW_ZONES = (((5.0, 4.5), 1.15), ((1.5, 3.0), 1.2))  # centre and decay
FINE_STEP = 0.0125  # of the points at which expectations are taken
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


def _landing(x, y, action):
    slowed = deceleration(x, y)
    return x + slowed * action[0], y + slowed * action[1]


NAVIGATION = Plane(
    landing=_landing,
    reward=lambda x, y, action: -jnp.hypot(x - GOAL[0], y - GOAL[1]),
    deviation=(DEVIATION, DEVIATION),
    start=(1.0, 1.0),
    horizon=20,
    x_range=(-1.5, 10.0),  # of positions; the ends of the dirty zone fall between cells
    y_range=(-2.5, 11.5),
    automaton=counting(dirty),
)


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


def solved(step: float) -> Iterator[tuple[Row, Greedy]]:
    """For each price what its policy earns on a grid with this step, and the policy."""
    for price in PRICES:
        began = time.perf_counter()
        total, share, expected = solve(NAVIGATION, price, step, FINE_STEP)
        row = {"price": price, "return": float(total), "free": 1.0 - float(share)}
        spent = time.perf_counter() - began
        print(f"step {step:g}, price {price:g}: {row['return']:.3f}, {row['free']:.4f} ({spent:.0f} s)", flush=True)
        yield row, Greedy(expected, NAVIGATION)


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
        found = solved(self.step)
        if not self.rollouts:
            return {"policies": [row for row, _ in found]}
        return {"policies": [row | rolled_out(model, policy, self.rollouts, self.seed) for row, policy in found]}


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
