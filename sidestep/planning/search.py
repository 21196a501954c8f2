"""A search for a place from which gradients lead to the optimum.

A gradient finds the nearest local optimum. Around an obstacle there are several, and from a path through its middle no
small step leads out. So before the first gradient, sequences of actions are bred: explorers give the first ones; the
best (those within the tolerance first, then by return, each judged on several draws of the noise) have children with
some noise on their actions; and at the end the policy imitates the best sequence. No derivative of the model is needed.
"""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from sidestep.core.model import Model, Policy, Trajectory, rollout_batch
from sidestep.labels.collect import ExploringPolicy, placed
from sidestep.planning.config import PlanConfig
from sidestep.planning.learner import Learner, split, with_statistics
from sidestep.planning.methods import Search
from sidestep.planning.problem import Problem

EXPLORATIONS = 16  # populations of explorers before the first generation
DRAWS = 4  # of the noise, on which a sequence is judged
ELITE = 32  # parents of the next generation
MUTATION = (0.25, 0.03)  # deviation of a child's shares from its parent's, in the first and last generation
PERSISTENCE = 0.8  # of that deviation from step to step; independent noise would average out
EXAMPLES = 64  # trajectories of the best sequence that the policy learns from
IMITATION_STEPS, IMITATION_BATCH, IMITATION_RATE = 300, 256, 3e-3


class SequencePolicy(Policy):
    """A fixed sequence of actions, as shares of their range in the state of the step."""

    shares: Float[Array, "time action"]
    model: Model = eqx.field(static=True)

    def act(self, state, clock, memory, key):
        return placed(self.model, state, self.shares[clock]), memory


def search(problem: Problem, config: PlanConfig, method: Search, learner: Learner, key: PRNGKeyArray) -> Learner:
    """The learner with a policy that imitates the best sequence of actions found."""
    explore_key, breed_key, imitate_key = jax.random.split(key, 3)
    parents = _explore(problem, method, learner.tolerances, explore_key)

    def generation(parents, inputs):
        key, progress = inputs
        spread = MUTATION[0] * (MUTATION[1] / MUTATION[0]) ** progress
        children = _children(problem, method, parents, spread, key)
        return _best(problem, learner.tolerances, children, key), None

    inputs = (jax.random.split(breed_key, method.rounds), jnp.linspace(0.0, 1.0, method.rounds))
    parents, _ = jax.lax.scan(generation, parents, inputs)
    examples = _roll(problem, parents[:1], imitate_key, EXAMPLES)
    learner = with_statistics(learner, examples, problem.model.spec.discount)
    return _imitate(config, learner, examples, imitate_key)


def _explore(
    problem: Problem, method: Search, tolerances: Array, key: PRNGKeyArray
) -> Float[Array, "elite time action"]:
    """The best sequences of many explorers: the way around is rare, and those of the highest return may all be
    harmful."""

    def one(key):
        keys = jax.random.split(key, method.population)
        policy = ExploringPolicy(problem.model)
        found, shares = rollout_batch(problem.model, policy, keys, trace=lambda memory: memory["action"])
        worth = found.returns(), problem.costs(found) if problem.constraints else None
        chosen = _order(tolerances, *worth)[:ELITE]
        return jax.tree.map(lambda leaf: leaf[chosen], (shares, worth))

    kept = jax.lax.map(one, jax.random.split(key, EXPLORATIONS))
    shares, worth = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), kept)
    return shares[_order(tolerances, *worth)[:ELITE]]


def _children(problem: Problem, method: Search, parents: Array, spread: Array, key: PRNGKeyArray) -> Array:
    """The parents and their children."""
    parent_key, mutate_key = jax.random.split(key)
    count = method.population // DRAWS - ELITE
    chosen = parents[jax.random.randint(parent_key, (count,), 0, ELITE)]
    return jnp.concatenate([parents, mutated(problem.model, chosen, parents, spread, mutate_key)])


def mutated(model: Model, chosen: Array, others: Array, spread: Array, key: PRNGKeyArray) -> Array:
    """The chosen sequences with persistent noise on their shares; choices are now and then replaced by those of
    others."""
    noise_key, change_key, action_key, order_key = jax.random.split(key, 4)
    white = jax.random.normal(noise_key, chosen.shape)

    def persist(level, step):
        level = PERSISTENCE * level + jnp.sqrt(1.0 - PERSISTENCE**2) * step
        return level, level

    _, noise = jax.lax.scan(persist, white[:, 0], jnp.swapaxes(white, 0, 1))
    moved = jnp.clip(chosen + spread * jnp.swapaxes(noise, 0, 1), 0.0, 1.0)
    real = np.concatenate([np.full(v.size, v.kind == "real") for v in model.spec.action.variables])
    if real.all():
        return moved
    donors = others[jax.random.randint(action_key, (len(chosen),), 0, len(others))]
    change = jax.random.uniform(change_key, (*chosen.shape[:2], 1)) < spread
    swapped = jnp.where(change, jax.random.permutation(order_key, donors, axis=1), chosen)
    return jnp.where(real[None, None, :], moved, swapped)


def _best(problem: Problem, tolerances: Array, shares: Array, key: PRNGKeyArray) -> Float[Array, "elite time action"]:
    trajectory = _roll(problem, shares, key, DRAWS)
    returns = trajectory.returns().reshape(-1, DRAWS).mean(axis=1)
    costs = None
    if problem.constraints:
        costs = problem.costs(trajectory).reshape(len(shares), DRAWS, -1).mean(axis=1)
    return shares[_order(tolerances, returns, costs)[:ELITE]]


def _roll(problem: Problem, shares: Array, key: PRNGKeyArray, draws: int) -> Trajectory:
    """`draws` trajectories of each sequence, the same noise for all sequences."""
    keys = jax.random.split(key, draws)

    def one(sequence):
        return rollout_batch(problem.model, SequencePolicy(sequence, problem.model), keys)[0]

    rolled = jax.vmap(one)(shares)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), rolled)


def _order(
    tolerances: Array, returns: Float[Array, " sequence"], costs: Float[Array, "sequence constraint"] | None
) -> Array:
    """Best first: the least excess over what may be tolerated, and the highest return among equals.

    A fixed sequence of actions cannot react to the noise, so up to three times the tolerance it counts as safe.
    """
    if costs is None:
        return jnp.argsort(-returns)
    allowed = 3.0 * jnp.maximum(tolerances, 0.02)
    excess = jnp.max(jnp.maximum(costs - allowed[None, :], 0.0), axis=1)
    return jnp.lexsort((-returns, excess))


def _imitate(config: PlanConfig, learner: Learner, examples: Trajectory, key: PRNGKeyArray) -> Learner:
    """Maximum likelihood of the examples' actions, by a few steps of Adam."""
    learned, rest = split(learner.policy, learner.value, config)
    policy = learner.policy
    memory = policy.start().safety
    clocks = jnp.broadcast_to(jnp.arange(examples.rewards.shape[1])[None, :], examples.rewards.shape)
    observe = jax.vmap(jax.vmap(lambda state, clock: policy.observer(state, clock, memory)))
    observations = observe(examples.states, clocks)
    raws = jax.vmap(jax.vmap(policy.raw_of))(examples.states, examples.actions)
    observations, raws = (leaf.reshape(-1, leaf.shape[-1]) for leaf in (observations, raws))
    chances = examples.mask.ravel().astype(float) / jnp.maximum(jnp.sum(examples.mask, dtype=float), 1.0)
    adam = optax.adam(IMITATION_RATE)

    def step(carry, key):
        learned, state = carry
        rows = jax.random.choice(key, len(chances), (IMITATION_BATCH,), p=chances)

        def loss(learned):
            imitation, _ = eqx.combine(learned, rest)
            fixed = replace(imitation, log_std=jnp.zeros_like(imitation.log_std))
            return -jnp.mean(jax.vmap(fixed.log_prob)(observations[rows], raws[rows]))

        updates, state = adam.update(jax.grad(loss)(learned), state)
        return (optax.apply_updates(learned, updates), state), None

    (learned, _), _ = jax.lax.scan(step, (learned, adam.init(learned)), jax.random.split(key, IMITATION_STEPS))
    policy, value = eqx.combine(learned, rest)
    return replace(learner, policy=policy, value=value)
