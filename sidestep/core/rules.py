"""A rule labels whole trajectories. It plays the expert: learners see its categories and never look inside it."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from sidestep.core.constraints import Scale
from sidestep.core.model import AnyArray, Trajectory

Categories = Int[AnyArray, " batch"]
Label = Callable[[Trajectory], Categories]
StepCategories = Callable[[Trajectory], Int[AnyArray, "batch time"]]


@dataclass(frozen=True, eq=False)
class Rule:
    """Categories of trajectories; for side effects of single steps (Markovian ones) also categories of steps."""

    name: str
    scale: Scale
    label: Label
    step_categories: StepCategories | None = None
    penalties: tuple[float, ...] = ()  # of a step of each category, where the paper gives numbers
    markovian: bool = False  # a trajectory is as bad as its worst step, so that single steps can be labelled
    default_constraint: str = ""  # used when none is given; without it, 0.95 for the best category
    jittable: bool = True  # may be called inside jit; a user's rule may be plain NumPy and is called outside

    def penalty(self, trajectory: Trajectory) -> Float[Array, " batch"]:
        """Sum of the step penalties of each trajectory."""
        assert self.step_categories is not None
        steps = jnp.asarray(self.penalties, float)[self.step_categories(trajectory)]
        return jnp.sum(jnp.where(trajectory.mask, steps, 0.0), axis=1)


def count_category(count: Categories) -> Categories:
    """0-1 none, 2-3 mild, 4 and more severe: the paper's thresholds on a number of steps."""
    return (count >= 2).astype(int) + (count >= 4).astype(int)


@jax.jit
def longest_run(flags: Bool[AnyArray, "batch time"]) -> Int[Array, " batch"]:
    """Length of the longest stretch of consecutive flagged steps."""
    step = jnp.broadcast_to(jnp.arange(flags.shape[1])[None, :], flags.shape)
    last_unflagged = jax.lax.cummax(jnp.where(flags, -1, step), axis=1)
    return jnp.max(step - last_unflagged, axis=1)
