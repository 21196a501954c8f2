"""What half and twice a tolerance would earn, by the candidates that a campaign has anyway. No label is asked for."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from sidestep.campaign.choice import beliefs, favourite
from sidestep.campaign.config import CampaignConfig
from sidestep.campaign.records import Candidate
from sidestep.campaign.schedule import certifiable_costs
from sidestep.certification.records import Neighbour
from sidestep.core.constraints import Constraint

FACTORS = (Fraction(1, 2), Fraction(2))


def neighbours(
    constraints: Sequence[Constraint],
    config: CampaignConfig,
    candidates: Sequence[Candidate],
    optimism: float,
    chosen: int,
) -> tuple[Neighbour, ...]:
    """For each tolerance next to the one that was asked for: how much more the best candidate believed to keep it earns
    than the chosen one, by the same predictions. None where no candidate is believed to keep it."""
    found = []
    for text, others in _varied(constraints):
        aims = certifiable_costs(others, config.rollouts, config.confidence)
        best = favourite(candidates, aims, optimism)
        gain = None
        if best is not None and np.all(beliefs(candidates, optimism)[best] <= aims):
            gain = candidates[best].predicted_return - candidates[chosen].predicted_return
        found.append(Neighbour(text, gain))
    return tuple(found)


def _varied(constraints: Sequence[Constraint]) -> Iterator[tuple[str, tuple[Constraint, ...]]]:
    """Every constraint at half and at twice its tolerance, the others as they are."""
    for place, constraint in enumerate(constraints):
        for factor in FACTORS:
            tolerance = factor * constraint.exact_tolerance
            if not 0 < tolerance < 1:
                continue
            bound = tolerance if constraint.sense == "<=" else 1 - tolerance
            name = constraint.text.split(constraint.sense)[0]
            other = replace(constraint, text=f"{name}{constraint.sense}{float(bound):g}", exact_bound=bound)
            yield other.text, (*constraints[:place], other, *constraints[place + 1 :])
