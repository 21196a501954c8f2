"""Bounds by computation, for a policy that is a table and side effects of single steps of a finite model.

Every pair that the policy can visit, with any chance at all, is labelled. Then the chance of each category of a run
follows from the model: nothing is sampled, and it holds without an error probability. What is said to be impossible
is so by logic. It rests on the label of a run being that of its worst step, which fresh rollouts are held against.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sidestep.certification.bounds import lower_bound, upper_bound
from sidestep.certification.records import Verdict
from sidestep.core.constraints import Constraint
from sidestep.core.model import FiniteModel
from sidestep.finite.runs import prospect, visited_pairs
from sidestep.finite.tabular import HorizonPolicy
from sidestep.labels.experts import Expert
from sidestep.labels.store import Store, single_steps

ROUNDING = 1e-9  # more than sums of probabilities lose over a run
CONTRADICTION = 1e-9  # chance of rollouts that would speak against a true proof


class PairLabels(NamedTuple):
    """What the expert says of the pairs (N, A) that a policy can visit; 0 elsewhere."""

    category: np.ndarray
    penalty: np.ndarray
    asked: int  # pairs


def label_pairs(model: FiniteModel, policy: HorizonPolicy, expert: Expert, store: Store | None) -> PairLabels:
    """Ask about every pair that the policy visits with any chance at all; people through the store.

    Raises LabelsNeeded where people have not labelled all of them.
    """
    finite, seen = model.finite, visited_pairs(model, policy)
    states, actions = np.nonzero(seen)
    steps = single_steps(finite.encoding[states], np.eye(seen.shape[1])[actions], finite.reward[seen])
    category, penalty = np.zeros(seen.shape, int), np.zeros(seen.shape)
    if expert.label is not None:
        category[seen] = np.asarray(expert.label(steps))
    else:
        assert store is not None
        ids = store.add(steps, policy="pair").ids.tolist()
        answers = expert.answer(store, ids)
        category[seen] = [answers[i] for i in ids]
    if expert.penalty is not None:
        penalty[seen] = np.asarray(expert.penalty(steps))
    return PairLabels(category, penalty, len(states))


def prove(
    model: FiniteModel, policy: HorizonPolicy, constraints: Sequence[Constraint], category: np.ndarray
) -> tuple[Verdict, ...]:
    """The chance of each constraint's event, and whether it keeps the constraint."""
    categories = len(constraints[0].weights) if constraints else int(category.max()) + 1
    found = prospect(model, policy, category, categories)
    return tuple(_verdict(constraint, found.chances, found.never) for constraint in constraints)


def _verdict(constraint: Constraint, chances: np.ndarray, never: np.ndarray) -> Verdict:
    inside = np.array(constraint.weights, bool)
    chance = float(chances[inside].sum())
    lower, upper = max(chance - ROUNDING, 0.0), min(chance + ROUNDING, 1.0)
    if never[inside].all():
        chance = lower = upper = 0.0
    elif never[~inside].all():
        chance = lower = upper = 1.0
    kept = lower >= constraint.bound if constraint.sense == ">=" else upper <= constraint.bound
    return Verdict(constraint.text, chance, lower, upper, met=kept, certified=kept, proof="exact")


def contradicted(verdicts: Sequence[Verdict], constraints: Sequence[Constraint], counts: Sequence[int]) -> str | None:
    """Why rollouts speak against what was proven; None where they do not."""
    trials = int(sum(counts))
    for verdict, constraint in zip(verdicts, constraints, strict=True):
        inside = int(sum(count for count, weight in zip(counts, constraint.weights, strict=True) if weight))
        low, high = (bound(inside, trials, CONTRADICTION) for bound in (lower_bound, upper_bound))
        if verdict.upper < low or verdict.lower > high:
            return (
                f"the labels of single steps give {constraint.text} a chance of {verdict.estimate:.6g}, and rollouts "
                f"show {inside / trials:.6g}: a run is not as bad as its worst step"
            )
    return None
