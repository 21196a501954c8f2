"""The constrained problem in the form that the estimators use: max J_R subject to J_i = E[C_i(tau)] <= d_i  (eq. 5)."""

from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sidestep.core.constraints import Constraint, cost_matrix
from sidestep.core.model import FinitePart, Model, Trajectory, finite_part
from sidestep.safety.base import SafetyModel

SMALLEST_CHANCE = 1e-6  # of a harmless trajectory, as far as a difference of single-precision numbers knows it


@dataclass(frozen=True, eq=False)
class Problem:
    """A model, the learned costs of its trajectories, and the tolerances."""

    model: Model
    safety: SafetyModel | None  # None when there is no constraint
    constraints: tuple[Constraint, ...] = ()

    @cached_property
    def finite(self) -> FinitePart | None:
        """The exact table of the model, if it is a finite one."""
        return finite_part(self.model)

    @property
    def table(self) -> FinitePart:
        """The same for methods that were checked to have one."""
        assert self.finite is not None, "the method's check asks for a finite model"
        return self.finite

    @property
    def learned(self) -> SafetyModel:
        """The safety model, where there are constraints."""
        assert self.safety is not None, "constraints come with a safety model"
        return self.safety

    @property
    def counts_steps(self) -> bool:
        """Whether side effects belong to single steps and are counted."""
        return self.safety is not None and self.safety.per_step

    @cached_property
    def weights(self) -> np.ndarray:
        """(constraint, category): which categories count as the cost of a constraint."""
        return cost_matrix(self.constraints)

    @cached_property
    def tolerances(self) -> np.ndarray:
        return np.array([constraint.tolerance for constraint in self.constraints], np.float32)

    def costs(self, trajectory: Trajectory) -> Float[Array, "batch constraint"]:
        """C_i(tau): the probability of what constraint i limits, or its expected count where steps are counted."""
        if self.counts_steps:
            amounts = self.learned.expected_counts(*_parts(trajectory))
        else:
            amounts = jnp.exp(self.learned.log_probabilities(*_parts(trajectory)))
        return amounts @ self.weights.T.astype(amounts.dtype)

    def surrogate(self, trajectory: Trajectory, form: str, cap: float) -> Float[Array, "batch constraint"]:
        """What is differentiated: C itself, or cap * log(1 + H / cap) of H = -log(1 - C).

        The derivative of H does not vanish where C saturates at 1; the soft cap keeps hopeless trajectories from
        drowning the others without ignoring them.
        """
        return self.judged(trajectory, form, cap)[0]

    def judged(
        self, trajectory: Trajectory, form: str, cap: float
    ) -> tuple[Float[Array, "batch constraint"], Float[Array, "batch constraint"]]:
        """(surrogate, cost) of each trajectory, from one evaluation of the safety model."""
        if form == "probability" or self.counts_steps:
            costs = self.costs(trajectory)
            return costs, costs
        log_probabilities = self.learned.log_probabilities(*_parts(trajectory))
        harmless = jnp.where(jnp.asarray(self.weights)[None] > 0, -jnp.inf, log_probabilities[:, None, :])
        surrogates = cap * jnp.log1p(-jax.nn.logsumexp(harmless, axis=2) / cap)
        return surrogates, jnp.exp(log_probabilities) @ self.weights.T

    def surrogate_of_risk(self, risk: Float[Array, " levels"], form: str, cap: float) -> Float[Array, " constraint"]:
        """The same of one trajectory, from P(category k or worse) for k = 1, ..., K - 1."""
        edges = jnp.concatenate([jnp.ones(1, risk.dtype), risk, jnp.zeros(1, risk.dtype)])
        costs = (edges[:-1] - edges[1:]) @ jnp.asarray(self.weights, risk.dtype).T
        if form == "probability":
            return costs
        return cap * jnp.log1p(-jnp.log(jnp.maximum(1.0 - costs, SMALLEST_CHANCE)) / cap)

    def shares(self, trajectory: Trajectory) -> Float[Array, " category"]:
        """Predicted frequency of each category."""
        return jnp.mean(jnp.exp(self.learned.log_probabilities(*_parts(trajectory))), axis=0)


def _parts(trajectory: Trajectory) -> tuple[Array, Array, Array]:
    return trajectory.states, trajectory.actions, trajectory.length
