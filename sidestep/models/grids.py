"""Grid domains: finite models built from text maps."""

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import ClassVar

import numpy as np

from sidestep.core.errors import InputError
from sidestep.core.model import FinitePart, Gradient, Space, Spec, Variable
from sidestep.models.finite_model import FiniteModel, product_encoding
from sidestep.models.map_text import MapKind, parse_map, read_text
from sidestep.models.options import Options

PENALTIES = (0, 5, 10)  # of a step without side effect, with a mild one, with a severe one

Way = tuple[int, int]
UP, DOWN, LEFT, RIGHT = (-1, 0), (1, 0), (0, -1), (0, 1)


class Grid(FiniteModel):
    """A finite model over the cells of a map: state (row, column, status), the last status being the absorbing end.

    Every combination has its row in the table, also those that nothing reaches: walls, and ends away from the goal.
    """

    kind: ClassVar[MapKind]
    statuses: ClassVar[tuple[str, ...]]
    moves: ClassVar[tuple[str, ...]]

    map: tuple[str, ...]
    side_effect: np.ndarray  # (N, A): 0 none, 1 mild, 2 severe; the expert's knowledge, which no learner reads
    completed: np.ndarray  # bool (N,): the task is done here

    def __init__(
        self,
        text: str,
        *,
        name: str | None = None,
        place: str = "map",
        horizon: int = 500,
        discount: float = 0.99,
        gradient: Gradient = "straight-through",
    ) -> None:
        self.map = parse_map(text, kind=self.kind, place=place)
        height, width, statuses = len(self.map), len(self.map[0]), len(self.statuses)
        self.surface = np.array([list(row) for row in self.map]).ravel()
        self.cell, self.status = np.divmod(np.arange(height * width * statuses), statuses)  # of each state
        self.on = self.surface[self.cell]
        end = statuses - 1
        self.completed = (self.status == end) | (self.on == "G") & (self.status == end - 1)

        successor, probability, reward = self._transitions()
        # The goal leads to the end whatever is done there, the end to itself; neither costs anything.
        successor[self.completed] = (self.cell * statuses + end)[self.completed, None, None]
        reward[self.completed] = 0.0
        start = ((self.on == "S") & (self.status == 0)).astype(float)
        encoding = product_encoding((height, width, statuses))
        spec = Spec(
            name=name or self.kind.domain,
            state=Space(
                (
                    Variable("row", "one-hot", height, 0.0, 1.0),
                    Variable("column", "one-hot", width, 0.0, 1.0),
                    Variable("status", "one-hot", statuses, 0.0, 1.0, labels=self.statuses),
                )
            ),
            action=Space((Variable("move", "one-hot", len(self.moves), 0.0, 1.0, labels=self.moves),)),
            horizon=horizon,
            discount=discount,
            gradient=gradient,
            notes=("values are those of sampled one-hot states; gradients are straight-through, of the expected step",),
            description=f"{self.__doc__} Map of {height} x {width} cells.",
            family=self.kind.domain,
        )
        table = FinitePart(successor, probability, reward, start, self.status == end, encoding)
        super().__init__(table, spec, possible=self.on != self.kind.wall)
        self.side_effect = self._side_effects()

    def _transitions(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Successor and probability (N, A, K) and reward (N, A), the goal and the end left aside."""
        raise NotImplementedError

    def _side_effects(self) -> np.ndarray:
        raise NotImplementedError

    def _after(self, way: Way) -> np.ndarray:
        """The state after a move this way from each state: the same one at a wall or the border."""
        height, width = len(self.map), len(self.map[0])
        row, column = np.divmod(self.cell, width)
        row, column = row + way[0], column + way[1]
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        target = np.where(inside, row * width + column, self.cell)
        blocked = self.surface[target] == self.kind.wall
        return np.where(blocked, self.cell, target) * len(self.statuses) + self.status


def built_in_maps(grid: type[Grid]) -> dict[str, Traversable]:
    """The maps in the domain's folder `maps`, by their names: boxpushing-3.bp is '3'."""
    folder = files(grid.__module__.rpartition(".")[0]) / "maps"
    found = {Path(file.name).stem.rpartition("-")[2]: file for file in folder.iterdir()}
    return {name: found[name] for name in sorted(found, key=lambda name: (len(name), name))}


def build_grid(grid: type[Grid], options: Options) -> Grid:
    """The model of one of the domain's own maps."""
    maps, name = built_in_maps(grid), options.text("map", "1")
    if name not in maps:
        raise InputError(f"no map '{name}': {grid.kind.domain} has the maps {', '.join(maps)}", place=options.place)
    return grid_from_file(grid, maps[name], options)


def grid_from_file(grid: type[Grid], path: Path | Traversable, options: Options) -> Grid:
    """The model of a map in a file."""
    horizon = options.integer("horizon", 500, 1) or 500
    options.finish()
    return grid(read_text(path), name=Path(str(path)).stem, place=str(path), horizon=horizon)
