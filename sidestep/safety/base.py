"""What every learned safety model promises, and what all kinds of them share.

A safety model reads a trajectory and says how probable each of its K ordered categories is. Leading axes are a
batch: one trajectory is (T, state), a thousand are (1000, T, state), and the same method takes both. Step t counts
when t < length; what comes after that changes nothing, whatever it is.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import ClassVar, Self, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from sidestep.core.errors import InputError
from sidestep.core.model import Trajectory
from sidestep.runtime.compilation import jit_balanced
from sidestep.safety.recurrent import PRECISION
from sidestep.safety.windows import Windows

States = Float[Array, "*batch time state"]
Actions = Float[Array, "*batch time action"]
Lengths = Int[Array, "*batch"]
Evidence = PyTree[Array]  # all that a network has to say about trajectories; each kind of model has its own
Memory = PyTree[Array]  # what a model remembers of the steps so far; likewise
T = TypeVar("T", bound=PyTree)

CHUNK = 512  # rows that a large batch is read by; every bucket of more than two chunks is a multiple of it


class Frozen(eqx.Module):
    """Arrays of a model that a fit's gradient leaves alone."""


class Standardisation(Frozen):
    """(x - mean) / deviation for each entry of (state, action), as seen in the data of the first fit."""

    mean: Float[Array, " input"]
    deviation: Float[Array, " input"]
    seen: Float[Array, ""]  # how many steps it was computed from; 0: never, it is the identity

    @staticmethod
    def identity(size: int) -> "Standardisation":
        return Standardisation(jnp.zeros(size, PRECISION), jnp.ones(size, PRECISION), jnp.zeros((), PRECISION))

    @staticmethod
    def of(trajectory: Trajectory) -> "Standardisation":
        steps = np.concatenate([trajectory.states, trajectory.actions], axis=-1, dtype=float)
        steps = steps[np.asarray(trajectory.mask)]
        mean, deviation = steps.mean(axis=0), steps.std(axis=0)
        # An entry that never moved in the data keeps its own unit.
        deviation = np.where(deviation > 1e-6 * (1.0 + np.abs(mean)), deviation, 1.0)
        return Standardisation(*(jnp.asarray(part, PRECISION) for part in (mean, deviation, len(steps))))

    def __call__(self, inputs: Float[Array, "*batch input"]) -> Float[Array, "*batch input"]:
        return (inputs - jnp.broadcast_to(self.mean, inputs.shape)) / jnp.broadcast_to(self.deviation, inputs.shape)


class Calibration(Frozen):
    """One or two numbers that make probabilities agree with observed frequencies; zeros change nothing."""

    @classmethod
    def identity(cls) -> Self:
        return cls(*(jnp.zeros((), PRECISION) for _ in fields(cls)))

    @classmethod
    def grid(cls) -> Self:
        """Some that a fit may end with, stacked, from no change to far less sure."""
        return jax.tree.map(lambda leaf: leaf[None], cls.identity())


class Temperature(Calibration):
    """log softmax(logits / temperature): more or less sure, in the same order."""

    log_temperature: Float[Array, "*grid"]

    @classmethod
    def grid(cls) -> Self:
        return cls(jnp.log(jnp.asarray((1.0, 1.5, 2.5, 4.0, 6.0, 10.0), PRECISION)))

    def __call__(self, logits: Float[Array, "*batch categories"]) -> Float[Array, "*batch categories"]:
        return jax.nn.log_softmax(logits * jnp.exp(-self.log_temperature))


@dataclass(frozen=True)
class Layers:
    """The shape of a network, without its sizes; each kind of model has some of these."""

    cell: str | None = None
    layers: int | None = None
    units: int | None = None
    dropout: float | None = None
    encoder: tuple[int, ...] | None = None
    hidden: tuple[int, ...] | None = None
    statistic: str | None = None
    limit: int | None = None
    alike: tuple[int, ...] | None = None
    hazards: int | None = None

    @property
    def given(self) -> dict[str, int | float | str | tuple[int, ...]]:
        return {name: value for name, value in vars(self).items() if value is not None}


class SafetyModel(eqx.Module):
    """P(category | trajectory), differentiable, for any length."""

    kind: ClassVar[str]  # its name in a file's header

    state_size: eqx.AbstractVar[int]
    action_size: eqx.AbstractVar[int]
    categories: eqx.AbstractVar[int]
    standardisation: eqx.AbstractVar[Standardisation]
    calibration: eqx.AbstractVar[Calibration]

    @abstractmethod
    def shape(self) -> Layers:
        """With the sizes and a key, all that is needed to build a model like this one."""

    @property
    @abstractmethod
    def input_weight(self) -> Float[Array, "input units"]:
        """What the first layer reads: one row for each entry of (state, action)."""

    @abstractmethod
    def evidence(self, states: States, actions: Actions, length: Lengths, key: PRNGKeyArray | None = None) -> Evidence:
        """All that the network has to say, before calibration; `key` switches dropout on."""

    @abstractmethod
    def conclude(self, evidence: Evidence) -> Float[Array, "*batch categories"]:
        """Log-probabilities of the categories from the evidence, by this model's calibration."""

    def log_probabilities(
        self, states: States, actions: Actions, length: Lengths, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*batch categories"]:
        return self.conclude(self.evidence(states, actions, length, key))

    def log_survival(self, states: States, actions: Actions, length: Lengths) -> Float[Array, "*batch levels"]:
        """log P(category < k) for k = 1, ..., K - 1."""
        log_probabilities = self.log_probabilities(states, actions, length)
        return jax.lax.cumlogsumexp(log_probabilities, axis=log_probabilities.ndim - 1)[..., :-1]

    @property
    def heeds_actions(self) -> bool:
        """Whether its memory follows from actions, and not from states alone. Only for counted events is that known."""
        return False

    @property
    def per_step(self) -> bool:
        """Side effects belong to single steps and are counted: it has `expected_counts`."""
        return False

    def expected_counts(self, states: States, actions: Actions, length: Lengths) -> Float[Array, "*batch categories"]:
        """Expected number of steps of each category, for models that are `per_step`."""
        raise NotImplementedError

    def disagreement(self, states: States, actions: Actions, length: Lengths) -> Float[Array, "*batch"]:
        """How far the members of an ensemble disagree, in nats; nothing for a single model."""
        return jnp.zeros(states.shape[:-2])

    def with_standardisation(self, standardisation: Standardisation) -> Self:
        return eqx.tree_at(lambda model: model.standardisation, self, standardisation)

    def with_calibration(self, calibration: Calibration) -> Self:
        return eqx.tree_at(lambda model: model.calibration, self, calibration)

    def learn(
        self, states: States, actions: Actions, length: Lengths, key: PRNGKeyArray | None
    ) -> tuple[Float[Array, "*batch categories"], PyTree]:
        """Log-probabilities in training, and the running statistics of the data after this batch, if it keeps any."""
        return self.log_probabilities(states, actions, length, key), ()

    def learn_marked(
        self, states: States, actions: Actions, length: Lengths, windows: Windows, key: PRNGKeyArray | None
    ) -> tuple[Float[Array, "*batch categories"], Float[Array, "*batch"], PyTree]:
        """As `learn`, and in between: log P(category, and each severity first reached in its window).

        Where hazards do not add up over the steps, each mark labels two prefixes: the one up to its window is not yet
        of its severity, the one with its window is.
        """
        log_probabilities, statistics = self.learn(states, actions, length, key)
        category = jnp.sum(windows.last < length[..., None], axis=-1, keepdims=True)
        total = jnp.take_along_axis(log_probabilities, category, axis=-1)[..., 0]
        for level in range(self.categories - 1):
            first, last, marked = (part[..., level] for part in windows)
            below, _ = self.learn(states, actions, first, key)
            reached, _ = self.learn(states, actions, last + 1, key)
            below, reached = (
                jax.nn.logsumexp(log, axis=-1) for log in (below[..., : level + 1], reached[..., level + 1 :])
            )
            total += jnp.where(marked & (first > 0), below, 0.0) + jnp.where(marked, reached, 0.0)
        return log_probabilities, total, statistics

    def with_statistics(self, statistics: PyTree) -> Self:
        return self

    @abstractmethod
    def blame_weights(
        self, states: States, actions: Actions, length: Lengths, severity: int
    ) -> Float[Array, "*batch time"]:
        """How much each step contributes to "category `severity` or worse": not negative, zero after the end."""

    # Streaming: the same model, one step at a time, for monitors and for policies that remember.

    @abstractmethod
    def start(self) -> Memory:
        """The memory before the first step."""

    @abstractmethod
    def advance(self, memory: Memory, state: Float[Array, " state"], action: Float[Array, " action"]) -> Memory:
        """The memory after one more step."""

    @abstractmethod
    def risk(self, memory: Memory) -> Float[Array, " levels"]:
        """P(category k or worse) for k = 1, ..., K - 1, were the trajectory to end here."""

    @abstractmethod
    def features(self, memory: Memory) -> Float[Array, " features"]:
        """What a policy may look at: bounded numbers that sum up the past."""


class NetworkModel(SafetyModel):
    """A safety model that is one network; all kinds but ensembles."""

    standardisation: Standardisation
    calibration: Calibration
    state_size: int = eqx.field(static=True)
    action_size: int = eqx.field(static=True)
    categories: int = eqx.field(static=True)

    def __init__(self, state_size: int, action_size: int, categories: int, calibration: Calibration):
        if state_size < 1 or action_size < 0:
            raise InputError(
                f"a safety model needs a state of at least one number and an action of at least none, "
                f"not {state_size} and {action_size}"
            )
        if categories < 2:
            raise InputError(f"a safety model needs at least two categories, not {categories}")
        self.standardisation, self.calibration = Standardisation.identity(state_size + action_size), calibration
        self.state_size, self.action_size, self.categories = state_size, action_size, categories

    def inputs(self, states: Array, actions: Array, mask: Array | None = None) -> Array:
        """(state, action) standardised, in the precision of the parameters, with zeros in place of padding."""
        inputs = jnp.concatenate([states, actions], axis=-1).astype(self.standardisation.mean.dtype)
        if mask is None:
            return self.standardisation(inputs)
        # Replaced before it is used, so that not even a NaN in the padding can reach a gradient.
        inputs = jnp.where(mask[..., None], inputs, 0.0)
        return jnp.where(mask[..., None], self.standardisation(inputs), 0.0)


def check_dropout(rate: float) -> None:
    if not 0.0 <= rate < 1.0:
        raise InputError(f"dropout is a share in [0, 1), not {rate}")


def real_steps(time: int, length: Lengths) -> Bool[Array, "*batch time"]:
    """Which of `time` steps are real."""
    length = jnp.asarray(length)[..., None]
    return jnp.broadcast_to(jnp.arange(time), (*length.shape[:-1], time)) < length


def trainable(model: SafetyModel) -> PyTree[bool]:
    """Which leaves a fit may move."""
    return jax.tree.map(
        lambda node: False if isinstance(node, Frozen) else eqx.is_inexact_array(node),
        model,
        is_leaf=lambda node: isinstance(node, Frozen),
    )


def bucket(rows: int) -> int:
    """The next of 1, 2, 3, 4, 6, 8, 12, 16, ...: padding to it lets growing data reuse compiled programs."""
    size = 1
    while size < rows:
        if size * 3 // 2 >= rows and size > 1:
            return size * 3 // 2
        size *= 2
    return size


def pad_rows(tree: PyTree, rows: int) -> PyTree[Array]:
    """Every leaf lengthened with zeros to `rows` along its first axis, on the host."""

    def pad(leaf):
        padded = np.zeros((rows, *leaf.shape[1:]), leaf.dtype)
        padded[: leaf.shape[0]] = leaf
        return jnp.asarray(padded)

    return jax.tree.map(pad, tree)


def in_chunks(function: Callable[[T], PyTree[Array]], rows: T) -> PyTree[Array]:
    """`function` of a batch; a large bucket goes through it in pieces, so that memory stays small."""
    count = jax.tree.leaves(rows)[0].shape[0]
    if count <= 2 * CHUNK:
        return function(rows)
    pieces = jax.tree.map(lambda leaf: leaf.reshape(count // CHUNK, CHUNK, *leaf.shape[1:]), rows)
    return jax.tree.map(lambda leaf: leaf.reshape(count, *leaf.shape[2:]), jax.lax.map(function, pieces))


def evidence_of(model: SafetyModel, trajectory: Trajectory, room: int = 0) -> Evidence:
    """The model's evidence on a batch of any size, with rows of padding at its end; not for use inside jit.

    Batches up to `room` share their compiled program.
    """
    parts = (trajectory.states, trajectory.actions, trajectory.length)
    return _evidence(model, pad_rows(parts, bucket(max(len(trajectory), room))))


def probabilities_of(model: SafetyModel, evidence: Evidence, count: int) -> np.ndarray:
    """Probabilities of the categories by the first `count` rows of evidence."""
    return np.asarray(_probabilities(model, evidence))[:count]


def predict(model: SafetyModel, trajectory: Trajectory) -> Float[np.ndarray, "batch categories"]:
    """Probabilities of the categories for a batch of any size; inside jit, call the model itself."""
    return probabilities_of(model, evidence_of(model, trajectory), len(trajectory))


@jit_balanced
def _evidence(model, parts):
    return in_chunks(lambda rows: model.evidence(*rows), parts)


@jit_balanced
def _probabilities(model, evidence):
    return jnp.exp(model.conclude(evidence))
