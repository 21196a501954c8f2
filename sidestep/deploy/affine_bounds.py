"""Bounds of actions that depend on the state, as numbers: recovered where they are affine, refused where not."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sidestep.core.errors import InputError
from sidestep.core.model import Model, UniformPolicy, rollout

PROBES = 256
STRETCHES = (0.0, 0.3, 1.0, 3.0, 30.0)  # of the states visited: a bound that bends far away is no affine one either
TOLERANCE = 1e-4  # relative, in float32


class AffineBounds(NamedTuple):
    """low(s) = max(lowest, L s + l),  high(s) = max(low(s), min(highest, H s + h)); slopes are None for constants."""

    lowest: np.ndarray
    highest: np.ndarray
    low_slope: np.ndarray | None = None
    low_offset: np.ndarray | None = None
    high_slope: np.ndarray | None = None
    high_offset: np.ndarray | None = None

    def __call__(self, states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        low = np.maximum(self.lowest, states @ self.low_slope.T + self.low_offset)  # type: ignore[union-attr]
        high = np.minimum(self.highest, states @ self.high_slope.T + self.high_offset)  # type: ignore[union-attr]
        return low, np.maximum(low, high)


def affine_bounds(model: Model) -> AffineBounds:
    """The model's bounds in this form, checked on states that random actions visit, stretched and shaken."""
    states = _probes(model)
    low, high = (np.asarray(side, float) for side in jax.vmap(model.action_bounds)(states))
    lowest, highest = low.min(axis=0), high.max(axis=0)
    if (low == lowest).all() and (high == highest).all():
        return AffineBounds(lowest, highest)
    space = model.spec.action
    slopes = [np.asarray(slope, float) for slope in jax.vmap(jax.jacobian(model.action_bounds))(states)]
    points = np.asarray(states, float)
    inside = (low < high) & np.isfinite(low) & np.isfinite(high)
    low_part = _active(points, low, slopes[0], inside & (low > space.low), space.low)
    high_part = _active(points, high, slopes[1], inside & (high < space.high), space.high)
    found = AffineBounds(space.low, space.high, *low_part, *high_part)
    for guess, true in zip(found(points), (low, high), strict=True):
        if not np.allclose(guess, true, rtol=TOLERANCE, atol=TOLERANCE):
            entry = space.names[int(np.argmax(np.any(~np.isclose(guess, true, TOLERANCE, TOLERANCE), axis=0)))]
            raise InputError(
                f"the bounds of the action '{entry}' depend on the state in a way that is not affine, so the policy of "
                f"'{model.spec.name}' cannot leave its model; use it with sidestep.load"
            )
    return found


def _active(
    points: np.ndarray, values: np.ndarray, slopes: np.ndarray, active: np.ndarray, constant: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Slope and offset of each entry, read off at the first probe where it is not at its constant bound."""
    slope, offset = np.zeros((values.shape[1], points.shape[1])), np.array(constant, float)
    for entry in np.flatnonzero(active.any(axis=0)):
        at = int(np.argmax(active[:, entry]))
        slope[entry] = slopes[at, entry]
        offset[entry] = values[at, entry] - slope[entry] @ points[at]
    return slope, offset


def _probes(model: Model) -> jax.Array:
    """Some states of random trajectories, each stretched by a factor and shaken a little."""
    trajectory = rollout(model, UniformPolicy(model), jax.random.key(0), 16)
    visited = trajectory.states[trajectory.mask]
    pick_key, noise_key = jax.random.split(jax.random.key(1))
    picked = visited[jax.random.choice(pick_key, len(visited), (PROBES,))]
    stretched = picked * jnp.asarray(STRETCHES)[jnp.arange(PROBES) % len(STRETCHES)][:, None]
    return stretched + 0.1 * jax.random.normal(noise_key, stretched.shape)
