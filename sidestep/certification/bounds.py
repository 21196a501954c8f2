"""Exact bounds on a probability from a fixed number of labelled rollouts.

For an event that k of n rollouts showed, the one-sided Clopper-Pearson bound at level alpha is the p at which k or
fewer (or k or more) would have chance alpha. m constraints share alpha (Bonferroni). Of a constraint's share the side
that can certify it gets 99.5 %, the other side the rest, so that with probability 1 - alpha all bounds of all
constraints are true together, lower and upper ones alike.

Two further things may be known, each at a part of the share (`Premise`):

- **Strata.** A safety model flags runs that it predicts to be costly. What it flags counts as costly, whoever is right:
  P(cost) <= P(flagged) + P(not flagged) P(cost | not flagged). The first is bounded by unlabelled rollouts, of which
  there are as many as one likes; the last by labels of runs that are not flagged. The plain bound by all labels has a
  part of the error too, so that a useless safety model costs little; the smaller bound counts.
- **Annotators.** Of the costly runs they miss a share m at most, which known cases hidden among the questions bound:
  P(labelled costly) >= P(cost) (1 - m), so P(cost) <= P(labelled costly) / (1 - m). Of the harmless ones they call a
  share f at most costly: P(cost) >= (P(labelled costly) - f) / (1 - f).
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from sidestep.certification.records import Premise, Verdict, split_confidence
from sidestep.core.constraints import ROUNDING, Constraint
from sidestep.core.errors import InputError

CERTIFYING = 0.995  # share of the error for the side that can certify
FLAGGED = 0.03  # of that: for the bound on flagged runs, in an audit by strata
MISSED = 0.1  # likewise for the bound on what annotators miss, where known cases are hidden among the questions
ALL_RUNS = 0.54  # of what is left, for the bound by all labels; the rest for that by labels of runs not flagged


@lru_cache(maxsize=4096)
def lower_bound(successes: int, trials: int, alpha: float) -> float:
    """The largest p that can be claimed as a lower bound at level alpha."""
    return 0.0 if successes == 0 else _beta_quantile(alpha, successes, trials - successes + 1)


def _beta_quantile(share: float, a: int, b: int) -> float:
    from scipy.special import betaincinv  # slow to import

    return float(betaincinv(a, b, share))


def upper_bound(successes: int, trials: int, alpha: float) -> float:
    return 1.0 - lower_bound(trials - successes, trials, alpha)


class ErrorShares(NamedTuple):
    """How the part of a constraint's error that can certify it is shared; the parts add up to 1."""

    flagged: float
    missed: float
    all_runs: float  # for the bound by all labels
    unflagged: float  # for the bound by labels of runs that are not flagged


def error_shares(*, strata: bool, planted: bool) -> ErrorShares:
    flagged, missed = FLAGGED * strata, MISSED * planted
    left = 1.0 - flagged - missed
    unflagged = left * (1.0 - ALL_RUNS) * strata
    return ErrorShares(flagged, missed, left - unflagged, unflagged)


def shares_of(premise: Premise) -> ErrorShares:
    return error_shares(strata=premise.threshold is not None, planted=premise.missed > 0.0)


def flagged_bound(flagged: int, rollouts: int, alpha: float) -> float:
    """The chance of a flagged run at most, of which there were so many among unlabelled rollouts."""
    return upper_bound(flagged, rollouts, alpha * CERTIFYING * FLAGGED)


def annotator_bounds(missed: int, harmful: int, alarms: int, harmless: int, alpha: float) -> tuple[float, float]:
    """(share of harm missed at most, of false alarms at most) from known cases; 1 where there are none."""
    miss = upper_bound(missed, harmful, alpha * CERTIFYING * MISSED) if harmful else 1.0
    alarm = upper_bound(alarms, harmless, alpha * (1.0 - CERTIFYING) / 4) if harmless else 1.0
    return miss, alarm


def judge(
    constraints: Sequence[Constraint],
    counts: Sequence[int],
    confidence: float,
    premises: Sequence[Premise] = (),
    unflagged: Sequence[tuple[int, int]] = (),
) -> tuple[Verdict, ...]:
    """Estimates and joint bounds from the number of rollouts of each category.

    With premises, `unflagged` has for each constraint (costly rollouts, all rollouts) among those not flagged.
    """
    trials = int(sum(counts))
    alpha = (1.0 - confidence) / max(len(constraints), 1)
    premises = premises or (Premise(),) * len(constraints)
    verdicts = []
    for number, (constraint, premise) in enumerate(zip(constraints, premises, strict=True)):
        costly = int(sum(count for count, weight in zip(counts, constraint.cost_weights, strict=True) if weight))
        error = shares_of(premise)
        level = alpha * CERTIFYING
        high = premise.cost(upper_bound(costly, trials, level * error.all_runs))
        if error.unflagged:
            of_rest = upper_bound(*unflagged[number], level * error.unflagged)
            high = min(high, premise.cost(of_rest, unflagged=True))
        low = premise.least_cost(lower_bound(costly, trials, alpha * (1.0 - CERTIFYING) / (2 if error.missed else 1)))
        verdicts.append(verdict(constraint, costly, trials, low, high))
    return tuple(verdicts)


def verdict(constraint: Constraint, costly: int, trials: int, low: float, high: float) -> Verdict:
    """Bounds on the cost, said of the constraint's own event."""
    met = trials > 0 and costly / trials <= constraint.tolerance * (1.0 + ROUNDING)
    if constraint.sense == "<=":
        estimate = costly / trials if trials else None
        return Verdict(constraint.text, estimate, low, high, met, high <= constraint.bound)
    estimate = (trials - costly) / trials if trials else None
    return Verdict(constraint.text, estimate, 1.0 - high, 1.0 - low, met, 1.0 - high >= constraint.bound)


def certifiable_chance(tolerance: float, rollouts: int, alpha: float, passing: float) -> float | None:
    """The largest chance of the cost at which an audit of so many rollouts passes with probability `passing`; None
    where even clean rollouts do not certify.

    k is the largest count whose upper bound is within the tolerance, and P(count <= k) = passing at the chance.
    """
    if fewest_rollouts(tolerance, alpha, 1.0) > rollouts:
        return None
    low, high = 0, rollouts  # the count lies in [low, high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if upper_bound(middle, rollouts, alpha) <= tolerance else (low, middle)
    return _beta_quantile(1.0 - passing, low + 1, rollouts - low)


def fewest_rollouts(tolerance: float, alpha: float, share: float = CERTIFYING) -> float:
    """The n at which rollouts without any cost certify: (1 - d)^n <= share * alpha; infinite for d = 0."""
    if tolerance == 0.0:
        return math.inf
    return 1 if tolerance == 1.0 else math.ceil(math.log(share * alpha) / math.log1p(-tolerance))


def require_certifiable(
    constraints: Sequence[Constraint],
    rollouts: int,
    confidence: float,
    share: float = CERTIFYING,
    first: int = 1,
    last: int | None = None,
) -> None:
    """Refuse constraints that audits `first` to `last` of a run cannot certify even if every rollout is clean."""
    last = first if last is None else last
    alpha = (1.0 - split_confidence(confidence, last)) / max(len(constraints), 1)
    for constraint in constraints:
        needed = fewest_rollouts(constraint.tolerance, alpha, share)
        if needed <= rollouts:
            continue
        could = f"what can be certified is {_tightest(constraint, rollouts, share * alpha)} or looser"
        if needed == math.inf:
            raise InputError(
                f"no number of rollouts proves that something never happens; {could}", place=_place(constraint)
            )
        which = f"audit {last} of this run" if last > 1 else "the audit"
        fewer = "" if first == last else " or fewer --audits"
        raise InputError(
            f"{which} needs {needed:,.0f} rollouts even if all of them are clean, and may have {rollouts:,}, so give "
            f"--rollouts {needed:.0f}{fewer}; {could}",
            place=_place(constraint),
        )


def _place(constraint: Constraint) -> str:
    return f"constraint '{constraint.text}'"


def _tightest(constraint: Constraint, rollouts: int, alpha: float) -> str:
    """The tightest constraint of this kind that so many clean rollouts certify."""
    tolerance = math.ceil((1.0 - alpha ** (1.0 / rollouts)) * 1e4) / 1e4
    event = constraint.text.partition(constraint.sense)[0]
    return f"{event}{constraint.sense}{tolerance if constraint.sense == '<=' else 1.0 - tolerance:.4g}"
