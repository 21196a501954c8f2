"""What a training run came to, in words."""

from collections.abc import Sequence

from sidestep.core.constraints import Constraint
from sidestep.planning.config import PlanConfig
from sidestep.planning.methods import LogAdam
from sidestep.planning.rows import PlanRow

RECENT = 5  # tests that are considered
SATURATED = 1e-6  # gradient norm below which a constraint has no effect
STILL_MOVING = 0.02  # growth of the return, as a share of it, that says "train longer"


def diagnose(history: Sequence[PlanRow], constraints: Sequence[Constraint], config: PlanConfig) -> str:
    """One or two sentences: feasible or not and by which constraint, and what looks wrong."""
    if not history:
        return "nothing was trained"
    recent = history[-RECENT:]
    last = recent[-1]
    words = [_feasibility(history, last, constraints)]
    for index, constraint in enumerate(constraints):
        multiplier = last.train_multipliers[index]
        violated = last.mean_costs[index] > constraint.tolerance
        norms = last.train_gradient_norms
        pull = norms[index + len(norms) - len(constraints)] if norms else 1.0
        bound = config.multiplier.max
        if multiplier >= 0.999 * bound and not isinstance(config.multiplier, LogAdam):
            words.append(f"the multiplier of {constraint.text} has reached its bound {bound:g}")
        if violated and pull < SATURATED:
            words.append(f"the safety model is saturated: {constraint.text} is violated and its gradient is zero")
        gap = _exploited(last, constraint)
        if gap is not None:
            words.append(
                f"the safety model is exploited: {constraint.text} is met by its predictions, but {gap:.3f} by the rule"
            )
    first, final = recent[0].mean_return, last.mean_return
    if len(recent) == RECENT and final - first > STILL_MOVING * max(abs(final), 1e-9):
        words.append("the return was still growing: train longer")
    return "; ".join(words)


def _feasibility(history: Sequence[PlanRow], last: PlanRow, constraints: Sequence[Constraint]) -> str:
    if not constraints:
        return "no constraint"
    if last.feasible:
        return "feasible"
    broken = [c.text for c, cost in zip(constraints, last.mean_costs, strict=True) if cost > c.tolerance]
    earlier = "; an earlier policy was feasible and is kept" if any(row.feasible for row in history) else ""
    return f"infeasible at the end: {', '.join(broken) or 'within the tolerance but not within the margin'}{earlier}"


def _exploited(row: PlanRow, constraint: Constraint) -> float | None:
    """The true frequency, where the prediction is 'met' and the rule says 'clearly not'."""
    if not row.mean_true or not row.mean_predicted:
        return None
    true = sum(share * weight for share, weight in zip(row.mean_true, constraint.weights, strict=True))
    cost = sum(share * weight for share, weight in zip(row.mean_true, constraint.cost_weights, strict=True))
    predicted = sum(share * weight for share, weight in zip(row.mean_predicted, constraint.cost_weights, strict=True))
    clearly = cost > constraint.tolerance + 0.05
    return true if predicted <= constraint.tolerance and clearly else None
