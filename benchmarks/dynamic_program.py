"""A dynamic program for problems with two state entries, on a grid: the exact answer that a planner is compared with.

A trajectory is free of side effects when at most one of its steps is counted. So state, clock and the number
n = 0, 1, 2 (or more) of counted steps are all that a best policy has to know. For a price p of side effects

    W_t^n(s) = max_a r(s, a) + E[G_{t+1}^n(s')],   s' ~ Normal(landing(s, a), deviation)
    G_t^n(s) = W_t^n(s) where s does not count, W_t^{n+1}(s) where it does, and p less where n goes from 1 to 2

Expectations are products with matrices of Gaussian probabilities of the grid's cells, taken at the points of a finer
grid; in between they are interpolated. The greedy policy's return R(p) and share of side effects P(p) are carried
along. No policy with a share of at most q does better than R(p) - p P(p) + p q, whatever p is.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from scipy.stats import norm

import sidestep

COARSE_MOVES, REFINED_MOVES = 17, 9  # values of each entry of an action: of all, then around the best


@dataclass(frozen=True)
class Plane:
    """A problem whose state is (x, y) and whose action has one or two entries within [-1, 1]."""

    landing: Callable[[Array, Array, Array], tuple[Array, Array]]  # of x, y and the action: where it leads on average
    reward: Callable[[Array, Array, Array], Array]
    deviation: tuple[float, float]  # of the landing point
    start: tuple[float, float]
    horizon: int
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    entries: int = 2  # of an action
    counts: Callable[[Array, Array], Array] | None = None  # whether a state is counted


class Axis(NamedTuple):
    """One axis of the grid: its cells' centres, the finer points, and the chance of each cell from each point."""

    centres: np.ndarray
    points: np.ndarray
    chances: np.ndarray

    @classmethod
    def over(cls, ends: tuple[float, float], step: float, fine_step: float, deviation: float) -> "Axis":
        low, high = ends
        edges = np.linspace(low, high, round((high - low) / step) + 1)
        points = np.linspace(low, high, round((high - low) / fine_step) + 1)
        inner = norm.cdf((edges[None, 1:-1] - points[:, None]) / deviation)
        below = np.concatenate([np.zeros((len(points), 1)), inner, np.ones((len(points), 1))], axis=1)
        return cls((edges[:-1] + edges[1:]) / 2, points, np.diff(below, axis=1))


class Solved(NamedTuple):
    """What the greedy policy earns from the start, and its expected values (clock, n, x, y) at the finer points."""

    total: Array
    share: Array  # of trajectories with side effects
    expected: Array


def interpolate(plane: Plane, tables: Array, x: Array, y: Array, which: Array | int = 0) -> Array:
    """Bilinear, of one of the tables (..., x, y) over the finer points; beyond their ends as at the ends."""
    columns, rows = tables.shape[-2:]
    i = jnp.clip((x - plane.x_range[0]) / (plane.x_range[1] - plane.x_range[0]) * (columns - 1), 0.0, columns - 1.001)
    j = jnp.clip((y - plane.y_range[0]) / (plane.y_range[1] - plane.y_range[0]) * (rows - 1), 0.0, rows - 1.001)
    left, low = i.astype(int), j.astype(int)
    u, v = i - left, j - low
    flat = tables.ravel()
    first = (which * columns + left) * rows + low
    second = first + rows
    return (1 - u) * ((1 - v) * flat[first] + v * flat[first + 1]) + u * ((1 - v) * flat[second] + v * flat[second + 1])


def best_action(plane: Plane, expected: Array, x: Array, y: Array, which: Array | int = 0) -> Array:
    """The action with the largest reward and expected value from one state."""

    def best(values):
        actions = jnp.stack([one.ravel() for one in jnp.meshgrid(*values, indexing="ij")], axis=-1)

        def worth(action):
            return plane.reward(x, y, action) + interpolate(plane, expected, *plane.landing(x, y, action), which)

        return actions[jnp.argmax(jax.vmap(worth)(actions))]

    coarse = best([jnp.linspace(-1.0, 1.0, COARSE_MOVES)] * plane.entries)
    around = jnp.linspace(-1.0, 1.0, REFINED_MOVES) / (COARSE_MOVES - 1)
    return best([jnp.clip(entry + around, -1.0, 1.0) for entry in coarse])


@partial(jax.jit, static_argnums=0)
def backward(plane: Plane, price: Array, chances_x: Array, chances_y: Array, x: Array, y: Array) -> Solved:
    xs, ys = (one.ravel() for one in jnp.meshgrid(x, y, indexing="ij"))
    levels = 1 if plane.counts is None else 3
    counted = jnp.zeros((len(x), len(y)), bool)
    if plane.counts is not None:
        counted = plane.counts(xs, ys).reshape(counted.shape)

    def after_move(returns, shares):
        """E[G^n] at the finer points, from W^n: what arriving in a cell is worth, its own count included. The second
        counted step is the side effect; those that follow change nothing."""
        one_more = [min(n + 1, levels - 1) for n in range(levels)]
        arrived = [jnp.where(counted, returns[m], returns[n]) for n, m in enumerate(one_more)]
        costs = [shares[one_more[0]], jnp.ones_like(shares[0]), jnp.zeros_like(shares[0])]
        harmed = [jnp.where(counted, costs[n], shares[n] if n < 2 else 0.0) for n in range(levels)]
        return tuple(jax.vmap(lambda cells: chances_x @ cells @ chances_y.T)(jnp.stack(p)) for p in (arrived, harmed))

    def moved(table_return, table_share):
        def one(px, py):
            action = best_action(plane, table_return - price * table_share, px, py)
            to = plane.landing(px, py, action)
            reward = plane.reward(px, py, action)
            return reward + interpolate(plane, table_return, *to), interpolate(plane, table_share, *to)

        found = jax.lax.map(lambda p: one(*p), (xs, ys), batch_size=4096)
        return tuple(part.reshape(counted.shape) for part in found)

    def step(carry, _):
        expected = after_move(*carry)
        found = [moved(expected[0][n], expected[1][n]) for n in range(levels)]
        return tuple(jnp.stack(part) for part in zip(*found, strict=True)), expected

    nothing = jnp.zeros((levels, *counted.shape))
    _, tables = jax.lax.scan(step, (nothing, nothing), None, length=plane.horizon)
    returns, shares = (table[::-1] for table in tables)  # by the clock at which the action is taken
    expected = returns - price * shares
    state = jnp.asarray(plane.start[0]), jnp.asarray(plane.start[1])
    action = best_action(plane, expected[0, 0], *state)
    to = plane.landing(*state, action)
    total = plane.reward(*state, action) + interpolate(plane, returns[0, 0], *to)
    return Solved(total, interpolate(plane, shares[0, 0], *to), expected)


def solve(plane: Plane, price: float, step: float, fine_step: float) -> Solved:
    """The best policy under this price, on a grid with this step."""
    x = Axis.over(plane.x_range, step, fine_step, plane.deviation[0])
    y = Axis.over(plane.y_range, step, fine_step, plane.deviation[1])
    parts = [jnp.asarray(part, jnp.float32) for part in (x.chances, y.chances, x.centres, y.centres)]
    return backward(plane, jnp.asarray(price, jnp.float32), *parts)


class Greedy(sidestep.Policy):
    """The policy of the dynamic program: it remembers how many of its steps were counted."""

    expected: jax.Array  # (clock, n, x, y)
    plane: Plane = eqx.field(static=True)

    def start(self):
        return jnp.zeros((), int)

    def act(self, state, clock, memory, key):
        levels = self.expected.shape[1]
        count = memory
        if self.plane.counts is not None:
            count = jnp.minimum(memory + self.plane.counts(state[0], state[1]), 2)
        which = levels * clock + count
        return best_action(self.plane, self.expected, state[0], state[1], which), count

    def mean(self):
        return self


def limit(rows: Sequence[dict[str, float]], free: float) -> float:
    """No policy that is free of side effects this often does better: the least bound over the prices."""
    return min(row["return"] + row["price"] * (row["free"] - free) for row in rows)
