"""Fresh rollouts of a policy, with random numbers that no decision has seen, and what they earned and did."""

from collections.abc import Iterator
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from sidestep.certification.records import Figures, Penalty, Return
from sidestep.core.model import Model, Policy, Trajectory, forbidden, require_finite, rollout
from sidestep.labels.experts import Expert

CERTIFICATION = 0x5AFE  # folded into a seed's key: trajectories of certification never meet those of training
BATCH = 1000
ROLLOUTS = 2000  # where nobody says how many


def certification_key(seed: int) -> PRNGKeyArray:
    return jax.random.fold_in(jax.random.key(seed), CERTIFICATION)


class Evaluation(NamedTuple):
    """What fresh rollouts earned and did."""

    figures: Figures
    counts: list[int]  # how many fell into each category
    forbidden: str | None  # the first action that the model forbids, in words


def evaluate(model: Model, policy: Policy, expert: Expert, key: PRNGKeyArray, rollouts: int = ROLLOUTS) -> Evaluation:
    """Figures of fresh rollouts that the expert labels at once."""
    assert expert.label is not None
    broken = None
    returns, penalties, counts = [], [], np.zeros(len(expert.scale.categories), int)
    for trajectory in _fresh(model, policy, key, rollouts):
        broken = broken or forbidden(model, trajectory)
        returns.append(_both_returns(trajectory, model))
        counts += np.bincount(np.asarray(expert.label(trajectory)), minlength=len(counts))
        if expert.penalty is not None:
            penalties.append(np.asarray(expert.penalty(trajectory)))
    penalty = None
    if penalties:
        together = np.concatenate(penalties)
        penalty = Penalty(float(together.mean()), float(together.std()))
    shares = {name: int(n) / rollouts for name, n in zip(expert.scale.categories, counts, strict=True)}
    return Evaluation(Figures(_return(returns), shares, penalty), counts.tolist(), broken)


def fresh_return(model: Model, policy: Policy, key: PRNGKeyArray, rollouts: int = ROLLOUTS) -> Return:
    """The return on fresh rollouts that nobody labels."""
    return _return([_both_returns(trajectory, model) for trajectory in _fresh(model, policy, key, rollouts)])


def _fresh(model: Model, policy: Policy, key: PRNGKeyArray, rollouts: int) -> Iterator[Trajectory]:
    for index, start in enumerate(range(0, rollouts, BATCH)):
        batch = rollout(model, policy, jax.random.fold_in(key, index), BATCH)
        yield require_finite(model.spec, batch[: min(BATCH, rollouts - start)])


def _both_returns(trajectory: Trajectory, model: Model) -> np.ndarray:
    return np.stack([trajectory.returns(), trajectory.returns(model.spec.discount)])


def _return(batches: list[np.ndarray]) -> Return:
    total, discounted = np.concatenate(batches, axis=1)
    mean, interval = float(total.mean()), None
    if len(total) > 1:
        error = float(1.96 * total.std(ddof=1) / np.sqrt(len(total)))
        interval = (mean - error, mean + error)
    return Return(mean, float(total.std()), float(discounted.mean()), interval)
