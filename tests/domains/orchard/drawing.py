"""The walk on the map, and how far the gate is."""

import numpy as np

from sidestep.core.views import Cells, on_map, over_time


def views(model):
    gate = next((r, row.index("G")) for r, row in enumerate(model.map) if "G" in row)

    def steps_to_gate(trajectory):
        row, column = (
            np.asarray(model.spec.state.take(trajectory.states, n)).argmax(axis=2) for n in ("row", "column")
        )
        return abs(row - gate[0]) + abs(column - gate[1])

    walk = on_map(model.spec, Cells(model.map, {"~": 1, "o": 3, "#": 4}, letters="SG"))
    return [walk, over_time("steps to the gate, as the crow walks", steps_to_gate, limit=0.0)]
