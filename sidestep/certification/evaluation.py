"""The certificate: fresh rollouts, labelled by the true rule, and what they prove with confidence.

For a constraint on the event X with k of n rollouts in X, the one-sided Clopper-Pearson bound at level alpha is the p
at which k or fewer (or k or more) successes would have chance alpha. m constraints share alpha (Bonferroni), so that
with probability 1 - alpha all statements of a certificate are true together.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from sidestep.constraints import Constraint
from sidestep.labels.rules import Rule
from sidestep.model import Model, Policy, Trajectory, require_finite, rollout

CERTIFICATION = 0x5AFE  # folded into a seed's key: trajectories of certification never meet those of training
BATCH = 1000


@dataclass(frozen=True)
class Verdict:
    """One constraint's part of the certificate."""

    text: str
    estimate: float
    lower: float
    upper: float
    met: bool
    certified: bool


def lower_bound(successes: int, trials: int, alpha: float) -> float:
    """The largest p that can be claimed as a lower bound at level alpha."""
    from scipy.stats import beta

    return 0.0 if successes == 0 else float(beta.ppf(alpha, successes, trials - successes + 1))


def upper_bound(successes: int, trials: int, alpha: float) -> float:
    return 1.0 - lower_bound(trials - successes, trials, alpha)


def judge(constraints: Sequence[Constraint], counts: Sequence[int], confidence: float) -> list[Verdict]:
    """Estimates and joint one-sided bounds from the number of rollouts of each category."""
    trials = int(sum(counts))
    alpha = (1.0 - confidence) / max(len(constraints), 1)
    verdicts = []
    for constraint in constraints:
        inside = int(sum(count for count, weight in zip(counts, constraint.weights, strict=True) if weight))
        lower, upper = lower_bound(inside, trials, alpha), upper_bound(inside, trials, alpha)
        certified = lower >= constraint.bound if constraint.sense == ">=" else upper <= constraint.bound
        shares = [count / trials for count in counts]
        verdicts.append(Verdict(constraint.text, inside / trials, lower, upper, constraint.met(shares), certified))
    return verdicts


def certification_key(seed: int) -> PRNGKeyArray:
    return jax.random.fold_in(jax.random.key(seed), CERTIFICATION)


def audit(
    model: Model,
    policy: Policy,
    rule: Rule,
    constraints: Sequence[Constraint],
    key: PRNGKeyArray,
    *,
    rollouts: int = 2000,
    confidence: float = 0.95,
    action: str = "mean",
) -> dict[str, Any]:
    """Fresh rollouts and what they say, in the form of result.json."""
    returns, penalties, counts = [], [], np.zeros(len(rule.scale.categories), int)
    for trajectory in _fresh(model, policy, key, rollouts):
        returns.append(_both_returns(trajectory, model))
        counts += np.bincount(np.asarray(rule.label(trajectory)), minlength=len(counts))
        if rule.penalties:
            penalties.append(np.asarray(rule.penalty(trajectory)))
    result: dict[str, Any] = {
        "model": model.spec.name,
        "constraints": [vars(verdict) for verdict in judge(constraints, counts.tolist(), confidence)],
        "return": _return(returns),
        "side_effects": {name: int(n) / rollouts for name, n in zip(rule.scale.categories, counts, strict=True)},
        "rollouts": rollouts,
        "evaluation": {"trajectories": rollouts, "policy": action, "confidence": confidence},
    }
    if penalties:
        all_penalties = np.concatenate(penalties)
        result["penalty"] = {"mean": float(all_penalties.mean()), "std": float(all_penalties.std())}
    return result


def fresh_return(model: Model, policy: Policy, key: PRNGKeyArray, rollouts: int = 2000) -> dict[str, Any]:
    """The return on fresh rollouts that nobody labels, as in result.json."""
    return _return([_both_returns(trajectory, model) for trajectory in _fresh(model, policy, key, rollouts)])


def _fresh(model: Model, policy: Policy, key: PRNGKeyArray, rollouts: int) -> Iterator[Trajectory]:
    for index, start in enumerate(range(0, rollouts, BATCH)):
        batch = rollout(model, policy, jax.random.fold_in(key, index), BATCH)
        yield require_finite(model.spec, batch[: min(BATCH, rollouts - start)])


def _both_returns(trajectory: Trajectory, model: Model) -> np.ndarray:
    return np.stack([trajectory.returns(), trajectory.returns(model.spec.discount)])


def _return(batches: list[np.ndarray]) -> dict[str, Any]:
    total, discounted = np.concatenate(batches, axis=1)
    error = 1.96 * total.std(ddof=1) / np.sqrt(len(total)) if len(total) > 1 else float("inf")
    return {
        "mean": float(total.mean()),
        "std": float(total.std()),
        "discounted_mean": float(discounted.mean()),
        "interval": [float(total.mean() - error), float(total.mean() + error)],
    }
