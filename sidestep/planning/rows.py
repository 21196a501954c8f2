"""A test of a policy in training, as one record: what a planner tells, and a line of metrics.jsonl."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isnan, nan
from typing import TYPE_CHECKING, Literal

from sidestep.core.records import Number, to_json
from sidestep.runtime.files import Json, JsonObject

if TYPE_CHECKING:  # `--help` loads this file, and need not wait for NumPy
    import numpy as np

Phase = Literal["", "gradient", "annealing"]  # of a campaign's last planning; the first is before it
Numbers = tuple[Number, ...]
NONE = Number(nan)  # what a method or a problem does not have; of several numbers, an empty tuple


@dataclass(frozen=True)
class PlanRow:
    """One test of one of the policies that are trained together.

    `train_` figures are means over the epochs since the test before; `mean_` and `sampled_` ones are of test
    trajectories by the mean and by the sampled action.
    """

    seed_index: int = 0
    epoch: int = 0
    round: int | None = None
    feasible: bool = False
    seconds: Number = NONE
    train_return: Number = NONE
    train_costs: Numbers = ()
    train_multipliers: Numbers = ()
    train_gradient_norms: Numbers = ()
    train_entropy: Number = NONE
    train_lookahead_gain: Number = NONE
    train_clip_share: Number = NONE
    mean_return: Number = NONE
    mean_return_deviation: Number = NONE
    mean_discounted: Number = NONE
    mean_length: Number = NONE
    mean_costs: Numbers = ()
    mean_predicted: Numbers = ()
    mean_true: Numbers = ()
    sampled_return: Number = NONE
    sampled_return_deviation: Number = NONE
    sampled_discounted: Number = NONE
    sampled_length: Number = NONE
    sampled_costs: Numbers = ()
    sampled_predicted: Numbers = ()
    sampled_true: Numbers = ()

    def with_figures(self, figures: "Mapping[str, np.ndarray]") -> "PlanRow":
        """With these figures by name, each one number or several."""
        plain = {name: tuple(value.tolist()) if value.ndim else value.item() for name, value in figures.items()}
        return replace(self, **plain)  # type: ignore[arg-type]

    def to_json(self) -> JsonObject:
        """Without what it does not have."""
        return {name: value for name, value in to_json(self).items() if not _missing(value)}


def _missing(value: Json) -> bool:
    return value is None or value == [] or (isinstance(value, float) and isnan(value))
