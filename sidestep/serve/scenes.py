"""What is drawn of a trajectory, as JSON: where its steps lie in each view, and the values of every step by name."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from sidestep.core.errors import InputError
from sidestep.core.model import Model, Space, Spec, Trajectory, Variable
from sidestep.core.views import Interval, View, default_views, plane_of
from sidestep.labels.schema import Signature
from sidestep.labels.schema import Variable as Signed
from sidestep.models.domains import find_domain
from sidestep.runtime.files import JsonObject

MOST_LINES = 8  # entries of a state that are drawn over time where the model has no views of its own
SIGNIFICANT = 5  # digits of a number
KEPT = 4000  # scenes in memory
MARGIN = 0.08  # of a range, on both sides
OUTER = (0.01, 0.99)  # what lies further out is drawn where it occurs, and does not set the axes of all


@dataclass(frozen=True)
class Column:
    """A variable whose value is told at each step; one that is one of several options has their names."""

    name: str
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Points:
    """Where each step lies in one view."""

    x: tuple[float, ...]
    y: tuple[float, ...]


@dataclass(frozen=True)
class Scene:
    """One trajectory, ready to be drawn and told."""

    trajectory: int
    length: int
    views: tuple[Points, ...]
    state: tuple[tuple[float, ...], ...]  # for each column its value at every step
    action: tuple[tuple[float, ...], ...]
    reward: tuple[float, ...]

    @cached_property
    def as_json(self) -> JsonObject:
        """Made once, since a scene is sent many times."""
        return {
            "trajectory": self.trajectory,
            "length": self.length,
            "views": [{"x": list(one.x), "y": list(one.y)} for one in self.views],
            "state": [list(column) for column in self.state],
            "action": [list(column) for column in self.action],
            "reward": list(self.reward),
        }


class Drawing:
    """How trajectories of one model are drawn: the frames of its views, and the names of what is told in words."""

    def __init__(self, signature: Signature, model: Model | None = None, plane: str = "") -> None:
        spec = model.spec if model else spec_of(signature)
        self.views = _views(spec, model, plane)
        self.frames = tuple(view.frame for view in self.views)
        self.state, self.action = _columns(signature.state), _columns(signature.action)
        self._state, self._action = signature.state, signature.action

    def fit(self, sample: Trajectory) -> None:
        """Give views without a range one that holds these trajectories, so that all are drawn on the same axes."""
        frames = []
        real = np.arange(sample.states.shape[1])[None, :] < np.asarray(sample.length)[:, None]
        for view, frame in zip(self.views, self.frames, strict=True):
            if frame.kind == "map" or not len(sample):
                frames.append(frame)
                continue
            x, y = (np.asarray(part)[real] for part in view.points(sample))
            also = [value for part in (frame.band,) if part for value in (part.low, part.high)]
            also += [] if frame.limit is None else [frame.limit]
            x_range = frame.x_range or _range(x, exact=frame.kind == "time")
            frames.append(replace(frame, x_range=x_range, y_range=frame.y_range or _range(np.append(y, also))))
        self.frames = tuple(frames)

    def scenes(self, ids: Sequence[int], trajectories: Trajectory) -> list[Scene]:
        """The scenes of these trajectories, whose numbers in the store are `ids`."""
        points = [view.points(trajectories) for view in self.views]
        found = []
        for row, trajectory in enumerate(ids):
            steps = int(trajectories.length[row])
            found.append(
                Scene(
                    trajectory=int(trajectory),
                    length=steps,
                    views=tuple(Points(shorten(x[row, :steps]), shorten(y[row, :steps])) for x, y in points),
                    state=_told(np.asarray(trajectories.states)[row, :steps], self._state),
                    action=_told(np.asarray(trajectories.actions)[row, :steps], self._action),
                    reward=shorten(np.asarray(trajectories.rewards)[row, :steps]),
                )
            )
        return found

    def features(self, trajectories: Trajectory, samples: int = 12) -> np.ndarray:
        """(trajectory, feature): the path in every view at some moments, scaled to its frame; to find those alike."""
        parts = []
        for view, frame in zip(self.views, self.frames, strict=True):
            for values, span in zip(view.points(trajectories), (frame.x_range, frame.y_range), strict=True):
                rows = [
                    row[np.linspace(0, steps - 1, samples).round().astype(int)]
                    for row, steps in zip(np.asarray(values), np.asarray(trajectories.length).tolist(), strict=True)
                ]
                parts.append(np.stack(rows) / ((span.high - span.low) if span else 1.0))
        return np.concatenate(parts, axis=1)


def spec_of(signature: Signature) -> Spec:
    """What a store knows of its model's spec."""
    state, action = (Space(tuple(_variable(one) for one in part)) for part in (signature.state, signature.action))
    return Spec(signature.name, state, action, signature.horizon)


def _variable(signed: Signed) -> Variable:
    labels = () if signed.names == (signed.name,) else _options(signed)
    return Variable(signed.name, signed.kind, len(signed.names), labels=labels)  # type: ignore[arg-type]  # checked there


def _options(signed: Signed) -> tuple[str, ...]:
    """What stands in brackets behind the variable's name."""
    return tuple(name.removeprefix(f"{signed.name}[").removesuffix("]") for name in signed.names)


def _views(spec: Spec, model: Model | None, plane: str) -> list[View]:
    if not plane:
        domain = find_domain(spec.family)
        # Of a model without views of its own, the page shows more than a report has room for.
        return (domain.views(model) if domain and model else []) or default_views(spec, MOST_LINES)
    names = [name.strip() for name in plane.split(",")]
    if len(names) != 2 or not set(names) <= set(spec.state.names):
        raise InputError(
            f"expected two entries of the state, as x,y, of {', '.join(spec.state.names[:20])}",
            place=f"--plane {plane}",
        )
    rest = [view for view in default_views(spec, MOST_LINES) if view.frame.y_label not in names]
    return [plane_of(spec, *names), *(view for view in rest if view.frame.kind == "time")]


def _columns(variables: Sequence[Signed]) -> tuple[Column, ...]:
    found: list[Column] = []
    for one in variables:
        if one.kind == "one-hot":
            found.append(Column(one.name, _options(one)))
        else:
            found += [Column(name, ("no", "yes") if one.kind == "bool" else ()) for name in one.names]
    return tuple(found)


def _told(numbers: np.ndarray, variables: Sequence[Signed]) -> tuple[tuple[float, ...], ...]:
    """The columns of (time, entry) numbers, a one-hot variable as the place of its 1."""
    found: list[tuple[float, ...]] = []
    start = 0
    for one in variables:
        part = numbers[:, start : start + len(one.names)]
        start += len(one.names)
        found += [shorten(part.argmax(axis=1))] if one.kind == "one-hot" else [shorten(column) for column in part.T]
    return tuple(found)


def shorten(values: np.ndarray) -> tuple[float, ...]:
    return tuple(float(f"{value:.{SIGNIFICANT}g}") for value in np.asarray(values, float).tolist())


def _range(values: np.ndarray, exact: bool = False) -> Interval:
    """From the lowest to the highest; a few that lie far out do not make all others small."""
    low, high = (float(end) for end in ((values.min(), values.max()) if exact else np.quantile(values, OUTER)))
    if exact and high > low:
        return Interval(low, high)
    room = MARGIN * (high - low) or max(abs(high), 1.0) * MARGIN
    return Interval(low - room, high + room)
