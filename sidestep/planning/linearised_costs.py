"""Costs of single pairs where the safety model judges whole trajectories of a finite model, to first order.

A pair then has no cost of its own, but a linearised one: by how much the cost F of a trajectory would change if one of
its steps were that pair. With m_t the memory of the safety model after step t, the change of what it reads at a step is
a difference, as everything on finite models (`tabular_rollouts.py`), and only its later effect is a derivative:

    C(s, b) = E[ dF / dm_t . (advance(m_t-1, s, b) - m_t) ]

over trajectories and their steps. Negative costs are set to zero: a trajectory without end would collect them.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray

from sidestep.core.model import Trajectory
from sidestep.planning.methods import ConstraintGradient
from sidestep.planning.problem import Problem
from sidestep.planning.tabular_rollouts import TabularRollouts, encoding, visitable

TRAJECTORIES = 5  # per epoch, from which the costs are computed
STEPS = 4  # of each of them


def trajectories(problem: Problem, rollouts: TabularRollouts) -> Trajectory:
    """The rollouts in the form that a safety model reads."""
    finite = problem.table
    states, actions, real = (column.T for column in rollouts[:3])
    choices = jax.nn.one_hot(actions, finite.reward.shape[1])
    rewards = jnp.where(real, jnp.asarray(finite.reward, jnp.float32)[states, actions], 0.0)
    return Trajectory(encoding(problem)[states], choices, rewards, jnp.sum(real, axis=1))


def linearised_costs(
    problem: Problem, method: ConstraintGradient, trajectory: Trajectory, key: PRNGKeyArray
) -> Float[Array, "constraint state action"]:
    """The cost of every pair for each constraint by the equation above, from the first trajectories of the batch."""
    safety, met = problem.learned, np.flatnonzero(visitable(problem.table))
    choices = jnp.eye(problem.model.spec.action.size)
    empty, unravel = ravel_pytree(eqx.filter(safety.start(), eqx.is_inexact_array))

    def numbers(memory):
        return ravel_pytree(eqx.filter(memory, eqx.is_inexact_array))[0]

    def follow(nudges, states, actions, real):
        """The cost of a trajectory whose memory is nudged after every step, and the memories before the steps."""

        def step(before, now):
            state, action, real, nudge = now
            after = eqx.apply_updates(safety.advance(before, state, action), unravel(nudge))
            return jax.tree.map(lambda new, old: jnp.where(real, new, old), after, before), before

        last, memories = jax.lax.scan(step, safety.start(), (states, actions, real, nudges))
        return problem.surrogate_of_risk(safety.risk(last), method.form, method.cap), memories

    def of_trajectory(states, actions, length, key):
        """The costs of all pairs by some steps of one trajectory."""
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

        return jnp.mean(jax.vmap(at)(jax.random.randint(key, (STEPS,), 0, length)), axis=0)

    first, keys = trajectory[:TRAJECTORIES], jax.random.split(key, TRAJECTORIES)
    costs = jax.vmap(of_trajectory)(first.states, first.actions, first.length, keys)
    costs = jnp.maximum(jnp.moveaxis(jnp.mean(costs, axis=0), 2, 0), 0.0)
    return jnp.zeros((len(costs), len(encoding(problem)), len(choices)), costs.dtype).at[:, met].set(costs)
