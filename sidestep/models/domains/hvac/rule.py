"""HVAC's side effect: the server room is hot for several steps running."""

from sidestep.core.constraints import Scale
from sidestep.core.model import Model, Trajectory
from sidestep.core.rules import Categories, Rule, count_category, longest_run

SERVER_ROOM, SERVER_LIMIT = "temp[r2]", 21.0


def paper(model: Model) -> Rule:
    def label(trajectory: Trajectory) -> Categories:
        hot = model.spec.state.take(trajectory.states, SERVER_ROOM) >= SERVER_LIMIT
        return count_category(longest_run(hot & trajectory.mask))

    return Rule("hvac", Scale(), label)


RULES = {"paper": paper}
