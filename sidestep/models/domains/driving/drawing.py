"""Driving is seen as ways on the map."""

from sidestep.core.views import Cells, View, on_map
from sidestep.models.domains.driving.model import Driving

TONES = {"@": 2, "H": 3, "X": 4}


def views(model: Driving) -> list[View]:
    return [on_map(model.spec, Cells(model.map, TONES, letters="SG"))]
