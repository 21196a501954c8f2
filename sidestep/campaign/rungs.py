"""Planning on the ladder: a stack of policies, one a rung, that goes on from round to round.

`GradientRungs` trains networks by gradients; `TableRungs` solves a finite model exactly. A campaign sees no difference.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sidestep.campaign.config import POLISH_TEST
from sidestep.campaign.ladder import RUNGS, best_of
from sidestep.constraints import Constraint, cost_matrix
from sidestep.finite.occupancy import Bound, occupancy_lp
from sidestep.finite.tabular import TabularPolicy
from sidestep.finite.values import evaluate, from_start, value_iteration
from sidestep.model import Model, rollout
from sidestep.planning.config import PlanConfig
from sidestep.planning.exact import all_pairs
from sidestep.planning.plan import Planner, PlannerState, Row, aimed
from sidestep.policies import with_memory

TESTS = 500  # rollouts on which a policy is predicted
POLISH: dict[str, Any] = {
    "observe": "memory",
    "batch": 200,
    "learning_rate": 2e-3,
    "learning_rate_end": 0.02,
    "noise_start": 0.05,
    "test_batch": 1000,
    "search_rounds": 0,
}


class Rungs(Protocol):
    """What a campaign needs of a planner."""

    state: Any  # a pytree: what a checkpoint holds
    kind: str  # of safety model

    @property
    def policies(self) -> Any:
        """A stack of policies, the strictest rung first."""
        ...

    def prepare(self) -> None:
        """Compile in the background what will be needed."""
        ...

    def advance(self, number: int, safety: Any, tolerances: Float[np.ndarray, "rung constraint"]) -> list[Row]:
        """Plan round `number` against the refitted safety model; a row of figures a rung."""
        ...

    def polish(self, safety: Any, tolerances: Float[np.ndarray, "rung constraint"]) -> Iterator[tuple[list[Row], Any]]:
        """The last planning, against the final safety model: at every test, rows and the stack of policies."""
        ...

    def predict(self, policies: Any, safety: Any) -> list[Row]:
        """Figures of a stack of earlier policies by this safety model."""
        ...

    def noisy(self, noise: float) -> Any:
        """The stack of policies with so much noise on their actions."""
        ...


class GradientRungs:
    """One learner a rung, trained side by side."""

    kind = "hazard"

    def __init__(
        self,
        model: Model,
        constraints: tuple[Constraint, ...],
        config: PlanConfig,
        safety: Any,
        key: jax.Array,
        rounds: int,
        searching_rounds: int,
        polish: int,
        label: Any,
    ) -> None:
        self.config, self.rounds, self.searching_rounds = config, rounds, searching_rounds
        self.planner = Planner(model, safety, constraints, config, label)
        last = replace(config, **POLISH, epochs=polish, test_every=POLISH_TEST)
        self.polisher = Planner(model, safety, constraints, last, label)
        self.keys = jax.random.split(key, RUNGS)
        self.state: Any = self.planner.start(self.keys, search=False).learners

    @property
    def policies(self) -> Any:
        return self.state.policy

    def prepare(self) -> None:
        start, safety = self.state, self.planner.problem.safety
        self.planner.prepare(lambda: start)
        self.polisher.prepare(lambda: self._remembering(start, safety, np.asarray(start.tolerances)))

    def advance(self, number: int, safety: Any, tolerances: np.ndarray) -> list[Row]:
        self.planner.refitted(safety)
        learners = self._climbed(number, tolerances)
        state = PlannerState(learners, learners.policy, jnp.full(RUNGS, -jnp.inf, float))
        state, rows = self.planner.advance(state)
        self.state = state.learners
        return rows

    def polish(self, safety: Any, tolerances: np.ndarray) -> Iterator[tuple[list[Row], Any]]:
        """Go on with policies that see the safety model's memory, which the best ones need: some side effects are
        only such the second time."""
        self.polisher.refitted(safety)
        learners = self._remembering(self.state, safety, tolerances)
        state = PlannerState(learners, learners.policy, jnp.full(RUNGS, -jnp.inf, float))
        for state, rows in self.polisher.run(state):  # noqa: B020 (each state follows from the one before)
            yield rows, state.learners.policy

    def _remembering(self, before: Any, safety: Any, tolerances: np.ndarray) -> Any:
        """The rungs' learners as the last planning begins with them."""
        policies = eqx.filter_vmap(lambda policy: with_memory(policy, safety))(before.policy)
        first = jax.tree.map(lambda leaf: leaf[0], policies)
        learners = self.polisher.start(self.keys, first, tolerances=tolerances).learners
        multipliers = replace(learners.multipliers, value=before.multipliers.value)
        return replace(learners, policy=policies, states=before.states, multipliers=multipliers)

    def predict(self, policies: Any, safety: Any) -> list[Row]:
        self.planner.refitted(safety)
        mean = jax.tree.map(np.asarray, self.planner.test(replace(self.state, policy=policies))["mean"])
        return [
            {"mean_return": float(mean["return"][rung]), "mean_costs": mean["costs"][rung].tolist()}
            for rung in range(RUNGS)
        ]

    def noisy(self, noise: float) -> Any:
        return replace(self.policies, log_std=jnp.full_like(self.policies.log_std, jnp.log(noise)))

    def _climbed(self, number: int, tolerances: np.ndarray) -> Any:
        """The rungs' learners: each goes on from the best policy for its tolerance, freshly searched or old."""
        learners = [self.state] if number else []
        if number < self.searching_rounds:
            keys = jax.vmap(lambda key: jax.random.fold_in(key, number))(self.keys)
            fresh = self.planner.start(keys, tolerances=tolerances).learners
            learners.append(replace(fresh, epoch=jnp.full_like(fresh.epoch, number * self.config.test_every)))
        stacked = learners[0]
        if number <= self.rounds // 2:
            tests = [self.planner.test(group)["mean"] for group in learners]
            returns = np.concatenate([np.asarray(test["return"]) for test in tests])
            costs = np.concatenate([np.asarray(test["costs"]) for test in tests])
            picks = best_of(returns, costs, tolerances)
            stacked = jax.tree.map(lambda *leaves: jnp.concatenate(leaves)[picks], *learners)
        return replace(aimed(stacked, tolerances, self.config), key=self.keys)


class TableRungs:
    """The exact optimum of a finite model at each rung's tolerance, by the learned hazard of every pair.

    The Markov model says P(no cost) = exp(-sum_t c(s_t, a_t)), so E[sum_t c] <= -log(1 - d) keeps the cost within d for
    trajectories that are alike, and by Jensen's inequality only errs to the safe side for others.
    """

    kind = "markov"

    def __init__(self, model: Any, constraints: tuple[Constraint, ...], key: jax.Array) -> None:
        self.model, self.constraints, self.key = model, constraints, key
        best = value_iteration(model.finite, model.finite.reward, discount=1.0).policy
        self.state: Any = jnp.asarray(np.stack([best] * RUNGS), float)

    @property
    def policies(self) -> Any:
        return TabularPolicy(self.state, self.model)

    def prepare(self) -> None:
        """An optimum compiles little."""

    def advance(self, number: int, safety: Any, tolerances: np.ndarray) -> list[Row]:
        tables = hazard_tables(self.model, self.constraints, safety)
        limits = -np.log1p(-np.minimum(tolerances, 0.999))
        self.state = jnp.asarray(np.stack(self._ladder(tables, limits)), float)
        rows = self.predict(self.policies, safety)
        return [
            {
                "seed_index": rung,
                "epoch": number,
                "feasible": bool(np.all(row["mean_costs"] <= tolerances[rung])),
                **row,
            }
            for rung, row in enumerate(rows)
        ]

    def predict(self, policies: Any, safety: Any) -> list[Row]:
        returns, shares = (np.asarray(part) for part in _rolled(self.model, policies, safety, self.key))
        costs = shares @ cost_matrix(self.constraints).T
        return [
            {
                "mean_return": float(returns[rung]),
                "mean_costs": costs[rung].tolist(),
                "mean_predicted": shares[rung].tolist(),
            }
            for rung in range(RUNGS)
        ]

    def _ladder(
        self, tables: Float[np.ndarray, "constraint s a"], limits: Float[np.ndarray, "rung constraint"]
    ) -> list[np.ndarray]:
        """The optimum within each rung's limits. Where even the least hazard is above the lowest rung, the ladder is
        raised to stand on it: that rung shows what safety looks like, at any price, and those above what it costs."""
        finite = self.model.finite
        least = value_iteration(finite, -np.tensordot(1.0 / limits[0], tables, axes=1), discount=1.0).policy
        reached = [from_start(finite, evaluate(finite, least, table, discount=1.0)) for table in tables]
        above = float(np.max(reached / limits[0]))
        if above < 1.0:
            return [self._optimum(tables, row) for row in limits]
        return [least, *(self._optimum(tables, row) for row in above * limits[1:])]

    def _optimum(self, tables: np.ndarray, limits: np.ndarray) -> np.ndarray:
        bounds = [
            Bound(table, float(limit), constraint.text)
            for table, limit, constraint in zip(tables, limits, self.constraints, strict=True)
        ]
        return occupancy_lp(self.model.finite, bounds).policy

    def polish(self, safety: Any, tolerances: np.ndarray) -> Iterator[tuple[list[Row], Any]]:
        """An optimum needs no polish."""
        yield self.advance(0, safety, tolerances), self.policies

    def noisy(self, noise: float) -> Any:
        uniform = 1.0 / self.state.shape[-1]
        return TabularPolicy((1.0 - noise) * self.state + noise * uniform, self.model)


def hazard_tables(model: Any, constraints: tuple[Constraint, ...], safety: Any) -> Float[np.ndarray, "constraint s a"]:
    """c(s, a) = -log P(the step stays below the first category that the constraint counts)."""
    pairs = all_pairs(model)
    logs = safety.log_probabilities(pairs.states, pairs.actions, pairs.length)
    below = jax.lax.cumlogsumexp(logs, axis=1)
    first = [constraint.cost_weights.index(1) for constraint in constraints]
    shape = model.finite.reward.shape
    return np.stack([np.maximum(-np.asarray(below[:, k - 1], float), 0.0).reshape(shape) for k in first])


@eqx.filter_jit
def _rolled(model: Model, policies: Any, safety: Any, key: jax.Array) -> tuple[Any, Any]:
    """Mean return and shares of the categories for each policy of a stack."""

    def one(policy):
        trajectory = rollout(model, policy, key, TESTS)
        logs = safety.log_probabilities(trajectory.states, trajectory.actions, trajectory.length)
        return jnp.mean(trajectory.returns()), jnp.mean(jnp.exp(logs), axis=0)

    return jax.lax.map(one, policies)
