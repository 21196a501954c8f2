"""What the owner sees of the work: how far it is, how fast it goes, how far people agree, what is still needed."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import combinations, pairwise
from statistics import median

import numpy as np

from sidestep.certification.sequential import SequentialAudit, stopping_limits
from sidestep.core.constraints import Constraint
from sidestep.labels.votes import Label, krippendorff_alpha
from sidestep.serve.book import Check, Invited
from sidestep.serve.desk import Desk, Progress

LONGEST_PAUSE = 300.0  # seconds between two labels that still count as work
RECENT = 100  # labels from which a person's speed is told
MOST_PAIRS = 60  # of annotators, those who share most
MOST_DISAGREEMENTS = 60  # that are listed
FURTHER_COSTLY = (1, 2)  # costly runs, beside those there are, for which the need of labels is told


@dataclass(frozen=True)
class PersonLine:
    """One person's work."""

    name: str
    role: str
    labels: int
    cannot_tell: int
    seconds: float | None  # median time between two labels
    last: str  # time of the last label
    links: int
    expires: float | None
    repeats: int  # questions answered twice
    repeats_same: int
    planted: int  # questions whose answer is known
    planted_right: int


@dataclass(frozen=True)
class PairLine:
    first: str
    second: str
    trajectories: int
    same: float
    alpha: float | None


@dataclass(frozen=True)
class Agreeing:
    """How far people agree on what several of them labelled."""

    trajectories: int
    unanimous: float | None
    alpha: float | None
    categories: dict[str, float | None]  # Krippendorff's alpha of "this category or not"
    pairs: tuple[PairLine, ...]


@dataclass(frozen=True)
class Disagreement:
    """A trajectory on which people disagree, and who says what."""

    trajectory: int
    votes: dict[str, int]
    settled: bool  # the owner has said what counts


@dataclass(frozen=True)
class Need:
    """Labels until the audit can be decided: if all further ones are clean, and if one or two are not."""

    at_best: int
    with_costly: tuple[int, ...]  # for 1, 2 further costly runs; fewer where the audit would be refused first
    most: int  # after which it is decided whatever the labels say
    given: int


@dataclass(frozen=True)
class Overview:
    people: tuple[PersonLine, ...]
    agreement: Agreeing
    disagreements: tuple[Disagreement, ...]
    counts: dict[str, int]
    questions: int
    answered: int
    overlap: int


@dataclass(frozen=True)
class Work:
    """All that was done so far, as it is at one moment, so that another thread can read it."""

    owner: str
    categories: tuple[str, ...]
    votes: dict[int, dict[str, Label]]  # the last label of each person, the newest last
    own: dict[str, list[Label]]  # the same by person
    checks: tuple[Check, ...]
    people: tuple[Invited, ...]
    progress: Progress
    overlap: int
    labels: int  # of the log

    @classmethod
    def of(cls, desk: Desk, owner: str) -> "Work":
        desk.read_log()
        invited = desk.book.invited()
        known = {person.name for person in invited}
        others = [Invited(name, "annotator", 0, None) for name in desk.own if name not in known]  # imported, or a rule
        return cls(
            owner=owner,
            categories=desk.store.scale.categories,
            votes={trajectory: dict(votes) for trajectory, votes in desk.votes.items()},
            own={name: list(labels.values()) for name, labels in desk.own.items()},
            checks=tuple(desk.book.checks()),
            people=(*invited, *others),
            progress=desk.progress(owner),
            overlap=desk.rules.overlap,
            labels=len(desk.log),
        )


class Overviews:
    """The last overview, as long as nothing has changed."""

    def __init__(self) -> None:
        self._last: tuple[object, Overview] | None = None

    def of(self, work: Work) -> Overview:
        version = (work.labels, work.checks, work.people, work.progress)
        if self._last is None or self._last[0] != version:
            self._last = (version, overview(work))
        return self._last[1]


def overview(work: Work) -> Overview:
    counts = dict.fromkeys(work.categories, 0)
    for votes in work.votes.values():
        said = [label for label in votes.values() if label.category is not None]
        if said and said[-1].category is not None:
            counts[work.categories[said[-1].category]] += 1
    return Overview(
        people=tuple(_person(person, work) for person in work.people),
        agreement=agreeing(work),
        disagreements=tuple(disagreements(work)),
        counts=counts,
        questions=work.progress.questions,
        answered=work.progress.answered,
        overlap=work.overlap,
    )


def _person(person: Invited, work: Work) -> PersonLine:
    labels = work.own.get(person.name, [])
    own = [check for check in work.checks if check.person == person.name and check.given is not None]
    repeats = [check for check in own if check.kind == "repeat"]
    planted = [check for check in own if check.kind == "planted"]
    return PersonLine(
        name=person.name,
        role=person.role,
        labels=sum(label.category is not None for label in labels),
        cannot_tell=sum(label.category is None for label in labels),
        seconds=speed([label.time for label in labels[-RECENT:]]),
        last=labels[-1].time if labels else "",
        links=person.links,
        expires=person.expires,
        repeats=len(repeats),
        repeats_same=sum(check.given == check.expected for check in repeats),
        planted=len(planted),
        planted_right=sum(check.given == check.expected for check in planted),
    )


def speed(times: Sequence[str]) -> float | None:
    """Median seconds from one label to the next, breaks left out."""
    moments = sorted(moment for moment in map(_moment, times) if moment is not None)
    gaps = [later - earlier for earlier, later in pairwise(moments)]
    at_work = [gap for gap in gaps if gap <= LONGEST_PAUSE]
    return median(at_work) if at_work else None


def _moment(time: str) -> float | None:
    try:
        return datetime.fromisoformat(time).timestamp()
    except ValueError:  # a file that was imported may say it in other ways
        return None


def agreeing(work: Work) -> Agreeing:
    """Agreement over all, of each category against the rest, and of each pair of people."""
    size = len(work.categories)
    said = [
        {label.annotator: label.category for label in votes.values() if label.category is not None}
        for votes in work.votes.values()
        if len(votes) > 1
    ]
    contested = [votes for votes in said if len(votes) > 1]
    counts = _counts([list(votes.values()) for votes in contested], size)
    total = counts.sum(axis=1, keepdims=True)
    by_category = {
        name: _number(krippendorff_alpha(np.hstack([total - counts[:, [k]], counts[:, [k]]])))
        for k, name in enumerate(work.categories)
    }
    unanimous = float(np.mean(counts.max(axis=1) == total[:, 0])) if contested else None
    pairs = tuple(_pairs(contested, size))
    return Agreeing(len(contested), unanimous, _number(krippendorff_alpha(counts)), by_category, pairs)


def _pairs(contested: Sequence[Mapping[str, int]], size: int) -> Iterator[PairLine]:
    """Those who share most."""
    shared: defaultdict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for votes in contested:
        for first, second in combinations(sorted(votes), 2):
            shared[first, second].append((votes[first], votes[second]))
    for (first, second), both in sorted(shared.items(), key=lambda one: -len(one[1]))[:MOST_PAIRS]:
        same = float(np.mean([one == other for one, other in both]))
        yield PairLine(first, second, len(both), same, _number(krippendorff_alpha(_counts(both, size))))


def _counts(said: Sequence[Sequence[int]], size: int) -> np.ndarray:
    """(trajectory, category): how many said so."""
    counts = np.zeros((len(said), size))
    rows = np.repeat(np.arange(len(said)), [len(one) for one in said])
    np.add.at(counts, (rows, np.array([category for one in said for category in one], int)), 1)
    return counts


def disagreements(work: Work) -> list[Disagreement]:
    """Trajectories on which the people do not all say the same, those that nobody settled first."""
    found = []
    for trajectory, votes in work.votes.items():
        said = {name: label.category for name, label in votes.items() if label.category is not None}
        if len(set(said.values())) > 1:
            found.append(Disagreement(trajectory, said, settled=work.owner in said))
    return sorted(found, key=lambda one: (one.settled, one.trajectory))[:MOST_DISAGREEMENTS]


def need(constraints: tuple[Constraint, ...], confidence: float, most: int, given: int, at_best: int) -> Need:
    """From where an audit stands: `given` of its runs are labelled, and `at_best` more decide it if all are clean. With
    both 0 it has not begun."""
    audit = SequentialAudit(constraints, confidence, most)
    worst = min(constraints, key=lambda constraint: constraint.tolerance)
    limits = stopping_limits(worst.tolerance, audit.alpha, most).costly
    at_best = at_best or int(np.argmax(limits >= 0))
    costly = int(limits[min(given + at_best, most)])
    further = [
        int(np.argmax(limits >= costly + more)) - given for more in FURTHER_COSTLY if limits[-1] >= costly + more
    ]
    return Need(at_best, tuple(further), most - given, given)


def _number(value: float) -> float | None:
    return value if np.isfinite(value) else None
