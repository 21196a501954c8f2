"""The grid domains, Boxpushing and Driving, as finite models built from text maps."""

from collections.abc import Callable
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import ClassVar

import numpy as np

from sidestep.model import FinitePart, Gradient, Space, Spec, Variable
from sidestep.models.finite_model import FiniteModel, product_encoding
from sidestep.models.map_text import WALL, Domain, builtin_map, builtin_maps, parse_map, read_map

__all__ = [
    "DOMAINS",
    "PENALTIES",
    "Boxpushing",
    "Driving",
    "Grid",
    "builtin_map",
    "builtin_maps",
    "load_grid",
    "parse_map",
]

PENALTIES = (0, 5, 10)  # of a step without side effect, with a mild one, with a severe one

Way = tuple[int, int]
UP, DOWN, LEFT, RIGHT = (-1, 0), (1, 0), (0, -1), (0, 1)


class Grid(FiniteModel):
    """A finite model over the cells of a map: state (row, column, status), the last status being the absorbing end.

    Every combination has its row in the table, also those that nothing reaches: walls, and ends away from the goal.
    """

    kind: ClassVar[Domain]
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
            name=name or self.kind,
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
            family=self.kind,
        )
        table = FinitePart(successor, probability, reward, start, self.status == end, encoding)
        super().__init__(table, spec, possible=self.on != WALL[self.kind])
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
        blocked = self.surface[target] == WALL[self.kind]
        return np.where(blocked, self.cell, target) * len(self.statuses) + self.status


class Boxpushing(Grid):
    """Fetch the box and bring it to the goal; a loaded agent should not cross fragile ground or holes."""

    kind = "boxpushing"
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


class Driving(Grid):
    """Drive to the goal; one should not go fast through puddles or near pedestrians."""

    kind = "driving"
    statuses = ("driving", "end")
    moves = tuple(f"{way}-{speed}" for way in ("left", "right", "up", "down") for speed in ("slow", "fast"))
    fast = np.array([False, True] * 4)

    def _transitions(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        slides = {LEFT: DOWN, RIGHT: DOWN, UP: RIGHT, DOWN: RIGHT}
        ways = [np.stack([self._after(way), self._after(slide)], axis=1) for way, slide in slides.items()]
        successor = np.stack(ways, axis=1).repeat(2, axis=1)  # each way slow and fast
        probability = np.broadcast_to([0.9, 0.1], successor.shape)
        # Walls block, so no one ever stands on one; the -5 there only completes the table.
        reward = np.where((self.on == "X")[:, None], -5.0, np.where(self.fast, -1.0, -2.0)[None, :])
        return successor, probability, reward

    def _side_effects(self) -> np.ndarray:
        category = (self.status == 0) * (1 * (self.on == "@") + 2 * (self.on == "H"))
        return category[:, None] * self.fast[None, :]


DOMAINS: dict[Domain, Callable[..., Grid]] = {"boxpushing": Boxpushing, "driving": Driving}


def load_grid(path: str | Path | Traversable, **options: object) -> Grid:
    """The model of a `.bp` or `.nav` file; options are those of `Grid`: name, horizon, discount, gradient."""
    rows, kind = read_map(path)
    name = options.pop("name", None) or Path(str(path)).stem
    return DOMAINS[kind]("\n".join(rows), name=name, place=str(path), **options)
