"""The exact gradient of a finite model: no sampling, no variance.

With pi the (N, A) table of a stationary policy, P_pi its transitions and x a table of rewards or costs,

    V_x = x_pi + g P_pi V_x,      Q_x(s, a) = x(s, a) + g sum_s' P(s' | s, a) V_x(s'),
    d = d_0 + g P_pi^T d,         d J_x / d pi(a | s) = d(s) Q_x(s, a),

so one linear system (and its transpose) gives value, occupancy and gradient. Small systems are solved directly,
large ones by iteration on the sparse table until the residual is negligible.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from sidestep.model import FinitePart, Trajectory
from sidestep.planning.config import PlanConfig
from sidestep.planning.learner import Learner, split
from sidestep.planning.problem import Problem

HORIZON_DISCOUNT = 0.998  # an end at random after 500 steps in the mean keeps the system regular for any policy
DIRECT = 1500  # states up to which the system is solved directly
RESIDUAL = 1e-5
LAST_SHARE = 0.02  # of the start distribution that stays spread over all states


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


def _fixed_point(step: Any, first: Array) -> Array:
    def going(carry):
        old, new, rounds = carry
        return (jnp.max(jnp.abs(new - old)) > RESIDUAL * (1.0 + jnp.max(jnp.abs(new)))) & (rounds < 20000)

    def more(carry):
        _, new, rounds = carry
        return new, step(new), rounds + 1

    return jax.lax.while_loop(going, more, (first, step(first), jnp.zeros((), int)))[1]


def all_pairs(model: Any) -> Trajectory:
    """Every state-action pair of a finite model as a trajectory of one step, actions of a state together."""
    finite: FinitePart = model.finite
    states, actions = len(finite.start), model.spec.action.size
    encoded = jnp.repeat(jnp.asarray(finite.encoding, jnp.float32), actions, axis=0)
    choices = jnp.tile(jnp.eye(actions), (states, 1))
    rewards = jnp.asarray(finite.reward, jnp.float32).reshape(-1, 1)
    return Trajectory(encoded[:, None, :], choices[:, None, :], rewards, jnp.ones(states * actions, int))


def cost_tables(problem: Problem) -> Float[Array, "constraint state action"]:
    """The learned cost of every state-action pair, for each constraint: one forward pass over the whole table."""
    finite: FinitePart = problem.model.finite  # type: ignore[attr-defined]
    return problem.costs(all_pairs(problem.model)).T.reshape(-1, *finite.reward.shape)


def exact_gradients(
    problem: Problem, config: PlanConfig, learner: Learner, costs: Float[Array, "constraint state action"]
) -> tuple[Any, Float[Array, " objective"], dict[str, Array]]:
    """Gradients stacked as (reward, each constraint), and the objectives from the model's own start."""
    finite: FinitePart = problem.model.finite  # type: ignore[attr-defined]
    learned, rest = split(learner.policy, learner.value, config)
    encoding = jnp.asarray(finite.encoding, jnp.float32)

    def table(learned):
        policy, _ = eqx.combine(learned, rest)
        logits = jax.vmap(lambda state: policy.net(policy.observer(state, jnp.zeros(()), None)))(encoding)
        return jax.nn.softmax(logits)

    policy, pullback = jax.vjp(table, learned)
    progress = learner.progress(config)
    share = jnp.maximum(learner.start_share(config), LAST_SHARE)
    alive = ~finite.absorbing
    own = jnp.asarray(finite.start, jnp.float32)
    start = (1.0 - share) * own + share * jnp.asarray(alive / alive.sum(), jnp.float32)
    tables = jnp.concatenate([jnp.asarray(finite.reward, jnp.float32)[None], costs])
    evaluation = evaluate(finite, policy, tables, start)
    cotangents = evaluation.occupancy[None, :, None] * evaluation.quality
    entropy = -jnp.sum(policy * jnp.log(policy + 1e-12), axis=1)
    weight = config.entropy * jnp.maximum(1.0 - progress / max(config.entropy_share, 1e-9), 0.0)
    bonus = -weight * evaluation.occupancy[:, None] * (jnp.log(policy + 1e-12) + 1.0)
    cotangents = cotangents.at[0].add(bonus)
    gradients = jax.vmap(lambda cotangent: pullback(cotangent)[0])(cotangents)
    return gradients, evaluation.values @ own, {"entropy": jnp.mean(entropy)}
