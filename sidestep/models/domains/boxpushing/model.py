"""The grid of Boxpushing; its maps are in the folder maps."""

from pathlib import Path

import numpy as np

from sidestep.models.grids import DOWN, LEFT, RIGHT, UP, Grid, Way, build_grid, grid_from_file
from sidestep.models.map_text import MapKind
from sidestep.models.options import Options


class Boxpushing(Grid):
    """Fetch the box and bring it to the goal; a loaded agent should not cross fragile ground or holes."""

    kind = MapKind("boxpushing", wall="x", surfaces=".F@", once={"S": "start", "B": "box", "G": "goal"})
    statuses = ("empty", "loaded", "end")
    moves = ("up", "down", "left", "right", "pick")

    def _transitions(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        def moving(way: Way, *sides: Way) -> np.ndarray:
            return np.stack([self._after(way), *(self._after(side) for side in sides)], axis=1)

        states = np.arange(len(self.cell))
        picked = np.where((self.on == "B") & (self.status == 0), states + 1, states)
        pick = np.stack([picked] * 3, axis=1)
        ways = (moving(UP, LEFT, RIGHT), moving(DOWN, LEFT, RIGHT), moving(LEFT, UP, DOWN), moving(RIGHT, UP, DOWN))
        successor = np.stack([*ways, pick], axis=1)
        probability = np.broadcast_to([[0.95, 0.025, 0.025]] * 4 + [[1.0, 0.0, 0.0]], successor.shape)
        return successor, probability, np.full(successor.shape[:2], -1.0)

    def _side_effects(self) -> np.ndarray:
        category = (self.status == 1) * (1 * (self.on == "F") + 2 * (self.on == "@"))
        return np.repeat(category[:, None], len(self.moves), axis=1)


def build(options: Options, double: bool) -> Grid:
    return build_grid(Boxpushing, options)


def from_file(path: Path, options: Options) -> Grid:
    return grid_from_file(Boxpushing, path, options)
