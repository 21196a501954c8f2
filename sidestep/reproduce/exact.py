"""What can be known of a finite model without sampling: a rule's tables, the best returns, the worth of a policy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from sidestep.core.errors import Infeasible, InputError
from sidestep.core.model import FiniteModel, FinitePart, Model, is_finite
from sidestep.core.records import JsonObject
from sidestep.finite.graph import policy_matrix
from sidestep.finite.horizon import Limit as Bounded
from sidestep.finite.horizon import horizon_optimum
from sidestep.finite.occupancy import Bound, occupancy_lp
from sidestep.finite.runs import prospect
from sidestep.finite.tabular import horizon_policy
from sidestep.finite.values import evaluate, from_start, value_iteration
from sidestep.labels.packing import category_table
from sidestep.labels.rules import Rule
from sidestep.models.domains import find_domain
from sidestep.policies.networks import NetworkPolicy

PENALTY = "penalty"


@dataclass(frozen=True)
class Limit:
    """The best return within constraints, and the side effects of a policy that earns it; or why there is none."""

    constraints: tuple[str, ...]
    discount: float
    value: float | None
    side_effects: dict[str, float]
    reason: str = ""
    horizon: int | None = None  # runs of so many steps; None: until an end is reached
    chances: dict[str, float] | None = None  # of a run's worst step being of each category, where that is its own
    ended: float | None = None  # chance that an end is reached within the horizon

    def to_json(self) -> JsonObject:
        found: JsonObject = {
            "constraints": self.constraints,
            "discount": self.discount,
            "feasible": self.value is not None,
            "return": self.value,
            "side_effects": self.side_effects,
        }
        if self.horizon is not None:
            found |= {"horizon": self.horizon, "chances": self.chances, "ended": self.ended}
        return found | {"reason": self.reason} if self.reason else found


def require_finite(model: Model) -> FiniteModel:
    """The model, which has a table of transitions; any other is refused."""
    if is_finite(model):
        return model
    domain = find_domain(model.spec.family)
    elsewhere = f"; `{domain.limits}` computes it, with its error" if domain and domain.limits else ""
    raise InputError(
        f"'{model.spec.name}' is not a finite model (a grid map or a table of transitions), so its optimum cannot "
        f"be computed exactly{elsewhere}"
    )


def side_effects(model: FiniteModel, rule: Rule) -> dict[str, np.ndarray]:
    """For each category but the best: in which pairs (N, A) the rule sees it; and, if it has one, the penalty."""
    category = step_table(model, rule)
    tables = {name: (category == index).astype(float) for index, name in enumerate(step_names(rule)[1:], start=1)}
    if rule.penalties:
        tables[PENALTY] = np.asarray(rule.penalties, float)[category]
    return tables


def step_table(model: FiniteModel, rule: Rule) -> np.ndarray:
    """The category of each pair (N, A) by the rule."""
    if rule.step_categories is None:
        raise InputError(
            f"the rule '{rule.name}' judges whole trajectories, and exact methods need side effects of single steps"
        )
    return np.minimum(category_table(model.finite, rule.step_categories), len(step_names(rule)) - 1)


def step_names(rule: Rule) -> tuple[str, ...]:
    """Names of the categories of steps; a rule whose trajectories are judged otherwise has its own."""
    return rule.scale.categories if rule.penalties else ("harmless", "dangerous")


def best_return(
    finite: FinitePart, tables: Mapping[str, np.ndarray], bounds: Sequence[Bound], discount: float
) -> Limit:
    """The best return within the bounds, and how often the policy that earns it meets each table of side effects.

    Without bounds by value iteration, with them by the linear program; with a discount, expected numbers of side
    effects are discounted too.
    """
    constraints = tuple(f"{bound.name}<={bound.limit:g}" for bound in bounds)
    try:
        if bounds:
            optimum = occupancy_lp(finite, bounds, discount=discount)
            value, policy = optimum.value, optimum.policy
        else:
            best = value_iteration(finite, discount=discount)
            value, policy = from_start(finite, best.values), best.policy
            if not np.isfinite(value):
                raise Infeasible("no policy is sure to reach an end, so the undiscounted return is -inf")
    except Infeasible as error:
        return Limit(constraints, discount, None, {}, str(error))
    expected = {name: from_start(finite, evaluate(finite, policy, t, discount=discount)) for name, t in tables.items()}
    return Limit(constraints, discount, value, expected)


def best_in_horizon(model: FiniteModel, rule: Rule, limits: Sequence[Bounded]) -> Limit:
    """The best return in runs of the model's horizon within the limits, and what a policy that earns it does."""
    category, horizon = step_table(model, rule), model.spec.horizon
    names = step_names(rule)
    texts = tuple(f"{limit.name}<={limit.limit:g}" for limit in limits)
    try:
        optimum = horizon_optimum(model.finite, horizon, category, limits)
    except Infeasible as error:
        return Limit(texts, 1.0, None, {}, str(error), horizon)
    found = prospect(model, horizon_policy(optimum, model), category, len(names))
    numbers = dict(zip(names[1:], found.numbers[1:].tolist(), strict=True))
    if rule.penalties:
        numbers[PENALTY] = float(np.asarray(rule.penalties, float) @ found.numbers)
    chances = dict(zip(names, found.chances.tolist(), strict=True)) if rule.markovian else None
    return Limit(texts, 1.0, optimum.value, numbers, "", horizon, chances, optimum.ended)


def over_horizon(
    finite: FinitePart, policy: np.ndarray, tables: Mapping[str, np.ndarray], horizon: int, discount: float
) -> dict[str, float]:
    """Exact expectations of a policy (N, A) over the model's horizon, the state's distribution carried step by step:

    d_0 = start,  d_{t+1} = d_t P_pi,  E[x] = sum_t d_t . x_pi  over the states that are no end.
    """
    matrix, alive = policy_matrix(finite, policy), ~finite.absorbing
    paid = {name: alive * np.sum(policy * table, axis=1) for name, table in tables.items()}
    reward = alive * np.sum(policy * finite.reward, axis=1)
    totals = {"return": 0.0, "discounted": 0.0, **dict.fromkeys(tables, 0.0)}
    now = finite.start.astype(float)
    for clock in range(horizon):
        earned = float(now @ reward)
        totals["return"] += earned
        totals["discounted"] += discount**clock * earned
        for name, table in paid.items():
            totals[name] += float(now @ table)
        now = matrix.T @ now
    return totals | {"ended": float(now @ finite.absorbing)}


def policy_table(model: FiniteModel, policy: NetworkPolicy, *, sampled: bool) -> np.ndarray:
    """The probabilities (N, A) of a network policy that sees the state alone, or its likeliest actions."""
    encoding = jnp.asarray(model.finite.encoding, policy.observer.mean.dtype)
    logits = np.asarray(policy.outputs(encoding), np.float64)
    if not sampled:
        return np.eye(logits.shape[1])[logits.argmax(axis=1)]
    chances = np.exp(logits - logits.max(axis=1, keepdims=True))
    return chances / chances.sum(axis=1, keepdims=True)
