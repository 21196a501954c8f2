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

from sidestep.beside import picked
from sidestep.campaign.config import POLISH_TEST
from sidestep.campaign.ladder import RUNGS, best_of
from sidestep.constraints import Constraint, cost_matrix
from sidestep.errors import InputError
from sidestep.finite.occupancy import Bound, occupancy_lp
from sidestep.finite.tabular import TabularPolicy
from sidestep.finite.values import value_iteration
from sidestep.model import Model, rollout
from sidestep.planning.config import PlanConfig
from sidestep.planning.exact import all_pairs
from sidestep.planning.plan import Planner, PlannerState, Row, aimed
from sidestep.policies import with_memory
from sidestep.safety.ensemble import members_of

TESTS = 500  # rollouts on which a policy is predicted
SURE = 0.999  # the largest tolerance that still limits anything
REACH = (1e-3, 10.0)  # where the factor f of a rung's limits is looked for
HALVINGS = 8
POLISH: dict[str, Any] = {
    "observe": "memory",
    "batch": 200,
    "learning_rate_end": 0.02,
    "noise_start": 0.05,
    "test_batch": 1000,
    "search_rounds": 0,
}
POLISH_RATE = 2 / 3  # the step size of the last planning, as a share of the usual one


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

    def advance(
        self, number: int, safety: Any, tolerances: Float[np.ndarray, "rung constraint"], lost: bool
    ) -> list[Row]:
        """Plan round `number` against the refitted safety model; a row of figures a rung.

        `lost`: the round before ended far above a tolerance.
        """
        ...

    def polish(
        self, safety: Any, tolerances: Float[np.ndarray, "rung constraint"], lost: bool
    ) -> Iterator[tuple[list[Row], Any]]:
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
        self.planner = Planner(model, safety, constraints, config, label, brief=True)
        rate = POLISH_RATE * config.learning_rate
        last = replace(config, **POLISH, learning_rate=rate, epochs=polish, test_every=POLISH_TEST)
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

    def advance(self, number: int, safety: Any, tolerances: np.ndarray, lost: bool) -> list[Row]:
        self.planner.refitted(safety)
        learners = self._climbed(number, tolerances, lost)
        state = PlannerState(learners, learners.policy, jnp.full(RUNGS, -jnp.inf, float))
        state, rows = self.planner.advance(state)
        self.state = state.learners
        return rows

    def polish(self, safety: Any, tolerances: np.ndarray, lost: bool) -> Iterator[tuple[list[Row], Any]]:
        """Go on with policies that see the safety model's memory, which the best ones need: some side effects are
        only such the second time."""
        self.planner.refitted(safety)
        self.polisher.refitted(safety)
        before = self._climbed(self.rounds, tolerances, lost) if lost else self.state
        learners = self._remembering(before, safety, tolerances)
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
            {
                "mean_return": float(mean["return"][rung]),
                "mean_return_deviation": float(mean["return_deviation"][rung]),
                "mean_costs": mean["costs"][rung].tolist(),
            }
            for rung in range(RUNGS)
        ]

    def noisy(self, noise: float) -> Any:
        return replace(self.policies, log_std=jnp.full_like(self.policies.log_std, jnp.log(noise)))

    def _climbed(self, number: int, tolerances: np.ndarray, lost: bool) -> Any:
        """The rungs' learners: each goes on from the best policy for its tolerance, freshly searched or old.

        Where a safety model sees nothing but harm its gradient leads nowhere, and a policy that got there stays: then
        the search, which needs no gradient, is due again.
        """
        learners = [self.state] if number else []
        if number < self.searching_rounds or lost:
            keys = jax.vmap(lambda key: jax.random.fold_in(key, number))(self.keys)
            fresh = self.planner.start(keys, tolerances=tolerances).learners
            learners.append(replace(fresh, epoch=jnp.full_like(fresh.epoch, number * self.config.test_every)))
        stacked = learners[0]
        if number <= self.rounds // 2 or lost:
            tests = [self.planner.test(group)["mean"] for group in learners]
            returns = np.concatenate([np.asarray(test["return"]) for test in tests])
            costs = np.concatenate([np.asarray(test["costs"]) for test in tests])
            picks = best_of(returns, costs, tolerances)
            stacked = picked(learners, picks)
        return replace(aimed(stacked, tolerances, self.config), key=self.keys)


class TableRungs:
    """The exact optimum of a finite model at each rung's tolerance, by what the safety model says of every pair.

    The share model says P(no cost) = exp(-sum_t c_t - (mean_t m_t)^gamma). With f = 1, either part of a policy with

        E[sum_t c_t] <= f L   and   E[sum_t (m_t / (f L^(1 / gamma)) - 1)] <= 0

    is within L in the mean, and both are linear in its occupancy. Single trajectories may be far from the mean, so that
    alone promises nothing: f is searched for.
    """

    kind = "share"

    def __init__(self, model: Any, constraints: tuple[Constraint, ...], key: jax.Array) -> None:
        self.model, self.constraints, self.key = model, constraints, key
        best = value_iteration(model.finite, model.finite.reward, discount=1.0).policy
        self.state: Any = jnp.asarray(np.stack([best] * RUNGS), float)

    @property
    def policies(self) -> Any:
        return TabularPolicy(self.state, self.model)

    def prepare(self) -> None:
        """An optimum compiles little."""

    def advance(self, number: int, safety: Any, tolerances: np.ndarray, lost: bool) -> list[Row]:
        policies, rows = self._ladder(safety, tolerances)
        self.state = jnp.asarray(policies, float)
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
        returns, deviations, shares = (np.asarray(part) for part in _rolled(self.model, policies, safety, self.key))
        costs = shares @ cost_matrix(self.constraints).T
        return [
            {
                "mean_return": float(returns[rung]),
                "mean_return_deviation": float(deviations[rung]),
                "mean_costs": costs[rung].tolist(),
                "mean_predicted": shares[rung].tolist(),
            }
            for rung in range(RUNGS)
        ]

    def _ladder(self, safety: Any, tolerances: np.ndarray) -> tuple[np.ndarray, list[Row]]:
        """For each rung the optimum by the largest factor at which rollouts keep its tolerance, by bisection.

        Where even the least hazard is above the lowest rung, the ladder is raised to stand on it: that rung shows what
        safety looks like, at any price, and those above what it costs.
        """
        pairs = PairHazards(self.model, self.constraints, safety)
        policies = np.stack([pairs.least()] * RUNGS)
        rows = self._predicted(policies, safety)
        raised = max(1.0, float(np.max(np.asarray(rows[0]["mean_costs"]) / tolerances[0])))
        tolerances = np.minimum(raised * tolerances, SURE)
        low, high = (np.full(RUNGS, np.log(end)) for end in REACH)
        middle = np.zeros(RUNGS)
        for _ in range(HALVINGS):
            found = [pairs.optimum(row, factor) for row, factor in zip(tolerances, np.exp(middle), strict=True)]
            tried = np.stack([policy if new is None else new for new, policy in zip(found, policies, strict=True)])
            for rung, row in enumerate(self._predicted(tried, safety)):
                keeps = bool(np.all(row["mean_costs"] <= tolerances[rung]))
                if keeps and row["mean_return"] >= rows[rung]["mean_return"]:
                    policies[rung], rows[rung] = tried[rung], row
                if keeps or found[rung] is None:
                    low[rung] = middle[rung]
                else:
                    high[rung] = middle[rung]
            middle = (low + high) / 2
        return policies, rows

    def _predicted(self, policies: np.ndarray, safety: Any) -> list[Row]:
        return self.predict(TabularPolicy(jnp.asarray(policies, float), self.model), safety)

    def polish(self, safety: Any, tolerances: np.ndarray, lost: bool) -> Iterator[tuple[list[Row], Any]]:
        """An optimum needs no polish."""
        yield self.advance(0, safety, tolerances, lost), self.policies

    def noisy(self, noise: float) -> Any:
        uniform = 1.0 / self.state.shape[-1]
        return TabularPolicy((1.0 - noise) * self.state + noise * uniform, self.model)


class PairHazards:
    """What each constraint costs at every pair of a finite model: hazards of members of a share model, as tables."""

    def __init__(self, model: Any, constraints: tuple[Constraint, ...], safety: Any) -> None:
        self.finite, self.names = model.finite, [constraint.text for constraint in constraints]
        members = members_of(safety)
        first = np.array([constraint.cost_weights.index(1) - 1 for constraint in constraints])
        steps = [jax.tree.map(np.asarray, _of_pairs(model, member)) for member in members]
        shape = (len(members), *self.finite.reward.shape, len(constraints))
        self.summed, self.shared = (
            np.stack([getattr(step, part).worse[:, first] for step in steps]).astype(float).reshape(shape)
            for part in ("summed", "shared")
        )
        self.powers = np.exp([float(member.log_power) for member in members])[:, None, None]

    def least(self) -> np.ndarray:
        """The policy of the least hazards, whatever it earns."""
        hazards = np.sum(np.mean(self.summed + self.shared, axis=0), axis=-1)
        return value_iteration(self.finite, -hazards, discount=1.0).policy

    def optimum(self, tolerances: Float[np.ndarray, " constraint"], factor: float) -> np.ndarray | None:
        """The best policy with sums and means below `factor` times what the tolerances allow; None if there is none."""
        bounds = []
        for index, (name, limit) in enumerate(zip(self.names, -np.log1p(-tolerances), strict=True)):
            share = np.mean(self.shared[..., index] / (factor * limit ** (1.0 / self.powers)) - 1.0, axis=0)
            bounds.append(Bound(np.mean(self.summed[..., index], axis=0), float(factor * limit), name))
            bounds.append(Bound(share, 0.0, name))
        try:
            return occupancy_lp(self.finite, bounds).policy
        except InputError:
            return None


@eqx.filter_jit
def _of_pairs(model: Any, member: Any) -> Any:
    pairs = all_pairs(model)
    return member.steps(pairs.states[:, 0], pairs.actions[:, 0])


@eqx.filter_jit
def _rolled(model: Any, policies: Any, safety: Any, key: jax.Array) -> tuple[Any, Any, Any]:
    """Mean return, its deviation and shares of the categories for each policy of a stack.

    A member is asked about every pair once, and not about every step of every rollout.
    """
    members = members_of(safety)
    tables = [_of_pairs(model, member) for member in members]

    def one(policy):
        trajectory = rollout(model, policy, key, TESTS)
        pair = model.indices(trajectory.states) * model.spec.action.size + model.action_indices(trajectory.actions)
        shares = [
            jnp.exp(member.conclude(member.gathered(jax.tree.map(lambda part: part[pair], table), trajectory.length)))
            for member, table in zip(members, tables, strict=True)
        ]
        returns = trajectory.returns()
        return jnp.mean(returns), jnp.std(returns), jnp.mean(jnp.stack(shares), axis=(0, 1))

    return jax.lax.map(one, policies)
