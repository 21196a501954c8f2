"""The paper's estimators on a finite model, where policy, model and learned costs are tables.

A network that sees the state alone is a table of N rows once its parameters are fixed, so trajectories are walks over
places in tables, and a network is asked N times an epoch instead of once a step.

Derivatives. The paper's choices are straight-through: the one-hot action  a = argmax_b(log pi(b | s) + noise_b)  is
taken, and gradients flow to pi as if it were a; a state is a choice of the model's in the same way. What a function of
one-hot vectors is between them is left open; here each is continued as its *multilinear extension*, which knows the
function at one-hot vectors and nothing else: its derivatives are differences. The gradient that arrives at a state is
then the cost that follows from there, and its mean over the noise to come is known, since the model is. With n(s) the
number of times that a walk meets s,

    V(s)        = sum_b pi(b | s) Q(s, b)
    Q(s, b)     = C(s, b) + discount * sum_k p_k(s, b) V(n_k(s, b))
    dJ/dpi(b|s) = E[n(s)] Q(s, b)

Differentiating the classifier's network itself at one-hot vectors fails: one that tells 99 % of the pairs rightly is
saturated there, and what is left of its derivative does not say what it thinks of the neighbouring pairs.

Where costs are of whole trajectories, a pair has no cost of its own, but a price: by how much the cost F of a walk
would change if one of its steps were that pair. With m_t the memory of the safety model after step t, what it reads
at a step is a difference again, and only what it makes of it later is a derivative:

    C(s, b) = E[ dF / dm_t . (advance(m_t-1, s, b) - m_t) ]

over walks and their steps. A pair that would lower the cost is free: at a negative price a walk without end would pay.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PRNGKeyArray

from sidestep.model import FinitePart, Trajectory
from sidestep.planning.config import PlanConfig
from sidestep.planning.exact import cost_tables
from sidestep.planning.learner import Learner, split
from sidestep.planning.problem import Problem

PRICED_WALKS = 5  # of an epoch, by which pairs are priced
PRICED_STEPS = 4  # of each of them


class Walks(NamedTuple):
    """A batch of trajectories as places in the table; what stands after the end of one is padding."""

    states: Int[Array, "time batch"]
    actions: Int[Array, "time batch"]
    real: Bool[Array, "time batch"]
    longest: Int[Array, ""]  # the number of steps of the longest


def serves(problem: Problem, config: PlanConfig) -> bool:
    """Whether an epoch can be walked over tables: finite model, policy of the state."""
    return hasattr(problem.model, "finite") and config.observe == "state"


def encoding(problem: Problem) -> Float[Array, "state entry"]:
    return jnp.asarray(problem.model.finite.encoding, jnp.float32)  # type: ignore[attr-defined]


def log_policy(problem: Problem, policy: Any) -> Float[Array, "state action"]:
    """log pi(a | s) for every pair."""
    logits = jax.vmap(lambda state: policy.net(policy.observer(state, jnp.zeros(()), None)))(encoding(problem))
    return jax.nn.log_softmax(logits)


def places(finite: FinitePart) -> np.ndarray:
    """Which states a walk can be in before its end: it begins there, or another state leads there."""
    met = finite.start > 0
    others = finite.successor != np.arange(len(met))[:, None, None]
    met[finite.successor[(finite.probability > 0) & others]] = True
    return met & ~finite.absorbing


def walk(
    model: Any, log_policy: Float[Array, "state action"], key: PRNGKeyArray, batch: int, spread: ArrayLike = 0
) -> Walks:
    """`batch` walks until all of them have ended or the horizon is reached; the last `spread` begin anywhere."""
    finite: FinitePart = model.finite
    successor, absorbing = jnp.asarray(finite.successor), jnp.asarray(finite.absorbing)
    # p_0 + .. + p_k, rounded so that sums of 1 are 1 and no outcome of probability 0 is ever drawn.
    thresholds = jnp.asarray(np.round(np.cumsum(finite.probability, axis=2)[..., :-1], 12), log_policy.dtype)
    horizon = model.spec.horizon

    def going(carry):
        clock, _, done, _ = carry
        return (clock < horizon) & ~jnp.all(done)

    def step(carry):
        clock, state, done, record = carry
        policy_key, model_key = jax.random.split(jax.random.fold_in(key, clock))
        noise = jax.random.gumbel(policy_key, (batch, log_policy.shape[1]), log_policy.dtype)
        action = jnp.argmax(log_policy[state] + noise, axis=1)
        uniform = jax.random.uniform(model_key, (batch,), log_policy.dtype)
        outcome = jnp.sum(uniform[:, None] >= thresholds[state, action], axis=1)
        record = jax.tree.map(lambda column, now: column.at[clock].set(now), record, (state, action, ~done))
        following = jnp.where(done, state, successor[state, action, outcome])
        return clock + 1, following, done | absorbing[following], record

    start_key, spread_key, key = jax.random.split(key, 3)
    begin = jax.random.categorical(start_key, jnp.log(jnp.asarray(finite.start)), shape=(batch,))
    anywhere = jax.random.choice(spread_key, jnp.asarray(np.flatnonzero(places(finite))), (batch,))
    begin = jnp.where(jnp.arange(batch) < batch - spread, begin, anywhere)
    empty = jnp.zeros((horizon, batch), int)
    carry = (jnp.zeros((), int), begin, absorbing[begin], (empty, empty, empty.astype(bool)))
    longest, _, _, record = jax.lax.while_loop(going, step, carry)
    return Walks(*record, longest)


def through_model(
    model: Any,
    log_policy: Float[Array, "state action"],
    costs: Float[Array, "state action"],
    walks: Walks,
    discount: float = 1.0,
) -> Float[Array, "state action"]:
    """dJ/dpi of one table of costs, J = E[sum_t discount^t C(s_t, a_t)], by the equations at the head of this file.

    As many steps are looked ahead as the longest walk has.
    """
    finite: FinitePart = model.finite
    policy = jnp.exp(log_policy)
    alive = ~finite.absorbing
    chance = jnp.asarray(finite.probability * alive[:, None, None], policy.dtype)
    successor = jnp.asarray(finite.successor)
    costs = costs * jnp.asarray(alive, costs.dtype)[:, None]

    def quality(values):
        return costs + discount * jnp.sum(chance * values[successor], axis=2)

    def sweep(_, values):
        return jnp.sum(policy * quality(values), axis=1)

    values = jax.lax.fori_loop(0, walks.longest, sweep, jnp.zeros(len(costs), costs.dtype))
    visits = jnp.zeros_like(values).at[walks.states].add(walks.real / walks.states.shape[1])
    return visits[:, None] * quality(values)


def trajectories(problem: Problem, walks: Walks) -> Trajectory:
    """What a safety model reads of the walks."""
    model: Any = problem.model
    states, actions, real = (column.T for column in walks[:3])
    choices = jax.nn.one_hot(actions, model.spec.action.size)
    rewards = jnp.where(real, jnp.asarray(model.finite.reward, jnp.float32)[states, actions], 0.0)
    return Trajectory(encoding(problem)[states], choices, rewards, jnp.sum(real, axis=1))


def pair_prices(
    problem: Problem, config: PlanConfig, told: Trajectory, key: PRNGKeyArray
) -> Float[Array, "constraint state action"]:
    """What a pair would change in the cost of a whole walk, by the equation at the head of this file, over the first
    walks that are told."""
    safety, met = problem.safety, np.flatnonzero(places(problem.model.finite))  # type: ignore[attr-defined]
    choices = jnp.eye(problem.model.spec.action.size)
    empty, unravel = ravel_pytree(eqx.filter(safety.start(), eqx.is_inexact_array))

    def numbers(memory):
        return ravel_pytree(eqx.filter(memory, eqx.is_inexact_array))[0]

    def follow(nudges, states, actions, real):
        """The cost of a walk whose memory is nudged after every step, and the memories before the steps."""

        def step(before, now):
            state, action, real, nudge = now
            after = eqx.apply_updates(safety.advance(before, state, action), unravel(nudge))
            return jax.tree.map(lambda new, old: jnp.where(real, new, old), after, before), before

        last, memories = jax.lax.scan(step, safety.start(), (states, actions, real, nudges))
        return problem.surrogate_of_risk(safety.risk(last), config.constraint_form, config.log_cap), memories

    def price(states, actions, length, key):
        """Of every pair, by some steps of one walk."""
        real = jnp.arange(len(states)) < length
        still = jnp.zeros((len(states), empty.size))
        costs, pullback, memories = jax.vjp(lambda nudges: follow(nudges, states, actions, real), still, has_aux=True)
        slopes = jax.vmap(lambda row: pullback(row)[0])(jnp.eye(len(costs), dtype=costs.dtype))

        def at(time):
            before = jax.tree.map(lambda leaf: leaf[time], memories)
            after = numbers(safety.advance(before, states[time], actions[time]))

            def change(state, action):
                return slopes[:, time] @ (numbers(safety.advance(before, state, action)) - after)

            return jax.vmap(lambda state: jax.vmap(lambda action: change(state, action))(choices))(
                encoding(problem)[met]
            )

        return jnp.mean(jax.vmap(at)(jax.random.randint(key, (PRICED_STEPS,), 0, length)), axis=0)

    first, keys = told[:PRICED_WALKS], jax.random.split(key, PRICED_WALKS)
    prices = jax.vmap(price)(first.states, first.actions, first.length, keys)
    prices = jnp.maximum(jnp.moveaxis(jnp.mean(prices, axis=0), 2, 0), 0.0)
    return jnp.zeros((len(prices), len(encoding(problem)), len(choices)), prices.dtype).at[:, met].set(prices)


class TableBatch(eqx.Module):
    """The trajectories of an epoch as PPO sees them; what is seen of a step is the place of its state."""

    seen: Int[Array, "batch time"]
    raws: Float[Array, "batch time 1"]
    rewards: Float[Array, "batch time"]
    mask: Bool[Array, "batch time"]
    problem: Problem = eqx.field(static=True)

    def observe(self, seen: Int[Array, " step"]) -> Float[Array, "step entry"]:
        return encoding(self.problem)[seen]

    def evaluate(self, learner: Learner) -> tuple[Float[Array, "batch time"], Float[Array, "batch time"]]:
        """V(s_t) and log pi(a_t | s_t)."""
        assert learner.value is not None
        values = jax.vmap(learner.value)(encoding(self.problem))[:, 0]
        return values[self.seen], log_policy(self.problem, learner.policy)[self.seen, self.raws[..., 0].astype(int)]

    def noted(self, learner: Learner, discount: float) -> Learner:
        returns = self.rewards @ discount ** jnp.arange(self.rewards.shape[1])
        return replace(learner, returns=learner.returns.updated(returns[:, None], jnp.ones(len(returns))))


def table_batch(
    problem: Problem, config: PlanConfig, learner: Learner, key: PRNGKeyArray
) -> tuple[TableBatch, Float[Array, " constraint"], Any]:
    """Walks of the policy, their mean costs, and the constraints' gradients by the method of the configuration.

    A share of the walks begins anywhere (`PlanConfig.start_share`), so that ways around a side effect are tried too;
    their costs do not count.
    """
    model: Any = problem.model
    learned, rest = split(learner.policy, learner.value, config)
    table, pullback = jax.vjp(lambda learned: log_policy(problem, eqx.combine(learned, rest)[0]), learned)
    spread = jnp.floor(config.batch * learner.start_share(config)).astype(int)
    walks = walk(model, table, key, config.batch, spread)
    states, actions, mask = (column.T for column in walks[:3])
    told = trajectories(problem, walks)
    batch = TableBatch(states, actions[..., None].astype(jnp.float32), told.rewards, mask, problem)
    if not problem.constraints:
        return batch, jnp.zeros(0), None
    by_step = problem.safety.summed
    if by_step:
        costs = cost_tables(problem)
        paid = jnp.sum(jnp.where(mask[None], costs[:, states, actions], 0.0), axis=2)
    else:
        paid = problem.costs(told).T
    counted = jnp.arange(config.batch) < config.batch - spread
    mean = jnp.sum(jnp.where(counted[None], paid, 0.0), axis=1) / jnp.sum(counted)
    if config.constraint_gradient == "score":
        # eq. 9: the cotangent of log pi(a | s) is C(tau) - d wherever tau meets the pair
        advantage = paid - jnp.asarray(problem.tolerances)[:, None]
        weight = jnp.where(mask[None], advantage[:, :, None], 0.0) / config.batch
        cotangents = jnp.zeros((len(paid), *table.shape)).at[:, states, actions].add(weight)
    else:
        discount = model.spec.discount if config.discount_training else 1.0
        prices = costs if by_step else pair_prices(problem, config, told, jax.random.fold_in(key, PRICED_STEPS))
        by_chance = jnp.stack([through_model(model, table, price, walks, discount) for price in prices])
        cotangents = by_chance * jnp.exp(table)[None]  # d pi = pi d log pi
    return batch, mean, jax.vmap(lambda cotangent: pullback(cotangent)[0])(cotangents)
