"""Navigation is seen as paths on the plane."""

from sidestep.core.model import Model
from sidestep.core.views import Interval, Spot, View, Zone, on_plane
from sidestep.models.domains.navigation.rule import DIRTY_X, DIRTY_Y

DIRTY_ZONE = Zone("dirty zone", Interval(*DIRTY_X), Interval(*DIRTY_Y))
SPOTS = (Spot("start", 1.0, 1.0), Spot("goal", 8.0, 9.0))


def views(model: Model) -> list[View]:
    return [on_plane(model.spec, (DIRTY_ZONE,), SPOTS, x_range=Interval(-4.0, 11.0), y_range=Interval(-3.0, 13.0))]
