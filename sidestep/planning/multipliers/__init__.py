"""Lagrange multipliers: how strongly each constraint pulls. One file per rule, each with its equation (eq. 7).

v_i = E[C_i] - d_i is the violation of constraint i in the last epoch.
"""

from collections.abc import Callable

from jaxtyping import Array, Float

from sidestep.planning.methods import PID, LogAdam, MultiplierRule, Projected, Relative
from sidestep.planning.multipliers import log_adam, pid, projected, relative
from sidestep.planning.multipliers.state import Multipliers

_UPDATES: dict[type[MultiplierRule], Callable[..., Multipliers]] = {
    Relative: relative.update,
    Projected: projected.update,
    LogAdam: log_adam.update,
    PID: pid.update,
}


def update(
    rule: MultiplierRule,
    multipliers: Multipliers,
    cost: Float[Array, " constraint"],
    tolerance: Float[Array, " constraint"],
) -> Multipliers:
    """The multipliers after an epoch in which the constraints had these mean costs."""
    return _UPDATES[type(rule)](rule, multipliers, cost, tolerance)
