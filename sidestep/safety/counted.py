"""Counted events: a soft detector of an event, an exact counter of it, and thresholds at which severities are reached.

Most temporal side effects are an event that is counted: in the area, above 21 degrees, and that for so many steps
altogether or running. The detector is a union of regions, each an intersection of sides over the features of a step
(`derived`):

    e_t = 1 - prod_g (1 - prod_k sigmoid(kappa_gk (u_gk . phi(s_t, a_t) + b_gk)))

A box has sides with one feature each; sides of several features are oblique. The counter (`counters`) gives the exact
distribution of the statistic c of such events, and P(severity >= j | c) = sigmoid((c - theta_j) / tau).
"""

from typing import ClassVar, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from sidestep.core.errors import InputError
from sidestep.safety import counters
from sidestep.safety.base import Frozen, Layers, NetworkModel, Standardisation, Temperature, real_steps
from sidestep.safety.counters import NEVER, Statistic
from sidestep.safety.derived import derive
from sidestep.safety.recurrent import PRECISION
from sidestep.safety.survival import log_one_minus_exp

SIDES = 6  # of a region
REGIONS = 2
LIMIT = 8  # counts and runs above it are not told apart
SHARPNESS = 20.0  # of an idle side
SOFTNESS = 0.02  # of a fresh threshold: statistics are whole numbers, and labels that are wrong have lapses
TRIFLE = 0.2  # of the weight that a side gives to what it looks at most
IDLE = 20.0  # argument of a side that holds for every step
ALWAYS = 15.0  # argument above which a side that heeds nothing is taken to hold for every step: sigmoid(-15) = 3e-7


class Movable(Frozen):
    """Which features a side may come to look at when it is fitted further: 1 or 0."""

    directions: Float[Array, "region side feature"]


class Counter(NamedTuple):
    """The memory: log-probabilities of the counter's states, and the number of steps."""

    state: Float[Array, "*batch counter"]
    steps: Float[Array, "*batch"]


class CountedEvents(NetworkModel):
    """P(severity >= j) = sum_c P(c) sigmoid((c - theta_j) / tau), c the number, or longest run, or share of events."""

    kind: ClassVar[str] = "counted"

    directions: Float[Array, "region side feature"]
    offsets: Float[Array, "region side"]
    log_sharpness: Float[Array, "region side"]
    first_threshold: Float[Array, ""]
    gaps: Float[Array, " gaps"]  # log(theta_{j+1} - theta_j)
    log_softness: Float[Array, ""]
    movable: Movable
    features_seen: Standardisation  # of the features, as `standardisation` is of the entries
    calibration: Temperature
    statistic: Statistic = eqx.field(static=True)
    limit: int = eqx.field(static=True)
    alike: tuple[tuple[int, int], ...] = eqx.field(static=True)
    looks: tuple[int, ...] | None = eqx.field(static=True)  # the features that it computes; None: all

    def __init__(
        self,
        state_size: int,
        action_size: int,
        categories: int,
        *,
        key: PRNGKeyArray,
        statistic: str = "count",
        limit: int = LIMIT,
        alike: tuple[int, ...] = (),
        looks: tuple[int, ...] | None = None,
    ):
        """`alike`: start and size of each variable of several entries, one after the other."""
        super().__init__(state_size, action_size, categories, Temperature.identity())
        if statistic not in ("count", "run", "share"):
            raise InputError(f"the statistic is 'count', 'run' or 'share', not {statistic!r}")
        if limit < 2:
            raise InputError(f"a counter needs a limit of at least 2, not {limit}")
        groups = tuple(zip(alike[::2], alike[1::2], strict=True))
        if any(start < 0 or size < 2 or start + size > state_size + action_size for start, size in groups):
            raise InputError(f"variables stand within the entries, and {alike} do not")
        self.statistic, self.limit, self.alike, self.looks = statistic, limit, groups, looks  # type: ignore[assignment]
        derived = derive(jnp.zeros(state_size + action_size), state_size, groups)
        count = len(derived if looks is None else looks)
        size = (REGIONS, SIDES, count)
        self.directions = 0.1 * jax.random.normal(key, size, PRECISION)
        self.offsets = jnp.full(size[:2], 0.5, PRECISION)
        self.log_sharpness = jnp.full(size[:2], np.log(2.0), PRECISION)
        unit = 1.0 if statistic != "share" else 1.0 / limit
        self.first_threshold = jnp.asarray(1.5 * unit, PRECISION)
        self.gaps = jnp.full(categories - 2, np.log(2.0 * unit), PRECISION)
        self.log_softness = jnp.asarray(np.log(SOFTNESS * unit), PRECISION)
        self.movable = Movable(jnp.ones(size, PRECISION))
        self.features_seen = Standardisation.identity(count)

    @property
    def input_weight(self) -> Float[Array, "feature sides"]:
        return self.directions.reshape(-1, self.directions.shape[-1]).T

    def shape(self) -> Layers:
        return Layers(statistic=self.statistic, limit=self.limit, alike=self.flat_alike)

    @property
    def flat_alike(self) -> tuple[int, ...]:
        """`alike` as it is given."""
        return tuple(number for group in self.alike for number in group)

    def with_standardisation(self, standardisation: Standardisation) -> Self:
        """Features keep their own units until a fit has seen them."""
        return eqx.tree_at(lambda model: model.standardisation, self, standardisation)

    @property
    def thresholds(self) -> Float[Array, " levels"]:
        steps = jnp.concatenate([self.first_threshold[None], jnp.exp(self.gaps)])
        return jnp.cumsum(steps)

    @property
    def heeds_actions(self) -> bool:
        """Whether a side looks at actions, by more than a trifle beside what it looks at else."""
        entries = np.linspace(1.0, 2.0, self.state_size + self.action_size)
        otherwise = np.where(np.arange(len(entries)) < self.state_size, entries, 3.0 - entries**2)
        with jax.ensure_compile_time_eval():  # also where shapes alone are asked for
            changed = [
                np.asarray(derive(jnp.asarray(one), self.state_size, self.alike)) for one in (entries, otherwise)
            ]
        of_actions = (changed[0] != changed[1])[slice(None) if self.looks is None else np.array(self.looks)]
        weights = np.abs(np.asarray(self.directions) * np.asarray(self.movable.directions))
        return bool(np.any(weights * of_actions > TRIFLE * weights.max(axis=2, keepdims=True, initial=1e-9)))

    # The detector.

    def features_of(self, states: Array, actions: Array) -> Float[Array, "*batch feature"]:
        """What a step shows, standardised."""
        entries = jnp.concatenate([states, actions], axis=-1).astype(self.offsets.dtype)
        derived = derive(entries, self.state_size, self.alike)
        if self.looks is not None:
            derived = jnp.stack([derived[..., feature] for feature in self.looks], axis=-1)
        return self.features_seen(derived)

    def log_events(self, states: Array, actions: Array) -> tuple[Float[Array, "*batch"], Float[Array, "*batch"]]:
        """log e and log(1 - e) of single steps."""
        seen = self.features_of(states, actions)
        regions, sides, features = self.directions.shape
        flat = (self.directions * self.movable.directions).reshape(-1, features)
        inner = (seen @ flat.T).reshape(*seen.shape[:-1], regions, sides)
        sharpness, offsets = (jnp.broadcast_to(part, inner.shape) for part in (self.log_sharpness, self.offsets))
        arguments = jnp.exp(sharpness) * (inner + offsets)
        # a = log(-log P(inside a region)), which has digits left where the probability is 1 to the last of them.
        regions_inside = jax.nn.logsumexp(_log_softplus(-arguments), axis=-1)
        log_none = jnp.sum(_log_complement(regions_inside), axis=-1)
        log_minus_none = jax.nn.logsumexp(_log_minus_log_complement(regions_inside), axis=-1)
        return _log_complement(log_minus_none), log_none

    # The counter.

    def advanced(self, counter: Array, log_event: Array, log_none: Array) -> Array:
        """The counter, one or a batch of them, after one more step."""
        if self.statistic == "run":
            return counters.advance_run(counter, log_event, log_none, jax.lax.stop_gradient(self.thresholds))
        return counters.advance_count(counter, log_event, log_none)

    def counters(self, states: Array, actions: Array, length: Array) -> Float[Array, " time *counters"]:
        """The counters after each step."""
        mask = real_steps(states.shape[-2], length)
        clean = [jnp.where(mask[..., None], part, 0.0) for part in (states, actions)]
        happens, not_so = self.log_events(*clean)
        events = jnp.where(mask, happens, NEVER), jnp.where(mask, not_so, 0.0)
        begin = self._begin()

        def step(counter: Array, inputs: tuple[Array, ...]) -> tuple[Array, Array]:
            counter = self.advanced(counter, inputs[0], inputs[1])
            return counter, counter

        inputs = tuple(jnp.moveaxis(part, -1, 0) for part in events)
        return jax.lax.scan(step, jnp.broadcast_to(begin, (*mask.shape[:-1], *begin.shape)), inputs)[1]

    def _begin(self) -> Array:
        return counters.start(self.statistic, self.limit, self.categories - 1, self.offsets.dtype)

    def evidence(self, states, actions, length, key=None):
        """log P(category)."""
        return self.categories_of(self.counters(states, actions, length)[-1], jnp.asarray(length))

    def conclude(self, evidence):
        return self.calibration(evidence)

    def _distances(self, length: Array) -> Float[Array, "*batch counter levels"]:
        """(c - theta_j) / tau in each state of the counter."""
        values = jnp.arange(self.limit + 1, dtype=self.offsets.dtype)
        if self.statistic == "share":
            steps = jnp.maximum(length[..., None], 1).astype(values.dtype)
            values = jnp.broadcast_to(values, (*length.shape, len(values))) / steps
        distance = values[..., None] - jnp.broadcast_to(self.thresholds, (*values.shape, len(self.thresholds)))
        return distance * jnp.exp(-self.log_softness)

    def categories_of(self, counter: Array, length: Array) -> Float[Array, "*batch categories"]:
        """log P(category) from a counter; sigma(a) - sigma(b) = sigma(a) sigma(-b) (1 - exp(b - a))."""
        if self.statistic == "run":
            below = jax.nn.logsumexp(counter[..., :-1], axis=-1)
            between = below[..., 1:] + log_one_minus_exp(below[..., 1:] - below[..., :-1])
            return jax.nn.log_softmax(jnp.concatenate([below[..., :1], between, counter[..., -1, -1:]], axis=-1))
        above = self._distances(length)
        gaps = jnp.exp(self.gaps - jnp.broadcast_to(self.log_softness, self.gaps.shape))
        between = jax.nn.log_sigmoid(above[..., :-1]) + jax.nn.log_sigmoid(-above[..., 1:])
        between = between + jnp.broadcast_to(log_one_minus_exp(gaps), between.shape)
        best, worst = jax.nn.log_sigmoid(-above[..., :1]), jax.nn.log_sigmoid(above[..., -1:])
        return self._summed(counter, jnp.concatenate([best, between, worst], axis=-1))

    def survival_of(self, counter: Array, length: Array) -> Float[Array, "*batch levels"]:
        """log P(category < k) from a counter."""
        if self.statistic == "run":
            return jax.nn.logsumexp(counter[..., :-1], axis=-1)
        return self._summed(counter, jax.nn.log_sigmoid(-self._distances(length)))

    def _summed(self, counter: Float[Array, "*batch state"], given: Array) -> Array:
        """log sum_c P(c) exp(given_c)."""
        joint = counter[..., None] + jnp.broadcast_to(given, (*counter.shape, given.shape[-1]))
        return jax.nn.logsumexp(joint, axis=-2)

    def blame_weights(self, states, actions, length, severity):
        """How much the step's event added to the risk of `severity` or worse; without any risk, the event itself."""
        found = self.counters(states, actions, length)
        mask = real_steps(states.shape[-2], length)
        risk = -jnp.expm1(self.survival_of(found, jnp.asarray(length))[..., severity - 1])
        steps = jnp.diff(risk, axis=0, prepend=jnp.zeros_like(risk[:1]))
        events = jnp.exp(self.log_events(*(jnp.where(mask[..., None], part, 0.0) for part in (states, actions)))[0])
        return jnp.where(mask, jnp.maximum(jnp.moveaxis(steps, 0, -1), 0.0) + 0.05 * events, 0.0)

    # Streaming.

    def start(self):
        return Counter(self._begin(), jnp.zeros((), self.offsets.dtype))

    def advance(self, memory, state, action):
        return Counter(self.advanced(memory.state, *self.log_events(state, action)), memory.steps + 1.0)

    def risk(self, memory):
        log_probabilities = self.calibration(self.categories_of(memory.state, memory.steps))
        return jnp.cumsum(jnp.exp(log_probabilities)[::-1])[::-1][1:]

    def features(self, memory):
        """The chances of the counter's states, and the risk so far."""
        return jnp.concatenate([jnp.exp(memory.state).reshape(-1), self.risk(memory)])


def _log_softplus(y: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """log log(1 + exp(y)), which is y where exp(y) is small."""
    return jnp.where(y < -15.0, y, jnp.log(jax.nn.softplus(jnp.maximum(y, -15.0))))


def _log_complement(a: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """log(1 - p) for p = exp(-exp(a)): a itself where p is close to 1."""
    return jnp.where(a < -10.0, a, log_one_minus_exp(jnp.exp(jnp.clip(a, -10.0, 4.0))))


def _log_minus_log_complement(a: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """log(-log(1 - p)) for p = exp(-exp(a)): log p where p is close to 0."""
    return jnp.where(a > 2.3, -jnp.exp(jnp.minimum(a, 9.0)), jnp.log(-_log_complement(jnp.minimum(a, 2.3))))


def pruned(model: CountedEvents) -> CountedEvents:
    """The same answers from a smaller detector: without sides that hold for every step, regions that never do, and
    features that no side looks at."""
    directions = np.asarray(model.directions * model.movable.directions)
    heeds = np.any(directions != 0.0, axis=2)
    constant = np.where(heeds, 0.0, np.asarray(jnp.exp(model.log_sharpness) * model.offsets))
    regions = np.flatnonzero(~np.any(constant < -ALWAYS, axis=1))
    regions = regions if len(regions) else np.arange(1)
    needed = constant[regions] <= ALWAYS
    sides = np.argsort(~needed, axis=1, kind="stable")[:, : max(int(needed.sum(axis=1).max()), 1)]
    looks = np.flatnonzero(np.any(directions[regions[:, None], sides] != 0.0, axis=(0, 1)))
    looks = looks if len(looks) else np.arange(1)
    of_sides = lambda m: (m.directions, m.offsets, m.log_sharpness, m.movable.directions)  # noqa: E731
    of_features = lambda m: (m.directions, m.movable.directions, m.features_seen.mean, m.features_seen.deviation)  # noqa: E731
    smaller = eqx.tree_at(of_sides, model, tuple(part[regions[:, None], sides] for part in of_sides(model)))
    smaller = eqx.tree_at(of_features, smaller, tuple(part[..., looks] for part in of_features(smaller)))
    blank = CountedEvents(
        *(model.state_size, model.action_size, model.categories),
        key=jax.random.key(0),
        statistic=model.statistic,
        limit=model.limit,
        alike=model.flat_alike,
        looks=tuple(looks.tolist()),
    )
    return jax.tree.unflatten(jax.tree.structure(blank), jax.tree.leaves(smaller))


def idle_sides(model: CountedEvents) -> CountedEvents:
    """The model with one region that is always there and one that never is: every side holds, or one never does."""
    directions = jnp.zeros_like(model.directions)
    offsets = jnp.full_like(model.offsets, IDLE / SHARPNESS).at[1:, 0].set(-IDLE / SHARPNESS)
    sharpness = jnp.full_like(model.log_sharpness, np.log(SHARPNESS))
    where = lambda m: (m.directions, m.offsets, m.log_sharpness)  # noqa: E731
    return eqx.tree_at(where, model, (directions, offsets, sharpness))
