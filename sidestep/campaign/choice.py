"""Which policy to trust: labels of its own rollouts and the calibrated safety model, weighed against each other."""

from collections.abc import Sequence

import numpy as np

from sidestep.campaign.records import Candidate

TRUST = 40.0  # labels that a prediction is worth
AUDITED_TRUST = 0.2  # further labels that it is worth for every rollout of an audit that it was compared with
GAP_TRUST = 8.0  # costly trajectories, as many as predicted, that are imagined before the first label
LARGEST_GAP = 2.5
REACH = 2.0  # how far above the aims a belief may be that more labels could still correct


def believed_costs(candidate: Candidate, optimism: float, audited: int = 0) -> np.ndarray:
    """The prediction, corrected for optimism, and by how far labels of the policy's rollouts were not what was expected
    of these very rollouts:

        p + (costly - expected) / (labels + trust)

    So a policy that was unlucky in a few rollouts, as the safety model saw, is believed no worse. A prediction is worth
    TRUST labels, and more of them once `audited` rollouts have shown how optimistic predictions are.
    """
    predicted = np.minimum(np.array(candidate.predicted_costs) * optimism, 1.0)
    if not candidate.labels:
        return predicted
    expected = np.minimum(np.array(candidate.expected) * optimism, candidate.labels)
    trust = TRUST + AUDITED_TRUST * audited
    return np.clip(predicted + (np.array(candidate.costly) - expected) / (candidate.labels + trust), 0.0, 1.0)


def optimism(gaps: Sequence[tuple[float, float]]) -> float:
    """By how much true costs exceed predicted ones, from (costly, predicted) counts of groups of labels.

    (costly + a) / (predicted + a), a being imagined, since few labels say little; never below 1.
    """
    costly, predicted = (float(sum(gap[i] for gap in gaps)) for i in (0, 1))
    return float(np.clip((costly + GAP_TRUST) / (predicted + GAP_TRUST), 1.0, LARGEST_GAP))


def favourite(
    candidates: Sequence[Candidate], aims: np.ndarray, gap: float, tried: Sequence[int | None] = (), audited: int = 0
) -> int | None:
    """The candidate of the highest return among those believed to be within the aims; else the safest.

    None when all of them were tried.
    """
    left = [index for index in range(len(candidates)) if index not in tried]
    if not left:
        return None
    excess = {index: _excess(candidates[index], aims, gap, audited) for index in left}
    within = [index for index in left if excess[index] <= 1.0]
    if within:
        return max(within, key=lambda index: candidates[index].predicted_return)
    return min(left, key=lambda index: excess[index])


def challenger(candidates: Sequence[Candidate], aims: np.ndarray, gap: float, chosen: int, enough: int) -> int | None:
    """The candidate whose labels could change the choice: one with fewer than `enough` that earns more than the chosen
    one, by more than chance makes of a run, and is believed to be above the aims, but within reach. The closest."""
    best = candidates[chosen]
    excess = {
        index: _excess(candidate, aims, gap)
        for index, candidate in enumerate(candidates)
        if candidate.labels < enough and candidate.predicted_return > best.predicted_return + best.deviation
    }
    near = [index for index in excess if excess[index] <= REACH]
    return min(near, key=lambda index: excess[index]) if near else None


def _excess(candidate: Candidate, aims: np.ndarray, gap: float, audited: int = 0) -> float:
    return float(np.max(believed_costs(candidate, gap, audited) / aims))
