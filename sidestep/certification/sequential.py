"""A sequential audit: fresh runs are labelled one after the other, and the audit stops as soon as it is decided.

People's labels are expensive, so nobody should fix their number beforehand. Let c_n be the number of costly runs (those
outside the event of `none>=0.95`) among the first n, and d the constraint's tolerance. The audit certifies P(cost) <= d
at the first n with c_n <= limit[n]. A policy exactly at the tolerance makes c_n a random walk whose every probability
is known, so that the limits come from dynamic programming over

    alive[n, c] = P(c_n = c, and not certified before n)   under P(cost) = d:

limit[n] is the largest c whose alive[n, 0..c] fits into what the error may have spent by n. The chance that a policy
at or above the tolerance is ever certified is then at most alpha, exactly and not by an inequality; it cannot grow by
looking after every label. How the error is spent decides where the labels go:

- 97.5 % of alpha for a run of labels without any cost, (1 - d)^n. Since 0.95^59 = 0.97 * 0.05, 59 of 59 safe runs
  certify 0.95 at 95 %, no more than a fixed number of labels would need.
- 2 % grow with log n up to the last label: with one costly run 169 labels certify 0.95, with two 238, with ten 548.
- 0.25 % for each of the two bounds that can be read while nothing is decided.

The mirror image, the same limits for harmless runs, refuses: a policy within its tolerance is refused with chance
alpha at most. An audit that no further label can bring to a certificate is refused as well. A refusal claims nothing.

Once a constraint is certified after n labels, its bound is the q at which P_q(certified after n labels or fewer) is
99.5 % of alpha: outcomes are ordered by how early they certify. All other bounds are those of the mixture martingale

    M_n(q) = B(1 + c, 1 + n - c) / (q^c (1 - q)^(n - c)),    excluded: all q with M_n(q) >= 1 / alpha,

which by Ville's inequality hold for all n at once. So whatever is shown, at whatever time, holds together with
probability 1 - alpha. Several constraints share alpha, as in `bounds.judge`, and so do the audits of a run: 59 clean
runs certify 0.95 in an audit that has the whole 5 % to itself; a run's first audit has half of it, and takes 73.

**By strata.** Let a premise say that runs are flagged with chance r at most (see `bounds`). P(cost) <= d follows from
P(cost | not flagged) <= (d - r) / (1 - r), which is tested by the same walk over the labelled runs that are not
flagged; P(cost) <= d is tested by all labelled runs as well. Whichever walk is first within its limits certifies.
Valid: r comes from other rollouts than those labelled, so that given r both walks are as above: the runs are
independent, and so are those of them that are not flagged, each costly with chance P(cost | not flagged). The three
errors (that r is wrong, and one for each walk) add up to alpha. A useless safety model leaves the walk over all runs,
with a little more than half of the error: at most 1.2 times the labels of a plain audit where a run promises 95 % or
more (`benchmarks/audits.py`), and 1.25 times where it promises 90 %.

**With annotators that err**, d in both walks is the tolerance of what labels say: d (1 - m), m being the bound on what
they miss. Known cases, hidden among the questions, give m; they are other trajectories, so that given m the walk is as
above again. Tolerances are rounded down, so that few limits need computing.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np

from sidestep.certification.bounds import fewest_rollouts, shares_of, verdict
from sidestep.certification.records import AnnotatorRecord, Premise, Verdict
from sidestep.core.constraints import Constraint
from sidestep.core.errors import InputError

Status = Literal["undecided", "certified", "refused"]

MOST = 2000  # labels after which an audit gives up
WITHOUT_COST, LATER, RUNNING = 0.975, 0.02, 0.0025  # shares of alpha; the last one twice
CERTIFYING = WITHOUT_COST + LATER
# With two walks, or with labels that may be false alarms, a first cost is nothing unusual: more is left for later.
CLEAN_ALL, CLEAN_UNFLAGGED, CLEAN_ERRING = 0.9, 0.75, 0.7


class Limits(NamedTuple):
    """limit[n] for n = 0, 1, ..., most labels; -1 where no count is small enough."""

    costly: np.ndarray  # certified at the first n with so few costly runs
    harmless: np.ndarray  # refused at the first n with so few harmless ones


class Walk(NamedTuple):
    """One way to certify a constraint: at the first n with few enough costly runs among n of its kind."""

    tolerance: float
    alpha: float
    clean: float  # share of alpha for a walk without any cost
    unflagged: bool  # whether it goes over runs that are not flagged, or over all

    def limits(self, most: int) -> Limits:
        return stopping_limits(self.tolerance, self.alpha, most, self.clean)


class Step(NamedTuple):
    """Where a walk stands after the labels of its runs."""

    status: Status
    at: int  # labelled runs, of either kind, when it was decided; all of them while it is not
    counted: int  # runs of its kind among these
    needed: int  # further runs of its kind that certify if none of them is costly


class Reading(NamedTuple):
    """What the labels say of one constraint."""

    status: Status
    used: int  # labels read until it was decided
    needed: int  # further labels that certify it if none of them is costly
    steps: tuple[Step, ...]  # of its walks


@dataclass(frozen=True)
class AuditState:
    """What the labels read so far decide."""

    status: Status
    verdicts: tuple[Verdict, ...]
    used: int  # labels read until it was decided
    needed: int  # further labels that certify if none of them is costly; 0 when it is decided
    counts: tuple[int, ...]  # of each category among the labels used
    seen: tuple[int, ...] = ()  # the same of all runs labelled in their order, those after the decision included
    asked: tuple[int, ...] = ()  # trajectories of the store that need a label
    labels: int = 0  # trajectories of the store behind the labels used; runs that are alike share one
    premises: tuple[Premise, ...] = ()  # with what known cases say of the annotators
    annotators: tuple[AnnotatorRecord, ...] = ()


@dataclass(frozen=True)
class SequentialAudit:
    """An audit of constraints that hold together with `confidence`, by at most `most` labels."""

    constraints: tuple[Constraint, ...]
    confidence: float = 0.95
    most: int = MOST
    premises: tuple[Premise, ...] = ()  # one for each constraint, or none

    def __post_init__(self) -> None:
        for constraint, premise in self._each:
            if constraint.tolerance == 1.0:
                raise InputError(f"'{constraint.text}' is always true; leave it out")
            if not premise.missed and fewest_rollouts(constraint.tolerance, self.alpha, WITHOUT_COST) > self.most:
                raise InputError(f"'{constraint.text}' cannot be certified by {self.most:,} labels; loosen it")

    @property
    def alpha(self) -> float:
        """What each constraint may spend."""
        return (1.0 - self.confidence) / max(len(self.constraints), 1)

    @property
    def _each(self) -> list[tuple[Constraint, Premise]]:
        premises = self.premises or (Premise(),) * len(self.constraints)
        return list(zip(self.constraints, premises, strict=True))

    def read(self, categories: Sequence[int], flags: np.ndarray | None = None) -> AuditState:
        """What these labels, in the order of their runs, decide; those after the decision are not read.

        `flags` (run, constraint) says what the safety model predicts, also of runs that have no label yet.
        """
        labels = np.asarray(categories, int)
        status, used, needed = self.decide(labels, flags)
        labels = labels[:used]
        verdicts = tuple(self._verdict(number, labels, flags) for number in range(len(self.constraints)))
        width = len(self.constraints[0].weights) if self.constraints else 1
        counts = np.bincount(labels, minlength=width)
        return AuditState(status, verdicts, used, needed, tuple(counts.tolist()))

    def decide(self, labels: np.ndarray, flags: np.ndarray | None = None) -> tuple[Status, int, int]:
        """(status, labels read, further labels that certify if all are clean), without the bounds."""
        found = [self.read_one(number, labels, flags) for number in range(len(self.constraints))]
        refusals = [one.used for one in found if one.status == "refused"]
        if refusals:
            return "refused", min(refusals), 0
        if all(one.status == "certified" for one in found):
            return "certified", max((one.used for one in found), default=0), 0
        return "undecided", len(labels), max((one.needed for one in found), default=0)

    def read_one(self, number: int, labels: np.ndarray, flags: np.ndarray | None = None) -> Reading:
        """What the labels say of constraint `number` alone."""
        constraint, premise = self._each[number]
        costly = np.asarray(constraint.cost_weights, bool)[labels[: self.most]]
        flagged = np.zeros(len(costly), bool) if flags is None else flags[:, number]
        walks = walks_of(constraint.tolerance, premise, self.alpha)
        steps = tuple(_walk(walk, costly, flagged, self.most) for walk in walks)
        certified = [step.at for step in steps if step.status == "certified"]
        if certified:
            return Reading("certified", min(certified), 0, steps)
        if all(step.status == "refused" for step in steps):
            return Reading("refused", max((step.at for step in steps), default=0), 0, steps)
        needed = min(step.needed for step in steps if step.status == "undecided")
        return Reading("undecided", len(costly), needed, steps)

    def _verdict(self, number: int, labels: np.ndarray, flags: np.ndarray | None) -> Verdict:
        """The bounds after these labels, of which none came after the decision."""
        constraint, premise = self._each[number]
        reading = self.read_one(number, labels, flags)
        costly = int(np.asarray(constraint.cost_weights)[labels[: reading.used]].sum())
        level = RUNNING * self.alpha / (2 if premise.missed else 1)
        low, high = running_bounds(costly, reading.used, level)
        low, high = premise.least_cost(low), premise.cost(high)
        for walk, step in zip(walks_of(constraint.tolerance, premise, self.alpha), reading.steps, strict=True):
            if step.status == "certified" and step.at == reading.used:
                limits = walk.limits(self.most).costly[: step.counted + 1]
                bound = _solve(lambda q: crossing(q, limits) - CERTIFYING * walk.alpha, 0.0, walk.tolerance)  # noqa: B023
                high = min(high, premise.cost(bound, walk.unflagged))
        return verdict(constraint, costly, reading.used, low, min(high, 1.0))


def walks_of(tolerance: float, premise: Premise, alpha: float) -> tuple[Walk, ...]:
    """The ways to certify a constraint with this tolerance; none where annotators miss too much to certify at all."""
    error = shares_of(premise)
    if not error.flagged and not error.missed:
        return (Walk(tolerance, alpha, WITHOUT_COST, unflagged=False),)
    seen = 1.0 - premise.missed
    clean = (CLEAN_ERRING, CLEAN_ERRING) if error.missed else (CLEAN_ALL, CLEAN_UNFLAGGED)
    walks = [Walk(_rounded(tolerance * seen), alpha * error.all_runs, clean[0], unflagged=False)]
    if error.unflagged and premise.flagged < tolerance:
        rest = (tolerance - premise.flagged) / (1.0 - premise.flagged)
        walks.append(Walk(_rounded(rest * seen), alpha * error.unflagged, clean[1], unflagged=True))
    return tuple(walk for walk in walks if walk.tolerance > 0.0)


def _rounded(tolerance: float) -> float:
    """Down to three digits."""
    if tolerance <= 0.0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(tolerance)) - 2)
    return math.floor(tolerance / unit) * unit


class Crossing(NamedTuple):
    """When walks are first within their limits, or beyond them; more labels than there are where they never are."""

    certified: np.ndarray
    refused: np.ndarray
    own: np.ndarray  # runs of the walk's own after each label
    cost: np.ndarray  # costly ones of these


def cross(walk: Walk, costly: np.ndarray, flagged: np.ndarray, most: int) -> Crossing:
    """One walk, or many of them as rows, over runs of which these are costly and flagged."""
    limits = walk.limits(most)
    own = ~flagged if walk.unflagged else np.ones_like(costly)
    count = np.cumsum(own, axis=-1, dtype=np.int32)
    cost = np.cumsum(costly & own, axis=-1, dtype=np.int32)
    within = (cost <= limits.costly[count]) & (count > 0)
    beyond = (count - cost <= limits.harmless[count]) | (cost > limits.costly[-1])
    return Crossing(_first(within), _first(beyond), count, cost)


def _walk(walk: Walk, costly: np.ndarray, flagged: np.ndarray, most: int) -> Step:
    crossed = cross(walk, costly, flagged[: len(costly)], most)
    at = min(int(crossed.certified), int(crossed.refused), len(costly))
    counted, so_far = (int(crossed.own[at - 1]), int(crossed.cost[at - 1])) if at else (0, 0)
    if at and crossed.certified == at:
        return Step("certified", at, counted, 0)
    limits = walk.limits(most).costly
    fitting = limits >= so_far
    if (at and crossed.refused == at) or not fitting.any():
        return Step("refused", at, counted, 0)
    needed = int(np.argmax(fitting)) - counted
    if walk.unflagged:
        needed = _until(~flagged[len(costly) :], needed)
    return Step("undecided", at, counted, needed)


def _until(own: np.ndarray, wanted: int) -> int:
    """How many further runs hold so many of the walk's own; those that nobody has looked at are taken for its own."""
    seen = np.cumsum(own)
    if len(seen) and seen[-1] >= wanted:
        return int(np.searchsorted(seen, wanted)) + 1
    return len(own) + wanted - (int(seen[-1]) if len(seen) else 0)


@lru_cache(maxsize=2048)
def stopping_limits(tolerance: float, alpha: float, most: int, clean: float = WITHOUT_COST) -> Limits:
    """Where the walk of a policy at the tolerance may be stopped without spending more than alpha on either side.

    A walk without any cost gets the share `clean` of alpha.
    """
    clock = np.arange(1, most + 1)
    least = fewest_rollouts(tolerance, alpha, clean)
    growth = np.log(np.maximum(clock / least, 1.0)) / max(math.log(most / least), 1.0)
    certifying = alpha * (clean + (CERTIFYING - clean) * np.minimum(growth, 1.0))
    refusing = alpha * CERTIFYING * clock / (clock + least)
    return Limits(_spend(tolerance, certifying), _spend(1.0 - tolerance, refusing))


def _spend(chance: float, spending: np.ndarray) -> np.ndarray:
    """The largest limits that a walk with this chance of a count crosses by n with at most `spending[n - 1]`."""
    limits = np.full(len(spending) + 1, -1)
    mean = chance * len(spending)
    beyond = int(mean + 6.0 * math.sqrt(mean) + 10.0)  # counts that no limit reaches, since alpha is below one half
    alive, spent = np.ones(1), 0.0
    for n in range(1, len(limits)):
        alive = _step(alive, chance)[:beyond]
        mass = np.cumsum(alive)
        fitting = int(np.searchsorted(mass, spending[n - 1] - spent, side="right")) - 1
        limits[n] = max(fitting, limits[n - 1])
        spent += float(alive[: limits[n] + 1].sum())
        alive[: limits[n] + 1] = 0.0
    return limits


def crossing(chance: float, limits: np.ndarray) -> float:
    """P(c_n <= limits[n] for some n) of a walk with this chance of a count."""
    alive, crossed = np.ones(1), 0.0
    for limit in limits[1:]:
        alive = _step(alive, chance)
        crossed += float(alive[: limit + 1].sum())
        alive[: limit + 1] = 0.0
    return crossed


def _step(alive: np.ndarray, chance: float) -> np.ndarray:
    after = np.zeros(len(alive) + 1)
    after[:-1] = alive * (1.0 - chance)
    after[1:] += alive * chance
    return after


def running_bounds(costly: int, trials: int, alpha: float) -> tuple[float, float]:
    """Bounds on P(cost), each of which holds for all numbers of trials at once with probability 1 - alpha."""
    from scipy.special import betaln, xlog1py, xlogy  # slow to import

    share = costly / trials if trials else 0.5
    threshold = betaln(1 + costly, 1 + trials - costly) + math.log(alpha)

    def excess(q: float) -> float:  # positive where M_n(q) < 1 / alpha
        return float(xlogy(costly, q) + xlog1py(trials - costly, -q)) - threshold

    low = _solve(excess, 0.0, share) if excess(0.0) < 0 else 0.0
    high = _solve(excess, share, 1.0) if excess(1.0) < 0 else 1.0
    return low, high


def _solve(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a function that changes its sign between low and high is zero."""
    from scipy.optimize import brentq  # slow to import

    return high if function(high) == 0 else float(brentq(function, low, high, xtol=1e-9))


def _first(true: np.ndarray) -> np.ndarray:
    """How many labels were read when it was first true; more than there are when it never was."""
    count = true.shape[-1]
    if not count:
        return np.ones(true.shape[:-1], int)
    return np.where(true.any(axis=-1), np.argmax(true, axis=-1) + 1, count + 1)
