"""Rollouts over the tables of a finite model, and the derivative of their cost with respect to the policy.

A network that sees the state alone is a table of N rows once its parameters are fixed, so a trajectory is a sequence of
indices into tables, and a network is evaluated N times per epoch instead of once per step.

Derivatives. The paper's choices are straight-through: the one-hot action  a = argmax_b(log pi(b | s) + noise_b)  is
taken, and gradients flow to pi as if it were a; the model chooses a state in the same way. What a function of one-hot
vectors is between them is left open; here each is continued as its *multilinear extension*, which uses the function at
one-hot vectors and nothing else: its derivatives are differences. The gradient that arrives at a state is then the cost
that follows from there, and its mean over the noise to come is known, since the model is. With n(s) the number of times
that a trajectory visits s,

    V(s)        = sum_b pi(b | s) Q(s, b)
    Q(s, b)     = C(s, b) + discount * sum_k p_k(s, b) V(n_k(s, b))
    dJ/dpi(b|s) = E[n(s)] Q(s, b)

Differentiating the classifier's network itself at one-hot vectors fails: one with an accuracy of 99 % is saturated
there, and what is left of its derivative does not tell its output on the neighbouring pairs.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PRNGKeyArray

from sidestep.core.model import FinitePart
from sidestep.planning.problem import Problem
from sidestep.policies.networks import NetworkPolicy


class TabularRollouts(NamedTuple):
    """A batch of trajectories as indices into the table; the steps after the end of one are padding."""

    states: Int[Array, "time batch"]
    actions: Int[Array, "time batch"]
    real: Bool[Array, "time batch"]
    longest: Int[Array, ""]  # the number of steps of the longest one


def encoding(problem: Problem) -> Float[Array, "state entry"]:
    return jnp.asarray(problem.table.encoding, jnp.float32)


def log_policy(problem: Problem, policy: NetworkPolicy) -> Float[Array, "state action"]:
    """log pi(a | s) for every pair."""
    return jax.nn.log_softmax(policy.outputs(encoding(problem)))


def visitable(finite: FinitePart) -> np.ndarray:
    """Which states a trajectory can be in before its end: it starts there, or another state leads there."""
    met = finite.start > 0
    others = finite.successor != np.arange(len(met))[:, None, None]
    met[finite.successor[(finite.probability > 0) & others]] = True
    return met & ~finite.absorbing


def rollout_table(
    finite: FinitePart,
    horizon: int,
    log_policy: Float[Array, "state action"],
    key: PRNGKeyArray,
    batch: int,
    spread: ArrayLike = 0,
) -> TabularRollouts:
    """`batch` trajectories until all of them have ended or the horizon is reached; the last `spread` start anywhere."""
    successor, absorbing = jnp.asarray(finite.successor), jnp.asarray(finite.absorbing)
    # p_0 + .. + p_k, rounded so that sums of 1 are 1 and no outcome of probability 0 is ever drawn.
    thresholds = jnp.asarray(np.round(np.cumsum(finite.probability, axis=2)[..., :-1], 12), log_policy.dtype)

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
    anywhere = jax.random.choice(spread_key, jnp.asarray(np.flatnonzero(visitable(finite))), (batch,))
    begin = jnp.where(jnp.arange(batch) < batch - spread, begin, anywhere)
    empty = jnp.zeros((horizon, batch), int)
    carry = (jnp.zeros((), int), begin, absorbing[begin], (empty, empty, empty.astype(bool)))
    longest, _, _, record = jax.lax.while_loop(going, step, carry)
    return TabularRollouts(*record, longest)


def through_model(
    finite: FinitePart,
    log_policy: Float[Array, "state action"],
    costs: Float[Array, "state action"],
    rollouts: TabularRollouts,
    discount: float = 1.0,
) -> Float[Array, "state action"]:
    """dJ/dpi of one table of costs, J = E[sum_t discount^t C(s_t, a_t)], by the equations at the head of this file.

    It looks ahead as many steps as the longest trajectory has.
    """
    policy = jnp.exp(log_policy)
    alive = ~finite.absorbing
    chance = jnp.asarray(finite.probability * alive[:, None, None], policy.dtype)
    successor = jnp.asarray(finite.successor)
    costs = costs * jnp.asarray(alive, costs.dtype)[:, None]

    def quality(values):
        return costs + discount * jnp.sum(chance * values[successor], axis=2)

    def sweep(_, values):
        return jnp.sum(policy * quality(values), axis=1)

    values = jax.lax.fori_loop(0, rollouts.longest, sweep, jnp.zeros(len(costs), costs.dtype))
    visits = (
        jnp.zeros_like(values).at[rollouts.states].add(rollouts.real.astype(values.dtype) / rollouts.states.shape[1])
    )
    return visits[:, None] * quality(values)
