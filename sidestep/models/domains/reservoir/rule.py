"""Reservoir's side effect: the fullest and the emptiest reservoir are far apart for several steps running."""

import jax.numpy as jnp

from sidestep.core.constraints import Scale
from sidestep.core.model import Model, Trajectory
from sidestep.core.rules import Categories, Rule, count_category, longest_run
from sidestep.models.domains.reservoir.model import capacities

UNBALANCED = 0.5  # widest allowed gap between the fullest and the emptiest reservoir, as shares of capacity


def paper(model: Model) -> Rule:
    capacity = capacities(model)

    def label(trajectory: Trajectory) -> Categories:
        share = trajectory.states / jnp.asarray(capacity, trajectory.states.dtype)[None, None, :]
        gap = jnp.max(share, axis=2) - jnp.min(share, axis=2)
        return count_category(longest_run((gap >= UNBALANCED) & trajectory.mask))

    return Rule("reservoir", Scale(), label, default_constraint="none>=0.8")


RULES = {"paper": paper}
