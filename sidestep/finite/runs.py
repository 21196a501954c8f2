"""Runs of a policy of the kind `HorizonPolicy`: what becomes of them, exactly, and fresh ones, by the million."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from sidestep.core.model import FiniteModel
from sidestep.finite.product import Product, follow, possible, worst_so_far
from sidestep.finite.tabular import HorizonPolicy, Schedule

BATCH = 20_000  # runs at a time: what fits into a processor's cache
LOOK = 10  # steps between two looks at which runs have ended


class Prospect(NamedTuple):
    """What becomes of a policy's runs, by computation."""

    value: float
    chances: np.ndarray  # of each category
    never: np.ndarray  # bool: the category cannot happen; by logic, where a chance might be rounded to 0
    numbers: np.ndarray  # expected steps of each category
    ended: float  # chance that an end is reached


def visited_pairs(model: FiniteModel, policy: HorizonPolicy) -> np.ndarray:
    """The pairs (N, A), bool, that the policy visits with any chance at all."""
    schedule = policy.schedule
    product = Product(model.finite, worst_so_far(schedule.letters, schedule.tables.shape[1]))
    pairs = np.zeros((len(product.start), product.actions), bool)
    for member in range(len(schedule.weights)):
        pairs |= possible(product, model.spec.horizon, _chosen(schedule, member, product, product.memory)).pairs
    return product.gathered(pairs) > 0.0


def prospect(model: FiniteModel, policy: HorizonPolicy, category: np.ndarray, categories: int) -> Prospect:
    """Exactly, where `category` (N, A) is that of every step that the policy may take.

    The product has two memories: what the policy believes to have done, and what it has done by these categories.
    """
    finite, schedule, horizon = model.finite, policy.schedule, model.spec.horizon
    believed = worst_so_far(schedule.letters, schedule.tables.shape[1])
    done = worst_so_far(category, categories)
    both = (believed[:, None] * categories + done[None]).reshape(-1, *category.shape)
    product = Product(finite, both)
    memory, worst = np.divmod(product.memory, categories)
    rewards, letters = product.spread(finite.reward), category[product.state]
    value = ended = 0.0
    chances, numbers, never = np.zeros(categories), np.zeros(categories), np.ones(categories, bool)
    for member, weight in enumerate(_normed(schedule.weights)):
        chosen = _chosen(schedule, member, product, memory)
        course, may = follow(product, horizon, chosen), possible(product, horizon, chosen)
        value += float(weight * np.sum(course.visits * rewards))
        ended += float(weight * course.ended)
        chances += weight * np.bincount(worst, course.final, categories)
        numbers += weight * np.bincount(letters.ravel(), course.visits.ravel(), categories)
        never[np.unique(worst[may.final])] = False
    return Prospect(value, chances, never, numbers, ended)


def _chosen(schedule: Schedule, member: int, product: Product, memory: np.ndarray) -> Callable[[int], np.ndarray]:
    return lambda left: schedule.actions(member, left)[memory, product.state]


class Runs(NamedTuple):
    """Fresh runs."""

    returns: np.ndarray
    discounted: np.ndarray
    worst: np.ndarray  # category of each run's worst step
    penalties: np.ndarray  # sum over its steps


def fresh_runs(
    model: FiniteModel,
    policy: HorizonPolicy,
    category: np.ndarray,
    penalty: np.ndarray,
    random: np.random.Generator,
    count: int,
) -> Runs:
    """`count` runs of the policy, drawn from the model's table; `penalty` (N, A) is summed up over the steps."""
    dice = _Dice(model, policy.schedule, category, penalty)
    sizes = [min(BATCH, count - first) for first in range(0, count, BATCH)]
    batches = [dice.runs(random, size) for size in sizes]
    return Runs(*(np.concatenate(parts) for parts in zip(*batches, strict=True)))


class _Dice:
    """The tables by pairs s * A + a, in which nothing happens at an end any more."""

    def __init__(self, model: FiniteModel, schedule: Schedule, category: np.ndarray, penalty: np.ndarray) -> None:
        finite, alive = model.finite, ~model.finite.absorbing[:, None]
        self.spec, self.schedule, self.start, self.absorbing = model.spec, schedule, finite.start, finite.absorbing
        self.reward, self.penalty = (alive * finite.reward).ravel(), (alive * penalty).ravel()
        self.category, self.letter = ((alive * t).ravel().astype(np.int8) for t in (category, schedule.letters))
        outcomes = finite.successor.shape[2]
        # p_0 + .. + p_k for k < K - 1, rounded so that sums of 1 are 1 and no outcome of probability 0 is ever drawn.
        reached = np.round(np.cumsum(finite.probability.reshape(-1, outcomes), axis=1), 12)
        self.reached = [np.ascontiguousarray(column) for column in reached[:, :-1].T]
        self.successor = finite.successor.ravel().astype(np.int32)
        self.outcomes, self.width = outcomes, finite.reward.shape[1]

    def runs(self, random: np.random.Generator, count: int) -> Runs:
        made = Runs(np.zeros(count), np.zeros(count), np.zeros(count, np.int8), np.zeros(count))
        schedule, alive, live = self.schedule, np.arange(count), made
        memories, states = schedule.tables.shape[1:]
        tables = schedule.tables.ravel()
        member = random.choice(len(schedule.weights), count, p=_normed(schedule.weights))
        state, memory = random.choice(states, count, p=_normed(self.start)), np.zeros(count, np.int8)
        for clock in range(self.spec.horizon):
            if clock % LOOK == 0:
                for part, kept in zip(made, live, strict=True):
                    part[alive] = kept
                going = ~self.absorbing[state]
                alive, live = alive[going], Runs(*(part[going] for part in live))
                state, memory, member = state[going], memory[going], member[going]
                if not len(alive):
                    break
            table = schedule.which[:, min(self.spec.horizon - clock, schedule.which.shape[1]) - 1].take(member)
            pair = state * self.width + tables.take((table * memories + memory) * states + state)
            earned, letter = self.reward.take(pair), self.letter.take(pair)
            np.add(live.returns, earned, out=live.returns)
            np.add(live.discounted, self.spec.discount**clock * earned, out=live.discounted)
            np.maximum(live.worst, self.category.take(pair), out=live.worst)
            np.add(live.penalties, self.penalty.take(pair), out=live.penalties)
            memory = np.maximum(memory, letter)
            uniform = random.random(len(pair))
            outcome = sum(((uniform >= reached.take(pair)).astype(np.int32) for reached in self.reached), np.int32(0))
            state = self.successor.take(pair * self.outcomes + outcome)
        for part, kept in zip(made, live, strict=True):
            part[alive] = kept
        return made


def _normed(chances: np.ndarray) -> np.ndarray:
    return chances.astype(float) / chances.sum(dtype=float)
