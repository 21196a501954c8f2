"""The rules of grid domains, from the table of side effects that a grid has for each state and action."""

import jax.numpy as jnp
from jaxtyping import Int

from sidestep.core.constraints import Scale
from sidestep.core.model import AnyArray, Trajectory
from sidestep.core.rules import Categories, Rule, StepCategories
from sidestep.models.grids import PENALTIES, Grid

UNSAFE_SHARE = 10  # a trajectory is unsafe when at least one step in ten is dangerous


def step_categories(model: Grid) -> StepCategories:
    def categories(trajectory: Trajectory) -> Int[AnyArray, "batch time"]:
        state, action = model.indices(trajectory.states), model.action_indices(trajectory.actions)
        return jnp.where(trajectory.mask, jnp.asarray(model.side_effect)[state, action], 0)

    return categories


def markov(model: Grid) -> Rule:
    """A trajectory is as bad as its worst step."""
    steps = step_categories(model)
    return Rule("markov", Scale(), lambda trajectory: jnp.max(steps(trajectory), axis=1), steps, PENALTIES, True)


def share(model: Grid, *, tells_completion: bool) -> Rule:
    """The supplement's rule: unsafe when at least a tenth of the steps before the end are dangerous; where the rule
    tells completion, trajectories that never reach the goal have categories of their own."""
    steps = step_categories(model)
    scale = Scale(
        ("safe", "safe-incomplete", "unsafe", "unsafe-incomplete") if tells_completion else ("safe", "unsafe")
    )

    def label(trajectory: Trajectory) -> Categories:
        unsafe = (UNSAFE_SHARE * jnp.sum(steps(trajectory) > 0, axis=1) >= trajectory.length).astype(int)
        if not tells_completion:
            return unsafe
        at_goal = jnp.asarray(model.completed)[model.indices(trajectory.states)] & trajectory.mask
        return 2 * unsafe + (~jnp.any(at_goal, axis=1)).astype(int)

    return Rule("share", scale, label, steps)
