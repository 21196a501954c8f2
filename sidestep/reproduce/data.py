"""Trajectories of policies of different skill, labelled by the rule: what the paper's recurrent classifier learns from.

The paper gathers them while a policy learns without constraint. Alone these soon look alike, and what a planner tries
later is not among them; so a share may come from explorers, and a share from mixtures: at every step a policy of some
stage of the learning or an explorer acts, with odds that each trajectory draws for itself.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PRNGKeyArray

from sidestep.core.model import Model, Policy, Trajectory, rollout
from sidestep.labels.collect import ExploringPolicy
from sidestep.planning.plan import Planner

Shares = tuple[float, float, float]  # of the trajectories: learners, mixtures, explorers
AS_THE_PAPER: Shares = (1.0, 0.0, 0.0)
COVERING: Shares = (0.4, 0.4, 0.2)


class MixedPolicy(Policy):
    """Acts as `policy` with probability p, else as an explorer; p is drawn from [low, 1] at the first step."""

    policy: Policy
    explorer: ExploringPolicy
    low: jax.Array  # 1: the policy alone; 0: any mixture

    def start(self):
        return {"policy": self.policy.start(), "explorer": self.explorer.start(), "skill": jnp.ones(())}

    def act(self, state, clock, memory, key):
        own_key, explorer_key, skill_key, choice_key = jax.random.split(key, 4)
        own, own_memory = self.policy.act(state, clock, memory["policy"], own_key)
        other, other_memory = self.explorer.act(state, clock, memory["explorer"], explorer_key)
        drawn = self.low + (1.0 - self.low) * jax.random.uniform(skill_key)
        skill = jnp.where(clock == 0, drawn, memory["skill"])
        action = jnp.where(jax.random.uniform(choice_key) < skill, own, other)
        return action, {"policy": own_memory, "explorer": other_memory, "skill": skill}


def learning_trajectories(
    model: Model, planner: Planner, keys: Key[Array, " run"], count: int, shares: Shares = COVERING
) -> Trajectory:
    """`count` trajectories from the stages of learning runs without constraint, one run for each key."""
    stages = planner.config.epochs // planner.config.test_every
    each = -(-count // (stages * len(keys)))
    parts = []
    for stage, (state, _) in enumerate(planner.run(planner.start(keys))):
        for index, key in enumerate(keys):
            policy = jax.tree.map(lambda leaf, at=index: leaf[at], state.learners.policy)
            parts.append(_stage(model, policy, jax.random.fold_in(key, stage), each, shares))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves)[:count], *parts)


def _stage(model: Model, policy: Policy, key: PRNGKeyArray, count: int, shares: Shares) -> Trajectory:
    """What is gathered at one stage of one run, by the shares of the three sources."""
    keys = jax.random.split(key, 3)
    alone, mixed = round(shares[0] * count), round(shares[1] * count)
    explorer = ExploringPolicy(model)
    parts = [
        rollout(model, MixedPolicy(policy, explorer, jnp.ones(())), keys[0], alone),
        rollout(model, MixedPolicy(policy, explorer, jnp.zeros(())), keys[1], mixed),
        rollout(model, explorer, keys[2], count - alone - mixed),
    ]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
