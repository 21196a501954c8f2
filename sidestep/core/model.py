"""The contract of a model, what a trajectory is, and how one is rolled out.

A model is a Markov decision process written as pure functions of JAX arrays:

    state  = model.reset(key)
    state, reward, done = model.step(state, action, key)
    low, high = model.action_bounds(state)

A model that forbids more than bounds can say has `allowed(state, action)`, the action that it takes instead, and
`rules` with `broken(state, action)`, by which everybody can see that it keeps them.

States and actions are flat float vectors; `model.spec` says what stands where in them. Every random
number comes from a key, so the same key gives the same trajectory and a rollout is a deterministic,
differentiable function of the policy's parameters once its key is fixed.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeGuard, get_args, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray, PyTree

from sidestep.core.errors import InputError, shortened
from sidestep.runtime.compilation import jit_balanced
from sidestep.runtime.devices import over_devices

if TYPE_CHECKING:
    AnyArray = Array
else:
    AnyArray = Array | np.ndarray  # JAX's where it is computed with, NumPy's where it is stored; both behave as JAX's

Kind = Literal["real", "int", "bool", "one-hot"]
Gradient = Literal["exact", "straight-through", "none"]

BLOCK = 1024  # steps that are tested at once
MOST_ENTRIES, MOST_STEPS, LONGEST_NAME = 10**6, 10**6, 1000
MOST_MEMORY = 0.25  # of the machine's memory that one batch of trajectories may take
STRETCH = 25  # steps between two looks at whether every trajectory of a batch has ended


def _is_whole(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _require_name(name: object, what: str) -> None:
    if not isinstance(name, str) or not name.strip() or len(name) > LONGEST_NAME or not name.isprintable():
        shown = shortened(repr(name))
        raise InputError(f"{what} must be printable text of at most {LONGEST_NAME:,} characters, not {shown}")


@dataclass(frozen=True, eq=False)
class Variable:
    """A named part of a state or action vector: `size` numbers of one kind within [low, high]."""

    name: str
    kind: Kind = "real"
    size: int = 1
    low: float | np.ndarray = -np.inf
    high: float | np.ndarray = np.inf
    labels: tuple[str, ...] = ()  # what the single entries are called: rooms, axes, moves
    default: float | np.ndarray = 0.0  # of an action: what stands there when nothing is done

    def __post_init__(self) -> None:
        _require_name(self.name, "a variable's name")
        if self.kind not in get_args(Kind):
            raise InputError(
                f"variable '{self.name}' has the kind {self.kind!r}; there are {', '.join(get_args(Kind))}"
            )
        if not _is_whole(self.size) or not 1 <= self.size <= MOST_ENTRIES:
            raise InputError(f"variable '{self.name}' must have 1 to {MOST_ENTRIES:,} entries, not {self.size!r}")
        if self.labels and len(self.labels) != self.size:
            raise InputError(
                f"variable '{self.name}' has {self.size} entries but {len(self.labels)} labels; one is needed per entry"
            )
        for bound in (self.low, self.high, self.default):
            if np.shape(bound) not in ((), (self.size,)):
                raise InputError(
                    f"variable '{self.name}' has {self.size} entries but a bound of shape {np.shape(bound)}; "
                    "a bound is one number, or one number per entry"
                )
            if np.asarray(bound).dtype.kind not in "biuf" or np.isnan(bound).any():
                raise InputError(f"variable '{self.name}' has the bound or default {bound!r}, which is not a number")


@dataclass(frozen=True, eq=False)
class Space:
    """The variables of a vector, in the order in which they stand in it."""

    variables: tuple[Variable, ...]

    def __post_init__(self) -> None:
        if not self.variables or not all(isinstance(variable, Variable) for variable in self.variables):
            raise InputError("a space is made of one Variable or more")
        names = [variable.name for variable in self.variables]
        if len(set(names)) < len(names):
            raise InputError(f"the names of a space's variables must differ, and these are {', '.join(names)}")

    @property
    def size(self) -> int:
        return sum(variable.size for variable in self.variables)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """One name per entry: `temp[r2]`, or the variable's own name when it has one entry and no label."""
        names: list[str] = []
        for variable in self.variables:
            if variable.size == 1 and not variable.labels:
                names.append(variable.name)
            else:
                labels = variable.labels or tuple(str(i) for i in range(variable.size))
                names.extend(f"{variable.name}[{label}]" for label in labels)
        return tuple(names)

    @cached_property
    def slices(self) -> dict[str, slice]:
        ends = np.cumsum([variable.size for variable in self.variables])
        return {v.name: slice(int(end) - v.size, int(end)) for v, end in zip(self.variables, ends, strict=True)}

    @cached_property
    def low(self) -> np.ndarray:
        return self._bounds("low")

    @cached_property
    def high(self) -> np.ndarray:
        return self._bounds("high")

    @cached_property
    def default(self) -> np.ndarray:
        return self._bounds("default")

    @property
    def kinds(self) -> set[Kind]:
        return {variable.kind for variable in self.variables}

    def take(self, vectors: AnyArray, name: str) -> AnyArray:
        """The entries of variable `name` (or of one entry, by its full name) from vectors of shape (..., size)."""
        if name in self.slices:
            return vectors[..., self.slices[name]]
        if name in self.names:
            return vectors[..., self.names.index(name)]
        raise InputError(f"no variable '{name}' here; there are {', '.join(self.slices)}")

    def _bounds(self, side: Literal["low", "high", "default"]) -> np.ndarray:
        return np.concatenate([np.broadcast_to(np.asarray(getattr(v, side), float), (v.size,)) for v in self.variables])


@dataclass(frozen=True, eq=False)
class Spec:
    """What a planner, a checker and a report need to know about a model without running it."""

    name: str
    state: Space
    action: Space
    horizon: int
    discount: float = 0.99
    gradient: Gradient = "exact"
    notes: tuple[str, ...] = ()  # in words: why there is no gradient, what it cannot see
    description: str = ""
    ends: bool = True  # False: step never says done, so nobody need look
    family: str = ""  # a model that we ship says here whose rules and drawings fit it
    unenforced: tuple[str, ...] = ()  # what the model forbids and a rollout may do all the same: never certified

    def __post_init__(self) -> None:
        _require_name(self.name, "a model's name")
        for part in (self.state, self.action):
            if not isinstance(part, Space):
                raise InputError(f"model '{self.name}': state and action are each a Space, not a {type(part).__name__}")
        if self.gradient not in ("exact", "straight-through", "none"):
            raise InputError(
                f"model '{self.name}': gradient is 'exact', 'straight-through' or 'none', not {self.gradient!r}"
            )
        if not _is_whole(self.horizon) or not 1 <= self.horizon <= MOST_STEPS:
            raise InputError(
                f"model '{self.name}': the horizon is a whole number from 1 to {MOST_STEPS:,}, not {self.horizon!r}"
            )
        if not 0.0 < self.discount <= 1.0:
            raise InputError(f"model '{self.name}': the discount must lie in (0, 1], not {self.discount}")


@runtime_checkable
class Model(Protocol):
    """A Markov decision process as pure functions, safe under jit, vmap, scan and grad."""

    spec: Spec

    def reset(self, key: PRNGKeyArray) -> Float[Array, " state"]: ...

    def step(
        self, state: Float[Array, " state"], action: Float[Array, " action"], key: PRNGKeyArray
    ) -> tuple[Float[Array, " state"], Float[Array, ""], Bool[Array, ""]]: ...

    def action_bounds(
        self, state: Float[Array, " state"]
    ) -> tuple[Float[Array, " action"], Float[Array, " action"]]: ...


class Trajectory(eqx.Module):
    """A batch of trajectories, padded to a common number of steps T.

    Step t of trajectory b is real when t < length[b]; what stands after that is padding and means nothing.
    """

    states: Float[AnyArray, "batch time state"]
    actions: Float[AnyArray, "batch time action"]
    rewards: Float[AnyArray, "batch time"]
    length: Int[AnyArray, " batch"]

    @property
    def mask(self) -> Bool[AnyArray, "batch time"]:
        """Which steps are real; NumPy's where the trajectory is NumPy's."""
        return self.length[:, None] > np.arange(self.rewards.shape[1])[None, :]

    def returns(self, discount: float = 1.0) -> Float[AnyArray, " batch"]:
        """sum_t discount^t r_t over the real steps."""
        weights = discount ** jnp.arange(self.rewards.shape[1], dtype=self.rewards.dtype)
        return jnp.sum(jnp.where(self.mask, self.rewards, 0.0) * weights[None, :], axis=1)

    def __len__(self) -> int:
        return self.length.shape[0]

    def __getitem__(self, rows: slice | Sequence[int] | np.ndarray | Array) -> "Trajectory":
        """The trajectories at `rows` (a slice or an index array), still a batch."""
        return jax.tree.map(lambda leaf: leaf[rows], self)


class Policy(eqx.Module):
    """What chooses actions. Parameters are the fields; memory, if any, is passed from step to step."""

    def start(self) -> PyTree:
        """The memory before the first step; `()` for a policy without one."""
        return ()

    def act(
        self, state: Float[Array, " state"], clock: Int[Array, ""], memory: PyTree, key: PRNGKeyArray
    ) -> tuple[Float[Array, " action"], PyTree]:
        """The action at step `clock`, and the memory after it."""
        raise NotImplementedError


class FunctionPolicy(Policy):
    """A policy from a plain function `action = f(state, clock, key)`."""

    function: Callable[[Array, Array, PRNGKeyArray], Array] = eqx.field(static=True)

    def act(self, state, clock, memory, key):
        return self.function(state, clock, key), memory


class OpenLoopPolicy(Policy):
    """A fixed sequence of actions, whatever the state."""

    actions: Float[Array, "time action"]

    def act(self, state, clock, memory, key):
        return self.actions[clock], memory


class UniformPolicy(Policy):
    """Every action within the bounds equally likely; unbounded real actions are drawn from Normal(0, 1)."""

    model: Model = eqx.field(static=True)

    def act(self, state, clock, memory, key):
        return sample_uniform_action(self.model, state, key), memory


class FinitePart(NamedTuple):
    """The exact table of a finite model: N states, A actions, at most K successors of each pair.

    P(s' | s, a) = sum_k probability[s, a, k] * [successor[s, a, k] = s'].
    """

    successor: np.ndarray  # int (N, A, K)
    probability: np.ndarray  # (N, A, K), sums to 1 over K
    reward: np.ndarray  # (N, A)
    start: np.ndarray  # (N,), a distribution
    absorbing: np.ndarray  # bool (N,)
    encoding: np.ndarray  # (N, state size): the state vector of each state


@runtime_checkable
class FiniteModel(Model, Protocol):
    """A model with finitely many states and actions whose whole table is known."""

    finite: FinitePart

    def indices(self, states: Float[AnyArray, "*batch state"]) -> Int[AnyArray, "*batch"]:
        """The table index of each state vector."""

    def action_indices(self, actions: Float[AnyArray, "*batch action"]) -> Int[AnyArray, "*batch"]:
        """The index of each action vector."""


def is_finite(model: Model) -> TypeGuard[FiniteModel]:
    return isinstance(model, FiniteModel)


def finite_part(model: Model) -> FinitePart | None:
    """The exact table of a finite model; None for any other model."""
    return model.finite if is_finite(model) else None


def sample_uniform_action(model: Model, state: Float[Array, " state"], key: PRNGKeyArray) -> Float[Array, " action"]:
    """Every action within the bounds equally likely; unbounded real entries are drawn from Normal(0, 1).

    A model that forbids more than bounds can say may still have to bring the action within its rules.
    """
    action = model.spec.action
    low, high = bounds_of(model, state)
    uniform_key, normal_key = jax.random.split(key)
    uniform = jax.random.uniform(uniform_key, (action.size,), state.dtype)
    pieces = []
    for variable in action.variables:
        where = action.slices[variable.name]
        draw, bottom, top = uniform[where], low[where], high[where]
        if variable.kind == "one-hot":
            piece = jax.nn.one_hot(jnp.argmax(draw), variable.size, dtype=state.dtype)
        elif variable.kind != "real":
            piece = jnp.minimum(jnp.floor(bottom + draw * (top - bottom + 1)), top)
        elif np.isfinite(action.low[where]).all() and np.isfinite(action.high[where]).all():
            piece = bottom + draw * (top - bottom)
        else:  # bounds may still depend on the state
            piece = _uniform_or_normal(draw, bottom, top, jax.random.fold_in(normal_key, where.start))
        pieces.append(piece)
    drawn = jnp.concatenate(pieces)
    return drawn if allowed_of(model) is None else _thinned(model, drawn, normal_key)


def _thinned(model: Model, action: Array, key: PRNGKeyArray) -> Array:
    """Choices go back to their default, all with the same random chance: where few may act at once, few draws do."""
    space = model.spec.action
    choice = np.concatenate([np.full(v.size, v.kind in ("bool", "int")) for v in space.variables])
    chance_key, entry_key = jax.random.split(jax.random.fold_in(key, space.size))
    idle = jax.random.uniform(entry_key, action.shape) < jax.random.uniform(chance_key)
    return jnp.where(choice & idle, jnp.asarray(space.default, action.dtype), action)


def within_rules(
    model: Model, state: Float[Array, " state"], action: Float[Array, " action"]
) -> Float[Array, " action"]:
    """The action that is taken when this one is asked for: within the bounds of the state, and one that is allowed."""
    action = clipped(action, *bounds_of(model, state))
    allowed = allowed_of(model)
    return action if allowed is None else allowed(state, action)


def bounds_of(model: Model, state: Float[Array, " state"]) -> tuple[Array, Array]:
    """The action bounds in this state; a user's model may leave them to its spec."""
    if hasattr(model, "action_bounds"):
        return model.action_bounds(state)
    action = model.spec.action
    return jnp.asarray(action.low, state.dtype), jnp.asarray(action.high, state.dtype)


def clipped(action: Array, low: Array, high: Array) -> Array:
    """Not a plain clip: its derivative is one half at a bound, where every one-hot action sits."""
    return jnp.where((action >= low) & (action <= high), action, jnp.clip(action, low, high))


def allowed_of(model: Model) -> Callable[[Array, Array], Array] | None:
    """The model's `allowed(state, action)`, if it forbids more than its bounds say."""
    return getattr(model, "allowed", None)


def rules_of(model: Model) -> tuple[str, ...]:
    """What the model forbids, in words."""
    return getattr(model, "rules", ())


def forbidden(model: Model, trajectory: "Trajectory") -> str | None:
    """The first action of these trajectories that the model forbids, in a sentence; None if there is none.

    A model that forbids actions names its `rules` and says by `broken(state, action)` which of them an action breaks.
    """
    rules = rules_of(model)
    if not rules:
        return None
    broken = np.asarray(_broken(model, jnp.asarray(trajectory.states), jnp.asarray(trajectory.actions)))
    broken = broken & np.asarray(trajectory.mask)[..., None]
    if not broken.any():
        return None
    run, step, rule = (int(i) for i in np.argwhere(broken)[0])
    return (
        f"step {step} of trajectory {run} takes an action that the model '{model.spec.name}' forbids: {rules[rule]} "
        "does not hold"
    )


class Forbidden(InputError):
    """A rollout took an action that its model forbids."""


def require_allowed(model: Model, trajectory: "Trajectory") -> "Trajectory":
    """The trajectories, if all that they do is allowed."""
    sentence = forbidden(model, trajectory)
    if sentence is not None:
        raise Forbidden(sentence)
    return trajectory


@jit_balanced
def _broken(model: Model, states: Array, actions: Array) -> Array:
    """(batch, time, rules), a block of steps at a time."""
    steps = (states.reshape(-1, states.shape[-1]), actions.reshape(-1, actions.shape[-1]))
    found = jax.lax.map(lambda step: model.broken(*step), steps, batch_size=BLOCK)  # type: ignore[attr-defined]
    return found.reshape(*states.shape[:2], -1)


def _uniform_or_normal(uniform: Array, low: Array, high: Array, key: PRNGKeyArray) -> Array:
    bounded = jnp.isfinite(low) & jnp.isfinite(high)
    finite_low, finite_high = jnp.where(bounded, low, 0.0), jnp.where(bounded, high, 1.0)
    normal = jnp.clip(jax.random.normal(key, low.shape, low.dtype), low, high)
    return jnp.where(bounded, finite_low + uniform * (finite_high - finite_low), normal)


def rollout_batch(
    model: Model,
    policy: Policy,
    keys: Key[Array, " batch"],
    horizon: int | None = None,
    trace: Callable[[PyTree], PyTree] = lambda memory: (),
) -> tuple[Trajectory, PyTree]:
    """One trajectory for each key: the body of `rollout`, to be called inside jit.

    The action is brought within the rules of the model before it is taken and recorded. `trace` picks what to keep of
    the policy's memory after each step; it comes back stacked as (batch, time, ...). The batch is spread over all
    devices of this process.
    """
    steps = model.spec.horizon if horizon is None else horizon
    _require_room(model.spec, len(keys), steps)
    both = over_devices(jax.vmap(jax.random.split)(keys))
    states = jax.vmap(model.reset)(both[:, 0])
    memory = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[None], (len(keys), *leaf.shape)), policy.start())

    def one(state, memory, done, clock, key):
        policy_key, model_key = jax.random.split(jax.random.fold_in(key, clock))
        action, memory = policy.act(state, clock, memory, policy_key)
        action = within_rules(model, state, action)
        next_state, reward, ends = model.step(state, action, model_key)
        reward = jnp.where(done, 0.0, reward)
        next_state = jnp.where(done, state, next_state)
        return (next_state, memory, done | ends), (state, action, reward, ~done, trace(memory))

    def all_of_them(carry, clock):
        return jax.vmap(one, in_axes=(0, 0, 0, None, 0))(*carry, clock, both[:, 1])

    carry = (states, memory, jnp.zeros(len(keys), bool))
    stacked = (
        _scan_until_done(all_of_them, carry, steps)
        if model.spec.ends
        else jax.lax.scan(all_of_them, carry, jnp.arange(steps))[1]
    )
    states, actions, rewards, alive, traced = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), stacked)
    return Trajectory(states, actions, rewards, jnp.sum(alive, axis=1)), traced


def _require_room(spec: Spec, batch: int, steps: int) -> None:
    """Refuse a batch that alone would fill much of the machine's memory; XLA and the system would end the process."""
    size = 4.0 * batch * steps * (spec.state.size + spec.action.size + 1)
    there = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) if hasattr(os, "sysconf") else 2.0**34
    if size > MOST_MEMORY * there:
        raise InputError(
            f"model '{spec.name}': {batch:,} trajectories of {steps:,} steps take {size / 1e9:,.1f} GB at once, and "
            f"this machine has {there / 1e9:,.0f} GB; ask for fewer trajectories or steps"
        )


def _scan_until_done(body: Callable, carry: PyTree, steps: int) -> PyTree:
    """A scan in stretches, of which those that begin after every trajectory has ended are skipped."""
    stretches = -(-steps // STRETCH)

    def run(carry, clocks):
        return jax.lax.scan(body, carry, clocks)

    def skip(carry, clocks):
        _, outputs = jax.eval_shape(run, carry, clocks)
        return carry, jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), outputs)

    def stretch(carry, clocks):
        return jax.lax.cond(jnp.all(carry[2]), skip, run, carry, clocks)

    clocks = jnp.arange(stretches * STRETCH).reshape(stretches, STRETCH)
    stacked = jax.lax.scan(stretch, carry, clocks)[1]
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:steps], stacked)


def require_finite(spec: Spec, trajectory: Trajectory) -> Trajectory:
    """The same trajectories, as NumPy arrays; refused where a real step holds a number that is not finite.

    Nothing is labelled, fitted to, compared or audited before it has passed here: NaN > limit is False, so that most
    rules would call a trajectory of NaN harmless.
    """
    plain = jax.tree.map(np.asarray, trajectory)
    found = []
    for names, part in (
        ([f"state '{name}'" for name in spec.state.names], plain.states),
        ([f"action '{name}'" for name in spec.action.names], plain.actions),
        (["the reward"], plain.rewards[..., None]),
    ):
        wrong = ~np.isfinite(part) & plain.mask[..., None]
        if wrong.any():
            step, row, entry = np.argwhere(wrong.swapaxes(0, 1))[0].tolist()
            found.append((step, row, names[entry], part[row, step, entry]))
    if not found:
        return plain
    step, row, name, value = min(found, key=lambda one: one[0])
    raise InputError(
        f"model '{spec.name}': {name} is {value} at step {step} of trajectory {row} (both counted from 0), and states, "
        "actions and rewards must be finite numbers"
    )


def require_finite_weights(tree: PyTree, what: str, place: str | None = None) -> None:
    """Refuse a policy or a safety model of which a number is not finite; `what` names it in the sentence."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(eqx.filter(tree, eqx.is_inexact_array)):
        wrong = ~np.isfinite(np.asarray(leaf))
        if wrong.any():
            where = jax.tree_util.keystr(path)
            raise InputError(f"{what} holds {wrong.sum()} numbers that are not finite, first in {where}", place=place)


@jit_balanced
def rollout(model: Model, policy: Policy, key: PRNGKeyArray, batch: int, horizon: int | None = None) -> Trajectory:
    """`batch` trajectories of `policy` in `model`, as one compiled program.

    Trajectory i depends on `key` and i alone, not on the size of the batch.
    """
    return rollout_batch(model, policy, jax.random.split(key, batch), horizon)[0]
