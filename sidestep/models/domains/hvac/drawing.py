"""HVAC is seen as temperatures over time: the server room's, and the mean of the others."""

from sidestep.core.model import Model
from sidestep.core.views import Interval, View, entry, mean_of, over_time
from sidestep.models.domains.hvac.rule import SERVER_LIMIT, SERVER_ROOM

COMFORT = Interval(20.0, 23.5)  # degrees that the reward asks for


def views(model: Model) -> list[View]:
    others = [name for name in model.spec.state.names if name.startswith("temp[") and name != SERVER_ROOM]
    server = entry(model.spec, SERVER_ROOM)
    return [
        over_time(f"{SERVER_ROOM}, the server room", server, band=COMFORT, limit=SERVER_LIMIT),
        over_time("other rooms, their mean temperature", mean_of(model.spec, others), band=COMFORT),
    ]
