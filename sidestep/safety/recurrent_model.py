"""What the recurrent safety models share: layers over (state, action), a linear head, and how they are made."""

from abc import abstractmethod
from typing import ClassVar

import equinox as eqx
import jax
from jaxtyping import Array, Float, PRNGKeyArray

from sidestep.core.errors import InputError
from sidestep.safety.base import Calibration, Layers, NetworkModel, check_dropout
from sidestep.safety.recurrent import Cell, Recurrent, Shape


class RecurrentModel(NetworkModel):
    """Recurrent layers and a head on their outputs; what the head's numbers mean is the subclass's."""

    default_shape: ClassVar[Shape]
    calibration_type: ClassVar[type[Calibration]]

    recurrent: Recurrent
    head_weight: Float[Array, "units outputs"]
    head_bias: Float[Array, " outputs"]
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
        super().__init__(state_size, action_size, categories, self.calibration_type.identity())
        usual = self.default_shape
        shape = Shape(
            usual.layers if layers is None else layers,
            usual.units if units is None else units,
            usual.dropout if dropout is None else dropout,
            usual.encoder if encoder is None else encoder,
        )
        check_recurrent(cell, shape)
        recurrent_key, *head_keys = jax.random.split(key, 3)
        self.recurrent = Recurrent(cell, state_size + action_size, shape, key=recurrent_key)
        self.head_weight, self.head_bias = self.make_head(shape.units, categories, *head_keys)
        self.cell = cell

    @abstractmethod
    def make_head(
        self, units: int, categories: int, weight_key: PRNGKeyArray, bias_key: PRNGKeyArray
    ) -> tuple[Array, Array]:
        """Fresh weight and bias of the head."""

    @property
    def input_weight(self) -> Float[Array, "input units"]:
        return self.recurrent.input_weight

    def shape(self) -> Layers:
        return Layers(
            cell=self.cell,
            layers=len(self.recurrent.layers),
            units=self.head_weight.shape[-2],
            dropout=self.recurrent.dropout,
            encoder=tuple(dense.bias.shape[-1] for dense in self.recurrent.encoder),
        )


def check_recurrent(cell: str, shape: Shape) -> None:
    if cell not in ("gru", "lstm"):
        raise InputError(f"the recurrent cell is 'gru' or 'lstm', not {cell!r}")
    if any(width < 1 for width in shape.encoder):
        raise InputError(f"layers of an encoder have at least one unit, not {shape.encoder}")
    if shape.layers < 1 or shape.units < 1:
        raise InputError(
            f"a recurrent model needs at least one layer and one unit, not {shape.layers} and {shape.units}"
        )
    check_dropout(shape.dropout)
