"""Boxpushing is seen as walks on the map."""

from sidestep.core.views import Cells, View, on_map
from sidestep.models.domains.boxpushing.model import Boxpushing

TONES = {"F": 1, "@": 2, "x": 4}


def views(model: Boxpushing) -> list[View]:
    return [on_map(model.spec, Cells(model.map, TONES, letters="SBG"))]
