"""Exact bounds on a probability from a fixed number of labelled rollouts.

For an event that k of n rollouts showed, the one-sided Clopper-Pearson bound at level alpha is the p at which k or
fewer (or k or more) would have chance alpha. m constraints share alpha (Bonferroni). Of a constraint's share the side
that can certify it gets 99.5 %, the other side the rest, so that with probability 1 - alpha all bounds of all
constraints are true together, lower and upper ones alike.
"""

import math
from collections.abc import Sequence

from sidestep.certification.records import Verdict, split_confidence
from sidestep.core.constraints import Constraint
from sidestep.core.errors import InputError

CERTIFYING = 0.995  # share of the error for the side that can certify


def lower_bound(successes: int, trials: int, alpha: float) -> float:
    """The largest p that can be claimed as a lower bound at level alpha."""
    from scipy.stats import beta  # takes a second to import

    return 0.0 if successes == 0 else float(beta.ppf(alpha, successes, trials - successes + 1))


def upper_bound(successes: int, trials: int, alpha: float) -> float:
    return 1.0 - lower_bound(trials - successes, trials, alpha)


def judge(constraints: Sequence[Constraint], counts: Sequence[int], confidence: float) -> tuple[Verdict, ...]:
    """Estimates and joint bounds from the number of rollouts of each category."""
    trials = int(sum(counts))
    alpha = (1.0 - confidence) / max(len(constraints), 1)
    shares = [count / trials for count in counts]
    verdicts = []
    for constraint in constraints:
        inside = int(sum(count for count, weight in zip(counts, constraint.weights, strict=True) if weight))
        at_least = constraint.sense == ">="
        lower = lower_bound(inside, trials, alpha * (CERTIFYING if at_least else 1.0 - CERTIFYING))
        upper = upper_bound(inside, trials, alpha * (1.0 - CERTIFYING if at_least else CERTIFYING))
        certified = lower >= constraint.bound if at_least else upper <= constraint.bound
        verdicts.append(Verdict(constraint.text, inside / trials, lower, upper, constraint.met(shares), certified))
    return tuple(verdicts)


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
