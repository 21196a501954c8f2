"""Which policy to trust: labels of its own rollouts and the calibrated safety model, weighed against each other."""

from collections.abc import Sequence

import numpy as np

from sidestep.campaign.records import Candidate

TRUST = 40.0  # labels that a prediction is worth
AUDITED_TRUST = 0.2  # further labels that it is worth for every rollout of an audit that it was compared with
GAP_TRUST = 8.0  # costly trajectories, as many as predicted, that are imagined before the first label
LARGEST_GAP = 2.5
CHANCE = 2.0  # standard deviations of the number of costly labels that are put down to chance
REACH = 2.0  # how far above the aims a belief may be that more labels could still correct


def believed_costs(
    candidate: Candidate, optimism: float, audited: int = 0, missed: np.ndarray | float = 0.0
) -> np.ndarray:
    """The prediction p, corrected for optimism and for what was `missed` in policies like it, and by how far labels of
    the policy's rollouts were not what was expected of these very rollouts:

        p + (costly - expected) / (labels + trust)

    So a policy that was unlucky in a few rollouts, as the safety model saw, is believed no worse. A prediction is worth
    TRUST labels, and more of them once `audited` rollouts have shown how optimistic predictions are.
    """
    predicted = np.minimum(np.array(candidate.predicted_costs) * optimism + missed, 1.0)
    if not candidate.labels:
        return predicted
    expected = np.minimum(np.array(candidate.expected) * optimism + missed * candidate.labels, candidate.labels)
    trust = TRUST + AUDITED_TRUST * audited
    return np.clip(predicted + (np.array(candidate.costly) - expected) / (candidate.labels + trust), 0.0, 1.0)


def missed_costs(candidates: Sequence[Candidate], optimism: float) -> np.ndarray:
    """What the safety model does not see in policies that were planned against it, from all labels of theirs:

        max(0, costly - expected - CHANCE sqrt(expected + 1)) / (labels + TRUST)

    A planner goes where its safety model is wrong, and all policies of the last planning went there together: where
    labels of some show it, by more than chance, the others are no better for having none.
    """
    labelled = [one for one in candidates if one.labels]
    if not labelled:
        return np.zeros(1)
    costly = np.sum([one.costly for one in labelled], axis=0)
    expected = np.sum([one.expected for one in labelled], axis=0) * optimism
    clear = costly - expected - CHANCE * np.sqrt(expected + 1.0)
    return np.maximum(clear, 0.0) / (sum(one.labels for one in labelled) + TRUST)


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
    excess = {i: one for i, one in enumerate(_excesses(candidates, aims, gap, audited)) if i not in tried}
    if not excess:
        return None
    within = [index for index in excess if excess[index] <= 1.0]
    if within:
        return max(within, key=lambda index: candidates[index].predicted_return)
    return min(excess, key=lambda index: excess[index])


def challenger(candidates: Sequence[Candidate], aims: np.ndarray, gap: float, chosen: int, enough: int) -> int | None:
    """The candidate whose labels could change the choice: one with fewer than `enough` that earns more than the chosen
    one, by more than chance makes of a run, and is believed to be above the aims, but within reach. The closest."""
    best = candidates[chosen]
    excesses = _excesses(candidates, aims, gap)
    excess = {
        index: excesses[index]
        for index, candidate in enumerate(candidates)
        if candidate.labels < enough and candidate.predicted_return > best.predicted_return + best.deviation
    }
    near = [index for index in excess if excess[index] <= REACH]
    return min(near, key=lambda index: excess[index]) if near else None


def beliefs(candidates: Sequence[Candidate], optimism: float, audited: int = 0) -> list[np.ndarray]:
    """What each candidate is believed to cost, by its own labels and those of policies that were planned as it was."""
    missed = {
        last: missed_costs([one for one in candidates if _is_last(one) == last], optimism) for last in (False, True)
    }
    return [believed_costs(one, optimism, audited, missed[_is_last(one)]) for one in candidates]


def _excesses(candidates: Sequence[Candidate], aims: np.ndarray, gap: float, audited: int = 0) -> list[float]:
    """By what factor each candidate is believed to exceed the aims."""
    return [float(np.max(costs / aims)) for costs in beliefs(candidates, gap, audited)]


def _is_last(candidate: Candidate) -> bool:
    """Whether it comes from the last planning."""
    return candidate.round is None
