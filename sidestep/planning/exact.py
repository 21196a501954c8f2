"""The exact gradient of a finite model: no samples, no variance.

With pi the (N, A) table of a stationary policy, P_pi its transitions and x a table of rewards or costs,

    V_x = x_pi + g P_pi V_x,      Q_x(s, a) = x(s, a) + g sum_s' P(s' | s, a) V_x(s'),
    d = d_0 + g P_pi^T d,         d J_x / d logit(a | s) = d(s) pi(a | s) (Q_x(s, a) - V_x(s)),

so one linear system (and its transpose) gives value, occupancy and gradient. Small systems are solved directly,
large ones by iteration on the sparse table until the residual is negligible.

The factor pi(a | s) is why such a gradient gets stuck: while actions are still random, all ways close to a side effect
look dangerous and their probability vanishes; once the policy is sure of its steps some of them are the best, but their
gradient has vanished too. So an action that would do better than the policy counts with a probability of at least
`Exact.least_chance`. Where no action would, this is the gradient again: it has the same stationary points, except those
that could be improved.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from sidestep.core.model import FinitePart, Trajectory
from sidestep.finite.graph import reachable
from sidestep.planning.config import PlanConfig
from sidestep.planning.learner import Learner, split
from sidestep.planning.methods import Exact
from sidestep.planning.problem import Problem

HORIZON_DISCOUNT = 0.998  # a random end after 500 steps on average keeps the system regular for any policy
DIRECT = 1500  # states up to which the system is solved directly
RESIDUAL = 1e-5


class Evaluation(NamedTuple):
    """Values of several tables under one policy, and the policy's discounted occupancy."""

    values: Float[Array, "table state"]
    occupancy: Float[Array, " state"]
    quality: Float[Array, "table state action"]


def evaluate(
    finite: FinitePart, policy: Float[Array, "state action"], tables: Float[Array, "table state action"], start: Array
) -> Evaluation:
    """V_x and Q_x of every table x, and the occupancy d from the start distribution."""
    successor = jnp.asarray(finite.successor)
    alive = jnp.asarray(~finite.absorbing, policy.dtype)
    chance = jnp.asarray(finite.probability, policy.dtype) * (HORIZON_DISCOUNT * alive)[:, None, None]
    tables = tables * alive[None, :, None]
    here = jnp.sum(policy[None] * tables, axis=2)
    flow = policy[:, :, None] * chance  # P_pi, spread over the successors
    solve = _direct if len(finite.start) <= DIRECT else _iterate
    values, occupancy = solve(successor, flow, here, start)
    quality = tables + jnp.einsum("sak,xsak->xsa", chance, values[:, successor])
    return Evaluation(values, occupancy, quality)


def _direct(successor: Array, flow: Array, here: Array, start: Array) -> tuple[Array, Array]:
    states = len(start)
    rows = jnp.broadcast_to(jnp.arange(states)[:, None, None], successor.shape)
    matrix = jnp.eye(states, dtype=flow.dtype).at[rows, successor].add(-flow)
    factors = jax.scipy.linalg.lu_factor(matrix)
    values = jax.scipy.linalg.lu_solve(factors, here.T).T
    return values, jax.scipy.linalg.lu_solve(factors, start, trans=1)


def _iterate(successor: Array, flow: Array, here: Array, start: Array) -> tuple[Array, Array]:
    def backward(values):
        return here + jnp.einsum("sak,xsak->xs", flow, values[:, successor])

    def forward(occupancy):
        return start + jnp.zeros_like(start).at[successor].add(flow * occupancy[:, None, None])

    return _fixed_point(backward, here), _fixed_point(forward, start)


def _fixed_point(step: Callable[[Array], Array], first: Array) -> Array:
    def going(carry):
        old, new, rounds = carry
        return (jnp.max(jnp.abs(new - old)) > RESIDUAL * (1.0 + jnp.max(jnp.abs(new)))) & (rounds < 20000)

    def more(carry):
        _, new, rounds = carry
        return new, step(new), rounds + 1

    return jax.lax.while_loop(going, more, (first, step(first), jnp.zeros((), int)))[1]


def all_pairs(finite: FinitePart) -> Trajectory:
    """Every state-action pair of a finite model as a trajectory of one step, actions of a state together."""
    states, actions = finite.reward.shape
    encoded = jnp.repeat(jnp.asarray(finite.encoding, jnp.float32), actions, axis=0)
    choices = jnp.tile(jnp.eye(actions), (states, 1))
    rewards = jnp.asarray(finite.reward, jnp.float32).reshape(-1, 1)
    return Trajectory(encoded[:, None, :], choices[:, None, :], rewards, jnp.ones(states * actions, int))


def cost_tables(problem: Problem) -> Float[Array, "constraint state action"]:
    """The learned cost of every state-action pair, for each constraint: one forward pass over the whole table."""
    shape = problem.table.reward.shape
    if not problem.constraints:
        return jnp.zeros((0, *shape))
    return problem.costs(all_pairs(problem.table)).T.reshape(-1, *shape)


def exact_gradients(
    problem: Problem,
    config: PlanConfig,
    method: Exact,
    learner: Learner,
    costs: Float[Array, "constraint state action"],
) -> tuple[PyTree, Float[Array, " objective"], dict[str, Array]]:
    """Gradients stacked as (reward, each constraint), and the objectives from the model's own start."""
    finite = problem.table
    learned, rest = split(learner.policy, learner.value, config)
    encoding = jnp.asarray(finite.encoding, jnp.float32)

    def table(learned):
        policy, _ = eqx.combine(learned, rest)
        return policy.outputs(encoding)

    logits, pullback = jax.vjp(table, learned)
    policy, log_policy = jax.nn.softmax(logits), jax.nn.log_softmax(logits)
    own = jnp.asarray(finite.start, jnp.float32)
    anywhere = reachable(finite, np.ones(finite.reward.shape, bool)) & ~finite.absorbing
    start = (1.0 - method.start_share) * own + method.start_share * jnp.asarray(anywhere / anywhere.sum(), jnp.float32)
    tables = jnp.concatenate([jnp.asarray(finite.reward, jnp.float32)[None], costs])
    evaluation = evaluate(finite, policy, tables, start)
    quality = evaluation.quality.at[0].add(-learner.entropy_weight(method, config) * log_policy)
    advantage = quality - jnp.sum(policy[None] * quality, axis=2, keepdims=True)
    prices = jnp.concatenate([jnp.ones(1), -learner.multipliers.value])
    better = jnp.tensordot(prices, advantage, axes=1) > 0
    chance = jnp.where(better, jnp.maximum(policy, method.least_chance), policy)
    cotangents = evaluation.occupancy[None, :, None] * chance[None] * advantage
    gradients = jax.vmap(lambda cotangent: pullback(cotangent)[0])(cotangents)
    entropy = -jnp.sum(policy * log_policy, axis=1)
    return gradients, evaluation.values @ own, {"entropy": jnp.mean(entropy)}
