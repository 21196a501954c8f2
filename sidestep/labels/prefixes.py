"""A rule's marks: it labels every prefix of a trajectory, and the first prefix of a severity ends at its mark.

That has a meaning where a category, once reached, stays reached: a number of steps or the longest run only grows. A
share of steps may fall again, and then no step is the one at which the trajectory became severe.
"""

from collections.abc import Callable
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from sidestep.core.constraints import Scale
from sidestep.core.model import Trajectory
from sidestep.core.rules import Categories
from sidestep.labels.marks import NO_MARK, MarksArray

Label = Callable[[Trajectory], Categories]


def prefix_categories(label: Label, jittable: bool, trajectories: Trajectory) -> Int[np.ndarray, "batch time"]:
    """The category of the first t + 1 steps, for every t; after the end that of the whole trajectory."""
    plain = jax.tree.map(np.asarray, trajectories)
    batch, steps = len(plain.length), int(plain.length.max(initial=0))
    if not batch:
        return np.zeros((0, steps), int)
    if not jittable:
        return np.stack([np.asarray(label(_prefix(plain, step + 1))) for step in range(steps)], axis=1)
    rows = np.minimum(np.arange(1 << (batch - 1).bit_length()), batch - 1)  # batches of any size share few programs
    return np.asarray(_by_jit(label, jax.tree.map(lambda part: jnp.asarray(part[rows]), plain)))[:batch, :steps]


def _prefix(trajectories: Trajectory, steps: int) -> Trajectory:
    """The first steps of each, without those that come after: a user's rule may look at all that it is given."""
    cut = trajectories.states[:, :steps], trajectories.actions[:, :steps], trajectories.rewards[:, :steps]
    return Trajectory(*cut, np.minimum(trajectories.length, steps))  # type: ignore[arg-type]  # NumPy's do as well


@eqx.filter_jit
def _by_jit(label: Label, trajectories: Trajectory) -> Int[Array, "batch time"]:
    def of_prefix(steps: Array) -> Array:
        return jnp.asarray(label(replace(trajectories, length=jnp.minimum(trajectories.length, steps))))

    steps = jnp.arange(1, trajectories.states.shape[1] + 1, dtype=trajectories.length.dtype)
    return jnp.moveaxis(jax.lax.map(of_prefix, steps), 0, 1)


def marks_from_prefixes(categories: Int[np.ndarray, "batch time"], severities: int) -> MarksArray:
    """The step at which each severity is first reached, -1 for never; none where a category is taken back."""
    reached = categories[:, :, None] >= np.arange(1, severities + 1)[None, None, :]
    marks = np.where(reached.any(axis=1), reached.argmax(axis=1), NO_MARK)
    return np.where(_taken_back(categories)[:, None], NO_MARK, marks).astype(np.int32)


def _taken_back(categories: Int[np.ndarray, "batch time"]) -> np.ndarray:
    """Which trajectories have a longer prefix of a milder category."""
    return np.any(np.diff(categories, axis=1) < 0, axis=1)


def taken_back_in_words(categories: Int[np.ndarray, "batch time"], scale: Scale) -> str | None:
    """Why marks have no meaning where prefixes have such categories, in a sentence; None where they have."""
    rows = np.flatnonzero(_taken_back(categories))
    if not len(rows):
        return None
    row = categories[rows[0]]
    step = int(np.argmax(np.diff(row) < 0))
    before, after = (scale.categories[row[t]] for t in (step, step + 1))
    return (
        f"no marks are asked for: a trajectory that is '{before}' after {step + 1} steps may be '{after}' after "
        f"{step + 2}, so that there is no step from which it is '{before}'"
    )
