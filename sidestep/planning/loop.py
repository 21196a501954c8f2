"""The training loop as a pure function of a key: a scan over epochs, to be mapped over seeds.

An epoch draws trajectories (or needs none), takes gradients, and moves the policy and the multipliers by one step each.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from sidestep.core.model import Trajectory, rollout_batch
from sidestep.planning import multipliers
from sidestep.planning.config import PlanConfig
from sidestep.planning.exact import cost_tables, exact_gradients
from sidestep.planning.learner import Learner, adam_step, balanced, with_statistics
from sidestep.planning.lookahead import cut_at_bounds, improve
from sidestep.planning.methods import PPO, Exact, Pathwise, RewardGradient, Score, uses_tables
from sidestep.planning.pathwise import pathwise
from sidestep.planning.ppo import Batch, ppo_steps
from sidestep.planning.problem import Problem
from sidestep.planning.sampled import sampled_batch
from sidestep.planning.score import score_function
from sidestep.planning.search import search
from sidestep.planning.tabular import table_batch

Metrics = dict[str, Array]
Epoch = Callable[[Learner, PRNGKeyArray], tuple[Learner, Metrics]]
TRAINING, TESTING, SEARCHING, LOOKING, CUTTING = range(5)  # streams of keys that never meet


def search_phase(problem: Problem, config: PlanConfig) -> Callable[[Learner], Learner]:
    """The search before the first epoch."""
    method = config.search
    assert method is not None
    return lambda learner: search(problem, config, method, learner, jax.random.fold_in(learner.key, SEARCHING))


def cut_phase(problem: Problem, config: PlanConfig) -> Callable[[Learner], Learner]:
    """A policy that acts alike and is cut at its bounds."""
    return lambda learner: cut_at_bounds(problem, config, learner, jax.random.fold_in(learner.key, CUTTING))


def lookahead_phase(problem: Problem, config: PlanConfig) -> Callable[[Learner], tuple[Learner, Array]]:
    """Improvement by lookahead between two epochs, and its gain."""
    method = config.lookahead
    assert method is not None

    def look(learner):
        key = jax.random.fold_in(jax.random.fold_in(learner.key, LOOKING), learner.epoch)
        return improve(problem, config, method, learner, key)

    return look


def train_chunk(problem: Problem, config: PlanConfig) -> Callable[[Learner], tuple[Learner, Metrics]]:
    """The epochs from one test to the next; metrics are their means."""
    epoch = _EPOCHS[type(config.reward)](problem, config, config.reward)

    def body(learner, _):
        key = jax.random.fold_in(jax.random.fold_in(learner.key, TRAINING), learner.epoch)
        learner, metrics = epoch(learner, key)
        return replace(learner, epoch=learner.epoch + 1), metrics

    def chunk(learner):
        learner, metrics = jax.lax.scan(body, learner, None, length=config.test_every)
        return learner, jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), metrics)

    return chunk


Test = Callable[[Learner], tuple[dict[str, Metrics], dict[str, Trajectory]]]


def test_phase(problem: Problem, config: PlanConfig) -> Test:
    """Separate trajectories of the policy, by its mean and its sampled action."""

    def test(learner):
        key = jax.random.fold_in(jax.random.fold_in(learner.key, TESTING), learner.epoch)
        results, trajectories = {}, {}
        for name, policy in (("mean", learner.policy.mean()), ("sampled", learner.policy)):
            keys = jax.random.split(key, config.test_batch)
            trajectory, _ = rollout_batch(problem.model, policy, keys)
            returns = trajectory.returns()
            results[name] = {
                "return": jnp.mean(returns),
                "return_deviation": jnp.std(returns),
                "discounted": jnp.mean(trajectory.returns(problem.model.spec.discount)),
                "length": jnp.mean(trajectory.length),
            }
            if problem.safety is not None:
                results[name]["predicted"] = problem.shares(trajectory)
                results[name]["costs"] = jnp.mean(problem.costs(trajectory), axis=0)
            trajectories[name] = trajectory
        return results, trajectories

    return test


def _pathwise_epoch(problem: Problem, config: PlanConfig, method: Pathwise) -> Epoch:
    """Gradients through the model, on trajectories whose noise falls from epoch to epoch."""

    def epoch(learner, key):
        noise = jnp.log(method.noise_start) + learner.progress(config) * jnp.log(method.noise_end / method.noise_start)
        policy = replace(learner.policy, log_std=jnp.full_like(learner.policy.log_std, noise))
        learner = replace(learner, policy=policy)
        sample = pathwise(problem, config, learner, jax.random.split(key, method.batch))
        gradients = sample.gradients
        if problem.constraints and isinstance(config.constraint, Score):
            scores = score_function(problem, config, config.constraint, learner, sample)
            gradients = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), gradients, scores)
        metrics = {"return": jnp.mean(sample.trajectory.returns())}
        learner, more = _lagrangian_step(config, learner, gradients, jnp.mean(sample.costs, axis=0))
        return with_statistics(learner, sample.trajectory, problem.model.spec.discount), metrics | more

    return epoch


def _exact_epoch(problem: Problem, config: PlanConfig, method: Exact) -> Epoch:
    """Gradients of the exact values; nothing is drawn."""
    tables = cost_tables(problem)

    def epoch(learner, key):
        gradients, objectives, metrics = exact_gradients(problem, config, method, learner, tables)
        learner, more = _lagrangian_step(config, learner, gradients, objectives[1:])
        return learner, metrics | more | {"return": objectives[0]}

    return epoch


def _lagrangian_step(
    config: PlanConfig, learner: Learner, gradients: PyTree, costs: Float[Array, " constraint"]
) -> tuple[Learner, Metrics]:
    """One step of theta along eq. 8 and one of every multiplier along eq. 7."""
    ascent, log_norms = balanced(learner, gradients, config)
    stepped = replace(adam_step(learner, ascent, config), log_norms=log_norms)
    stepped = replace(stepped, multipliers=_updated_multipliers(config, learner, costs))
    return stepped, {"costs": costs, "multipliers": stepped.multipliers.value, "gradient_norms": jnp.exp(log_norms)}


def _ppo_epoch(problem: Problem, config: PlanConfig, method: PPO) -> Epoch:
    """PPO for the reward; the constraints' gradients in its minibatches, or in one step before it."""
    draw: Callable[..., tuple[Batch, Array, PyTree]] = table_batch if uses_tables(problem, config) else sampled_batch
    discount = problem.model.spec.discount

    def epoch(learner, key):
        roll_key, shuffle_key = jax.random.split(key)
        batch, costs, gradients = draw(problem, config, method, learner, roll_key)
        before = learner
        norms, joint = jnp.zeros(0), None
        if gradients is not None:
            ascent, norms = _constraint_ascent(config, learner, gradients)
            if method.joint:
                joint = ascent
            else:
                learner = adam_step(learner, ascent, config)
        learner, metrics = ppo_steps(config, method, learner, batch, discount, shuffle_key, joint)
        learner = replace(learner, multipliers=_updated_multipliers(config, before, costs))
        learner = _where(before.epoch >= method.learning_starts, learner, before)
        learner = batch.update_statistics(learner, discount)
        metrics |= {
            "return": jnp.mean(jnp.sum(jnp.where(batch.mask, batch.rewards, 0.0), axis=1)),
            "costs": costs,
            "multipliers": learner.multipliers.value,
            "gradient_norms": norms,
        }
        return learner, metrics

    return epoch


def _constraint_ascent(
    config: PlanConfig, learner: Learner, gradients: PyTree
) -> tuple[PyTree, Float[Array, " constraint"]]:
    """-sum_i lambda_i g_i, divided by 1 + sum_i lambda_i if so configured; and the norms of the g_i."""
    values = learner.multipliers.value
    share = -values / (1.0 + jnp.sum(values) if config.divide_by_multipliers else 1.0)
    squares = [jnp.sum(leaf**2, axis=tuple(range(1, leaf.ndim))) for leaf in jax.tree.leaves(gradients)]
    norms = jnp.sqrt(sum(squares, jnp.zeros(len(values))))
    return jax.tree.map(lambda leaf: jnp.tensordot(share, leaf, axes=1), gradients), norms


def _where(condition: Array, new: Learner, old: Learner) -> Learner:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b) if a is not b else b, new, old)


def _updated_multipliers(
    config: PlanConfig, learner: Learner, costs: Float[Array, " constraint"]
) -> multipliers.Multipliers:
    return multipliers.update(config.multiplier, learner.multipliers, costs, learner.tolerances)


EpochMaker = Callable[[Problem, PlanConfig, Any], Epoch]
_EPOCHS: dict[type[RewardGradient], EpochMaker] = {
    Pathwise: _pathwise_epoch,
    PPO: _ppo_epoch,
    Exact: _exact_epoch,
}


def register_reward(method: type[RewardGradient], epoch: EpochMaker) -> None:
    """Make a gradient of the return of your own known.

    `epoch(problem, config, method)` gives a function from a learner and a key to the learner after one epoch and its
    metrics, of which "return" is shown. It runs inside jit. For `sidestep.plan`: a run's folder cannot hold it.
    """
    _EPOCHS[method] = epoch
