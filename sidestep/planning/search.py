"""A search for a place from which gradients lead to the optimum.

A gradient follows the valley that it stands in. Round an obstacle there are several, and from a path through its middle
no small step leads out. So before the first gradient: roll out many trajectories, keep the best of all rounds (those
within the tolerance first, then by return), imitate them, and roll out the imitation with some noise. This is the
cross-entropy method with a policy network as its distribution; it needs no derivative of the model.
"""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from sidestep.labels.collect import ExploringPolicy
from sidestep.model import Trajectory, rollout_batch
from sidestep.planning.config import PlanConfig
from sidestep.planning.learner import Learner, split, with_statistics
from sidestep.planning.problem import Problem

NOISE = (0.6, 0.15)  # deviation of the raw action in the first and last round
IMITATION_STEPS, IMITATION_BATCH, IMITATION_RATE = 150, 256, 3e-3


def search(problem: Problem, config: PlanConfig, learner: Learner, key: PRNGKeyArray) -> Learner:
    """The learner with a policy that imitates the best trajectories found."""
    first_key, rounds_key = jax.random.split(key)
    explored = _roll(problem, config, ExploringPolicy(problem.model), first_key)
    elite = _best(problem, config, explored)
    learner = _imitate(config, with_statistics(learner, elite, problem.model.spec.discount), elite, first_key)

    def one_round(carry, inputs):
        learner, elite = carry
        key, share = inputs
        roll_key, imitation_key = jax.random.split(key)
        noise = jnp.log(NOISE[0]) + share * jnp.log(NOISE[1] / NOISE[0])
        acting = replace(learner.policy, log_std=jnp.full_like(learner.policy.log_std, noise))
        found = _roll(problem, config, acting, roll_key)
        pool = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), elite, found)
        elite = _best(problem, config, pool)
        learner = _imitate(config, with_statistics(learner, elite, problem.model.spec.discount), elite, imitation_key)
        return (learner, elite), None

    rounds = config.search_rounds
    inputs = (jax.random.split(rounds_key, rounds), jnp.linspace(0.0, 1.0, rounds))
    (learner, _), _ = jax.lax.scan(one_round, (learner, elite), inputs)
    return learner


def _roll(problem: Problem, config: PlanConfig, policy, key: PRNGKeyArray) -> Trajectory:
    trajectory, _ = rollout_batch(problem.model, policy, jax.random.split(key, config.search_population))
    return jax.lax.stop_gradient(trajectory)


def _best(problem: Problem, config: PlanConfig, pool: Trajectory) -> Trajectory:
    """The elite of the pool: the smallest excess over the tolerances first, and the largest return among equals."""
    order = jnp.lexsort((-pool.returns(), excess(problem, pool)))
    return jax.tree.map(lambda leaf: leaf[order[: config.search_elite]], pool)


def excess(problem: Problem, pool: Trajectory) -> Float[Array, " batch"]:
    """By how much a trajectory's own predicted costs pass what may be tolerated; zero for all that are as good as safe.

    A tolerance is on the mean over trajectories; a single one is as good as safe up to three times of it.
    """
    if not problem.constraints:
        return jnp.zeros(len(pool))
    allowed = 3.0 * jnp.maximum(jnp.asarray(problem.tolerances), 0.01)
    return jnp.max(jnp.maximum(problem.costs(pool) - allowed[None, :], 0.0), axis=1)


def _imitate(config: PlanConfig, learner: Learner, elite: Trajectory, key: PRNGKeyArray) -> Learner:
    """Maximum likelihood of the elite's actions, by a few steps of Adam."""
    learned, rest = split(learner.policy, learner.value, config)
    policy = learner.policy
    memory = policy.start().safety
    steps = elite.rewards.shape[1]
    clocks = jnp.broadcast_to(jnp.arange(steps)[None, :], elite.rewards.shape)
    observations = jax.vmap(jax.vmap(lambda state, clock: policy.observer(state, clock, memory)))(elite.states, clocks)
    raws = jax.vmap(jax.vmap(policy.raw_of))(elite.states, elite.actions)
    flat = [leaf.reshape(-1, leaf.shape[-1]) for leaf in (observations, raws)]
    chances = elite.mask.ravel() / jnp.maximum(jnp.sum(elite.mask), 1)
    adam = optax.adam(IMITATION_RATE)

    def step(carry, key):
        learned, state = carry
        rows = jax.random.choice(key, len(chances), (IMITATION_BATCH,), p=chances)

        def loss(learned):
            imitation, _ = eqx.combine(learned, rest)
            fixed = replace(imitation, log_std=jnp.zeros_like(imitation.log_std))
            return -jnp.mean(jax.vmap(fixed.log_prob)(flat[0][rows], flat[1][rows]))

        updates, state = adam.update(jax.grad(loss)(learned), state)
        return (optax.apply_updates(learned, updates), state), None

    (learned, _), _ = jax.lax.scan(step, (learned, adam.init(learned)), jax.random.split(key, IMITATION_STEPS))
    policy, value = eqx.combine(learned, rest)
    return replace(learner, policy=policy, value=value)
