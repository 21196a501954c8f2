"""The bank of policies of a finite model: every slot is the optimum of a linear program."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from sidestep.core.constraints import Constraint, cost_matrix
from sidestep.core.errors import InputError
from sidestep.core.model import FiniteModel, rollout
from sidestep.finite.occupancy import Bound, occupancy_lp
from sidestep.finite.tabular import TabularPolicy
from sidestep.finite.values import value_iteration
from sidestep.planning.bank import BankPolicy, Polished
from sidestep.planning.exact import all_pairs
from sidestep.planning.rows import Phase, PlanRow
from sidestep.safety.base import SafetyModel
from sidestep.safety.ensemble import members_of
from sidestep.safety.share import ShareModel, Steps

TESTS = 500  # rollouts on which a policy is predicted
SURE = 0.999  # the largest tolerance that still limits anything
REACH = (1e-3, 10.0)  # where the factor f of a slot's limits is looked for
HALVINGS = 8


class TableBank:
    """The exact optimum of a finite model at each slot's tolerance, by what the safety model says of every pair.

    The share model says P(no cost) = exp(-sum_t c_t - (mean_t m_t)^gamma). With f = 1, either part of a policy with

        E[sum_t c_t] <= f L   and   E[sum_t (m_t / (f L^(1 / gamma)) - 1)] <= 0

    is within L in the mean, and both are linear in its occupancy. Single trajectories may be far from the mean, so that
    alone promises nothing: f is searched for.
    """

    kind = "share"
    phase: Phase = ""  # one test is all of its last planning

    def __init__(self, model: FiniteModel, constraints: tuple[Constraint, ...], slots: int, key: PRNGKeyArray) -> None:
        self.model, self.constraints, self.slots, self.key = model, constraints, slots, key
        best = value_iteration(model.finite, model.finite.reward, discount=1.0).policy
        self.state = jnp.asarray(np.stack([best] * slots), float)
        self.tolerances = np.ones((slots, len(constraints)))

    @property
    def policies(self) -> TabularPolicy:
        return TabularPolicy(self.state, self.model)

    def prepare(self, safety: SafetyModel) -> None:
        """An optimum compiles little."""

    def start_nearest(self, tolerances: np.ndarray) -> None:
        """An optimum does not depend on where its search began."""

    def advance(self, number: int, safety: SafetyModel, tolerances: np.ndarray, lost: bool) -> list[PlanRow]:
        policies, rows = self._bank(safety, tolerances)
        self.state = jnp.asarray(policies, float)
        return [
            replace(row, seed_index=slot, epoch=number, feasible=bool(np.all(row.mean_costs <= tolerances[slot])))
            for slot, row in enumerate(rows)
        ]

    def predict(self, policies: BankPolicy, safety: SafetyModel) -> list[PlanRow]:
        returns, deviations, shares = (np.asarray(part) for part in _rolled(self.model, policies, safety, self.key))
        costs = shares @ cost_matrix(self.constraints).T
        return [
            PlanRow(
                mean_return=returns[slot].item(),
                mean_return_deviation=deviations[slot].item(),
                mean_costs=tuple(costs[slot].tolist()),
                mean_predicted=tuple(shares[slot].tolist()),
            )
            for slot in range(self.slots)
        ]

    def _bank(self, safety: SafetyModel, tolerances: np.ndarray) -> tuple[np.ndarray, list[PlanRow]]:
        """For each slot the optimum by the largest factor at which rollouts keep its tolerance, by bisection.

        Where even the least hazard is above the strictest tolerance, all of them are raised until it is met: the first
        slot then shows what safety looks like, at any price, and the others what it costs.
        """
        pairs = PairHazards(self.model, self.constraints, safety)
        policies = np.stack([pairs.least()] * self.slots)
        rows = self._predicted(policies, safety)
        raised = max(1.0, float(np.max(np.asarray(rows[0].mean_costs) / tolerances[0])))
        tolerances = np.minimum(raised * tolerances, SURE)
        low, high = (np.full(self.slots, np.log(end)) for end in REACH)
        middle = np.zeros(self.slots)
        for _ in range(HALVINGS):
            found = [pairs.optimum(row, factor) for row, factor in zip(tolerances, np.exp(middle), strict=True)]
            tried = np.stack([policy if new is None else new for new, policy in zip(found, policies, strict=True)])
            for slot, row in enumerate(self._predicted(tried, safety)):
                keeps = bool(np.all(row.mean_costs <= tolerances[slot]))
                if keeps and row.mean_return >= rows[slot].mean_return:
                    policies[slot], rows[slot] = tried[slot], row
                if keeps or found[slot] is None:
                    low[slot] = middle[slot]
                else:
                    high[slot] = middle[slot]
            middle = (low + high) / 2
        return policies, rows

    def _predicted(self, policies: np.ndarray, safety: SafetyModel) -> list[PlanRow]:
        return self.predict(TabularPolicy(jnp.asarray(policies, float), self.model), safety)

    def begin_polish(self, safety: SafetyModel, tolerances: np.ndarray, lost: bool) -> None:
        self.tolerances = tolerances

    def expect(self, safety: SafetyModel, phase: Phase) -> None:
        """Nothing changes: one test is all of it."""

    def polish(self, safety: SafetyModel, highest: float) -> Polished:
        """An optimum needs no polish."""
        rows = self.advance(0, safety, self.tolerances, False)
        return Polished("gradient", rows, self.policies, range(len(rows)), finished=True)

    def noisy(self, noise: float) -> TabularPolicy:
        uniform = 1.0 / self.state.shape[-1]
        return TabularPolicy((1.0 - noise) * self.state + noise * uniform, self.model)


class PairHazards:
    """What each constraint costs at every pair of a finite model: hazards of members of a share model, as tables."""

    def __init__(self, model: FiniteModel, constraints: tuple[Constraint, ...], safety: SafetyModel) -> None:
        self.finite, self.names = model.finite, [constraint.text for constraint in constraints]
        members = members_of(safety, ShareModel)
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
def _of_pairs(model: FiniteModel, member: ShareModel) -> Steps:
    pairs = all_pairs(model.finite)
    return member.steps(pairs.states[:, 0], pairs.actions[:, 0])


@eqx.filter_jit
def _rolled(
    model: FiniteModel, policies: BankPolicy, safety: SafetyModel, key: PRNGKeyArray
) -> tuple[Array, Array, Array]:
    """Mean return, its deviation and shares of the categories for each policy of a stack.

    A member is asked about every pair once, and not about every step of every rollout.
    """
    members = members_of(safety, ShareModel)
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
