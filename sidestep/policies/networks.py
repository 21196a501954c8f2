"""Policies: a layer-normed network that sees the state, by choice the clock and the safety memory, and draws actions.

A draw is a deterministic function of the network's outputs and exogenous noise (the reparameterisation of the paper),
so that gradients flow through it: real entries by  u = mu + sigma * eps,  choices by straight-through Gumbel-softmax.
The raw draw (u, or the index of a choice) is kept beside the action: its density is what PPO and the score-function
estimator need, and the map from the raw draw to the bounded action does not depend on the parameters.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Literal, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from sidestep.core.errors import InputError
from sidestep.core.model import AnyArray, Model, Policy, Variable, allowed_of, within_rules
from sidestep.safety.base import SafetyModel

Squash = Literal["tanh", "clip"]
SHARE_END = 0.98  # of half the range: tanh reaches no bound, and an action beyond this counts as at its bound
LARGEST_CHOICE = 256  # an integer action with more values than this is not a choice any more


class Network(eqx.Module):
    """Linear, layer norm, tanh, ..., linear."""

    hidden: tuple[eqx.nn.Linear, ...]
    norms: tuple[eqx.nn.LayerNorm, ...]
    head: eqx.nn.Linear

    def __init__(self, inputs: int, outputs: int, widths: tuple[int, ...], *, key: PRNGKeyArray, head_scale: float):
        keys = jax.random.split(key, len(widths) + 1)
        sizes = (inputs, *widths)
        pairs = zip(sizes[:-1], widths, keys[:-1], strict=True)
        self.hidden = tuple(eqx.nn.Linear(a, b, key=k) for a, b, k in pairs)
        self.norms = tuple(eqx.nn.LayerNorm(width) for width in widths)
        head = eqx.nn.Linear(sizes[-1], outputs, key=keys[-1])
        self.head = jax.tree.map(lambda leaf: leaf * head_scale, head)

    def __call__(self, x: Float[Array, " inputs"]) -> Float[Array, " outputs"]:
        for linear, norm in zip(self.hidden, self.norms, strict=True):
            x = jnp.tanh(norm(linear(x)))
        return self.head(x)


Net = Callable[[Array], Array]  # from the inputs of an observation to the outputs of the heads
NETWORKS: dict[str, type[eqx.Module]] = {}  # of users, by name


def register_network(kind: type[eqx.Module]) -> type[eqx.Module]:
    """Make a network of your own known, so that policies with it can be trained and loaded.

    `kind(inputs, outputs, *, key)` is an Equinox module that maps a vector (inputs,) to a vector (outputs,); all its
    arrays are learned. Its first outputs should be close to zero: the policy then begins in the middle of the action
    bounds. Can be used as a decorator.
    """
    if not (isinstance(kind, type) and issubclass(kind, eqx.Module)):
        raise InputError(f"a policy network is a subclass of equinox.Module, not {kind!r}")
    NETWORKS[kind.__name__] = kind
    return kind


def name_of(net: Net) -> str:
    """The name under which a network was registered; "" for the built-in one."""
    inner = net.net if isinstance(net, Widened) else net
    return "" if isinstance(inner, Network) else type(inner).__name__


def _registered(name: str) -> Callable[..., Net]:
    if name not in NETWORKS:
        raise InputError(
            f"the policy network '{name}' is not known in this process; make it known by sidestep.register_network"
        )
    return cast(Callable[..., Net], NETWORKS[name])


class Widened(eqx.Module):
    """A network that acts as `net` does, and can learn to heed further inputs: net(x) + W y, where W begins at zero."""

    net: Net
    further: Float[AnyArray, "*run outputs further"]
    inputs: int = eqx.field(static=True)

    def __init__(self, net: Net, inputs: int, all_inputs: int) -> None:
        self.net, self.inputs = net, inputs
        (outputs,) = eqx.filter_eval_shape(net, jnp.zeros(inputs)).shape
        self.further = jnp.zeros((outputs, all_inputs - inputs))

    def __call__(self, x: Float[Array, " inputs"]) -> Float[Array, " outputs"]:
        return self.net(x[: self.inputs]) + self.further @ x[self.inputs :]


class Observer(eqx.Module):
    """What a network sees of a step: standardised state, clock, memory of the safety model.

    The memory is the one after this step, were the action `idle`: whether the present state counts is what matters
    most where states are counted. Where actions are counted, `idle` is None, and the memory is the one before it.
    """

    mean: Float[AnyArray, "*run state"]
    deviation: Float[AnyArray, "*run state"]
    safety: SafetyModel | None  # whose memory is seen
    clock: bool = eqx.field(static=True)
    horizon: int = eqx.field(static=True)
    idle: tuple[float, ...] | None = eqx.field(static=True, default=None)

    @property
    def size(self) -> int:
        features = 0 if self.safety is None else self.safety.features(self.safety.start()).shape[0]
        return self.mean.shape[0] + int(self.clock) + features

    def __call__(self, state: Array, clock: Array, memory: PyTree) -> Float[Array, " inputs"]:
        seen = [(state - self.mean) / self.deviation]
        if self.clock:
            seen.append(jnp.reshape(2.0 * jnp.asarray(clock, float) / self.horizon - 1.0, (1,)).astype(state.dtype))
        if self.safety is not None:
            if self.idle is not None:
                memory = self.safety.advance(memory, state, jnp.asarray(self.idle, state.dtype))
            seen.append(self.safety.features(memory))
        return jnp.concatenate(seen)


class GaussianHead(eqx.Module):
    """Independent normals, mapped into the bounds of the state: a = middle + half range * squash(u)."""

    size: int = eqx.field(static=True)
    squash: Squash = eqx.field(static=True)

    @property
    def outputs(self) -> int:
        return self.size

    @property
    def raw_size(self) -> int:
        return self.size

    def draw(self, mu: Array, log_std: Array, key: PRNGKeyArray | None) -> tuple[Array, Array]:
        if key is None:
            return mu, mu
        raw = mu + jnp.exp(log_std) * jax.random.normal(key, mu.shape, mu.dtype)
        return raw, raw

    def place(self, drawn: Array, low: Array, high: Array) -> Array:
        bounded = jnp.isfinite(low) & jnp.isfinite(high)
        low, high = jnp.where(bounded, low, -1.0), jnp.where(bounded, high, 1.0)
        share = jnp.tanh(drawn) if self.squash == "tanh" else jnp.clip(drawn, -1.0, 1.0)
        return jnp.where(bounded, 0.5 * (low + high) + 0.5 * (high - low) * share, drawn)

    def raw_of(self, action: Array, low: Array, high: Array) -> Array:
        """A raw draw that leads to this action, kept off the ends that no draw reaches."""
        bounded = jnp.isfinite(low) & jnp.isfinite(high) & (high > low)
        low, high = jnp.where(bounded, low, -1.0), jnp.where(bounded, high, 1.0)
        share = (2.0 * action - low - high) / (high - low)
        raw = (
            jnp.arctanh(jnp.clip(share, -SHARE_END, SHARE_END)) if self.squash == "tanh" else jnp.clip(share, -1.0, 1.0)
        )
        return jnp.where(bounded, raw, action)

    def log_prob(self, mu: Array, log_std: Array, raw: Array) -> Float[Array, ""]:
        return jnp.sum(jax.scipy.stats.norm.logpdf(raw, mu, jnp.exp(log_std)))

    def distance(self, mu: Array, raw: Array) -> Float[Array, ""]:
        """Squared, from a raw draw that `raw_of` gave; beyond the bounds there is none."""
        end = np.arctanh(SHARE_END) if self.squash == "tanh" else 1.0
        beyond = ((raw >= 0.999 * end) & (mu > raw)) | ((raw <= -0.999 * end) & (mu < raw))
        return jnp.sum(jnp.where(beyond, 0.0, (mu - raw) ** 2))

    def entropy(self, mu: Array, log_std: Array) -> Float[Array, ""]:
        return jnp.sum(log_std + 0.5 * jnp.log(2.0 * jnp.pi * jnp.e))


class ChoiceHead(eqx.Module):
    """Independent choices among `options` values for each of `entries`: one-hot, or whole numbers from `low`."""

    entries: int = eqx.field(static=True)
    options: int = eqx.field(static=True)
    one_hot: bool = eqx.field(static=True)

    @property
    def outputs(self) -> int:
        return self.entries * self.options

    @property
    def raw_size(self) -> int:
        return self.entries

    def draw(self, logits: Array, log_std: Array, key: PRNGKeyArray | None) -> tuple[Array, Array]:
        logits = logits.reshape(self.entries, self.options)
        soft = jax.nn.softmax(logits)
        noise = 0.0 if key is None else jax.random.gumbel(key, logits.shape, logits.dtype)
        index = jnp.argmax(logits + noise, axis=1)
        hard = jax.nn.one_hot(index, self.options, dtype=logits.dtype)
        return hard + soft - jax.lax.stop_gradient(soft), index.astype(logits.dtype)

    def place(self, drawn: Array, low: Array, high: Array) -> Array:
        if self.one_hot:
            return drawn[0]
        return low + drawn @ jnp.arange(self.options, dtype=drawn.dtype)

    def raw_of(self, action: Array, low: Array, high: Array) -> Array:
        index = jnp.argmax(action)[None] if self.one_hot else jnp.round(action - low)
        return index.astype(action.dtype)

    def log_prob(self, logits: Array, log_std: Array, raw: Array) -> Float[Array, ""]:
        table = jax.nn.log_softmax(logits.reshape(self.entries, self.options))
        return jnp.sum(jnp.take_along_axis(table, raw[:, None].astype(int), axis=1))

    def distance(self, logits: Array, raw: Array) -> Float[Array, ""]:
        """-log P(raw)."""
        return -self.log_prob(logits, logits[:0], raw)

    def entropy(self, logits: Array, log_std: Array) -> Float[Array, ""]:
        table = jax.nn.log_softmax(logits.reshape(self.entries, self.options))
        return -jnp.sum(jnp.exp(table) * table)


class Memory(NamedTuple):
    """What a network policy carries from step to step, and what it saw and drew last."""

    safety: PyTree
    observation: Float[Array, " inputs"]
    raw: Float[Array, " raw"]


class NetworkPolicy(Policy):
    """pi_theta(a | observation), one head for each action variable."""

    net: Net  # a `Network`, or a registered one
    log_std: Float[AnyArray, "*run real"]  # of the raw draws of the real entries
    observer: Observer
    model: Model = eqx.field(static=True)
    heads: tuple[GaussianHead | ChoiceHead, ...] = eqx.field(static=True)
    sampled: bool = eqx.field(static=True, default=True)

    def start(self) -> Memory:
        safety = None if self.observer.safety is None else self.observer.safety.start()
        dtype = self.observer.mean.dtype
        raw = sum(head.raw_size for head in self.heads)
        return Memory(safety, jnp.zeros(self.observer.size, dtype), jnp.zeros(raw, dtype))

    def act(self, state, clock, memory, key):
        observation = self.observer(state, clock, memory.safety)
        action, raw = self.draw(observation, state, key if self.sampled else None)
        safety = memory.safety
        if self.observer.safety is not None:
            taken = action if allowed_of(self.model) is None else within_rules(self.model, state, action)
            safety = self.observer.safety.advance(safety, state, taken)
        return action, Memory(safety, observation, raw)

    def draw(self, observation: Array, state: Array, key: PRNGKeyArray | None) -> tuple[Array, Array]:
        """The action and the raw draw behind it; without a key the mean (real) and the likeliest (choice)."""
        low, high = self.model.action_bounds(state)
        keys = [None] * len(self.heads) if key is None else list(jax.random.split(key, len(self.heads)))
        actions, raws = [], []
        for (head, outputs, log_std), variable, head_key in zip(
            self._pieces(self.net(observation)), self.model.spec.action.variables, keys, strict=True
        ):
            where = self.model.spec.action.slices[variable.name]
            drawn, raw = head.draw(outputs, log_std, head_key)
            actions.append(head.place(drawn, low[where], high[where]))
            raws.append(raw)
        return jnp.concatenate(actions), jnp.concatenate(raws)

    def raw_of(self, state: Array, action: Array) -> Array:
        """The raw draw behind an action that somebody else took in this state."""
        low, high = self.model.action_bounds(state)
        slices = [self.model.spec.action.slices[v.name] for v in self.model.spec.action.variables]
        pieces = zip(self.heads, slices, strict=True)
        return jnp.concatenate([head.raw_of(action[where], low[where], high[where]) for head, where in pieces])

    def log_prob(self, observation: Array, raw: Array) -> Float[Array, ""]:
        """log pi(raw draw | observation)."""
        start, total = 0, jnp.zeros((), raw.dtype)
        for head, outputs, log_std in self._pieces(self.net(observation)):
            total += head.log_prob(outputs, log_std, raw[start : start + head.raw_size])
            start += head.raw_size
        return total

    def distance(self, observation: Array, raw: Array) -> Float[Array, ""]:
        """How far the policy is from this raw draw."""
        start, total = 0, jnp.zeros((), raw.dtype)
        for head, outputs, _ in self._pieces(self.net(observation)):
            total += head.distance(outputs, raw[start : start + head.raw_size])
            start += head.raw_size
        return total

    def entropy(self, observation: Array) -> Float[Array, ""]:
        pieces = self._pieces(self.net(observation))
        return sum((head.entropy(outputs, log_std) for head, outputs, log_std in pieces), jnp.zeros(()))

    def outputs(self, states: Float[Array, "batch state"]) -> Float[Array, "batch outputs"]:
        """What the network says in each of these states; for a policy that sees the state alone."""
        return jax.vmap(lambda state: self.net(self.observer(state, jnp.zeros(()), None)))(states)

    def mean(self) -> "NetworkPolicy":
        """The same policy without its noise."""
        return NetworkPolicy(self.net, self.log_std, self.observer, self.model, self.heads, sampled=False)

    def cut_at_bounds(self) -> "NetworkPolicy":
        """The same network, whose real actions are cut at their bounds: another policy, for it to be trained."""
        heads = tuple(
            GaussianHead(head.size, "clip") if isinstance(head, GaussianHead) else head for head in self.heads
        )
        return NetworkPolicy(self.net, self.log_std, self.observer, self.model, heads, self.sampled)

    def _pieces(self, outputs: Array) -> Iterator[tuple[GaussianHead | ChoiceHead, Array, Array]]:
        start = real = 0
        for head in self.heads:
            entries = head.size if isinstance(head, GaussianHead) else 0
            yield head, outputs[start : start + head.outputs], self.log_std[real : real + entries]
            start += head.outputs
            real += entries


def make_policy(
    model: Model,
    key: PRNGKeyArray,
    *,
    widths: tuple[int, ...] = (64, 64),
    squash: Squash = "tanh",
    clock: bool = True,
    safety: SafetyModel | None = None,
    deviation: float = 0.5,
    network: str = "",
    present: bool = True,
) -> NetworkPolicy:
    """A fresh policy for the model: its mean starts in the middle of the bounds, with the given noise around it.

    `present`: the memory that it sees has the present state in it.
    """
    size = model.spec.state.size
    idle = _idle(model) if safety is not None and present else None
    observer = Observer(jnp.zeros(size), jnp.ones(size), safety, clock, model.spec.horizon, idle)
    heads = tuple(_head(variable, squash) for variable in model.spec.action.variables)
    outputs = sum(head.outputs for head in heads)
    net: Net = (
        _registered(network)(observer.size, outputs, key=key)
        if network
        else Network(observer.size, outputs, widths, key=key, head_scale=0.1)
    )
    real = sum(head.size for head in heads if isinstance(head, GaussianHead))
    return NetworkPolicy(net, jnp.full(real, np.log(deviation), float), observer, model, heads)


def _idle(model: Model) -> tuple[float, ...]:
    """The action that does nothing, as far as its bounds allow it."""
    space = model.spec.action
    return tuple(np.clip(space.default, space.low, space.high).tolist())


def _head(variable: Variable, squash: Squash) -> GaussianHead | ChoiceHead:
    if variable.kind == "real":
        return GaussianHead(variable.size, squash)
    if variable.kind == "one-hot":
        return ChoiceHead(1, variable.size, one_hot=True)
    low, high = (np.broadcast_to(np.asarray(bound, float), (variable.size,)) for bound in (variable.low, variable.high))
    options = np.max(high - low) + 1  # an entry with fewer is kept in its bounds, as every action is
    if not 1 <= options <= LARGEST_CHOICE:
        raise InputError(
            f"the action '{variable.name}' needs whole-number bounds with at most {LARGEST_CHOICE} values for each "
            f"entry, and has {low.min():g} to {high.max():g}"
        )
    return ChoiceHead(variable.size, int(options), one_hot=False)


def trainable(policy: NetworkPolicy, *, deviation: bool) -> PyTree:
    """Which leaves of the policy are learned: the network, and the deviation if asked for."""
    frozen = jax.tree.map(lambda _: False, policy)
    learned = eqx.tree_at(lambda p: p.net, frozen, jax.tree.map(lambda _: True, policy.net))
    return eqx.tree_at(lambda p: p.log_std, learned, deviation)


def sees_present(safety: SafetyModel | None) -> bool:
    """Whether a policy should see this memory with the present state in it, as if nothing were done in this step.

    Where actions are counted that would break off a run of them, and what was counted so far would be lost.
    """
    return safety is None or not safety.heeds_actions


def with_memory(policy: NetworkPolicy, safety: SafetyModel, *, present: bool = True) -> NetworkPolicy:
    """A policy that acts as this one does, and can learn to heed the memory of the safety model as well."""
    observer = replace(policy.observer, safety=safety, idle=_idle(policy.model) if present else None)
    if not isinstance(policy.net, Network):
        return replace(policy, net=Widened(policy.net, policy.observer.size, observer.size), observer=observer)
    first = policy.net.hidden[0]
    nothing = jnp.zeros((first.out_features, observer.size), first.weight.dtype)
    weight = nothing.at[:, : first.in_features].set(first.weight)
    fresh = eqx.nn.Linear(observer.size, first.out_features, key=jax.random.key(0))
    wider = eqx.tree_at(lambda linear: (linear.weight, linear.bias), fresh, (weight, first.bias))
    net = eqx.tree_at(lambda net: net.hidden[0], policy.net, wider)
    return replace(policy, net=net, observer=observer)
