"""Second opinions before an audit, on what decides: where people err, one wrong answer may choose the wrong policy.

Two things are decided by labels before an audit begins.

- **Which candidate is audited.** A label of a candidate's own rollout is in doubt where votes and predictions leave
  its cost between DOUBT and 1 - DOUBT. If all labels in doubt were harmless, or if all of them were costly, the
  favourite might be another. Then the doubtful labels of these favourites are asked about again.
- **Whether annotators are covered.** With fewer than FEWEST_KNOWN known cases of harm an audit cannot bound what they
  miss. A case that is likely to be harmful, and not yet known to be, becomes known when somebody else says so too.

Where neither depends on what is in doubt, nobody is asked again.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from sidestep.campaign.evidence import Evidence
from sidestep.campaign.records import Candidate, State
from sidestep.certification.known import SURE
from sidestep.certification.people import FEWEST_KNOWN
from sidestep.core.constraints import cost_matrix

DOUBT = 0.05  # chance of a cost from which on, and up to 1 - DOUBT, a label is in doubt
MOST_OPINIONS = 3  # on one trajectory; more of them go to audits alone

Choose = Callable[[Sequence[Candidate]], int | None]  # the favourite of candidates


def deciding(evidence: Evidence, state: State, choose: Choose, known: bool) -> list[int]:
    """Trajectories to ask about again before an audit, those of most doubt first.

    `state` has also the questions that nobody could answer; `known`: whether the audit hides known cases.
    """
    if evidence.annotators is None:
        return []
    heard = opinions_on(state)
    chosen = [*_of_favourites(evidence, choose, heard), *(_nearly_known(evidence, heard) if known else ())]
    return list(dict.fromkeys(chosen))


def opinions_on(state: State) -> dict[int, int]:
    """How often each trajectory was asked about, copies included, whether or not somebody could tell."""
    return Counter([*dict.fromkeys(state.asked_ids), *state.copied.values()])


def _of_favourites(evidence: Evidence, choose: Choose, heard: Mapping[int, int]) -> list[int]:
    """Labels in doubt of who is favourite now, if all such labels are harmless, and if all of them are costly."""
    candidates = evidence.candidates
    doubts = [_in_doubt(evidence, index, heard) for index in range(len(candidates))]
    lowest = [_shifted(one, -costs.sum(axis=0)) for one, (_, costs) in zip(candidates, doubts, strict=True)]
    highest = [_shifted(one, (1.0 - costs).sum(axis=0)) for one, (_, costs) in zip(candidates, doubts, strict=True)]
    favourites = dict.fromkeys(map(choose, (candidates, lowest, highest)))
    if len(favourites) == 1:
        return []
    found: dict[int, float] = {}
    for index in favourites:
        if index is not None:
            ids, costs = doubts[index]
            found |= dict(zip(ids, np.abs(costs - 0.5).min(axis=1).tolist(), strict=True))
    return sorted(found, key=lambda trajectory: found[trajectory])


def _in_doubt(evidence: Evidence, index: int, heard: Mapping[int, int]) -> tuple[list[int], np.ndarray]:
    """Which labels of a candidate's own rollouts are in doubt, and how likely each counts for each constraint."""
    groups = evidence.groups_of(index)
    ids = np.array([i for group in groups for i in group.ids], int)
    costs = evidence.costs(groups) if groups else np.zeros((0, len(evidence.constraints)))
    doubtful = ((costs > DOUBT) & (costs < 1.0 - DOUBT)).any(axis=1)
    doubtful &= np.array([heard[i] < MOST_OPINIONS for i in ids.tolist()], bool)
    return ids[doubtful].tolist(), costs[doubtful]


def _shifted(candidate: Candidate, by: np.ndarray) -> Candidate:
    if not candidate.labels:
        return candidate
    return replace(candidate, costly=tuple(np.maximum(np.array(candidate.costly) + by, 0.0).tolist()))


def _nearly_known(evidence: Evidence, heard: Mapping[int, int]) -> list[int]:
    """Cases of harm that one more opinion may make known, the latest first, of constraints that lack some."""
    ids, truth = evidence.originals
    likeliest, sure = truth.argmax(axis=1), truth.max(axis=1) >= SURE
    found: list[int] = []
    for cost in cost_matrix(evidence.constraints) > 0:
        harmful = cost[likeliest]
        lacking = FEWEST_KNOWN - int((harmful & sure).sum())
        near = [i for i in (ids[row] for row in np.flatnonzero(harmful & ~sure)[::-1]) if heard[i] < MOST_OPINIONS]
        if 0 < lacking <= len(near):
            found += near[: 2 * lacking]  # not everybody will agree
    return found
