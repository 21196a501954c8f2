"""The tolerances of a bank of policies, which are planned in parallel, from round to round.

Where the safety model has seen nothing it is wrong, and a planner that keeps to the tolerance from the first round on
may never look behind a wall that is not there. So the tolerances begin wide, from the user's own up to "anything goes":
such policies earn more than is allowed, and labels of their trajectories show where it is allowed after all. From round
to round the tolerances close in on what an audit will certify, and in the end they offer a choice between a little more
reward and a little more safety.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from sidestep.certification.bounds import CERTIFYING
from sidestep.certification.records import split_confidence
from sidestep.core.constraints import Constraint

WIDE = (1.0, 0.6, 0.25, 0.0)  # of the first round: d to this power, from the tolerance itself to 1
NARROW = (0.4, 0.6, 0.8, 0.95)  # of the last rounds: shares of the certifiable cost
SLOTS = len(WIDE)  # policies of a bank
CLOSING = 0.5  # share of the rounds in which the tolerances close in
NEVER = 0.01  # what a tolerance of zero is taken as
PEOPLE_AIM = 0.3  # share of a tolerance at which an audit by people, who err, takes a few hundred labels
PASSING = 0.9  # chance with which an audit of a policy at the certifiable cost should pass


def certifiable(constraint: Constraint, rollouts: int, confidence: float) -> float:
    """The largest chance of the cost at which an audit of so many rollouts passes with probability PASSING."""
    from scipy.stats import beta, binom

    tolerance = max(constraint.tolerance, NEVER)
    counts = np.arange(rollouts)
    upper = beta.ppf(confidence, counts + 1, rollouts - counts)
    allowed = int(np.sum(upper <= tolerance)) - 1  # the largest count of costly rollouts that certifies
    if allowed < 0:
        return tolerance / 4
    chances = np.linspace(0.0, tolerance, 400)
    return float(chances[np.sum(binom.cdf(allowed, rollouts, chances) >= PASSING) - 1])


def certifiable_costs(
    constraints: Sequence[Constraint],
    rollouts: int,
    confidence: float,
    audit: int = 1,
    aim: float | None = None,
) -> Float[np.ndarray, " constraint"]:
    """The certifiable cost of each constraint in a campaign's n-th audit, where all of them share the error.

    At most the share `aim` of the tolerance, where it is given.
    """
    level = 1.0 - CERTIFYING * (1.0 - split_confidence(confidence, audit)) / len(constraints)
    found = np.array([certifiable(constraint, rollouts, level) for constraint in constraints])
    if aim is None:
        return found
    return np.minimum(found, aim * np.maximum([constraint.tolerance for constraint in constraints], NEVER))


def tolerance_schedule(
    constraints: Sequence[Constraint],
    aims: Float[np.ndarray, " constraint"],
    progress: float,
    optimism: float,
    loosest: Float[np.ndarray, " constraint"] | None = None,
) -> Float[np.ndarray, "slot constraint"]:
    """Tolerances of the bank when `progress` (0 to 1) of the rounds is over.

    `aims` are the certifiable costs; `optimism` is by how much true costs exceed predicted ones. In a sweep the bank
    spans all of its tolerances in the end, in equal ratios: from `aims`, of the strictest, to those of the `loosest`.
    """
    tolerance = np.maximum([constraint.tolerance for constraint in constraints], NEVER)
    wide = tolerance[None, :] ** np.array(WIDE)[:, None]
    narrow = np.array(NARROW)[:, None] * aims[None, :] / optimism
    if loosest is not None:
        narrow = np.geomspace(NARROW[0] * aims, NARROW[-1] * loosest, SLOTS) / optimism
    return wide ** (1.0 - min(progress / CLOSING, 1.0)) * narrow ** min(progress / CLOSING, 1.0)
