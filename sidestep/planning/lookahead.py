"""Improvement by lookahead from visited states: for what no gradient finds.

A gradient stays in the basin in which it began, sees nothing of an action that is saturated, and cannot tell that one
way round is better than another. So now and then states that the policy visits are drawn, at all clocks, with *detours*
from them: offsets delta to the policy's own actions, held over a segment of 1 to T/2 steps. With the policy after that,
up to the end of the trajectory, a detour's gain is

    A(delta | s_t) = E[ L(tau with delta) - L(tau) ],   L(tau) = sum_t r_t - sum_i price_i C_i(tau)

the Lagrangian of eq. 8, whose costs are read off the safety model's memory at the end. All detours of a state meet the
same noise. The best one of each state is taken up if its gain on fresh noise is proven by a paired test. The policy
learns these detours, and its own actions in all other states; and the policy that comes out of it takes the place of
the old one only if its own gain, on fresh trajectories with common noise, is proven as well.
"""

from dataclasses import replace
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray, PyTree

from sidestep.core.model import Model, sample_uniform_action, within_rules
from sidestep.planning import multipliers
from sidestep.planning.config import PlanConfig
from sidestep.planning.learner import Learner, optimiser, split
from sidestep.planning.methods import PPO, Lookahead
from sidestep.planning.problem import Problem
from sidestep.policies.networks import NetworkPolicy

VISITORS = 64  # trajectories whose states are visited in a round; those of one clock are looked at together
NOISE = 0.2  # on the visitors' raw actions: the policy must also know what to do beside its way
STATES = 512  # of a round
WHERE_GAINS = 0.8  # share of them at the clocks at which the round before found gains
DETOURS = 48  # from each of them
DRAWS = 8  # of the noise, on which the detours of a state are compared
FRESH_DRAWS = 32  # on which the best of them is tested
EXAMPLES = 4  # of these, that the policy learns from
PROVEN = 2.0  # standard errors above which a gain counts as proven
TO_BOUNDS = 0.25  # share of the detours that go to the bounds
SMALLEST, LARGEST = 0.02, 2.0  # deviation of an offset, in halves of the action's range
STEPS = (1.0, 0.5, 0.25, 0.125)  # shares of the way from the old policy to the one that learned the detours
TESTS = 4096  # trajectories that compare the new policy with the old one; half of that chooses the share
DETOUR_WEIGHT = 3.0  # of a detour of average gain among the examples, in which the policy's own actions have 1
LEARNING_STEPS, LEARNING_BATCH, LEARNING_RATE = 1000, 512, 3e-3
PRICE_STEPS = 20  # of a multiplier's rule in a round
PATIENCE = 3  # rounds without a proven gain before it ends


class Walk(NamedTuple):
    """A trajectory on its way."""

    state: Float[Array, " state"]
    memory: PyTree  # of the safety model
    total: Float[Array, ""]  # reward so far
    done: Bool[Array, ""]


class Detour(NamedTuple):
    """Another action over a segment of steps."""

    changed: Bool[Array, " action"]
    offset: Float[Array, " action"]  # of real entries, in halves of their range
    choice: Float[Array, " action"]  # of the other entries
    length: Int[Array, ""]


class Examples(NamedTuple):
    """What to do where; rows of weight 0 are left out."""

    observations: Float[Array, "row input"]
    raws: Float[Array, "row raw"]
    weights: Float[Array, " row"]


def improve(
    problem: Problem, config: PlanConfig, method: Lookahead, learner: Learner, key: PRNGKeyArray
) -> tuple[Learner, Float[Array, ""]]:
    """The learner with a policy that was improved round by round, and the sum of the gains that were proven.

    Rounds go on from what looks better, and each is tested against the last policy that was proven (`base`): so that
    gains which are too small to be proven alone may be proven together. What is not proven in the end is dropped.
    """

    def unfinished(carry):
        number, failures = carry[4:]
        return (number < method.rounds) & (failures < PATIENCE)

    def round_(carry):
        learner, base, where, gained, number, failures = carry
        found = improve_once(problem, config, learner, base, where, jax.random.fold_in(key, number))
        policy = _chosen(found.gain > 0, found.policy, base)
        learner = replace(learner, policy=policy, multipliers=_follow(config, learner, found.costs))
        gained = gained + jnp.where(found.proven, found.gain, 0.0)
        base = _chosen(found.proven, found.policy, base)
        return learner, base, found.where, gained, number + 1, jnp.where(found.proven, 0, failures + 1)

    everywhere = jnp.full(problem.model.spec.horizon, 1.0 / problem.model.spec.horizon)
    start = (learner, learner.policy, everywhere, jnp.zeros(()), jnp.zeros((), int), jnp.zeros((), int))
    improved, base, _, gained, _, _ = jax.lax.while_loop(unfinished, round_, start)
    return _chosen(gained > 0, _with_policy(config, improved, base), learner), gained


def cut_at_bounds(problem: Problem, config: PlanConfig, learner: Learner, key: PRNGKeyArray) -> Learner:
    """A learner whose policy acts alike and whose actions are cut at their bounds: it can decide more sharply than one
    that comes to a bound only slowly."""
    visit_key, learn_key = jax.random.split(key)
    looker, policy = _Looker(problem, learner.policy), learner.policy.cut_at_bounds()
    visited = looker.visits(visit_key)
    examples = looker.own(visited, jnp.ones(problem.model.spec.horizon), policy)
    learned = _learn(config, replace(learner, policy=policy), examples, learn_key)
    return _with_policy(config, learner, learned)


def _with_policy(config: PlanConfig, learner: Learner, policy: NetworkPolicy) -> Learner:
    """With another policy, and an optimiser that knows nothing of the one before."""
    return replace(learner, policy=policy, optimiser=optimiser(config).init(split(policy, learner.value, config)[0]))


def _chosen(first: Bool[Array, ""], one: PyTree, other: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: jnp.where(first, a, b) if a is not b else b, one, other)


class Found(NamedTuple):
    """What a round found."""

    policy: NetworkPolicy  # that learned the detours
    gain: Float[Array, ""]  # over the last proven policy
    proven: Bool[Array, ""]
    costs: Float[Array, " constraint"]  # of the policy that the next round goes on from
    where: Float[Array, " clock"]  # the gains were found, as a density


def improve_once(
    problem: Problem,
    config: PlanConfig,
    learner: Learner,
    base: NetworkPolicy,
    where: Float[Array, " clock"],
    key: PRNGKeyArray,
) -> Found:
    """One round, in which most of the states are visited at clocks drawn from `where`."""
    look_key, learn_key, choose_key, test_key = jax.random.split(key, 4)
    looker = _Looker(problem, learner.policy)
    weights = jnp.concatenate([jnp.ones(1), -prices(config, learner)])
    examples, where = looker.examples(weights, where, look_key)
    learned = _learn(config, learner, examples, learn_key)

    def part_of_the_way(share):
        return jax.tree.map(lambda old, new: old + share * (new - old), learner.policy, learned)

    policies = jax.vmap(part_of_the_way)(jnp.array(STEPS))
    tried = jax.vmap(lambda policy: jnp.mean(looker.outcomes(policy, choose_key, TESTS // 2), axis=0))(policies)
    policy = jax.tree.map(lambda leaf: leaf[jnp.argmax(tried @ weights)], policies)
    both = jax.tree.map(lambda a, b: jnp.stack([a, b]), policy, base)
    new, old = jax.vmap(lambda policy: looker.outcomes(policy, test_key, TESTS))(both)
    gain, error = _paired((new - old) @ weights)
    costs = jnp.mean(jnp.where(gain > 0, new, old), axis=0)[1:]
    return Found(policy, gain, gain > PROVEN * error, costs, where)


def prices(config: PlanConfig, learner: Learner) -> Float[Array, " constraint"]:
    """What a cost of 1 takes off the return: the multipliers, which have the units of their gradients."""
    multiplier = learner.multipliers.value
    if not config.balance:
        return multiplier
    if isinstance(config.reward, PPO):
        return multiplier * jnp.sqrt(learner.returns.variance[0]) if config.reward.joint else multiplier
    return multiplier * jnp.exp(learner.log_norms[0] - learner.log_norms[1:])


def _follow(config: PlanConfig, learner: Learner, costs: Float[Array, " constraint"]) -> multipliers.Multipliers:
    """The multipliers after some steps of their rule."""
    if not costs.shape[0]:
        return learner.multipliers

    def step(_, old):
        return multipliers.update(config.multiplier, old, costs, learner.tolerances)

    return jax.lax.fori_loop(0, PRICE_STEPS, step, learner.multipliers)


class _Looker:
    """A policy in a problem, and what would come of doing otherwise."""

    def __init__(self, problem: Problem, policy: NetworkPolicy) -> None:
        self.problem, self.policy = problem, policy
        self.model: Model = problem.model
        self.horizon = self.model.spec.horizon
        self.longest = max(self.horizon // 2, 1)
        self.safety = policy.observer.safety if policy.observer.safety is not None else problem.safety

    def begin(self, key: PRNGKeyArray) -> Walk:
        memory = None if self.safety is None else self.safety.start()
        return Walk(self.model.reset(key), memory, jnp.zeros(()), jnp.zeros((), bool))

    def step(
        self, policy: NetworkPolicy, walk: Walk, clock: Array, key: PRNGKeyArray, detour: Detour, since: Array
    ) -> tuple[Walk, tuple[Array, Array]]:
        """The walk after the step of this clock, `since` steps after the detour began; what was seen and done."""
        noise_key, model_key = jax.random.split(jax.random.fold_in(key, clock))
        observation = policy.observer(walk.state, clock, walk.memory)
        own, _ = policy.draw(observation, walk.state, noise_key if policy.sampled else None)
        action = within_rules(self.model, walk.state, self.detoured(walk.state, own, detour, since))
        state, reward, ends = self.model.step(walk.state, action, model_key)
        memory = None if self.safety is None else self.safety.advance(walk.memory, walk.state, action)
        after = Walk(state, memory, walk.total + reward.astype(walk.total.dtype), ends)
        return jax.tree.map(lambda new, old: jnp.where(walk.done, old, new), after, walk), (observation, action)

    def detoured(self, state: Array, own: Array, detour: Detour, since: Array) -> Array:
        low, high = self.model.action_bounds(state)
        half = jnp.where(jnp.isfinite(low) & jnp.isfinite(high), (high - low) / 2, 1.0)
        other = jnp.where(_real_entries(self.model), own + half * detour.offset, detour.choice)
        return jnp.where(detour.changed & (since < detour.length), other, own)

    def outcome(self, walk: Walk) -> Float[Array, " objective"]:
        """Return and costs of a trajectory that has ended."""
        if not self.problem.constraints:
            return walk.total[None]
        assert self.safety is not None
        costs = self.problem.surrogate_of_risk(self.safety.risk(walk.memory), "probability", 1.0)
        return jnp.concatenate([walk.total[None], costs.astype(walk.total.dtype)])

    def ahead(self, walk: Walk, clock: Array, key: PRNGKeyArray, detours: Detour) -> Float[Array, "detour objective"]:
        """What comes of a state with each of the detours, all with the same noise."""
        policy = self.policy.mean()
        count = detours.length.shape[0]
        walks = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[None], (count, *leaf.shape)), walk)

        def step(now, walks):
            one = lambda walk, detour: self.step(policy, walk, now, key, detour, now - clock)[0]  # noqa: E731
            return jax.vmap(one)(walks, detours)

        return jax.vmap(self.outcome)(jax.lax.fori_loop(clock, self.horizon, step, walks))

    def outcomes(self, policy: NetworkPolicy, key: PRNGKeyArray, count: int) -> Float[Array, "trajectory objective"]:
        """Return and costs of fresh trajectories of the policy's mean action."""
        none, mean = self.no_detour(), policy.mean()

        def one(key):
            reset_key, step_key = jax.random.split(key)
            step = lambda now, walk: self.step(mean, walk, now, step_key, none, now)[0]  # noqa: E731
            return self.outcome(jax.lax.fori_loop(0, self.horizon, step, self.begin(reset_key)))

        return jax.vmap(one)(jax.random.split(key, count))

    def no_detour(self) -> Detour:
        size = self.model.spec.action.size
        return Detour(jnp.zeros(size, bool), jnp.zeros(size), jnp.zeros(size), jnp.zeros((), int))

    def visits(self, key: PRNGKeyArray) -> Walk:
        """Where trajectories of the policy, with some noise, are at each clock: (clock, visitor)."""
        policy = replace(self.policy, log_std=jnp.full_like(self.policy.log_std, jnp.log(NOISE)))
        reset_key, step_key = jax.random.split(key)
        keys = jax.random.split(step_key, VISITORS)
        none = self.no_detour()

        def step(walks, clock):
            one = lambda walk, key: self.step(policy, walk, clock, key, none, clock)[0]  # noqa: E731
            return jax.vmap(one)(walks, keys), walks

        start = jax.vmap(self.begin)(jax.random.split(reset_key, VISITORS))
        visited = jax.lax.scan(step, start, jnp.arange(self.horizon))[1]
        return visited._replace(total=jnp.zeros_like(visited.total))

    def examples(
        self, weights: Float[Array, " objective"], where: Float[Array, " clock"], key: PRNGKeyArray
    ) -> tuple[Examples, Float[Array, " clock"]]:
        """Detours that are proven gains, the policy's own action where none was found; and at which clocks gains were.

        `weights` of return and costs in a gain are (1, -price_1, ...).
        """
        visit_key, clock_key, detour_key, draw_key, test_key = jax.random.split(key, 5)
        visited = self.visits(visit_key)
        blocks = STATES // VISITORS
        parts = (jnp.arange(blocks, dtype=float) + jax.random.uniform(clock_key, (blocks,))) / blocks
        reached = jnp.cumsum(WHERE_GAINS * where + (1.0 - WHERE_GAINS) / self.horizon)
        clocks = jnp.clip(jnp.searchsorted(reached, parts), 0, self.horizon - 1)
        walks = jax.tree.map(lambda leaf: leaf[clocks], visited)
        rows = (blocks, VISITORS)
        detours = jax.vmap(jax.vmap(lambda key: self.detours(DETOURS, key)))(jax.random.split(detour_key, rows))
        gains = jnp.mean(self.gains(walks, clocks, detours, jax.random.split(draw_key, (*rows, DRAWS))), axis=2)
        best = jnp.argmax(gains @ weights, axis=2)
        chosen = jax.tree.map(lambda leaf: jax.vmap(jax.vmap(lambda some, which: some[which]))(leaf, best), detours)
        keys = jax.random.split(test_key, (*rows, FRESH_DRAWS))
        fresh = self.gains(walks, clocks, jax.tree.map(lambda leaf: leaf[:, :, None], chosen), keys)[:, :, :, 0]
        gain, error = _paired(fresh @ weights)
        proven = gain > PROVEN * error
        taken = chosen._replace(length=jnp.where(proven, chosen.length, 0))
        mean_gain = jnp.sum(jnp.where(proven, gain, 0.0)) / jnp.maximum(jnp.sum(proven, dtype=float), 1.0)
        importance = jnp.where(proven, DETOUR_WEIGHT * gain / mean_gain, 1.0)
        draws = jax.vmap(self.record, (None, None, 0, None, None))
        found = jax.vmap(jax.vmap(draws, (0, None, 0, 0, 0)))(walks, clocks, keys[:, :, :EXAMPLES], taken, importance)
        looked = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[4:]), found)
        elsewhere = self.own(visited, jnp.ones(self.horizon).at[clocks].set(0.0))
        examples = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), looked, elsewhere)
        by_block = jnp.mean(jnp.where(proven, gain, 0.0), axis=1) + 1e-9
        at = jnp.zeros(self.horizon).at[clocks].max(by_block)
        return examples, at / jnp.sum(at)

    def gains(
        self, walks: Walk, clocks: Array, detours: Detour, keys: Key[Array, "block visitor draw"]
    ) -> Float[Array, "block visitor draw detour objective"]:
        """By how much return and costs change with each detour."""
        none = jax.tree.map(lambda leaf: leaf[None], self.no_detour())

        def block(inputs):
            walks, clock, detours, keys = inputs

            def one(walk, detours, key):
                with_none = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), none, detours)
                outcomes = self.ahead(walk, clock, key, with_none)
                return outcomes[1:] - outcomes[:1]

            return jax.vmap(jax.vmap(one, (None, None, 0)))(walks, detours, keys)

        return jax.lax.map(block, (walks, clocks, detours, keys))

    def record(self, walk: Walk, clock: Array, key: PRNGKeyArray, detour: Detour, importance: Array) -> Examples:
        """What is done along the detour, or in the first step where there is none."""
        policy = self.policy.mean()
        weight = importance / jnp.maximum(detour.length, 1).astype(importance.dtype) / EXAMPLES

        def step(walk, since):
            now = jnp.minimum(clock + since, self.horizon - 1)
            after, (observation, action) = self.step(policy, walk, now, key, detour, since)
            counts = (since < jnp.maximum(detour.length, 1)) & (clock + since < self.horizon) & ~walk.done
            raw = policy.raw_of(walk.state, action)
            return after, Examples(observation, raw, jnp.where(counts, weight, 0.0))

        return jax.lax.scan(step, walk, jnp.arange(self.longest))[1]

    def own(self, visited: Walk, weights: Float[Array, " clock"], learning: NetworkPolicy | None = None) -> Examples:
        """What the policy itself does where it was, as raw draws of the policy that is `learning`, if it is another."""
        policy = self.policy.mean()

        def one(walk, clock, weight):
            observation = policy.observer(walk.state, clock, walk.memory)
            action, raw = policy.draw(observation, walk.state, None)
            raw = raw if learning is None else learning.raw_of(walk.state, action)
            return Examples(observation, raw, jnp.where(walk.done, 0.0, weight))

        rows = jax.vmap(jax.vmap(one, (0, None, None)))(visited, jnp.arange(self.horizon), weights)
        return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), rows)

    def detours(self, count: int, key: PRNGKeyArray) -> Detour:
        """Of one entry or all, near or far or to the bounds, over one step (half of them) or many."""
        entry_key, size_key, offset_key, bound_key, choice_key, length_key = jax.random.split(key, 6)
        groups = _groups(self.model)
        which = jax.random.randint(entry_key, (count,), -groups.max() - 1, groups.max() + 1)
        changed = (groups[None, :] == which[:, None]) | (which < 0)[:, None]
        log_size = jax.random.uniform(size_key, (count, 1), minval=np.log(SMALLEST), maxval=np.log(LARGEST))
        offset = jnp.exp(log_size) * jax.random.normal(offset_key, changed.shape)
        to_bounds = jax.random.uniform(bound_key, (count, 1)) < TO_BOUNDS
        offset = jnp.where(to_bounds, 2.0 * jnp.sign(offset), offset)
        keys = jax.random.split(choice_key, count)
        choice = jax.vmap(lambda key: sample_uniform_action(self.model, self.model.reset(key), key))(keys)
        end = np.log(self.longest + 1)
        log_length = jax.random.uniform(length_key, (count,), minval=-end, maxval=end)
        length = jnp.clip(jnp.exp(log_length).astype(int), 1, self.longest)
        return Detour(changed, offset, choice, length)


def _paired(differences: Float[Array, "*rows draw"]) -> tuple[Float[Array, "*rows"], Float[Array, "*rows"]]:
    """The means of paired differences and their standard errors."""
    count = differences.shape[-1]
    return jnp.mean(differences, axis=-1), jnp.std(differences, axis=-1, ddof=1) / jnp.sqrt(count)


def _real_entries(model: Model) -> np.ndarray:
    return np.concatenate([np.full(v.size, v.kind == "real") for v in model.spec.action.variables])


def _groups(model: Model) -> np.ndarray:
    """Which entries of an action change together: those of a one-hot choice."""
    groups: list[int] = []
    for variable in model.spec.action.variables:
        first = groups[-1] + 1 if groups else 0
        groups += [first if variable.kind == "one-hot" else first + entry for entry in range(variable.size)]
    return np.array(groups)


def _learn(config: PlanConfig, learner: Learner, examples: Examples, key: PRNGKeyArray) -> NetworkPolicy:
    """The policy after some steps of Adam towards the examples."""
    learned, rest = split(learner.policy, learner.value, config)
    chances = examples.weights / jnp.sum(examples.weights)
    adam = optax.scale_by_adam()
    rates = LEARNING_RATE * 0.5 * (1.0 + jnp.cos(jnp.linspace(0.0, np.pi, LEARNING_STEPS)))

    def step(carry, inputs):
        (learned, state), (key, rate) = carry, inputs
        rows = jax.random.choice(key, len(chances), (LEARNING_BATCH,), p=chances)

        def loss(learned):
            policy, _ = eqx.combine(learned, rest)
            return jnp.mean(jax.vmap(policy.distance)(examples.observations[rows], examples.raws[rows]))

        updates, state = adam.update(jax.grad(loss)(learned), state)
        return (jax.tree.map(lambda p, u: p - rate * u, learned, updates), state), None

    inputs = (jax.random.split(key, LEARNING_STEPS), rates)
    (learned, _), _ = jax.lax.scan(step, (learned, adam.init(learned)), inputs)
    return eqx.combine(learned, rest)[0]
