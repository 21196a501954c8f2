"""What an audit knows before its first label: what the safety model predicts of rollouts that nobody looks at.

A run is flagged where its predicted cost is at least a threshold. A low threshold misses less, and flags more, which
counts as costly unseen. The threshold is chosen by a first part of the rollouts, for the fewest labels if predictions
are right; the bound on flagged runs comes from the others. Neither needs a label, so neither costs any. Whether there
are strata at all is also for the first part to say: who drops them because of the bound has looked at it twice.
"""

import math
from collections.abc import Sequence

import jax
import numpy as np
from jaxtyping import Bool, Float, PRNGKeyArray

from sidestep.certification.bounds import flagged_bound
from sidestep.certification.records import Premise
from sidestep.core.constraints import Constraint, cost_matrix
from sidestep.core.model import Model, Policy, Trajectory, rollout
from sidestep.safety.base import SafetyModel, predict

PREDICTED = 200_000  # rollouts
PILOT = 0.1  # share of them by which thresholds are chosen
BATCH = 2000
STREAM = 0x9ED1C7  # folded into an audit's key: predicted rollouts are never those that are labelled
THRESHOLDS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
DOUBT = 2.0  # by how much predictions of what is missed are taken to be too small


def predicted_costs(
    safety: SafetyModel, constraints: Sequence[Constraint], trajectory: Trajectory
) -> Float[np.ndarray, "batch constraint"]:
    return predict(safety, trajectory) @ cost_matrix(constraints).T


def flags(
    safety: SafetyModel, constraints: Sequence[Constraint], premises: Sequence[Premise], trajectory: Trajectory
) -> Bool[np.ndarray, "batch constraint"]:
    """Which runs count as costly unseen, for each constraint."""
    limits = [math.inf if premise.threshold is None else premise.threshold for premise in premises]
    return predicted_costs(safety, constraints, trajectory) >= np.array(limits)[None, :]


def stratified(
    model: Model,
    policy: Policy,
    safety: SafetyModel,
    constraints: Sequence[Constraint],
    alpha: float,
    key: PRNGKeyArray,
    rollouts: int = PREDICTED,
) -> tuple[Premise, ...]:
    """Thresholds and bounds on flagged runs for an audit with this key; plain where a threshold would not help."""
    own = jax.random.fold_in(key, STREAM)
    costs = np.concatenate(
        [
            predicted_costs(safety, constraints, rollout(model, policy, jax.random.fold_in(own, index), BATCH))
            for index in range(-(-rollouts // BATCH))
        ]
    )[:rollouts]
    pilot, rest = np.split(costs, [int(PILOT * rollouts)])
    premises = []
    for number, constraint in enumerate(constraints):
        threshold = best_threshold(pilot[:, number], constraint.tolerance, alpha)
        if threshold is None:
            premises.append(Premise())
            continue
        flagged = int((rest[:, number] >= threshold).sum())
        premises.append(Premise(threshold, flagged_bound(flagged, len(rest), alpha)))
    return tuple(premises)


def best_threshold(costs: Float[np.ndarray, " rollout"], tolerance: float, alpha: float) -> float | None:
    """The threshold that needs the fewest labels if predictions are right; None where no threshold is better."""
    best, threshold = _labels(float(costs.mean()), tolerance, alpha), None
    for limit in THRESHOLDS:
        flagged = float((costs >= limit).mean())
        missed = DOUBT * float(np.where(costs < limit, costs, 0.0).mean()) / max(1.0 - flagged, 1e-9)
        labels = _labels(missed, (tolerance - flagged) / max(1.0 - flagged, 1e-9), alpha / 2) / max(1.0 - flagged, 1e-9)
        if labels < best:
            best, threshold = labels, limit
    return threshold


def _labels(cost: float, tolerance: float, alpha: float) -> float:
    """About how many labels certify a cost within a tolerance: log(1 / alpha) / KL(cost, tolerance)."""
    if cost >= tolerance or tolerance <= 0.0:
        return math.inf
    divergence = (1.0 - cost) * math.log((1.0 - cost) / (1.0 - tolerance))
    divergence += cost * math.log(cost / tolerance) if cost > 0.0 else 0.0
    return -math.log(alpha) / divergence
