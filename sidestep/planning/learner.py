"""All that changes while a policy is trained, as one pytree: a checkpoint holds it, a scan carries it."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Key, PRNGKeyArray, PyTree

from sidestep.core.model import AnyArray, Trajectory
from sidestep.planning.config import PlanConfig
from sidestep.planning.methods import PPO, Exact
from sidestep.planning.multipliers.state import Multipliers
from sidestep.planning.problem import Problem
from sidestep.policies.networks import Network, NetworkPolicy, make_policy, trainable

NORM_MEMORY = 0.99  # of the running norms of gradients
FAINT = 0.01  # norm of the gradient of a saturated safety model: a step of length 1 would change -log(1 - C) by this
SMALLEST_DEVIATION = 0.05  # of a state entry, in units of its own


class Moments(eqx.Module):
    """Running count, mean and variance (Chan's update), entry by entry."""

    count: Float[Array, ""]
    mean: Float[Array, " size"]
    variance: Float[Array, " size"]

    @classmethod
    def start(cls, size: int) -> "Moments":
        return cls(jnp.zeros(()), jnp.zeros(size), jnp.ones(size))

    def updated(self, values: Float[Array, "sample size"], weights: Float[Array, " sample"]) -> "Moments":
        count = jnp.maximum(jnp.sum(weights), 1.0)
        mean = weights @ values / count
        variance = weights @ (values - mean[None, :]) ** 2 / count
        total = self.count + count
        delta = mean - self.mean
        merged = (self.count * self.variance + count * variance + delta**2 * self.count * count / total) / total
        return Moments(total, self.mean + delta * count / total, merged)


class Learner(eqx.Module):
    """Policy, value network, optimiser, multipliers, running statistics, clock."""

    policy: NetworkPolicy
    value: Network | None
    optimiser: PyTree
    multipliers: Multipliers
    tolerances: Float[AnyArray, "*run constraint"]  # the d_i that it is trained for, with the margin taken off
    states: Moments
    returns: Moments
    log_norms: Float[
        AnyArray, "*run objective"
    ]  # running mean of the gradients' log norm: reward first, then constraints
    epoch: Array
    key: Key[Array, "*run"]

    @classmethod
    def start(
        cls,
        problem: Problem,
        config: PlanConfig,
        key: PRNGKeyArray,
        policy: NetworkPolicy | None = None,
        *,
        present: bool = True,
    ) -> "Learner":
        """`present`: a policy that observes the safety model's memory sees it with the present state in it."""
        policy_key, value_key, run_key = jax.random.split(key, 3)
        if policy is None:
            policy = make_policy(
                problem.model,
                policy_key,
                widths=config.widths,
                squash=config.squash,
                clock=config.observe != "state",
                safety=problem.safety if config.observe == "memory" else None,
                deviation=config.reward.noise_start,
                network=config.network,
                present=present,
            )
        value = None
        if config.reward.has_critic:
            value = Network(policy.observer.size, 1, config.widths, key=value_key, head_scale=1.0)
        count = len(problem.constraints)
        learned, _ = split(policy, value, config)
        return cls(
            policy=policy,
            value=value,
            optimiser=optimiser(config).init(learned),
            multipliers=Multipliers.start(count, config.multiplier),
            tolerances=(1.0 - config.margin) * jnp.asarray(problem.tolerances, float),
            states=Moments.start(problem.model.spec.state.size),
            returns=Moments.start(1),
            log_norms=jnp.full(1 + count, -jnp.inf, float),
            epoch=jnp.zeros((), int),
            key=run_key,
        )

    def progress(self, config: PlanConfig) -> Float[Array, ""]:
        """From 0 at the first epoch to 1 at the last."""
        return self.epoch / max(config.epochs - 1, 1)

    def entropy_weight(self, method: PPO | Exact, config: PlanConfig) -> Float[Array, ""]:
        """The weight of the entropy bonus, which falls to zero over the first epochs."""
        return method.entropy * jnp.maximum(1.0 - self.progress(config) / max(method.entropy_share, 1e-9), 0.0)


def split(policy: NetworkPolicy, value: Network | None, config: PlanConfig) -> tuple[PyTree, PyTree]:
    """(what is learned, the rest) of the pair (policy, value network)."""
    which = (trainable(policy, deviation=config.reward.learns_noise), jax.tree.map(lambda _: True, value))
    return eqx.partition((policy, value), which)


def optimiser(config: PlanConfig) -> optax.GradientTransformation:
    """Adam after a clip of the gradient's norm; `adam_step`, which knows the epoch, applies the step size."""
    adam = optax.scale_by_adam(**config.reward.adam)
    return optax.chain(optax.clip_by_global_norm(config.gradient_clip), adam)


def adam_step(learner: Learner, ascent: PyTree, config: PlanConfig) -> Learner:
    """One step uphill along `ascent`, a gradient with the structure of what is learned."""
    learned, rest = split(learner.policy, learner.value, config)
    direction, state = optimiser(config).update(ascent, learner.optimiser, learned)
    decay = 0.5 * (1 + jnp.cos(jnp.pi * learner.progress(config)))
    rate = config.learning_rate * (config.learning_rate_end + (1 - config.learning_rate_end) * decay)
    policy, value = eqx.combine(jax.tree.map(lambda p, d: p + rate * d, learned, direction), rest)
    return replace(learner, policy=policy, value=value, optimiser=state)


def balanced(learner: Learner, gradients: PyTree, config: PlanConfig) -> tuple[PyTree, Float[Array, " objective"]]:
    """The ascent direction of the Lagrangian, and the logarithms of its units.

    (g_R / n_R - sum_i lambda_i g_i / n_i) / (1 + sum_i lambda_i), eq. 8 with units: n_R is the running norm of the
    reward's gradient (a geometric mean, which spikes do not move); n_i is the largest running norm so far, since a
    constraint that is met must be allowed to vanish, but at least FAINT, below which there is nothing to follow;
    and the whole has length 1, since Adam would crawl where gradients shrink. Without `balance` all units are 1 and the
    length stays. `gradients` are stacked: reward first, then each constraint.
    """
    squares = sum(jnp.sum(leaf**2, axis=tuple(range(1, leaf.ndim))) for leaf in jax.tree.leaves(gradients))
    logs = 0.5 * jnp.log(squares + 1e-24)
    running = jnp.where(jnp.isinf(learner.log_norms), logs, NORM_MEMORY * learner.log_norms + (1 - NORM_MEMORY) * logs)
    units = running.at[1:].max(jnp.maximum(learner.log_norms[1:], jnp.log(FAINT)))
    multipliers = learner.multipliers.value
    signed = jnp.concatenate([jnp.ones(1), -multipliers])
    if config.divide_by_multipliers:
        signed = signed / (1.0 + jnp.sum(multipliers))
    if config.balance:
        signed = signed * jnp.exp(-units)
    ascent = jax.tree.map(lambda leaf: jnp.tensordot(signed, leaf, axes=1), gradients)
    if config.balance:
        length = optax.tree.norm(ascent) + 1e-12
        ascent = jax.tree.map(lambda leaf: leaf / length, ascent)
    return ascent, units


def with_statistics(learner: Learner, trajectory: Trajectory, discount: float) -> Learner:
    """The learner with these trajectories in its running statistics of returns and of states (one-hot ones are left
    as they are)."""
    trajectory = jax.lax.stop_gradient(trajectory)
    returns = learner.returns.updated(trajectory.returns(discount)[:, None], jnp.ones(len(trajectory)))
    learner = replace(learner, returns=returns)
    if learner.policy.model.spec.state.kinds == {"one-hot"}:
        return learner
    size = trajectory.states.shape[-1]
    states = learner.states.updated(trajectory.states.reshape(-1, size), trajectory.mask.ravel().astype(float))
    deviation = jnp.maximum(jnp.sqrt(states.variance), SMALLEST_DEVIATION)
    observer = replace(learner.policy.observer, mean=states.mean, deviation=deviation)
    return replace(learner, states=states, policy=replace(learner.policy, observer=observer))
