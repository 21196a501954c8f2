"""The learned pattern in words, where it is sharp enough to be said: "mild from 2 steps with x > 2.0 and x < 4.5"."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from sidestep.core.model import Trajectory
from sidestep.safety.base import SafetyModel, predict
from sidestep.safety.boxes import Box, Interval, Statistic, running
from sidestep.safety.counted import CountedEvents
from sidestep.safety.derived import derive, feature_names
from sidestep.safety.families import Families

TRUSTED = 0.8  # weight from which a member speaks for the whole model
SURE = 0.9  # chance of its answer from which the model is sure of it: at the very edge of an event it is not
MOSTLY = 0.5  # share of trajectories on which it must be
AGREED = 0.98  # share of those on which the words must agree with it
DIGITS = 2  # of a bound, below the size of the feature's deviation


@dataclass(frozen=True)
class Pattern:
    """An event, how it is counted, and from how many on it is what."""

    boxes: tuple[Box, ...]
    statistic: Statistic
    thresholds: tuple[int, ...]
    decimals: tuple[int, ...]  # of each feature
    alike: tuple[tuple[int, int], ...]

    def categories(self, trajectory: Trajectory) -> Int[np.ndarray, " batch"]:
        """What the words say of trajectories."""
        states, actions = np.asarray(trajectory.states), np.asarray(trajectory.actions)
        entries = np.where(np.asarray(trajectory.mask)[..., None], np.concatenate([states, actions], axis=-1), 0.0)
        features = np.asarray(derive(jnp.asarray(entries), states.shape[-1], self.alike))
        event = np.zeros(features.shape[:2], bool)
        for box in self.boxes:
            inside = np.asarray(trajectory.mask).copy()
            for feature, low, high in box:
                value = features[..., feature]
                inside &= (value >= self._rounded(low, feature)) & (value <= self._rounded(high, feature))
            event |= inside
        final = running(event, self.statistic)[-1]
        return np.sum(final[:, None] >= np.array(self.thresholds)[None], axis=1)

    def words(self, names: Sequence[str], state_size: int, categories: Sequence[str]) -> str:
        """In one sentence; `names` are those of the entries of state and action."""
        features = feature_names(names, state_size, self.alike)
        steps = "steps running" if self.statistic == "run" else "steps"
        levels = [
            f"{name} from {c} {steps if c > 1 else 'step'}"
            for name, c in zip(categories[1:], self.thresholds, strict=True)
        ]
        places = [
            " and ".join(self._side(interval, features[interval.feature]) for interval in box) for box in self.boxes
        ]
        return f"{', '.join(levels)} with {', or with '.join(places)}"

    def _side(self, interval: Interval, name: str) -> str:
        low, high = (self._text(end, interval.feature) for end in (interval.low, interval.high))
        if np.isfinite(interval.low) and np.isfinite(interval.high):
            return f"{low} < {name} < {high}"
        return f"{name} > {low}" if np.isfinite(interval.low) else f"{name} < {high}"

    def _rounded(self, value: float, feature: int) -> float:
        return round(value, self.decimals[feature]) if np.isfinite(value) else value

    def _text(self, value: float, feature: int) -> str:
        return f"{self._rounded(value, feature) + 0.0:.{self.decimals[feature]}f}"


def learned_pattern(model: SafetyModel, known: Trajectory) -> Pattern | None:
    """The pattern of a safety model that is sharp; None where there is none to be said.

    It is said when one box has the trust, and when the words, rounded as they are, answer as the model itself does on
    those of these trajectories of which it is sure, which are most of them.
    """
    member = _speaker(model)
    pattern = None if member is None else _read(member)
    if pattern is None:
        return None
    chances = predict(model, known)
    sure = chances.max(axis=1) >= SURE
    agreed = (pattern.categories(known) == chances.argmax(axis=1))[sure]
    return pattern if sure.mean() >= MOSTLY and agreed.mean() >= AGREED else None


def _speaker(model: SafetyModel) -> CountedEvents | None:
    if isinstance(model, Families):
        weight, best = model.members_by_weight()[0]
        return best if weight >= TRUSTED and isinstance(best, CountedEvents) else None
    return model if isinstance(model, CountedEvents) else None


def _read(member: CountedEvents) -> Pattern | None:
    """The boxes of a model whose every side looks at one feature."""
    boxes = boxes_of(member)
    thresholds = tuple(int(np.floor(theta)) + 1 for theta in np.asarray(member.thresholds))
    if not boxes or thresholds[-1] > member.limit:
        return None
    deviation = np.asarray(member.features_seen.deviation, float)
    decimals = tuple(int(np.clip(DIGITS - np.floor(np.log10(size)), 0, 6)) for size in deviation)
    return Pattern(boxes, member.statistic, thresholds, decimals, member.alike)


def boxes_of(member: CountedEvents) -> tuple[Box, ...]:
    """The boxes in which the events of a model happen; none where a side looks at several features."""
    seen = member.features_seen
    mean, deviation = np.asarray(seen.mean, float), np.asarray(seen.deviation, float)
    directions = np.asarray(member.directions * member.movable.directions, float)
    offsets = np.asarray(member.offsets, float)
    if member.statistic == "share" or np.any((np.asarray(member.movable.directions) > 0).sum(axis=2) > 1):
        return ()
    boxes: list[Box] = []
    for region, sides in enumerate(directions):
        ends: dict[int, list[float]] = {}
        for side in np.flatnonzero(np.abs(sides).sum(axis=1) > 0):
            feature = int(np.argmax(np.abs(sides[side])))
            slope = sides[side, feature]
            end = mean[feature] - offsets[region, side] * deviation[feature] / slope
            own = ends.setdefault(feature, [-np.inf, np.inf])
            own[0], own[1] = (max(own[0], end), own[1]) if slope > 0 else (own[0], min(own[1], end))
        if ends:
            boxes.append(tuple(Interval(feature, *own) for feature, own in sorted(ends.items())))
    return tuple(boxes)
