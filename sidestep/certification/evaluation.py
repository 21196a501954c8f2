"""Fresh rollouts of a policy, with random numbers that no decision has seen, and what they earned and did."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from sidestep.certification.proof import PairLabels
from sidestep.certification.records import Figures, Penalty, Return
from sidestep.core.model import (
    FiniteModel,
    Model,
    Policy,
    Trajectory,
    forbidden,
    require_allowed,
    require_finite,
    rollout,
)
from sidestep.finite.runs import fresh_runs
from sidestep.finite.tabular import HorizonPolicy
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
    unflagged: list[np.ndarray]  # for each column of `flag`: how many of those not flagged fell into each category


def evaluate(
    model: Model,
    policy: Policy,
    expert: Expert,
    key: PRNGKeyArray,
    rollouts: int = ROLLOUTS,
    flag: Callable[[Trajectory], np.ndarray] | None = None,
) -> Evaluation:
    """Figures of fresh rollouts that the expert labels at once; `flag` says (rollout, constraint) which are flagged."""
    assert expert.label is not None
    broken = None
    size = len(expert.scale.categories)
    returns, penalties, counts = [], [], np.zeros(size, int)
    unflagged: list[np.ndarray] = []
    for trajectory in _fresh(model, policy, key, rollouts):
        broken = broken or forbidden(model, trajectory)
        returns.append(_both_returns(trajectory, model))
        categories = np.asarray(expert.label(trajectory))
        counts += np.bincount(categories, minlength=size)
        if flag is not None:
            found = [np.bincount(categories[~flagged], minlength=size) for flagged in flag(trajectory).T]
            unflagged = [before + new for before, new in zip(unflagged, found, strict=True)] if unflagged else found
        if expert.penalty is not None:
            penalties.append(np.asarray(expert.penalty(trajectory)))
    penalty = None
    if penalties:
        together = np.concatenate(penalties)
        penalty = Penalty(float(together.mean()), float(together.std()))
    figures = Figures(_return(returns), _shares(expert, counts), penalty)
    return Evaluation(figures, counts.tolist(), broken, unflagged)


def evaluate_table(
    model: FiniteModel, policy: HorizonPolicy, labels: PairLabels, expert: Expert, key: PRNGKeyArray, rollouts: int
) -> Evaluation:
    """The same by the model's table, from labels of all pairs that the policy can visit: millions in seconds."""
    random = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    runs = fresh_runs(model, policy, labels.category, labels.penalty, random, rollouts)
    counts = np.bincount(runs.worst, minlength=len(expert.scale.categories))
    penalty = Penalty(float(runs.penalties.mean()), float(runs.penalties.std())) if expert.penalty else None
    returns = _return([np.stack([runs.returns, runs.discounted])])
    return Evaluation(Figures(returns, _shares(expert, counts), penalty), counts.tolist(), None, [])


def count_runs(model: Model, policy: Policy, expert: Expert, key: PRNGKeyArray, rollouts: int) -> list[int]:
    """How many of a few fresh rollouts, labelled as wholes, fall into each category."""
    assert expert.label is not None
    runs = require_allowed(model, require_finite(model.spec, rollout(model, policy, key, rollouts)))
    return np.bincount(np.asarray(expert.label(runs)), minlength=len(expert.scale.categories)).tolist()


def _shares(expert: Expert, counts: np.ndarray) -> dict[str, float]:
    return {name: int(n) / int(counts.sum()) for name, n in zip(expert.scale.categories, counts, strict=True)}


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
