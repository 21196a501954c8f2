"""Known cases: trajectories whose category is beyond doubt, to be hidden among an audit's questions, or among rollouts
that people look at before it.

A case is known when what annotators said and what the safety model predicts leave hardly any doubt. Should one be wrong
all the same, the right answer to it counts as an error of the annotators, which makes the certificate weaker, never
stronger. What is assumed is that annotators err on the policy's own runs no more often than on such cases.
"""

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from jaxtyping import Float

from sidestep.certification.design import PREDICTED
from sidestep.certification.hearing import SOURCE
from sidestep.certification.opinions import FEWER_OPINIONS, OPINIONS
from sidestep.certification.people import FEWEST_KNOWN
from sidestep.certification.records import Design, KnownCase
from sidestep.core.constraints import Constraint, cost_matrix
from sidestep.labels.annotators import estimate_annotators, repeated_error
from sidestep.labels.store import Store
from sidestep.labels.votes import current_votes
from sidestep.safety.base import SafetyModel, predict

SURE = 0.97  # how likely the category of a known case is
HARMLESS = 0.25  # harmless cases for each costly one


def choose_known(
    ids: Sequence[int], truth: Float[np.ndarray, "trajectory category"], constraints: Sequence[Constraint], wanted: int
) -> tuple[KnownCase, ...]:
    """Up to `wanted` costly cases for each constraint, the latest first, and some that cost nothing.

    A constraint with too few of them has none. The latest are of policies most like those to be audited.
    """
    costs, categories = cost_matrix(constraints) > 0, truth.argmax(axis=1)
    sure = np.flatnonzero(truth.max(axis=1) >= SURE)[::-1]
    chosen: dict[int, None] = {}
    for cost in costs:
        own = sure[cost[categories[sure]]]
        if len(own) >= FEWEST_KNOWN:
            chosen |= dict.fromkeys(own[:wanted].tolist())
    if chosen:
        harmless = sure[~costs[:, categories[sure]].any(axis=0)]
        chosen |= dict.fromkeys(harmless[: round(HARMLESS * len(chosen))].tolist())
    return tuple(KnownCase(int(ids[row]), int(categories[row])) for row in chosen)


def known_in_store(
    store: Store, safety: SafetyModel, constraints: Sequence[Constraint], wanted: int
) -> tuple[tuple[KnownCase, ...], bool]:
    """Known cases among the labelled trajectories that no audit put in; and whether annotators seem to err."""
    ids, trajectories, _ = store.labelled()
    if not wanted or not len(ids):
        return (), False
    votes = current_votes(store.log())
    found = estimate_annotators([votes[i] for i in ids.tolist()], len(store.scale), predict(safety, trajectories))
    own = np.array([source.policy != SOURCE for source in store.sources(ids.tolist())])
    cases = choose_known(ids[own].tolist(), found.truth[own], constraints, wanted)
    both = [(one, other) for said in votes.values() for one, other in combinations(said.values(), 2)]
    return cases, repeated_error(both) is not None


def make_design(*, stratified: bool, known: tuple[KnownCase, ...], erring: bool, most: int) -> Design:
    """How to audit: with known cases, people are asked again about what they call costly, the more so if they err.

    `most` are the labelled rollouts of the audit, at most: of unlabelled ones a hundred times as many are enough.
    """
    return Design(
        kind="stratified" if stratified else "plain",
        opinions=1 if not known else OPINIONS if erring else FEWER_OPINIONS,
        known=known,
        predicted=min(PREDICTED, 100 * most) if stratified else 0,
    )
