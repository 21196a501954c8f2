"""What the recurrent safety models share: layers over (state, action), a linear head, and how they are made."""

from abc import abstractmethod
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
from jaxtyping import Array, Float, PRNGKeyArray

from sidestep.core.errors import InputError
from sidestep.safety.base import SafetyModel, Standardisation, check_sizes
from sidestep.safety.recurrent import Cell, Recurrent


class Shape(NamedTuple):
    """Of the recurrent part."""

    layers: int
    units: int
    dropout: float
    encoder: tuple[int, ...] = ()


class RecurrentModel(SafetyModel):
    """Recurrent layers and a head on their outputs; what the head's numbers mean is the subclass's."""

    default_shape: ClassVar[Shape]

    recurrent: Recurrent
    head_weight: Float[Array, "units outputs"]
    head_bias: Float[Array, " outputs"]
    standardisation: Standardisation
    calibration: Any
    state_size: int = eqx.field(static=True)
    action_size: int = eqx.field(static=True)
    categories: int = eqx.field(static=True)
    cell: Cell = eqx.field(static=True)

    def __init__(
        self,
        state_size: int,
        action_size: int,
        categories: int,
        *,
        key: PRNGKeyArray,
        cell: Cell = "gru",
        layers: int | None = None,
        units: int | None = None,
        dropout: float | None = None,
        encoder: tuple[int, ...] | None = None,
    ):
        """What is not given is the kind's default shape."""
        given: dict[str, Any] = {"layers": layers, "units": units, "dropout": dropout, "encoder": encoder}
        shape = Shape(
            **{**self.default_shape._asdict(), **{name: value for name, value in given.items() if value is not None}}
        )
        check_sizes(state_size, action_size, categories)
        check_recurrent(cell, shape)
        recurrent_key, *head_keys = jax.random.split(key, 3)
        inputs = state_size + action_size
        self.recurrent = Recurrent(
            cell, inputs, shape.units, shape.layers, shape.dropout, key=recurrent_key, encoder=shape.encoder
        )
        self.head_weight, self.head_bias, self.calibration = self.make_head(shape.units, categories, *head_keys)
        self.standardisation = Standardisation.identity(inputs)
        self.state_size, self.action_size, self.categories, self.cell = state_size, action_size, categories, cell

    @abstractmethod
    def make_head(
        self, units: int, categories: int, weight_key: PRNGKeyArray, bias_key: PRNGKeyArray
    ) -> tuple[Array, Array, Any]:
        """Fresh weight and bias of the head, and a calibration that changes nothing."""

    @property
    def input_weight(self) -> Float[Array, "input units"]:
        return self.recurrent.input_weight

    def config(self) -> dict[str, Any]:
        return {
            "cell": self.cell,
            "layers": len(self.recurrent.layers),
            "units": self.head_weight.shape[-2],
            "dropout": self.recurrent.dropout,
            "encoder": tuple(dense.bias.shape[-1] for dense in self.recurrent.encoder),
        }


def check_recurrent(cell: str, shape: Shape) -> None:
    if cell not in ("gru", "lstm"):
        raise InputError(f"the recurrent cell is 'gru' or 'lstm', not {cell!r}")
    if any(width < 1 for width in shape.encoder):
        raise InputError(f"layers of an encoder have at least one unit, not {shape.encoder}")
    if shape.layers < 1 or shape.units < 1:
        raise InputError(
            f"a recurrent model needs at least one layer and one unit, not {shape.layers} and {shape.units}"
        )
    if not 0.0 <= shape.dropout < 1.0:
        raise InputError(f"dropout is a share in [0, 1), not {shape.dropout}")
