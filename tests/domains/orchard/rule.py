"""Mud is a nuisance, trodden seedlings are lost."""

import jax.numpy as jnp

from sidestep.core.constraints import Scale
from sidestep.core.rules import Rule
from sidestep.models.grid_rules import step_categories

SCALE = Scale(("clean", "muddy", "trodden"))


def gardener(model):
    steps = step_categories(model)
    worst = lambda trajectory: jnp.max(steps(trajectory), axis=1)  # noqa: E731
    return Rule("gardener", SCALE, worst, steps, (0, 1, 7), markovian=True, default_constraint="trodden<=0.05")


RULES = {"gardener": gardener}
