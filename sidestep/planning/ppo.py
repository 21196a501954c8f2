"""Proximal policy optimisation of the reward: clipped ratios, generalised advantages, one value network."""

from typing import Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from sidestep.planning.config import PlanConfig
from sidestep.planning.learner import Learner, adam_step, split
from sidestep.planning.methods import PPO

VALUE_WEIGHT = 0.5


class Batch(Protocol):
    """The trajectories of an epoch, padded to (batch, time); `observe` turns what is `seen` of a step into its
    observation."""

    seen: PyTree
    raws: Float[Array, "batch time raw"]

    @property
    def rewards(self) -> Float[Array, "batch time"]: ...

    @property
    def mask(self) -> Bool[Array, "batch time"]: ...

    def observe(self, seen: PyTree) -> Float[Array, "step inputs"]: ...

    def evaluate(self, learner: Learner) -> tuple[Float[Array, "batch time"], Float[Array, "batch time"]]:
        """The value of every step, and the logarithm of its action's density."""
        ...

    def update_statistics(self, learner: Learner, discount: float) -> Learner:
        """The learner with these trajectories in its running statistics."""
        ...


def ppo_steps(
    config: PlanConfig,
    method: PPO,
    learner: Learner,
    batch: Batch,
    discount: float,
    key: PRNGKeyArray,
    constraint_ascent: PyTree = None,
) -> tuple[Learner, dict[str, Array]]:
    """Pass over the batch in minibatches of real steps; padding takes no time.

    `constraint_ascent` is a direction in units of return, or of the return's deviation (`PlanConfig.balance`). PPO's
    gradient is in units of the advantages' deviation, and a mean over steps where the return is a sum. In these units
    the former, clipped on its own, is added in every minibatch.
    """
    mask = batch.mask
    values, log_probs = batch.evaluate(learner)
    scale = jnp.sqrt(learner.returns.variance[0]) + 1e-6
    advantages, targets = generalised_advantages(batch.rewards / scale, values, mask, discount, method.gae)
    steps = jnp.sum(mask, dtype=advantages.dtype)
    weight = mask.astype(advantages.dtype) / jnp.maximum(steps, 1.0)
    mean = jnp.sum(weight * advantages)
    deviation = jnp.sqrt(jnp.sum(weight * (advantages - mean) ** 2)) + 1e-6
    columns = (batch.seen, batch.raws, log_probs, (advantages - mean) / deviation, targets)
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), columns)
    real = mask.ravel()
    minibatches = -(-jnp.sum(real) // method.minibatch)
    entropy_weight = learner.entropy_weight(method, config)
    unit = scale * deviation  # of the standardised advantages, in reward
    if method.entropy_in_reward:
        entropy_weight = entropy_weight / unit
    if constraint_ascent is not None:
        price = deviation if config.balance else unit
        scaled = jax.tree.map(lambda leaf: leaf / (price * steps / len(mask)), constraint_ascent)
        constraint_ascent, _ = optax.clip_by_global_norm(method.constraint_clip).update(scaled, optax.EmptyState())

    def one_pass(carry, pass_key):
        shuffled = real_first(pass_key, real)
        padding = -len(shuffled) % method.minibatch
        shuffled = jnp.pad(shuffled, (0, padding), mode="edge")

        def minibatch(index, carry):
            learner, clipped, entropy = carry
            start = index * method.minibatch
            rows = jax.lax.dynamic_slice_in_dim(shuffled, start, method.minibatch)
            weights = (real[rows] & (start + jnp.arange(method.minibatch) < len(real))).astype(float)
            seen, *rest = jax.tree.map(lambda leaf: leaf[rows], flat)
            data = (batch.observe(seen), *rest)
            ascent, (clip_share, batch_entropy) = _gradient(config, method, learner, data, weights, entropy_weight)
            if constraint_ascent is not None:
                ascent = jax.tree.map(jnp.add, ascent, constraint_ascent)
            return adam_step(learner, ascent, config), clipped + clip_share, entropy + batch_entropy

        return jax.lax.fori_loop(0, minibatches, minibatch, carry), None

    carry = (learner, jnp.zeros(()), jnp.zeros(()))
    (learner, clipped, entropy), _ = jax.lax.scan(one_pass, carry, jax.random.split(key, method.passes))
    steps = jnp.maximum(minibatches * method.passes, 1).astype(clipped.dtype)
    return learner, {"clip_share": clipped / steps, "entropy": entropy / steps}


def _gradient(
    config: PlanConfig, method: PPO, learner: Learner, data: PyTree, weights: Array, entropy_weight: Array
) -> tuple[PyTree, tuple[Array, Array]]:
    """The gradient of PPO's objective on a minibatch; and the share of clipped ratios, and the entropy."""
    learned, rest = split(learner.policy, learner.value, config)
    observations, raws, old_log_probs, advantages, targets = data
    total = jnp.maximum(jnp.sum(weights), 1.0)

    def objective(learned):
        policy, value = eqx.combine(learned, rest)
        ratio = jnp.exp(jax.vmap(policy.log_prob)(observations, raws) - old_log_probs)
        bounded = jnp.clip(ratio, 1 - method.clip, 1 + method.clip)
        gain = jnp.minimum(ratio * advantages, bounded * advantages)
        loss = (jax.vmap(value)(observations)[:, 0] - targets) ** 2
        entropy = jax.vmap(policy.entropy)(observations)
        clip_share = jnp.sum(jnp.where(jnp.abs(ratio - 1) > method.clip, weights, 0.0)) / total
        sums = jnp.sum(weights * (gain - VALUE_WEIGHT * loss + entropy_weight * entropy)) / total
        if config.divide_by_multipliers:
            sums = sums / (1.0 + jnp.sum(learner.multipliers.value))
        return sums, (clip_share, jnp.sum(weights * entropy) / total)

    return jax.grad(objective, has_aux=True)(learned)


def real_first(key: PRNGKeyArray, real: Bool[Array, " step"]) -> Int[Array, " step"]:
    """The steps in random order, those that are not real at the end.

    Numbers with random high bits and the step in the low ones are sorted, which takes a fifth of an argsort's time.
    """
    width = max(len(real) - 1, 1).bit_length()
    drawn = jax.random.bits(key, real.shape, jnp.uint32) >> (width + 1) << width
    last = jnp.uint32(1 << 31)
    ordered = jnp.sort(jnp.where(real, drawn, last) | jnp.arange(len(real), dtype=jnp.uint32))
    return (ordered & ((1 << width) - 1)).astype(int)


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
