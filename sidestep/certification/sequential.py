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
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, NamedTuple

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from sidestep.certification.bounds import fewest_rollouts
from sidestep.certification.records import Verdict
from sidestep.core.constraints import Constraint
from sidestep.core.errors import InputError
from sidestep.core.model import Model, Policy, require_allowed, require_finite, rollout
from sidestep.labels.store import Store

Status = Literal["undecided", "certified", "refused"]

SOURCE = "audit"  # what the store says of the policy whose runs these are
BATCH = 100  # runs rolled out at once
MOST = 2000  # labels after which an audit gives up
WITHOUT_COST, LATER, RUNNING = 0.975, 0.02, 0.0025  # shares of alpha; the last one twice


class Limits(NamedTuple):
    """limit[n] for n = 0, 1, ..., most labels; -1 where no count is small enough."""

    costly: np.ndarray  # certified at the first n with so few costly runs
    harmless: np.ndarray  # refused at the first n with so few harmless ones


class Reading(NamedTuple):
    """What the labels say of one constraint."""

    status: Status
    used: int  # labels read until it was decided
    needed: int  # further labels that certify it if none of them is costly
    verdict: Verdict


@dataclass(frozen=True)
class AuditState:
    """What the labels read so far decide."""

    status: Status
    verdicts: tuple[Verdict, ...]
    used: int  # labels read until it was decided
    needed: int  # further labels that certify if none of them is costly; 0 when it is decided
    counts: tuple[int, ...]  # of each category among the labels used
    asked: tuple[int, ...] = ()  # trajectories of the store that need a label
    labels: int = 0  # trajectories of the store behind the labels used; runs that are alike share one


@dataclass(frozen=True)
class SequentialAudit:
    """An audit of constraints that hold together with `confidence`, by at most `most` labels."""

    constraints: tuple[Constraint, ...]
    confidence: float = 0.95
    most: int = MOST

    def __post_init__(self) -> None:
        for constraint in self.constraints:
            if constraint.tolerance == 1.0:
                raise InputError(f"'{constraint.text}' is always true; leave it out")
            if fewest_rollouts(constraint.tolerance, self.alpha, WITHOUT_COST) > self.most:
                raise InputError(f"'{constraint.text}' cannot be certified by {self.most:,} labels; loosen it")

    @property
    def alpha(self) -> float:
        """What each constraint may spend."""
        return (1.0 - self.confidence) / max(len(self.constraints), 1)

    def read(self, categories: Sequence[int]) -> AuditState:
        """What these labels, in the order of their runs, decide; those after the decision are not read."""
        labels = np.asarray(categories, int)
        found = [self._read_one(constraint, labels) for constraint in self.constraints]
        refusals = [one.used for one in found if one.status == "refused"]
        status: Status = "undecided"
        used, needed = len(labels), max((one.needed for one in found), default=0)
        if refusals:
            status, used, needed = "refused", min(refusals), 0
            found = [self._read_one(constraint, labels[:used]) for constraint in self.constraints]
        elif all(one.status == "certified" for one in found):
            status, used, needed = "certified", max((one.used for one in found), default=0), 0
        width = len(self.constraints[0].weights) if self.constraints else 1
        counts = np.bincount(labels[:used], minlength=width)
        return AuditState(status, tuple(one.verdict for one in found), used, needed, tuple(counts.tolist()))

    def _read_one(self, constraint: Constraint, labels: np.ndarray) -> Reading:
        limits = stopping_limits(constraint.tolerance, self.alpha, self.most)
        labels = labels[: self.most]
        costly = np.cumsum(np.asarray(constraint.cost_weights)[labels], dtype=int) if len(labels) else np.zeros(0, int)
        clock = np.arange(1, len(labels) + 1)
        certified = _first(costly <= limits.costly[clock])
        refused = _first((clock - costly <= limits.harmless[clock]) | (costly > limits.costly[-1]))
        used = min(certified, refused, len(labels))
        cost = int(costly[used - 1]) if used else 0
        low, high = running_bounds(cost, used, RUNNING * self.alpha)
        level = (WITHOUT_COST + LATER) * self.alpha
        needed = 0
        status: Status = "undecided"
        if certified == used:
            status = "certified"
            high = _solve(lambda q: crossing(q, limits.costly[: used + 1]) - level, 0.0, constraint.tolerance)
        elif refused == used:
            status = "refused"
        else:
            needed = int(np.argmax(limits.costly >= cost)) - used
        return Reading(status, used, needed, _verdict(constraint, cost, used, low, high, status == "certified"))


def people_audit(
    store: Store,
    model: Model,
    policy: Policy,
    constraints: Sequence[Constraint],
    key: PRNGKeyArray,
    *,
    number: int = 1,
    confidence: float = 0.95,
    most: int = MOST,
) -> AuditState:
    """Read the labels that audit `number`'s fresh runs have in the store; put in as many more runs as may decide it.

    Run i follows from the key and i alone, and the store knows a trajectory by its content. So the same call goes on
    where an earlier one stopped, in this process or another. Labels count in the order of the runs, up to the first
    run without one, whatever the order in which they were given.
    """
    audit = SequentialAudit(tuple(constraints), confidence, most)
    category_of = store.categories()
    runs: list[int] = []
    key = jax.random.fold_in(key, number)
    state = audit.read([])
    while state.status == "undecided":
        runs += _put_runs(store, model, policy, key, len(runs), state.used + state.needed)
        waiting = [place for place, run in enumerate(runs) if run not in category_of]
        known = runs[: waiting[0]] if waiting else runs
        state = audit.read([category_of[run] for run in known])
        if waiting:
            break
    asked = [run for run in dict.fromkeys(runs[: state.used + state.needed]) if run not in category_of]
    return replace(state, asked=tuple(asked) if state.needed else (), labels=len(set(runs[: state.used])))


def _put_runs(store: Store, model: Model, policy: Policy, key: PRNGKeyArray, start: int, stop: int) -> list[int]:
    """The ids of runs start, ..., stop - 1 of the audit, which are in the store afterwards."""
    ids: list[int] = []
    for index in range(start // BATCH, -(-stop // BATCH)):
        batch = rollout(model, policy, jax.random.fold_in(key, index), BATCH)
        rows = slice(max(start - index * BATCH, 0), min(stop - index * BATCH, BATCH))
        fresh = require_allowed(model, require_finite(model.spec, batch[rows]))
        ids += store.add(fresh, policy=SOURCE).ids.tolist()
    return ids


@lru_cache(maxsize=32)
def stopping_limits(tolerance: float, alpha: float, most: int) -> Limits:
    """Where the walk of a policy at the tolerance may be stopped without spending more than alpha on either side."""
    clock = np.arange(1, most + 1)
    least = fewest_rollouts(tolerance, alpha, WITHOUT_COST)
    growth = np.log(np.maximum(clock / least, 1.0)) / max(math.log(most / least), 1.0)
    certifying = alpha * (WITHOUT_COST + LATER * np.minimum(growth, 1.0))
    refusing = alpha * (WITHOUT_COST + LATER) * clock / (clock + least)
    return Limits(_spend(tolerance, certifying), _spend(1.0 - tolerance, refusing))


def _spend(chance: float, spending: np.ndarray) -> np.ndarray:
    """The largest limits that a walk with this chance of a count crosses by n with at most `spending[n - 1]`."""
    limits = np.full(len(spending) + 1, -1)
    alive, spent = np.ones(1), 0.0
    for n in range(1, len(limits)):
        alive = _step(alive, chance)
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


def _first(true: np.ndarray) -> int:
    """How many labels were read when it was first true; more than there are when it never was."""
    return int(np.argmax(true)) + 1 if true.any() else len(true) + 1


def _verdict(constraint: Constraint, costly: int, trials: int, low: float, high: float, certified: bool) -> Verdict:
    """Bounds on the cost, said of the constraint's own event."""
    at_most = constraint.sense == "<="
    lower, upper = (low, high) if at_most else (1.0 - high, 1.0 - low)
    if not trials:
        return Verdict(constraint.text, None, lower, upper, met=False, certified=False)
    cost = costly / trials
    estimate = cost if at_most else 1.0 - cost
    return Verdict(constraint.text, estimate, lower, upper, cost <= constraint.tolerance, certified)
