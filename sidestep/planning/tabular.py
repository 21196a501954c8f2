"""The paper's estimators on a finite model, where policy, model and learned costs are tables.

A network that sees the state alone is a table of N rows once its parameters are fixed, so trajectories are walks over
places in tables, and a network is asked N times an epoch instead of once a step.

Derivatives. The paper's choices are straight-through: the one-hot action  a = argmax_b(log pi(b | s) + noise_b)  is
taken, and gradients flow to pi as if it were a. What a function of one-hot vectors is between them is left open; here
each (model, policy, learned cost) is continued as its *multilinear extension*, which knows the function at one-hot
vectors and nothing else: its derivatives are differences. With s[f := i] the state s with factor f (row, column, ..)
changed to i, a[f := i] the action that the same noise chooses there, e(n) the vector of state n, and g the gradient
that arrives at the next state, backwards along a walk:

    h(s, b)     = C(s, b) + discount * sum_k p_k(s, b) g . e(n_k(s, b))
    dJ/dpi(b|s) = h(s, b) - h(s, a)
    dJ/dx_f[i]  = h(s[f := i], a[f := i]) - h(s, a)

Differentiating the classifier's network itself at one-hot vectors fails: one that tells 99 % of the pairs rightly is
saturated there, and what is left of its derivative does not say what it thinks of the neighbouring pairs.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from sidestep.model import FinitePart
from sidestep.planning.config import PlanConfig
from sidestep.planning.exact import cost_tables
from sidestep.planning.learner import Learner, split
from sidestep.planning.problem import Problem


class Walks(NamedTuple):
    """A batch of trajectories as places in the table; what stands after the end of one is padding."""

    states: Int[Array, "time batch"]
    actions: Int[Array, "time batch"]
    real: Bool[Array, "time batch"]
    noise: Float[Array, "time batch action"]  # of the choices
    longest: Int[Array, ""]  # the number of steps of the longest


class Neighbours(NamedTuple):
    """Of each state: where its ones stand in the state vector, and which state a one at another place would make."""

    entries: np.ndarray  # (state, factor)
    changed: np.ndarray  # (state, entry): s[f := i], or s itself where that stands for nothing


def neighbours(model: Any) -> Neighbours:
    """A state stands for nothing, as a wall's cell does, when no walk begins there and no other state leads to it."""
    finite: FinitePart = model.finite
    sizes = [variable.size for variable in model.spec.state.variables]
    states = np.arange(len(finite.start))
    met = finite.start > 0
    met[finite.successor[(finite.probability > 0) & (finite.successor != states[:, None, None])]] = True
    values = np.stack(np.unravel_index(states, sizes), axis=1)
    offsets = np.cumsum([0, *sizes[:-1]])
    changed = []
    for factor, size in enumerate(sizes):
        others = np.repeat(values[:, None, :], size, axis=1)
        others[:, :, factor] = np.arange(size)
        changed.append(np.ravel_multi_index(tuple(np.moveaxis(others, 2, 0)), sizes))
    everywhere = np.concatenate(changed, axis=1)
    return Neighbours(values + offsets, np.where(met[everywhere], everywhere, states[:, None]))


def serves(problem: Problem, config: PlanConfig) -> bool:
    """Whether all that an epoch needs is a table: finite model, policy of the state, costs of single steps."""
    summed = not problem.constraints or problem.safety.summed
    return hasattr(problem.model, "finite") and config.observe == "state" and summed


def encoding(problem: Problem) -> Float[Array, "state entry"]:
    return jnp.asarray(problem.model.finite.encoding, jnp.float32)  # type: ignore[attr-defined]


def log_policy(problem: Problem, policy: Any) -> Float[Array, "state action"]:
    """log pi(a | s) for every pair."""
    logits = jax.vmap(lambda state: policy.net(policy.observer(state, jnp.zeros(()), None)))(encoding(problem))
    return jax.nn.log_softmax(logits)


def walk(model: Any, log_policy: Float[Array, "state action"], key: PRNGKeyArray, batch: int) -> Walks:
    """`batch` walks until all of them have ended or the horizon is reached."""
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
        record = jax.tree.map(lambda column, now: column.at[clock].set(now), record, (state, action, ~done, noise))
        following = jnp.where(done, state, successor[state, action, outcome])
        return clock + 1, following, done | absorbing[following], record

    start_key, key = jax.random.split(key)
    begin = jax.random.categorical(start_key, jnp.log(jnp.asarray(finite.start)), shape=(batch,))
    empty = jnp.zeros((horizon, batch), int)
    quiet = jnp.zeros((horizon, batch, log_policy.shape[1]), log_policy.dtype)
    carry = (jnp.zeros((), int), begin, absorbing[begin], (empty, empty, empty.astype(bool), quiet))
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

    Costs are chances, so what follows from two states differs by no more than the number of steps that count; between
    one-hot vectors the extension can grow beyond that from step to step, and is kept within it.
    """
    finite: FinitePart = model.finite
    choices, batch = log_policy.shape[1], walks.states.shape[1]
    entries, changed = (jnp.asarray(part) for part in neighbours(model))
    size = changed.shape[1]
    # Columns over the pairs s * A + a, since single numbers are what XLA reads fastest on a CPU: for each outcome k its
    # probability, and where the ones of its successor stand.
    ones = entries[finite.successor].reshape(finite.reward.size, -1, entries.shape[1]).transpose(1, 2, 0)
    chances = finite.probability.reshape(finite.reward.size, -1).T
    outcomes = [
        (jnp.asarray(p, log_policy.dtype), [jnp.asarray(e) for e in es]) for p, es in zip(chances, ones, strict=True)
    ]
    costs = costs.ravel()
    bound = min(1.0 / (1.0 - discount + 1e-9), model.spec.horizon)
    rows = (size * jnp.arange(batch))[:, None]

    def backwards(gradient, state, action, noise):
        others = _read(changed, state)
        choose = jnp.argmax(_read(log_policy, others) + noise[:, None, :], axis=2)
        pairs = jnp.concatenate(
            [others * choices + choose, state[:, None] * choices + jnp.arange(choices)[None]], axis=1
        )
        h = _read(costs, pairs)
        for chance, ones in outcomes:
            after = sum(_read(gradient.ravel(), rows + _read(entry, pairs)) for entry in ones)  # g . e(n_k)
            h += discount * _read(chance, pairs) * after
        h -= jnp.take_along_axis(h, size + action[:, None], axis=1)
        return jnp.clip(h[:, :size], -bound, bound), h[:, size:]

    def step(index, carry):
        gradient, total = carry
        now = walks.longest - 1 - index
        state, action, real, noise = (column[now] for column in walks[:4])
        # Walks that have ended stay where they are and go on being asked what would follow from other states.
        gradient, choice = backwards(gradient, state, action, noise)
        choice = jnp.where(real[:, None], choice, 0.0)
        return gradient, total.at[state].add(choice)

    nothing = (jnp.zeros((batch, size), log_policy.dtype), jnp.zeros_like(log_policy))
    return jax.lax.fori_loop(0, walks.longest, step, nothing)[1] / batch


def _read(column: Array, where: Array) -> Array:
    return column.at[where].get(mode="promise_in_bounds", wrap_negative_indices=False)


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
) -> tuple[TableBatch, Float[Array, "batch constraint"], Any]:
    """Walks of the policy, their costs, and the constraints' gradients by the method of the configuration."""
    model: Any = problem.model
    learned, rest = split(learner.policy, learner.value, config)
    table, pullback = jax.vjp(lambda learned: log_policy(problem, eqx.combine(learned, rest)[0]), learned)
    walks = walk(model, table, key, config.batch)
    states, actions, mask = (column.T for column in walks[:3])
    reward = jnp.asarray(model.finite.reward, jnp.float32)
    rewards = jnp.where(mask, reward[states, actions], 0.0)
    batch = TableBatch(states, actions[..., None].astype(jnp.float32), rewards, mask, problem)
    if not problem.constraints:
        return batch, jnp.zeros((config.batch, 0)), None
    alive = jnp.asarray(~model.finite.absorbing, jnp.float32)
    costs = cost_tables(problem) * alive[None, :, None]
    paid = jnp.sum(jnp.where(mask[None], costs[:, states, actions], 0.0), axis=2).T
    if config.constraint_gradient == "score":
        # eq. 9: the cotangent of log pi(a | s) is C(tau) - d wherever tau meets the pair
        advantage = (paid - jnp.asarray(problem.tolerances)[None, :]).T
        weight = jnp.where(mask[None], advantage[:, :, None], 0.0) / config.batch
        cotangents = jnp.zeros_like(costs).at[:, states, actions].add(weight)
    else:
        discount = model.spec.discount if config.discount_training else 1.0
        by_chance = jnp.stack([through_model(model, table, cost, walks, discount) for cost in costs])
        cotangents = by_chance * jnp.exp(table)[None]  # d pi = pi d log pi
    return batch, paid, jax.vmap(lambda cotangent: pullback(cotangent)[0])(cotangents)
