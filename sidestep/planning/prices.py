"""What single pairs cost where costs are of whole trajectories of a finite model.

A pair then has no cost of its own, but a price: by how much the cost F of a walk would change if one of its steps were
that pair. With m_t the memory of the safety model after step t, what it reads at a step is a difference, as everything
on finite models (`walks.py`), and only what it makes of it later is a derivative:

    C(s, b) = E[ dF / dm_t . (advance(m_t-1, s, b) - m_t) ]

over walks and their steps. A pair that would lower the cost is free: at a negative price a walk without end would pay.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray

from sidestep.model import Trajectory
from sidestep.planning.config import PlanConfig
from sidestep.planning.problem import Problem
from sidestep.planning.walks import Walks, encoding, places

PRICED_WALKS = 5  # of an epoch, by which pairs are priced
PRICED_STEPS = 4  # of each of them


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
