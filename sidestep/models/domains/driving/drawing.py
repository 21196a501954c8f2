"""Driving is seen as ways on the map."""

from sidestep.models.domains.driving.model import Driving
from sidestep.views import Cells, View, on_map

TONES = {"@": 2, "H": 3, "X": 4}


def views(model: Driving) -> list[View]:
    return [on_map(model.spec, Cells(model.map, TONES, letters="SG"))]
