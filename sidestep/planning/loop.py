"""The training loop as a pure function of a key: a scan over epochs, to be mapped over seeds."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from sidestep.errors import InputError
from sidestep.model import rollout_batch
from sidestep.planning.config import PlanConfig
from sidestep.planning.estimators import pathwise, sampled_batch, score_function
from sidestep.planning.exact import cost_tables, exact_gradients
from sidestep.planning.learner import Learner, adam_step, balanced, with_statistics
from sidestep.planning.multipliers import Multipliers
from sidestep.planning.ppo import Batch, ppo_steps
from sidestep.planning.problem import Problem
from sidestep.planning.search import search
from sidestep.planning.tabular import serves, table_batch

Stepped = tuple[Learner, dict[str, Array]]
Epoch = Callable[[Learner, PRNGKeyArray], Stepped]
TRAINING, TESTING, SEARCHING = 0, 1, 2  # streams of keys that never meet


def check_method(problem: Problem, config: PlanConfig) -> None:
    """Refuse a method that the model cannot serve, by name, with one that works instead."""
    spec = problem.model.spec
    wants_model = config.reward_gradient == "pathwise" or (
        problem.constraints and config.constraint_gradient == "pathwise"
    )
    if wants_model and spec.gradient == "none":
        reason = spec.notes[0] if spec.notes else "its author says so"
        raise InputError(
            f"the pathwise gradient needs a differentiable model, and '{spec.name}' is none ({reason}); "
            "use the reward gradient 'ppo' with the constraint gradient 'score'"
        )
    exact = "exact" in (config.reward_gradient, config.constraint_gradient)
    if exact and not hasattr(problem.model, "finite"):
        raise InputError(f"exact gradients need a finite model, and '{spec.name}' is none; use 'pathwise' or 'ppo'")
    if exact and (config.reward_gradient != "exact" or (problem.constraints and config.constraint_gradient != "exact")):
        raise InputError("exact gradients come together: set both the reward's and the constraints' to 'exact'")
    if exact and problem.constraints and not problem.safety.summed:
        raise InputError("exact gradients need a safety model of single steps (markov); this one is of trajectories")
    if exact and config.observe != "state":
        raise InputError("exact gradients are of policies that see the state alone: set observe to 'state'")
    if problem.constraints and config.constraint_gradient == "none":
        raise InputError("there are constraints but their gradient is 'none'; leave the constraints out")


def make_epoch(problem: Problem, config: PlanConfig) -> Epoch:
    """One epoch of learning: trajectories (or tables), gradients, multipliers, a step."""
    check_method(problem, config)
    if config.reward_gradient == "exact":
        tables = cost_tables(problem) if problem.constraints else _no_costs(problem)
        return lambda learner, key: _exact_epoch(problem, config, tables, learner)
    if config.reward_gradient == "pathwise":
        return lambda learner, key: _pathwise_epoch(problem, config, learner, key)
    return lambda learner, key: _ppo_epoch(problem, config, learner, key)


def search_phase(problem: Problem, config: PlanConfig) -> Callable[[Learner], Learner]:
    """The search before the first epoch."""
    return lambda learner: search(problem, config, learner, jax.random.fold_in(learner.key, SEARCHING))


def train_chunk(problem: Problem, config: PlanConfig) -> Callable[[Learner], tuple[Learner, dict[str, Array]]]:
    """The epochs from one test to the next; metrics are their means."""
    epoch = make_epoch(problem, config)

    def body(learner, _):
        key = jax.random.fold_in(jax.random.fold_in(learner.key, TRAINING), learner.epoch)
        learner, metrics = epoch(learner, key)
        return replace(learner, epoch=learner.epoch + 1), metrics

    def chunk(learner):
        learner, metrics = jax.lax.scan(body, learner, None, length=config.test_every)
        return learner, jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), metrics)

    return chunk


def test_phase(problem: Problem, config: PlanConfig) -> Callable[[Learner], tuple[dict[str, Any], dict[str, Any]]]:
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


def _pathwise_epoch(problem: Problem, config: PlanConfig, learner: Learner, key: PRNGKeyArray) -> Stepped:
    noise = jnp.log(config.noise_start) + learner.progress(config) * jnp.log(config.noise_end / config.noise_start)
    policy = replace(learner.policy, log_std=jnp.full_like(learner.policy.log_std, noise))
    learner = replace(learner, policy=policy)
    gradients, trajectory, traced, costs = pathwise(problem, config, learner, jax.random.split(key, config.batch))
    if problem.constraints and config.constraint_gradient == "score":
        scores = score_function(problem, config, learner, trajectory, traced, costs)
        gradients = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), gradients, scores)
    metrics = {"return": jnp.mean(trajectory.returns())}
    learner, more = _lagrangian_step(config, learner, gradients, jnp.mean(costs, axis=0))
    return with_statistics(learner, trajectory, problem.model.spec.discount), metrics | more


def _exact_epoch(problem: Problem, config: PlanConfig, tables: Array, learner: Learner) -> Stepped:
    gradients, objectives, metrics = exact_gradients(problem, config, learner, tables)
    learner, more = _lagrangian_step(config, learner, gradients, objectives[1:])
    return learner, metrics | more | {"return": objectives[0]}


def _lagrangian_step(config: PlanConfig, learner: Learner, gradients: Any, costs: Array) -> Stepped:
    """One step of theta along eq. 8 and one of every multiplier along eq. 7."""
    ascent, log_norms = balanced(learner, gradients, config)
    moved = replace(adam_step(learner, ascent, config), log_norms=log_norms)
    moved = replace(moved, multipliers=_moved(config, learner, costs))
    return moved, {"costs": costs, "multipliers": moved.multipliers.value, "gradient_norms": jnp.exp(log_norms)}


def _ppo_epoch(problem: Problem, config: PlanConfig, learner: Learner, key: PRNGKeyArray) -> Stepped:
    """PPO for the reward; before it, one step against the constraints' gradient on the same trajectories."""
    roll_key, shuffle_key = jax.random.split(key)
    draw: Callable[..., tuple[Batch, Array, Any]] = table_batch if serves(problem, config) else sampled_batch
    batch, costs, gradients = draw(problem, config, learner, roll_key)
    discount = problem.model.spec.discount
    before = learner
    norms, beside = jnp.zeros(0), None
    if gradients is not None:
        multipliers = learner.multipliers.value
        share = -multipliers / (1.0 + jnp.sum(multipliers) if config.divide_by_multipliers else 1.0)
        squares = [jnp.sum(leaf**2, axis=tuple(range(1, leaf.ndim))) for leaf in jax.tree.leaves(gradients)]
        norms = jnp.sqrt(sum(squares, jnp.zeros(len(problem.constraints))))
        ascent = jax.tree.map(lambda leaf: jnp.tensordot(share, leaf, axes=1), gradients)
        if config.ppo_joint:
            beside = ascent
        else:
            learner = adam_step(learner, ascent, config)
    learner, metrics = ppo_steps(config, learner, batch, discount, shuffle_key, beside)
    learner = replace(learner, multipliers=_moved(config, before, costs))
    learning = before.epoch >= config.learning_starts
    learner = jax.tree.map(lambda new, old: jnp.where(learning, new, old) if new is not old else old, learner, before)
    learner = batch.noted(learner, discount)
    metrics |= {
        "return": jnp.mean(jnp.sum(jnp.where(batch.mask, batch.rewards, 0.0), axis=1)),
        "costs": costs,
        "multipliers": learner.multipliers.value,
        "gradient_norms": norms,
    }
    return learner, metrics


def _moved(config: PlanConfig, learner: Learner, costs: Array) -> Multipliers:
    return learner.multipliers.moved(costs, learner.tolerances, config)


def _no_costs(problem: Problem) -> Array:
    return jnp.zeros((0, *np.shape(problem.model.finite.reward)))  # type: ignore[attr-defined]
