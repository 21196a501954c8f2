"""A search for the counted event that explains labels best: a box, or two, over the features of a step.

The search is of hard events, in plain NumPy: every interval of every feature, then intervals of further features, each
with every threshold of the count or of the longest run, as in beam search for rules. What it finds is where the
gradient begins; it needs no gradient itself, so it is not led astray where a soft event is flat.

A label says which severities were reached, and a mark when. An event, its statistic and a threshold say the same; they
are compared severity by severity. With a share q of wrong answers among N, the likelihood of the labels is
N (q log q + (1 - q) log(1 - q)), and each side of a box has to earn its own price.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

Statistic = Literal["count", "run", "share"]

GRIDS = (10, 24)  # quantiles of a feature at which a first search sets its sides, and another one
SEARCHED, SEARCHED_STEPS = 600, 60_000  # labels, and steps, that a search looks at; what it finds is refined on all
FINE = 24  # values of a side that the refinement tries
BEAM = 4
DERIVED = 10  # derived features that are kept after the first look
MOST_FEATURES = 3  # of one box
ENOUGH = 0.003  # share of wrong answers up to which no second box is looked for
NEAR = 2  # steps by which a mark may be off
NEAR_COST, FAR_COST = 0.3, 0.7  # of a mark that is off by no more, or by more, in wrong answers
AROUND = (-NEAR - 1, -1, 0, NEAR)  # steps, relative to a mark, at which the statistic is read


class Interval(NamedTuple):
    """A feature between two values."""

    feature: int
    low: float
    high: float

    @property
    def sides(self) -> int:
        return int(self.low > -np.inf) + int(self.high < np.inf)


Box = tuple[Interval, ...]


@dataclass(frozen=True)
class Found:
    """An event, a union of boxes, with the thresholds of its statistic at which severities are reached."""

    boxes: tuple[Box, ...]
    statistic: Statistic
    thresholds: tuple[int, ...]
    wrong: float  # answers, of `answers`
    answers: int
    score: float  # penalised log-likelihood

    @property
    def sides(self) -> int:
        return sum(interval.sides for box in self.boxes for interval in box)


@dataclass(frozen=True, eq=False)
class Told:
    """Labels as the search sees them."""

    features: Float[np.ndarray, "batch time feature"]
    mask: Bool[np.ndarray, "batch time"]
    reached: Bool[np.ndarray, "batch level"]
    marks: Int[np.ndarray, "batch level"]  # -1 where there is none
    prices: Float[np.ndarray, " feature"]  # of a side, in nats
    grid: int = GRIDS[0]

    def part(self, count: int) -> "Told":
        """Some of the labels, from the first to the last."""
        rows = np.unique(np.linspace(0, len(self.mask) - 1, min(count, len(self.mask))).astype(int))
        return replace(
            self, features=self.features[rows], mask=self.mask[rows], reached=self.reached[rows], marks=self.marks[rows]
        )

    @property
    def answers(self) -> int:
        return self.reached.size

    @cached_property
    def cuts(self) -> list[Float[np.ndarray, " cut"]]:
        """Quantiles of each feature."""
        shares = np.linspace(0.0, 1.0, self.grid + 2)[1:-1]
        return [np.unique(column) for column in np.quantile(self.features[self.mask], shares, axis=0).T]

    def inside(self, boxes: tuple[Box, ...]) -> Bool[np.ndarray, "batch time"]:
        """Where the event happens."""
        event = np.zeros(self.mask.shape, bool)
        for box in boxes:
            own = self.mask.copy()
            for feature, low, high in box:
                own &= (self.features[..., feature] >= low) & (self.features[..., feature] <= high)
            event |= own
        return event

    def marked(self, level: int) -> Int[np.ndarray, " row"]:
        """Rows with a mark of this level."""
        return np.flatnonzero(self.reached[:, level] & (self.marks[:, level] >= 0))

    def moments(self) -> Int[np.ndarray, "reading batch"]:
        """The steps whose statistic decides: the last one, and for each level those around its mark."""
        last = self.mask.shape[1] - 1
        around = [self.marks[:, level] + offset for level in range(self.marks.shape[1]) for offset in AROUND]
        return np.stack([np.full(len(self.marks), last), *(np.minimum(at, last) for at in around)])


def search(
    told: Told,
    statistic: Statistic,
    limit: int,
    entries: int,
    features: Sequence[int],
    earlier: tuple[Box, ...] = (),
) -> Found:
    """The best event for this statistic, over these features, of which the first `entries` are bare entries.

    It starts from the boxes that explained earlier labels, if there are any, and from nothing, with coarse sides and
    with finer ones: the search is greedy, and where one start fails another may not.
    """
    found: list[Found] = []
    if earlier:
        wrong, thresholds = _judge(told, _read(told, told.inside(earlier)[None], statistic), limit)
        found.append(refined(told, _found(told, earlier, statistic, float(wrong[0]), thresholds[0]), limit))
    for grid in GRIDS:
        if found and found[-1].wrong <= ENOUGH * found[-1].answers:
            break
        some = replace(told.part(min(SEARCHED, max(SEARCHED_STEPS // told.mask.shape[1], 100))), grid=grid)
        new = _search(some, statistic, limit, entries, features)
        if len(some.mask) < len(told.mask):
            wrong, thresholds = _judge(told, _read(told, told.inside(new.boxes)[None], statistic), limit)
            new = refined(told, _found(told, new.boxes, statistic, float(wrong[0]), thresholds[0]), limit)
        found.append(new)
    return max(found, key=lambda one: one.score)


def _search(told: Told, statistic: Statistic, limit: int, entries: int, features: Sequence[int]) -> Found:
    """One search from nothing.

    Beam search is greedy: a derived feature that says most on its own may hide two entries that say all together. So
    one search looks at entries alone, and one at all features; of derived ones at those that say something alone.
    """
    first = sorted(_grown(told, statistic, limit, features, (), ()), key=lambda one: -one.score)
    bare = [one for one in first if one.boxes[0][0].feature < entries]
    derived = [one.boxes[0][0].feature for one in _distinct(first) if one.boxes[0][0].feature >= entries]
    kept = [feature for feature in features if feature < entries]
    found = _with_second(told, statistic, limit, kept, bare)
    if found.wrong > ENOUGH * found.answers:
        other = _with_second(told, statistic, limit, [*kept, *derived[:DERIVED]], first)
        found = max(found, other, key=lambda one: one.score)
    return found


def _with_second(
    told: Told, statistic: Statistic, limit: int, features: Sequence[int], first: Sequence[Found]
) -> Found:
    """The best box, and where it leaves answers wrong, with the best second one if that pays."""
    found = refined(told, _best_box(told, statistic, limit, features, (), first), limit)
    if found.wrong > ENOUGH * found.answers:
        again = list(_grown(told, statistic, limit, features, found.boxes, ()))
        second = _best_box(told, statistic, limit, features, found.boxes, again)
        if second.score > found.score:
            second = refined(told, second, limit)
            found = second if second.score > found.score else found
    return found


def _best_box(
    told: Told,
    statistic: Statistic,
    limit: int,
    features: Sequence[int],
    others: tuple[Box, ...],
    grown: Sequence[Found],
) -> Found:
    """The box which, beside the others, explains most: a beam search that adds a feature at a time to the first."""
    best: Found | None = None
    for _ in range(MOST_FEATURES):
        beam = _distinct(sorted(grown, key=lambda one: -one.score))[:BEAM]
        if best is not None and beam[0].score <= best.score:
            break
        beam = [refined(told, one, limit, passes=1) for one in beam]
        best = max(beam, key=lambda one: one.score)
        if best.wrong <= ENOUGH * best.answers:
            break
        grown = [one for before in beam for one in _grown(told, statistic, limit, features, others, before.boxes[-1])]
        if not grown:
            break
    assert best is not None
    return best


def _grown(
    told: Told, statistic: Statistic, limit: int, features: Sequence[int], others: tuple[Box, ...], box: Box
) -> Iterator[Found]:
    """The box with one more interval, the best of each feature."""
    base = told.inside(others)
    within = told.inside((box,)) if box else told.mask
    used = {interval.feature for interval in box}
    fixed = _price(told, (*others, box))
    for feature in features:
        if feature in used:
            continue
        values = told.features[..., feature]
        intervals, readings = _read_intervals(told, base, within, values, told.cuts[feature], statistic)
        wrong, thresholds = _judge(told, readings, limit)
        sides = np.isfinite(intervals).sum(axis=1)
        scores = _likelihood(wrong, told.answers) - fixed - told.prices[feature] * sides
        best = int(np.argmax(scores))
        boxes = (*others, (*box, Interval(int(feature), *intervals[best])))
        yield _found(told, boxes, statistic, wrong[best], thresholds[best])


def _read_intervals(
    told: Told, base: np.ndarray, within: np.ndarray, values: np.ndarray, cuts: np.ndarray, statistic: Statistic
) -> tuple[list[tuple[float, float]], Int[np.ndarray, "candidate reading batch"]]:
    """Every interval between cuts, one end of it may be open, and the readings of its event.

    The count within an interval is the difference of two counts, above its one end and above its other.
    """
    edges = [*cuts.tolist(), np.inf]
    pairs = [(i, j) for i in range(-1, len(cuts)) for j in range(i + 1, len(edges)) if (i, j) != (-1, len(cuts))]
    intervals = [(-np.inf if i < 0 else edges[i], edges[j]) for i, j in pairs]
    free = within & ~base
    if statistic != "run":
        above = np.stack([free, *(free & (values > cut) for cut in cuts), np.zeros_like(free)])
        counted = _read(told, above, statistic)
        already = _read(told, base[None], statistic)
        return intervals, already + np.stack([counted[i + 1] - counted[j + 1] for i, j in pairs])
    bins = np.searchsorted(cuts, values)
    lows, highs = (np.array(ends, np.int8)[:, None, None] for ends in zip(*pairs, strict=True))
    events = base[None] | free[None] & (bins[None] > lows) & (bins[None] <= highs)
    return intervals, _read(told, events, statistic)


def _distinct(found: list[Found]) -> list[Found]:
    """The first of those that look at the same features."""
    kept: dict[frozenset[int], Found] = {}
    for one in found:
        kept.setdefault(frozenset(interval.feature for interval in one.boxes[-1]), one)
    return list(kept.values())


def _found(told: Told, boxes: tuple[Box, ...], statistic: Statistic, wrong: float, thresholds: np.ndarray) -> Found:
    score = float(_likelihood(np.asarray(wrong), told.answers)) - _price(told, boxes)
    return Found(boxes, statistic, tuple(int(c) for c in thresholds), float(wrong), told.answers, score)


def _price(told: Told, boxes: tuple[Box, ...]) -> float:
    return float(sum(told.prices[interval.feature] * interval.sides for box in boxes for interval in box))


def _likelihood(wrong: Float[np.ndarray, "*shape"], answers: int) -> Float[np.ndarray, "*shape"]:
    """N (q log q + (1 - q) log(1 - q)) at the share q of wrong answers, half of one being imagined."""
    q = np.clip((wrong + 0.5) / (answers + 1.0), 1e-9, 0.5)
    return np.asarray(answers * (q * np.log(q) + (1 - q) * np.log1p(-q)))


def running(events: Bool[np.ndarray, "*batch time"], statistic: Statistic) -> Int[np.ndarray, " time *batch"]:
    """The statistic of the steps so far, at each step."""
    by_step = np.moveaxis(events, -1, 0)
    found = np.empty(by_step.shape, np.int16)
    now, most = np.zeros(by_step.shape[1:], np.int16), np.zeros(by_step.shape[1:], np.int16)
    for step, event in enumerate(by_step):
        if statistic == "run":
            now = (now + 1) * event
            most = np.maximum(most, now)
        else:
            most = most + event
        found[step] = most
    return found


def _read(told: Told, events: Bool[np.ndarray, "candidate batch time"], statistic: Statistic) -> np.ndarray:
    """The statistic of each candidate at the moments that decide, (candidate, reading, batch)."""
    so_far = running(events, statistic)
    moments = told.moments()
    rows = np.broadcast_to(np.arange(moments.shape[1])[None], moments.shape)
    read = so_far[np.maximum(moments, 0), :, rows]  # (reading, batch, candidate)
    return np.where(moments[..., None] < 0, 0, read).transpose(2, 0, 1)


def _judge(
    told: Told, readings: Int[np.ndarray, "candidate reading batch"], limit: int
) -> tuple[Float[np.ndarray, " candidate"], Int[np.ndarray, "candidate level"]]:
    """(wrong answers, best thresholds) of each candidate.

    As a function of the threshold c, the cost of a marked row is a staircase: a mark that is far off, near, exact,
    near, far off again, and from the final value on one that never comes.
    """
    final, wrong = readings[:, 0], []
    for level in range(told.reached.shape[1]):
        marked = told.marked(level)
        plain = np.setdiff1d(np.flatnonzero(told.reached[:, level]), marked)
        never = np.flatnonzero(~told.reached[:, level])
        cost = _below(final[:, plain], limit) + len(never) - _below(final[:, never], limit)
        if len(marked):
            around = readings[:, 1 + level * len(AROUND) : 1 + (level + 1) * len(AROUND), marked]
            steps = (NEAR_COST - FAR_COST, -NEAR_COST, NEAR_COST, FAR_COST - NEAR_COST)
            cost = cost + FAR_COST * len(marked) + (1.0 - FAR_COST) * _below(final[:, marked], limit)
            for k, step in enumerate(steps):
                cost = cost + step * _below(around[:, k], limit)
        wrong.append(cost)
    return _ordered(np.stack(wrong, axis=1))


def _below(readings: Int[np.ndarray, "candidate row"], limit: int) -> Float[np.ndarray, "candidate threshold"]:
    """How many readings of each candidate are below each of the thresholds 1, ..., limit."""
    candidates = len(readings)
    bins = np.minimum(readings, limit) + (limit + 1) * np.arange(candidates)[:, None]
    counts = np.bincount(bins.ravel(), minlength=candidates * (limit + 1)).reshape(candidates, limit + 1)
    return np.cumsum(counts[:, :limit], axis=1).astype(float)


def _ordered(
    wrong: Float[np.ndarray, "candidate level threshold"],
) -> tuple[Float[np.ndarray, " candidate"], Int[np.ndarray, "candidate level"]]:
    """The fewest wrong answers with thresholds that rise with the severity: a dynamic program over the levels."""
    levels, limit = wrong.shape[1:]
    total, choices = wrong[:, 0], []
    for level in range(1, levels):
        best = np.minimum.accumulate(total, axis=1)
        where = np.maximum.accumulate(np.where(total <= best, np.arange(limit)[None], 0), axis=1)
        choices.append(where)
        total = wrong[:, level] + best
    # Of equally good thresholds the middle one, since nobody has seen the others.
    equal = np.isclose(total, total.min(axis=1, keepdims=True))
    pick = np.argmax(equal, axis=1)
    least = np.take_along_axis(total, pick[:, None], axis=1)[:, 0]
    picks = [pick]
    for where in reversed(choices):
        pick = np.take_along_axis(where, pick[:, None], axis=1)[:, 0]
        picks.append(pick)
    return least, np.stack(picks[::-1], axis=1) + 1


def refined(told: Told, found: Found, limit: int, passes: int = 3) -> Found:
    """Each side in turn at the best of many values near it; among equally good ones in the middle."""
    for turn in range(passes):
        before = found.score
        for b in range(len(found.boxes)):
            for i in reversed(range(len(found.boxes[b]))):
                for side in ("low", "high"):
                    if i < len(found.boxes[b]) and np.isfinite(getattr(found.boxes[b][i], side)):
                        found = _moved(told, found, limit, (b, i), side, turn)
        if turn and found.score <= before:
            break
    return found


def _moved(told: Told, found: Found, limit: int, at: tuple[int, int], side: str, turn: int) -> Found:
    b, i = at
    interval = found.boxes[b][i]
    values = told.features[..., interval.feature]
    choices = _near(values[told.mask], getattr(interval, side), turn)
    moved = [_at(interval, side, choice) for choice in choices]
    boxes = [_with(found.boxes, at, one) for one in moved if one.low < one.high]
    # Without the side at all: it may have become needless.
    bare = _at(interval, side, -np.inf if side == "low" else np.inf)
    if bare.sides or len(found.boxes[b]) > 1:
        boxes.append(_with(found.boxes, at, bare))
    if not boxes:
        return found
    events = np.stack([told.inside(one) for one in boxes])
    wrong, thresholds = _judge(told, _read(told, events, found.statistic), limit)
    judged = [_found(told, one, found.statistic, w, c) for one, w, c in zip(boxes, wrong, thresholds, strict=True)]
    best = max(one.score for one in judged)
    if best < found.score:
        return found
    ties = [k for k, one in enumerate(judged) if one.score >= best - 1e-9]
    return judged[_middle(ties)]


def _with(boxes: tuple[Box, ...], at: tuple[int, int], interval: Interval) -> tuple[Box, ...]:
    """The boxes with this interval in place of another, or without it when it has no side."""
    b, i = at
    box = (*boxes[b][:i], *((interval,) if interval.sides else ()), *boxes[b][i + 1 :])
    return (*boxes[:b], box, *boxes[b + 1 :])


def _at(interval: Interval, side: str, value: float) -> Interval:
    return interval._replace(low=value) if side == "low" else interval._replace(high=value)


def _middle(ties: list[int]) -> int:
    """The middle of the longest stretch of neighbours."""
    stretches = np.split(np.array(ties), np.flatnonzero(np.diff(ties) > 1) + 1)
    longest = max(stretches, key=len)
    return int(longest[len(longest) // 2])


def _near(values: Float[np.ndarray, " step"], now: float, turn: int) -> Float[np.ndarray, " choice"]:
    """Values between which a side may lie, ever closer to where it is."""
    ordered = np.sort(values)
    place = np.searchsorted(ordered, now)
    reach = max(int(len(ordered) * 0.15 / 6**turn), FINE)
    picks = np.unique(np.clip(np.linspace(place - reach, place + reach, FINE).astype(int), 1, len(ordered) - 1))
    return 0.5 * (ordered[picks - 1] + ordered[picks])
