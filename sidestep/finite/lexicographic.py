"""Lexicographic planning: first the reward, up to a slack, then the least penalty, then the reward again.

Slack has two meanings in use: what one choice may lose (`lexicographic`, by value iteration, a deterministic policy)
and what the whole may lose (`lexicographic_lp`, by two linear programs, a policy that may be random).
"""

import numpy as np

from sidestep.core.model import FinitePart
from sidestep.finite.occupancy import Bound, Optimum, occupancy_lp
from sidestep.finite.values import TIE, Values, from_start, value_iteration

LEEWAY = 1e-7  # what the second program may lose of the first: more than the solver's error


def lexicographic(finite: FinitePart, penalty: np.ndarray, *, slack: float, discount: float = 1.0) -> Values:
    """The policy that pays the least penalty (N, A) among the actions with Q(s, a) >= V(s) - slack.

    Its return is at least V - slack / (1 - discount); with discount 1 it loses at most `slack` per step. The values
    returned are those of the reward among the actions left.
    """
    reward = value_iteration(finite, discount=discount)
    allowed = reward.action_values >= reward.values[:, None] - max(slack, TIE)
    safety = value_iteration(finite, -penalty, discount=discount, allowed=allowed)
    allowed &= safety.action_values >= safety.values[:, None] - TIE
    return value_iteration(finite, discount=discount, allowed=allowed)


def lexicographic_lp(finite: FinitePart, penalty: np.ndarray, *, slack: float, discount: float = 1.0) -> Optimum:
    """The policy of least expected penalty among those whose return from the start is at least the best - slack."""
    best = from_start(finite, value_iteration(finite, discount=discount).values)
    within = Bound(-finite.reward, slack + LEEWAY - best, "loss of reward")
    least = -occupancy_lp(finite, [within], reward=-penalty, discount=discount).value
    return occupancy_lp(finite, [within, Bound(penalty, least + LEEWAY, "penalty")], discount=discount)
