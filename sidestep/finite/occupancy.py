"""The constrained optimum of a finite model as a linear program over occupancy measures.

    maximise    sum_{s,a} mu(s, a) R(s, a)
    subject to  sum_a mu(s, a) - discount * sum_{s',a'} P(s | s', a') mu(s', a') = start(s)   for s not absorbing
                sum_{s,a} mu(s, a) c_i(s, a) <= d_i                                           for each constraint i
                mu >= 0

mu(s, a) is the expected (discounted) number of times that a is taken in s. With discount 1 the first constraints
let all mass flow to the absorbing states, so mu belongs to a policy that ends with probability 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import optimize, sparse

from sidestep.core.errors import Infeasible, InputError
from sidestep.core.model import FinitePart
from sidestep.finite.graph import reachable, staying_actions, surely_allowed, surely_ending, transition_matrix
from sidestep.finite.values import from_start, value_iteration

# Solver and its accuracy, on constraints and reduced costs; the next where one meets numerical trouble.
ATTEMPTS = (("highs", 1e-10), ("highs", 1e-8), ("highs", 1e-7), ("highs-ipm", 1e-7))
TROUBLE = 4  # the solver's status for numerical trouble
UNVISITED = 1e-7  # expected visits below this are within the solver's error


class Bound(NamedTuple):
    """sum_{s,a} mu(s, a) cost(s, a) <= limit."""

    cost: np.ndarray  # (N, A)
    limit: float
    name: str = "constraint"

    @property
    def forbids(self) -> bool:
        """A cost that is nowhere negative adds up to 0 only when it is never paid."""
        return self.limit == 0.0 and bool((self.cost >= 0.0).all())


@dataclass(frozen=True, eq=False)
class Optimum:
    value: float
    policy: np.ndarray  # (N, A); best for the Lagrangian in states that it never visits
    occupancy: np.ndarray  # (N, A)
    constraint_values: tuple[float, ...]  # sum mu c_i, to be held against d_i


def occupancy_lp(
    finite: FinitePart,
    bounds: Sequence[Bound] = (),
    *,
    reward: np.ndarray | None = None,
    discount: float = 1.0,
) -> Optimum:
    """The best policy under `bounds`, for the model's reward or another table (N, A)."""
    reward = finite.reward if reward is None else reward
    anything = np.ones(reward.shape, bool)
    if not _possible(finite, anything, discount)[finite.start > 0].all():
        raise Infeasible("no policy is sure to reach an end, so the undiscounted return is -inf; use a discount < 1")
    # Left to the solver, a limit of 0 can be beyond what it tells apart from infeasible; forbidden actions are exact.
    allowed = np.all([anything, *(bound.cost == 0.0 for bound in bounds if bound.forbids)], axis=0)
    weighed = [bound for bound in bounds if not bound.forbids]
    inside = _possible(finite, allowed, discount)
    if not inside[finite.start > 0].all():
        raise Infeasible(_why_infeasible(finite, bounds, discount))
    allowed = staying_actions(finite, allowed, inside)

    result, pairs = _solve(finite, reward, allowed, weighed, discount)
    if result.status == 2 or (result.status == TROUBLE and _beyond(finite, bounds, discount)[0]):
        raise Infeasible(_why_infeasible(finite, bounds, discount))
    if result.status == 3:
        raise InputError("the return has no upper bound: there is a cycle with positive reward; use a discount < 1")
    if result.status != 0:
        raise InputError(f"the linear program could not be solved ({result.message}); loosen the constraints a little")

    occupancy = np.zeros(reward.shape)
    occupancy[pairs] = np.maximum(result.x, 0.0)
    multipliers = -result.ineqlin.marginals if weighed else ()
    lagrangian = reward - sum(rate * bound.cost for rate, bound in zip(multipliers, weighed, strict=True))
    elsewhere = value_iteration(finite, lagrangian, discount=discount, allowed=allowed).policy
    return Optimum(
        value=float(np.sum(occupancy * reward)),
        policy=_policy(occupancy, elsewhere),
        occupancy=occupancy,
        constraint_values=tuple(float(np.sum(occupancy * bound.cost)) for bound in bounds),
    )


def _possible(finite: FinitePart, allowed: np.ndarray, discount: float) -> np.ndarray:
    """The states from which some policy keeps to allowed actions, and ends if the return is undiscounted."""
    return surely_allowed(finite, allowed) if discount < 1.0 else surely_ending(finite, allowed)[0]


def _policy(occupancy: np.ndarray, elsewhere: np.ndarray) -> np.ndarray:
    """mu(s, a) / mu(s), and another policy where s is not visited."""
    visits = occupancy.sum(axis=1, keepdims=True)
    visited = visits > UNVISITED
    return np.where(visited, occupancy / np.where(visited, visits, 1.0), elsewhere)


def _solve(
    finite: FinitePart, reward: np.ndarray, allowed: np.ndarray, bounds: Sequence[Bound], discount: float
) -> tuple[optimize.OptimizeResult, tuple[np.ndarray, ...]]:
    """HiGHS on the allowed pairs that can be visited at all; the solution stands for the pairs returned with it."""
    kept = reachable(finite, allowed) & ~finite.absorbing
    pairs = np.nonzero(allowed & kept[:, None])
    row_of = np.cumsum(kept) - 1
    leaving = (np.ones(len(pairs[0])), (row_of[pairs[0]], np.arange(len(pairs[0]))))
    arriving = transition_matrix(finite)[pairs[0] * reward.shape[1] + pairs[1]][:, kept].T
    balance = sparse.csr_array(leaving, shape=arriving.shape) - discount * arriving
    for solver, accuracy in ATTEMPTS:
        result = optimize.linprog(
            -reward[pairs],
            A_ub=np.stack([bound.cost[pairs] for bound in bounds]) if bounds else None,
            b_ub=[bound.limit for bound in bounds] if bounds else None,
            A_eq=sparse.csc_array(balance),
            b_eq=finite.start[kept],
            method=solver,
            options={"primal_feasibility_tolerance": accuracy, "dual_feasibility_tolerance": accuracy},
        )
        if result.status != TROUBLE:
            break
    return result, pairs


def _beyond(finite: FinitePart, bounds: Sequence[Bound], discount: float) -> tuple[list[str], list[str]]:
    """The least that each constraint could reach on its own, in words: of those that no policy meets, and of all."""
    # A cost that can be negative may have no least value, and then there is nothing to say of it.
    bounds = [bound for bound in bounds if discount < 1.0 or np.all(bound.cost >= 0.0)]
    least = [-from_start(finite, value_iteration(finite, -bound.cost, discount=discount).values) for bound in bounds]
    texts = [
        f"{bound.name} <= {bound.limit:g} (the least that can be reached is {value:.4g})"
        for bound, value in zip(bounds, least, strict=True)
    ]
    return [text for text, bound, value in zip(texts, bounds, least, strict=True) if value > bound.limit], texts


def _why_infeasible(finite: FinitePart, bounds: Sequence[Bound], discount: float) -> str:
    beyond, texts = _beyond(finite, bounds, discount)
    if beyond:
        return f"no policy meets {' nor '.join(beyond)}; loosen it or change the model"
    return f"no policy meets all of {', '.join(texts)} at once; loosen one"
