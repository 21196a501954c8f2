"""The methods of the tables, as settings of the planner.

PPO          the reward alone.
MBGE         PPO, and against each constraint the derivative through policy, model and safety model (eq. 11).
MFGE         PPO, and against each constraint the score function (eq. 9).
MF-Lagrange  the paper's model-free variant on the grids: the classifier's output for a pair is the cost of the step,
             costs of a trajectory add up, and the score function lowers the sum. With a classifier of single steps that
             is eq. 9 with C(tau) = sum_t C(s_t, a_t), so it is MFGE's setting on another safety model.
"""

from dataclasses import replace

from sidestep.core.model import Model
from sidestep.planning.config import PlanConfig
from sidestep.planning.presets import preset_for

PRESETS = {"PPO": "ppo", "MBGE": "paper", "MFGE": "paper-mfge", "MF-Lagrange": "paper-mfge"}


def settings_of(
    method: str, model: Model, epochs: int | None, test_every: int | None = None, *, per_step: bool = True
) -> PlanConfig:
    """The preset behind a method for this model, with side effects of single steps or not; `epochs` shortens it."""
    config = preset_for(model, PRESETS[method], per_step=per_step)
    epochs = config.epochs if epochs is None else epochs
    return replace(config, epochs=epochs, test_every=min(test_every or config.test_every, epochs))
