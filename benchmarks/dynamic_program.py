"""A dynamic program for problems with two state entries, on a grid: the exact answer that a planner is compared with.

A small automaton reads states and actions and tells whether there was a side effect: more than one step in a region,
say. So state, clock and the automaton's state n are all that a best policy has to know. n changes when a state is seen
(`sees`) and when an action is taken (`does`); its last state is the side effect, which stays. For a price p

    W_t^n(s) = max_a r(s, a) + E[G_{t+1}^{does(n, a)}(s')],   s' ~ Normal(landing(s, a), deviation)
    G_t^n(s) = W_t^{sees(n, s)}(s),   G_T^n(s) = -p where n is the side effect, else 0

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
class Automaton:
    """What of a trajectory so far decides whether there is a side effect: 0 at first, `states - 1` once there was."""

    states: int
    sees: Callable[[Array | int, Array, Array], Array]  # after a state (x, y)
    does: Callable[[Array | int, Array], Array | int] = lambda n, action: n  # after an action


def counting(region: Callable[[Array, Array], Array], allowed: int = 1) -> Automaton:
    """The side effect is more than so many steps in a region."""
    return Automaton(allowed + 2, lambda n, x, y: jnp.minimum(n + region(x, y), allowed + 1))


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
    automaton: Automaton | None = None  # of the side effect


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


def best_action(plane: Plane, expected: Array, x: Array, y: Array, n: Array | int = 0) -> Array:
    """The action with the largest reward and expected value from one state, in state n of the automaton."""

    def best(values):
        actions = jnp.stack([one.ravel() for one in jnp.meshgrid(*values, indexing="ij")], axis=-1)

        def worth(action):
            then = _does(plane, n, action)
            return plane.reward(x, y, action) + interpolate(plane, expected, *plane.landing(x, y, action), then)

        return actions[jnp.argmax(jax.vmap(worth)(actions))]

    coarse = best([jnp.linspace(-1.0, 1.0, COARSE_MOVES)] * plane.entries)
    around = jnp.linspace(-1.0, 1.0, REFINED_MOVES) / (COARSE_MOVES - 1)
    return best([jnp.clip(entry + around, -1.0, 1.0) for entry in coarse])


@partial(jax.jit, static_argnums=0)
def backward(plane: Plane, price: Array, chances_x: Array, chances_y: Array, x: Array, y: Array) -> Solved:
    xs, ys = (one.ravel() for one in jnp.meshgrid(x, y, indexing="ij"))
    automaton = plane.automaton
    states = automaton.states if automaton else 1
    shape = (len(x), len(y))

    def after_move(worth):
        """E[G^n] at the finer points, from W^n."""
        if automaton:
            seen = jnp.stack([automaton.sees(n, xs, ys).reshape(shape) for n in range(states)])
            worth = jnp.take_along_axis(worth, seen, axis=0)
        return jax.vmap(lambda cells: chances_x @ cells @ chances_y.T)(worth)

    def moved(returns, shares, n):
        def one(px, py):
            action = best_action(plane, returns - price * shares, px, py, n)
            to = plane.landing(px, py, action)
            reward, then = plane.reward(px, py, action), _does(plane, n, action)
            return reward + interpolate(plane, returns, *to, then), interpolate(plane, shares, *to, then)

        found = jax.lax.map(lambda p: one(*p), (xs, ys), batch_size=4096)
        return tuple(part.reshape(shape) for part in found)

    def step(expected, _):
        found = [moved(*expected, n) for n in range(states)]
        return tuple(after_move(jnp.stack(part)) for part in zip(*found, strict=True)), expected

    nothing = jnp.zeros((states, chances_x.shape[0], chances_y.shape[0]))
    harmed = nothing.at[-1].set(1.0) if automaton else nothing
    _, tables = jax.lax.scan(step, (nothing, harmed), None, length=plane.horizon)
    returns, shares = (table[::-1] for table in tables)  # by the clock at which the action is taken
    state = jnp.asarray(plane.start[0]), jnp.asarray(plane.start[1])
    first = automaton.sees(0, *state) if automaton else 0
    action = best_action(plane, returns[0] - price * shares[0], *state, first)
    to, then = plane.landing(*state, action), _does(plane, first, action)
    total = plane.reward(*state, action) + interpolate(plane, returns[0], *to, then)
    return Solved(total, interpolate(plane, shares[0], *to, then), returns - price * shares)


def _does(plane: Plane, n: Array | int, action: Array) -> Array | int:
    return plane.automaton.does(n, action) if plane.automaton else n


def solve(plane: Plane, price: float, step: float, fine_step: float) -> Solved:
    """The best policy under this price, on a grid with this step."""
    x = Axis.over(plane.x_range, step, fine_step, plane.deviation[0])
    y = Axis.over(plane.y_range, step, fine_step, plane.deviation[1])
    parts = [jnp.asarray(part, jnp.float32) for part in (x.chances, y.chances, x.centres, y.centres)]
    return backward(plane, jnp.asarray(price, jnp.float32), *parts)


class Greedy(sidestep.Policy):
    """The policy of the dynamic program: it remembers the automaton's state."""

    expected: jax.Array  # (clock, n, x, y)
    plane: Plane = eqx.field(static=True)

    def start(self):
        return jnp.zeros((), int)

    def act(self, state, clock, memory, key):
        n = memory
        if self.plane.automaton:
            n = self.plane.automaton.sees(memory, state[0], state[1])
        action = best_action(self.plane, self.expected[clock], state[0], state[1], n)
        return action, jnp.asarray(_does(self.plane, n, action), int)

    def mean(self):
        return self


def limit(rows: Sequence[dict[str, float]], free: float) -> float:
    """No policy that is free of side effects this often does better: the least bound over the prices."""
    return min(row["return"] + row["price"] * (row["free"] - free) for row in rows)
