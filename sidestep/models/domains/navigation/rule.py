"""Navigation's side effect: steps in a dirty zone."""

from sidestep.core.constraints import Scale
from sidestep.core.model import Model, Trajectory
from sidestep.core.rules import Categories, Rule, count_category

DIRTY_X, DIRTY_Y = (2.0, 4.5), (0.0, 10.0)


def paper(model: Model) -> Rule:
    def label(trajectory: Trajectory) -> Categories:
        x, y = trajectory.states[..., 0], trajectory.states[..., 1]
        dirty = (x >= DIRTY_X[0]) & (x <= DIRTY_X[1]) & (y >= DIRTY_Y[0]) & (y <= DIRTY_Y[1])
        return count_category((dirty & trajectory.mask).sum(axis=1))

    return Rule("navigation", Scale(), label)


RULES = {"paper": paper}
