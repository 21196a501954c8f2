"""Reservoir is seen over time: the gap between fullest and emptiest, and the level of the first reservoir."""

import numpy as np

from sidestep.core.model import Model, Trajectory
from sidestep.core.views import Interval, View, entry, over_time
from sidestep.models.domains.reservoir.model import RESERVOIRS, capacities
from sidestep.models.domains.reservoir.rule import UNBALANCED


def views(model: Model) -> list[View]:
    capacity, first = capacities(model), model.spec.state.names[0]

    def gap(trajectory: Trajectory) -> np.ndarray:
        share = np.asarray(trajectory.states) / capacity
        return share.max(axis=2) - share.min(axis=2)

    wanted = Interval(*RESERVOIRS[0][4:6])
    return [
        over_time("gap in shares of capacity, from the fullest to the emptiest", gap, limit=UNBALANCED),
        over_time(f"{first}, with the range that is wanted", entry(model.spec, first), band=wanted),
    ]
