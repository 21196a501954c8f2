"""The constrained optimum over runs of T steps, exactly.

A limit is on the run's category, E[C(m_T)] <= d, or on a sum over its steps, E[sum c(s, a)] <= d. With prices p >= 0 of
the limits, the best policy of state, memory and clock follows from one backward pass through the product:

    V_0(x)    = -p . C(m)
    Q_l(x, a) = r(s, a) - p . c(s, a) + sum_x' P(x' | x, a) V_{l-1}(x'),       V_l(x) = max_a Q_l(x, a)

with l steps left. It is a column of the linear program over all such policies,

    maximise sum_j w_j R_j    subject to    sum_j w_j C_ij <= d_i,    sum_j w_j = 1,    w >= 0,

and the program's own prices say which column is missing (Dantzig and Wolfe). V_T + p . d bounds the optimum from above,
so the gap is known when it stops. With m limits at most m + 1 policies have a weight: a run draws one and keeps it.
A limit of 0 on a cost that is never negative is not left to prices: what breaks it is worth -inf.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import optimize

from sidestep.core.errors import Infeasible
from sidestep.core.model import FinitePart
from sidestep.finite.product import Course, Product, follow, possible, worst_so_far

SETTLED = 1e-13  # change of a sweep, relative; all sweeps before it change no more, so T of them are negligible
GAP = 1e-7  # between the optimum and its bound, relative
LIGHT = 1e-9  # weight of a policy that is left out
STATIONARY = 1e-9  # loss, relative, for which the clock is ignored
COLUMNS = 500


class Limit(NamedTuple):
    """E[cost of the run's category] <= limit, or, if it `counts`, E[sum of the costs of its steps' categories]."""

    cost: tuple[float, ...]  # of each category
    limit: float
    name: str = "limit"
    counts: bool = False

    @property
    def forbids(self) -> bool:
        return self.limit == 0.0 and min(self.cost) >= 0.0

    @property
    def of_steps(self) -> bool:
        """A cost that only grows, and may never be paid, is one of steps as well: it needs no memory."""
        return self.counts or (self.forbids and list(self.cost) == sorted(self.cost))


class Member(NamedTuple):
    """One of the policies among which a run draws: actions (L, M, N) with 1, 2, .., L or more steps left."""

    weight: float
    actions: np.ndarray


@dataclass(frozen=True, eq=False)
class HorizonOptimum:
    """The optimum, as a mixture of deterministic policies of state, worst category so far and steps left."""

    value: float
    bound: float  # no policy earns more
    limit_values: tuple[float, ...]
    prices: tuple[float, ...]  # by how much the value falls for each unit that a limit is tightened
    members: tuple[Member, ...]
    letters: np.ndarray  # (N, A): what a step makes of the memory at least
    visits: np.ndarray  # (N, A): expected number of steps
    possible: np.ndarray  # bool (N, A): visited with any chance at all
    ended: float  # chance that an end is reached within the horizon


class Column(NamedTuple):
    """A policy that is best for some weights: of the reward, and of each limit's cost."""

    weights: np.ndarray
    value: float  # V_T
    earned: float
    costs: np.ndarray


def horizon_optimum(
    finite: FinitePart, horizon: int, category: np.ndarray, limits: Sequence[Limit] = (), *, loss: float = 0.0
) -> HorizonOptimum:
    """The best return in `horizon` steps within the limits; `category` (N, A) is that of each step.

    A policy that draws nothing is preferred where it loses no more than a share `loss` of the return.
    """
    problem = _Problem(finite, horizon, category, limits)
    columns = [problem.column(1.0, np.zeros(problem.priced))]
    if not np.isfinite(columns[0].value):
        raise Infeasible(_why(problem, [limit for limit in limits if limit.forbids]))
    if (columns[0].costs <= problem.bounds).all():
        return problem.optimum(columns, np.ones(1), np.zeros(problem.priced), columns[0].value)
    columns += _feasible(problem, columns)
    weights, prices, bound = _optimal(problem, columns)
    single = _single(problem, columns, weights, loss)
    return problem.optimum(columns, weights if single is None else single, prices, bound)


class _Problem:
    """The product, and its limits apart: those that forbid, and those that have a price."""

    def __init__(self, finite: FinitePart, horizon: int, category: np.ndarray, limits: Sequence[Limit]) -> None:
        of_run = [limit for limit in limits if not limit.of_steps]
        groups = _groups(of_run, max(len(limit.cost) for limit in limits) if limits else int(category.max()) + 1)
        self.letters = groups[category].astype(np.int8)
        first = [int(np.argmax(groups == group)) for group in range(groups[-1] + 1)]  # a category of each group
        self.product, self.horizon = Product(finite, worst_so_far(self.letters, len(first))), horizon
        self.reward, self.limits = self.product.spread(finite.reward), limits
        costs = [np.array(limit.cost, float) for limit in limits]
        steps = [
            self.product.spread(cost[category] if limit.of_steps else np.zeros(category.shape))
            for cost, limit in zip(costs, limits, strict=True)
        ]
        runs = [
            np.zeros(len(self.product.start)) if limit.of_steps else cost[first][self.product.memory]
            for cost, limit in zip(costs, limits, strict=True)
        ]
        self.is_priced = np.array([not limit.forbids for limit in limits], bool)
        self.priced = int(self.is_priced.sum())
        self.bounds = np.array([limit.limit for limit in limits])[self.is_priced]
        self.steps = np.array(steps).reshape(len(limits), *self.reward.shape)
        self.runs = np.array(runs).reshape(len(limits), len(self.product.start))
        forbidden = ~self.is_priced
        self.lost = np.where((self.steps[forbidden] > 0.0).any(axis=0), -np.inf, 0.0)
        self.lost_runs = np.where((self.runs[forbidden] > 0.0).any(axis=0), -np.inf, 0.0)

    def column(self, reward_weight: float, prices: np.ndarray) -> Column:
        """The best policy for these weights, and what it earns and costs."""
        weights = np.array([reward_weight, *prices])
        value, actions = self.best(weights)
        if not np.isfinite(value):
            return Column(weights, value, value, np.full(len(prices), np.inf))
        course = self._course(weights, value, actions)[0]
        return Column(weights, value, self.earned(course), self.costs(course)[self.is_priced])

    def best(self, weights: np.ndarray) -> tuple[float, np.ndarray]:
        """V_T of the start, and the actions (L, X) with 1 .. L steps left; with more they are those of L."""
        prices, product = weights[1:], self.product
        step = weights[0] * self.reward - np.tensordot(prices, self.steps[self.is_priced], axes=1) + self.lost
        final = -prices @ self.runs[self.is_priced] + self.lost_runs
        values, actions = final, []
        for _ in range(self.horizon):
            quality = step + (product.matrix @ values).reshape(step.shape)
            action = quality.argmax(axis=1)
            swept = np.where(product.absorbing, final, np.take_along_axis(quality, action[:, None], axis=1)[:, 0])
            actions.append(action.astype(np.int8 if step.shape[1] < 128 else np.int32))
            same = swept == values
            change = np.abs(np.where(same, 0.0, swept) - np.where(same, 0.0, values)).max()
            values = swept
            if change <= SETTLED * max(1.0, np.abs(values[np.isfinite(values)]).max(initial=0.0)):
                break
        start = product.start > 0.0
        return float(product.start[start] @ values[start]), np.stack(actions)

    def _course(self, weights: np.ndarray, value: float, actions: np.ndarray) -> tuple[Course, np.ndarray]:
        """What becomes of the policy; by the actions of the first step alone where the clock does not matter."""
        for tried in (actions[-1:], actions):
            course = self.follow(tried)
            worth = weights[0] * self.earned(course) - weights[1:] @ self.costs(course)[self.is_priced]
            forbidden = self.costs(course)[~self.is_priced].any()
            if not forbidden and worth >= value - STATIONARY * max(1.0, abs(value)):
                break
        return course, tried

    def follow(self, actions: np.ndarray) -> Course:
        return follow(self.product, self.horizon, _by_steps_left(actions))

    def earned(self, course: Course) -> float:
        return float(np.sum(course.visits * self.reward))

    def costs(self, course: Course) -> np.ndarray:
        """Of every limit."""
        return np.tensordot(self.steps, course.visits, axes=2) + self.runs @ course.final

    def optimum(self, columns: list[Column], weights: np.ndarray, prices: np.ndarray, bound: float) -> HorizonOptimum:
        """The policies that have a weight, found again from the weights that they are best for."""
        heavy = np.flatnonzero(weights > LIGHT)
        shares = weights[heavy] / weights[heavy].sum()
        members, courses, pairs = [], [], np.zeros(self.reward.shape, bool)
        for share, index in zip(shares, heavy, strict=True):
            value, actions = self.best(columns[index].weights)
            course, kept = self._course(columns[index].weights, value, actions)
            members.append(Member(float(share), self.product.unfolded(kept)))
            courses.append(course)
            pairs |= possible(self.product, self.horizon, _by_steps_left(kept)).pairs
        all_prices = np.zeros(len(self.limits))
        all_prices[self.is_priced] = prices
        value = float(shares @ [self.earned(course) for course in courses])
        return HorizonOptimum(
            value=value,
            bound=max(bound, value),
            limit_values=tuple((shares @ np.array([self.costs(course) for course in courses])).tolist()),
            prices=tuple(all_prices.tolist()),
            members=tuple(members),
            letters=self.letters,
            visits=self.product.gathered(np.tensordot(shares, [course.visits for course in courses], axes=1)),
            possible=self.product.gathered(pairs) > 0.0,
            ended=float(shares @ [course.ended for course in courses]),
        )


def _by_steps_left(actions: np.ndarray) -> Callable[[int], np.ndarray]:
    return lambda left: actions[min(left, len(actions)) - 1]


def _groups(limits: Sequence[Limit], categories: int) -> np.ndarray:
    """Of each category the memory that stands for it: neighbours that cost the same everywhere share one."""
    costs = np.array([limit.cost for limit in limits]).reshape(len(limits), categories)
    return np.concatenate([[0], np.cumsum((np.diff(costs, axis=1) != 0.0).any(axis=0))])


def _feasible(problem: _Problem, columns: list[Column]) -> list[Column]:
    """Columns of which some mixture is within the limits: those of the program for the least excess."""
    added: list[Column] = []
    for _ in range(COLUMNS):
        excess, prices, base = _master(problem, [*columns, *added], feasibility=True)[1:]
        if excess <= 0.0:
            return added
        column = problem.column(0.0, prices)
        if column.value + base <= GAP * excess:
            break
        added.append(column)
    raise Infeasible(_why(problem, problem.limits))


def _optimal(problem: _Problem, columns: list[Column]) -> tuple[np.ndarray, np.ndarray, float]:
    """Weights of the columns, the limits' prices, and a bound on the optimum; adds columns until nothing is missing."""
    bound = np.inf
    for _ in range(COLUMNS):
        weights, value, prices, _base = _master(problem, columns)
        column = problem.column(1.0, prices)
        bound = min(bound, column.value + prices @ problem.bounds)
        if bound - value <= GAP * max(1.0, abs(value)):
            break
        columns.append(column)
    return weights, prices, bound


def _single(problem: _Problem, columns: list[Column], weights: np.ndarray, loss: float) -> np.ndarray | None:
    """The best of the columns that are within the limits by themselves, if it loses so little."""
    earned = np.array([column.earned for column in columns])[: len(weights)]
    within = np.array([(column.costs <= problem.bounds).all() for column in columns])[: len(weights)]
    best = int(np.argmax(np.where(within, earned, -np.inf)))
    value = float(weights @ earned)
    return np.eye(len(weights))[best] if within[best] and earned[best] >= value - loss * abs(value) else None


def _master(
    problem: _Problem, columns: list[Column], feasibility: bool = False
) -> tuple[np.ndarray, float, np.ndarray, float]:
    """Weights of the columns, the objective, the limits' prices and the price of a run.

    For feasibility the objective is the least sum of what exceeds the limits.
    """
    count, limits = len(columns), problem.priced
    costs = np.array([column.costs for column in columns]).T
    excess = -np.eye(limits) if feasibility else np.zeros((limits, 0))
    objective = np.concatenate(
        [np.zeros(count) if feasibility else [-column.earned for column in columns], np.ones(excess.shape[1])]
    )
    scale = max(1.0, float(np.abs(objective).max()))
    found = optimize.linprog(
        objective / scale,
        A_ub=np.concatenate([costs, excess], axis=1),
        b_ub=problem.bounds,
        A_eq=np.concatenate([np.ones(count), np.zeros(excess.shape[1])])[None],
        b_eq=[1.0],
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    assert found.status == 0, found.message
    prices, base = -found.ineqlin.marginals * scale, float(found.eqlin.marginals[0] * scale)
    value = float(found.fun * scale)
    return found.x[:count], value if feasibility else -value, np.maximum(prices, 0.0), base


def _why(problem: _Problem, limits: Sequence[Limit]) -> str:
    names = " and ".join(f"{limit.name} <= {limit.limit:g}" for limit in limits)
    return f"no policy meets {names} in runs of {problem.horizon} steps; loosen it or change the model"
