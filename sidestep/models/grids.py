"""The grid domains, Boxpushing and Driving, as finite models built from text maps."""

from collections.abc import Callable
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import ClassVar

import numpy as np

from sidestep.model import FinitePart, Gradient, Space, Spec, Variable
from sidestep.models.finite_model import FiniteModel
from sidestep.models.map_text import SURFACES, WALL, Domain, builtin_map, builtin_maps, find, parse_map, read_map

__all__ = ["DOMAINS", "PENALTIES", "Boxpushing", "Driving", "Grid", "builtin_map", "builtin_maps", "load_grid", "parse_map"]

PENALTIES = (0, 5, 10)  # of a step without side effect, with a mild one, with a severe one

UP, DOWN, LEFT, RIGHT = (-1, 0), (1, 0), (0, -1), (0, 1)


class Grid(FiniteModel):
    """A finite model over the cells of a map.

    State `status * cells + cell`, where the last status is the single absorbing end, which is encoded at the
    goal's cell. Wall cells have states of their own, which nothing reaches: it keeps the encoding a plain product.
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
        rows = self.map = parse_map(text, kind=self.kind, place=place)
        height, width = len(rows), len(rows[0])
        surface = np.array([list(row) for row in rows])
        self.wall = (surface == WALL[self.kind]).ravel()
        self.mild, self.severe = ((surface == character).ravel() for character in SURFACES[self.kind][1:])
        (self.start,), (self.goal,) = ([r * width + c for r, c in find(rows, character)] for character in "SG")

        spec = Spec(
            name=name or self.kind,
            state=Space(
                (
                    Variable("row", "one-hot", height, 0.0, 1.0),
                    Variable("column", "one-hot", width, 0.0, 1.0),
                    Variable("status", "one-hot", len(self.statuses), 0.0, 1.0, labels=self.statuses),
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
        end = (len(self.statuses) - 1) * height * width
        combination = np.arange(end + height * width).reshape(len(self.statuses), height, width)
        index_of = np.minimum(combination, end).transpose(1, 2, 0)
        super().__init__(self._table(end), spec, index_of)

    def _table(self, end: int) -> FinitePart:
        raise NotImplementedError

    def _neighbours(self, direction: tuple[int, int]) -> np.ndarray:
        """The cell that a move in this direction leads to from each cell: itself at a wall or the border."""
        height, width = len(self.map), len(self.map[0])
        rows, columns = np.divmod(np.arange(height * width), width)
        row, column = rows + direction[0], columns + direction[1]
        inside = (0 <= row) & (row < height) & (0 <= column) & (column < width)
        target = np.where(inside, row * width + column, 0)
        return np.where(inside & ~self.wall[target], target, rows * width + columns)

    def _encoding(self, end: int) -> np.ndarray:
        height, width = len(self.map), len(self.map[0])
        status, cell = np.divmod(np.arange(end + 1), height * width)
        cell[end] = self.goal
        row, column = np.divmod(cell, width)
        factors = ((row, height), (column, width), (status, len(self.statuses)))
        return np.concatenate([value[:, None] == np.arange(size) for value, size in factors], axis=1).astype(np.float32)

    def _finish(self, end: int, successor: np.ndarray, probability: np.ndarray, reward: np.ndarray) -> FinitePart:
        """The goal leads to the end whatever is done there; neither costs anything."""
        successor[self.completed], reward[self.completed] = end, 0.0
        indices = np.arange(end + 1)
        return FinitePart(
            successor, probability, reward, (indices == self.start).astype(float), indices == end, self._encoding(end)
        )


class Boxpushing(Grid):
    """Fetch the box and bring it to the goal; a loaded agent should not cross fragile ground or holes."""

    kind = "boxpushing"
    statuses = ("empty", "loaded", "end")
    moves = ("up", "down", "left", "right", "pick")

    def _table(self, end: int) -> FinitePart:
        cells = len(self.wall)
        ((box_row, box_column),) = find(self.map, "B")
        box = box_row * len(self.map[0]) + box_column
        states, loaded = np.arange(end + 1), np.arange(end + 1) // cells == 1
        self.completed = (states == cells + self.goal) | (states == end)

        # Outcomes: the intended way, then the slides to both sides.
        successor = np.repeat(states[:, None, None], 3, axis=2).repeat(5, axis=1)
        for action, way in enumerate((UP, DOWN, LEFT, RIGHT)):
            sides = (LEFT, RIGHT) if way in (UP, DOWN) else (UP, DOWN)
            for outcome, direction in enumerate((way, *sides)):
                step = self._neighbours(direction)
                successor[:end, action, outcome] = np.concatenate([step, cells + step])
        successor[box, 4] = cells + box

        probability = np.broadcast_to([[[0.95, 0.025, 0.025]] * 4 + [[1.0, 0.0, 0.0]]], successor.shape).copy()
        self.side_effect = np.zeros((end + 1, 5), int)
        cell = np.where(states < end, states % cells, self.goal)
        self.side_effect[loaded & self.mild[cell]] = 1
        self.side_effect[loaded & self.severe[cell]] = 2
        return self._finish(end, successor, probability, np.full((end + 1, 5), -1.0))


class Driving(Grid):
    """Drive to the goal; one should not go fast through puddles or near pedestrians."""

    kind = "driving"
    statuses = ("driving", "end")
    moves = tuple(f"{way}-{speed}" for way in ("left", "right", "up", "down") for speed in ("slow", "fast"))

    def _table(self, end: int) -> FinitePart:
        states = np.arange(end + 1)
        self.completed = (states == self.goal) | (states == end)

        # Outcomes: the intended way, then the slide; each way slow and fast.
        successor = np.repeat(states[:, None, None], 2, axis=2).repeat(8, axis=1)
        for pair, way in enumerate((LEFT, RIGHT, UP, DOWN)):
            slide = DOWN if way in (LEFT, RIGHT) else RIGHT
            for outcome, direction in enumerate((way, slide)):
                successor[:end, 2 * pair : 2 * pair + 2, outcome] = self._neighbours(direction)[:, None]

        probability = np.broadcast_to([0.9, 0.1], successor.shape).copy()
        fast = np.arange(8) % 2 == 1
        reward = np.where(fast, -1.0, -2.0)[None, :].repeat(end + 1, axis=0)
        # Walls block, so no one ever stands on one; the reward there only completes the table.
        reward[:end][self.wall] = -5.0
        self.side_effect = np.zeros((end + 1, 8), int)
        self.side_effect[:end][np.ix_(self.mild, fast)] = 1
        self.side_effect[:end][np.ix_(self.severe, fast)] = 2
        return self._finish(end, successor, probability, reward)


DOMAINS: dict[Domain, Callable[..., Grid]] = {"boxpushing": Boxpushing, "driving": Driving}


def load_grid(path: str | Path | Traversable, **options: object) -> Grid:
    """The model of a `.bp` or `.nav` file; options are those of `Grid`: name, horizon, discount, gradient."""
    rows, kind = read_map(path)
    name = options.pop("name", None) or Path(str(path)).stem
    return DOMAINS[kind]("\n".join(rows), name=name, place=str(path), **options)
