"""Proximal policy optimisation of the reward: clipped ratios, generalised advantages, one value network."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from sidestep.model import Trajectory
from sidestep.planning.config import PlanConfig
from sidestep.planning.learner import Learner, adam_step, split
from sidestep.planning.problem import Problem

VALUE_WEIGHT = 0.5


def ppo_steps(
    problem: Problem, config: PlanConfig, learner: Learner, trajectory: Trajectory, traced: Any, key: PRNGKeyArray
) -> tuple[Learner, dict[str, Array]]:
    """Pass over the batch in minibatches of real steps; finished trajectories cost nothing."""
    assert learner.value is not None
    observations, raws = traced
    mask = trajectory.mask
    values = jax.vmap(jax.vmap(learner.value))(observations)[..., 0]
    scale = jnp.sqrt(learner.returns.variance[0]) + 1e-6
    advantages, targets = generalised_advantages(
        trajectory.rewards / scale, values, mask, problem.model.spec.discount, config.gae
    )
    weight = mask / jnp.maximum(jnp.sum(mask), 1)
    mean = jnp.sum(weight * advantages)
    deviation = jnp.sqrt(jnp.sum(weight * (advantages - mean) ** 2)) + 1e-6
    log_probs = jax.vmap(jax.vmap(learner.policy.log_prob))(observations, raws)
    columns = (observations, raws, log_probs, (advantages - mean) / deviation, targets)
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), columns)
    real = mask.ravel()
    minibatches = -(-jnp.sum(real) // config.ppo_minibatch)
    entropy_weight = config.entropy * jnp.maximum(1.0 - learner.progress(config) / max(config.entropy_share, 1e-9), 0.0)

    def one_pass(carry, pass_key):
        shuffled = jnp.argsort(jnp.where(real, jax.random.uniform(pass_key, real.shape), 2.0))
        padding = -len(shuffled) % config.ppo_minibatch
        shuffled = jnp.pad(shuffled, (0, padding), mode="edge")

        def minibatch(index, carry):
            learner, clipped, entropy = carry
            start = index * config.ppo_minibatch
            rows = jax.lax.dynamic_slice_in_dim(shuffled, start, config.ppo_minibatch)
            weights = (real[rows] & (start + jnp.arange(config.ppo_minibatch) < len(real))).astype(float)
            data = jax.tree.map(lambda leaf: leaf[rows], flat)
            ascent, (clip_share, batch_entropy) = _gradient(config, learner, data, weights, entropy_weight)
            return adam_step(learner, ascent, config), clipped + clip_share, entropy + batch_entropy

        return jax.lax.fori_loop(0, minibatches, minibatch, carry), None

    carry = (learner, jnp.zeros(()), jnp.zeros(()))
    (learner, clipped, entropy), _ = jax.lax.scan(one_pass, carry, jax.random.split(key, config.ppo_passes))
    steps = jnp.maximum(minibatches * config.ppo_passes, 1)
    return learner, {"clip_share": clipped / steps, "entropy": entropy / steps}


def _gradient(config: PlanConfig, learner: Learner, data: Any, weights: Array, entropy_weight: Array) -> Any:
    learned, rest = split(learner.policy, learner.value, config)
    observations, raws, old_log_probs, advantages, targets = data
    total = jnp.maximum(jnp.sum(weights), 1.0)

    def objective(learned):
        policy, value = eqx.combine(learned, rest)
        ratio = jnp.exp(jax.vmap(policy.log_prob)(observations, raws) - old_log_probs)
        bounded = jnp.clip(ratio, 1 - config.ppo_clip, 1 + config.ppo_clip)
        gain = jnp.minimum(ratio * advantages, bounded * advantages)
        loss = (jax.vmap(value)(observations)[:, 0] - targets) ** 2
        entropy = jax.vmap(policy.entropy)(observations)
        clip_share = jnp.sum(weights * (jnp.abs(ratio - 1) > config.ppo_clip)) / total
        sums = jnp.sum(weights * (gain - VALUE_WEIGHT * loss + entropy_weight * entropy)) / total
        if config.divide_by_multipliers:
            sums = sums / (1.0 + jnp.sum(learner.multipliers.value))
        return sums, (clip_share, jnp.sum(weights * entropy) / total)

    return jax.grad(objective, has_aux=True)(learned)


def generalised_advantages(
    rewards: Float[Array, "batch time"], values: Float[Array, "batch time"], mask: Array, discount: float, gae: float
) -> tuple[Float[Array, "batch time"], Float[Array, "batch time"]]:
    """A_t = delta_t + discount * gae * A_{t+1},  delta_t = r_t + discount * V_{t+1} - V_t,  nothing after the end."""

    def back(carry, step):
        advantage, next_value = carry
        reward, value, real = step
        delta = reward + discount * next_value - value
        advantage = jnp.where(real, delta + discount * gae * advantage, 0.0)
        return (advantage, jnp.where(real, value, 0.0)), advantage

    zeros = jnp.zeros(rewards.shape[0])
    steps = jax.tree.map(lambda leaf: leaf.T, (rewards, values, mask))
    _, advantages = jax.lax.scan(back, (zeros, zeros), steps, reverse=True)
    return advantages.T, advantages.T + values
