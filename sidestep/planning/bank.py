"""A bank of policies, each planned at a tolerance of its own, which goes on from round to round.

`GradientBank` trains networks by gradients; `TableBank` (`table_bank.py`) solves a finite model exactly. A campaign
sees no difference. A slot is one of the bank's policies, with its tolerance.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Float, PRNGKeyArray, PyTree

from sidestep.core.constraints import Constraint
from sidestep.core.model import Model, Trajectory
from sidestep.finite.tabular import HorizonPolicy, TabularPolicy
from sidestep.planning.config import PlanConfig
from sidestep.planning.learner import Learner
from sidestep.planning.methods import Pathwise
from sidestep.planning.options import with_options
from sidestep.planning.plan import Planner, PlannerState, retarget
from sidestep.planning.rows import Phase, PlanRow
from sidestep.policies.networks import NetworkPolicy, sees_present, with_memory
from sidestep.runtime.parallel import picked
from sidestep.safety.base import SafetyModel
from sidestep.safety.counted import CountedEvents, pruned

POLISH: dict[str, str | int | float] = {
    "observe": "memory",
    "batch": 200,
    "learning_rate_end": 0.02,
    "noise_start": 0.05,
    "test_batch": 1000,
    "search_rounds": 0,
}
# Then the policies of the loosest slots, of which the answer is often one, are cut at their bounds and annealed:
# trained with noise that falls from a quarter of an action's range to almost nothing. Noise smooths what is a choice
# (one way or the other, by what was counted so far), and its slow end sharpens the choice again. With an exact
# counter as safety model the gap to Navigation's frontier is then 0.9 (benchmarks/gap.py). With a cap of 1 it counts
# whether a trajectory does harm, and not how deep in it is.
ANNEALED = 2  # slots
ANNEAL_BATCH, ANNEAL_CAP = 500, 1.0  # trajectories; `PathwiseCost.cap`
ANNEAL_NOISE, ANNEAL_NOISE_END = 0.5, 0.003
ANNEAL_EPOCHS, ANNEAL_TESTS = 12, 6  # epochs, in those of the first phase; tests
# It can gain no more than safety costs, which on HVAC is 0.05 % of the return.
WORTH = 0.005  # share of the best return known, whatever its cost, by which a policy must be below it for that
# A search finds the best of the ways that it bred, and not the best way: on Navigation without constraint it ends in a
# basin at -78.7, where lookahead comes to -74.9 (benchmarks/gap.py). So the second round begins also from a policy that
# was improved by lookahead without a constraint, which is quick and may turn out to be harmless.
FREE_ROUND, FREE_EPOCHS = 1, 200
POLISH_RATE = 2 / 3  # the step size of the last planning, as a share of the usual one
POPULATION = 1000  # of the search in a round
PATIENCE = 3  # tests of the last planning without a better policy in any slot before it ends
CLEARLY = 0.5  # standard errors of a test's return by which a policy must be better to count as such


BankPolicy = NetworkPolicy | TabularPolicy | HorizonPolicy


@dataclass(frozen=True)
class BankSchedule:
    """How long a bank trains its policies."""

    slots: int
    rounds: int
    searching_rounds: int  # rounds that begin with a fresh search, the last planning being one more
    round_epochs: int
    polish_epochs: int
    polish_test: int  # epochs between two tests of the last planning
    least_rate: float  # share of the step size that is left in the last round


class Polished(NamedTuple):
    """A test of the last planning."""

    phase: Phase
    rows: list[PlanRow]
    policies: BankPolicy  # a stack
    slots: range  # of these policies
    finished: bool


class PolicyBank(Protocol):
    """What a campaign needs of a planner."""

    state: PyTree  # what a checkpoint holds
    kind: str  # of safety model

    @property
    def policies(self) -> BankPolicy:
        """A stack of policies, the strictest first."""
        ...

    def prepare(self, safety: SafetyModel) -> None:
        """Compile in the background what will be needed for a safety model of this structure."""
        ...

    def advance(
        self, number: int, safety: SafetyModel, tolerances: Float[np.ndarray, "slot constraint"], lost: bool
    ) -> list[PlanRow]:
        """Plan round `number` against the refitted safety model; one row of figures per policy.

        `lost`: the round before ended far above a tolerance.
        """
        ...

    def start_nearest(self, tolerances: Float[np.ndarray, "slot constraint"]) -> None:
        """Go on, for each of these tolerances, from the policy that was planned at the nearest one."""
        ...

    def begin_polish(self, safety: SafetyModel, tolerances: Float[np.ndarray, "slot constraint"], lost: bool) -> None:
        """Make ready for the last planning, against the final safety model."""
        ...

    @property
    def phase(self) -> Phase:
        """Where the last planning stands."""
        ...

    def expect(self, safety: SafetyModel, phase: Phase) -> None:
        """Give `state` the structure that it has in the rounds, or in this phase of the last planning against a safety
        model of this structure: for a checkpoint to be loaded into."""
        ...

    def polish(self, safety: SafetyModel, highest: float) -> "Polished":
        """The last planning up to its next test; `highest` is the best return known, whatever it costs."""
        ...

    def predict(self, policies: BankPolicy, safety: SafetyModel) -> list[PlanRow]:
        """Figures of a stack of earlier policies by this safety model."""
        ...

    def noisy(self, noise: float) -> BankPolicy:
        """The stack of policies with so much noise on their actions."""
        ...


class Polishing(eqx.Module):
    """The last planning between two tests of its first phase."""

    learners: Learner
    best: np.ndarray  # (slot,): the highest return of a policy within its slot's tolerances; -inf until there was one
    stale: np.ndarray  # tests since a slot last had a better one


class Annealing(eqx.Module):
    """The last planning between two tests of its second phase: policies of the loosest slots, cut at their bounds."""

    learners: Learner


class GradientBank:
    """One learner per slot, trained in parallel."""

    kind = "hazard"

    def __init__(
        self,
        model: Model,
        constraints: tuple[Constraint, ...],
        planning: PlanConfig,
        schedule: BankSchedule,
        safety: SafetyModel,
        key: PRNGKeyArray,
        label: Callable[[Trajectory], ArrayLike] | None,
    ) -> None:
        self.schedule = schedule
        self.config = config = replace(
            planning,
            epochs=schedule.round_epochs * (schedule.rounds + 1),
            test_every=schedule.round_epochs,
            lookahead=None,
            search=planning.search and replace(planning.search, population=POPULATION),
            learning_rate_end=max(planning.learning_rate_end, schedule.least_rate),
        )
        self.planner = Planner(model, safety, constraints, config, label, quick_compile=True)
        rate = POLISH_RATE * config.learning_rate
        changes = {"learning_rate": rate, "epochs": schedule.polish_epochs, "test_every": schedule.polish_test}
        last = with_options(config, {**POLISH, **changes})
        self.polisher = Planner(model, safety, constraints, last, label)
        self.annealer = Planner(model, safety, constraints, _annealed(last), label)
        self.annealed = range(schedule.slots)[-ANNEALED:]
        self.free = _free_planner(model, planning)
        self.keys = jax.random.split(key, schedule.slots)
        self.learners = self.planner.start(self.keys, search=False).learners
        self.polishing: Polishing | Annealing | None = None

    @property
    def state(self) -> PyTree:
        return self.learners if self.polishing is None else (self.learners, self.polishing)

    @state.setter
    def state(self, saved: PyTree) -> None:
        self.learners, self.polishing = saved if isinstance(saved, tuple) else (saved, None)

    @property
    def policies(self) -> NetworkPolicy:
        return self.learners.policy

    def prepare(self, safety: SafetyModel) -> None:
        start = self.learners
        self.planner.set_safety_model(safety)
        self.polisher.set_safety_model(safety)
        self.planner.prepare(lambda: start)
        self.polisher.prepare(lambda: self._remembering(start, safety, np.asarray(start.tolerances)))

    def advance(self, number: int, safety: SafetyModel, tolerances: np.ndarray, lost: bool) -> list[PlanRow]:
        self.planner.set_safety_model(safety)
        learners = self._select_starts(number, tolerances, lost)
        state, rows = self.planner.advance(_as_state(learners))
        self.learners = state.learners
        return rows

    def start_nearest(self, tolerances: np.ndarray) -> None:
        ratios = np.log(np.asarray(self.learners.tolerances))[None] - np.log(tolerances)[:, None]
        picks = np.abs(ratios).max(axis=-1).argmin(axis=1)
        self.learners = replace(picked([self.learners], picks), key=self.keys)

    def begin_polish(self, safety: SafetyModel, tolerances: np.ndarray, lost: bool) -> None:
        """Go on with policies that see the safety model's memory, which the best ones need: some side effects are
        only such the second time."""
        self.planner.set_safety_model(safety)
        self.polisher.set_safety_model(safety)
        searching = lost or self.schedule.searching_rounds > self.schedule.rounds
        before = self._select_starts(self.schedule.rounds, tolerances, lost) if searching else self.learners
        self.polishing = _first(self._remembering(before, safety, tolerances))

    @property
    def phase(self) -> Phase:
        if self.polishing is None:
            return ""
        return "annealing" if isinstance(self.polishing, Annealing) else "gradient"

    def expect(self, safety: SafetyModel, phase: Phase) -> None:
        self.polisher.set_safety_model(safety)
        self.polishing = None
        if phase:
            learners = self._remembering(self.learners, safety, np.asarray(self.learners.tolerances))
            chosen = picked([learners], np.array(self.annealed))
            cut = Annealing(replace(chosen, policy=chosen.policy.cut_at_bounds()))
            self.polishing = _first(learners) if phase == "gradient" else cut

    def polish(self, safety: SafetyModel, highest: float) -> Polished:
        """Up to the next test of the first phase, or of the second."""
        if isinstance(self.polishing, Annealing):
            assert isinstance(safety, CountedEvents)
            return self._anneal(self.polishing, safety)
        assert self.polishing is not None
        self.polisher.set_safety_model(safety)
        return self._polish_by_gradient(self.polishing, safety, highest)

    def _polish_by_gradient(self, polishing: Polishing, safety: SafetyModel, highest: float) -> Polished:
        """Policies that lost their way go on from good ones. Where none is better than before for some tests, this was
        the last one."""
        state, rows = self.polisher.advance(_as_state(polishing.learners))
        learners = state.learners
        returns, costs = np.array([row.mean_return for row in rows]), np.array([row.mean_costs for row in rows])
        tolerances = np.asarray(learners.tolerances)
        errors = np.array([row.mean_return_deviation for row in rows]) / np.sqrt(self.polisher.config.test_batch)
        within = np.all(costs <= np.maximum(tolerances, self.polisher.config.multiplier.never), axis=1)
        best = np.asarray(polishing.best)
        better = within & (returns > best + CLEARLY * errors)
        none_yet = not np.isfinite(best).any()
        stale = 0 if better.any() or none_yet else int(polishing.stale) + 1
        done = int(learners.epoch[0]) >= self.polisher.config.epochs or stale >= PATIENCE
        found = np.where(better, returns, best).astype(np.float32)
        # Annealing takes a million trajectories: with recurrent networks as safety model that would be minutes.
        anneals = isinstance(self.polisher.config.reward, Pathwise) and isinstance(safety, CountedEvents)
        anneals = anneals and highest - found.max() > WORTH * abs(highest)
        restarted = _restarted(learners, returns, costs)
        if not done:
            self.polishing = Polishing(restarted, found, np.array(stale))
        else:
            self.polishing = self._begin_annealing(restarted, safety) if anneals else None
        return Polished("gradient", rows, learners.policy, range(self.schedule.slots), done and not anneals)

    def _begin_annealing(self, learners: Learner, safety: SafetyModel) -> Annealing:
        self.annealer.set_safety_model(safety)
        return Annealing(self.annealer.cut_at_bounds(picked([learners], np.array(self.annealed))))

    def _anneal(self, annealing: Annealing, safety: CountedEvents) -> Polished:
        """Up to the next test, with less noise than before. A smaller safety model gives the same answers sooner."""
        smaller = pruned(safety)
        self.annealer.set_safety_model(smaller)
        state, rows = self.annealer.advance(_as_state(_observing(annealing.learners, smaller)))
        learners = _observing(state.learners, safety)
        finished = int(learners.epoch[0]) >= self.annealer.config.epochs
        self.polishing = None if finished else Annealing(learners)
        rows = [replace(row, seed_index=slot) for slot, row in zip(self.annealed, rows, strict=True)]
        return Polished("annealing", rows, learners.policy, self.annealed, finished)

    def _remembering(self, before: Learner, safety: SafetyModel, tolerances: np.ndarray) -> Learner:
        """The learners as the last planning begins with them."""
        present = sees_present(safety)
        policies = eqx.filter_vmap(lambda policy: with_memory(policy, safety, present=present))(before.policy)
        first = jax.tree.map(lambda leaf: leaf[0], policies)
        learners = self.polisher.start(self.keys, first, tolerances=tolerances).learners
        multipliers = replace(learners.multipliers, value=before.multipliers.value)
        norms = before.log_norms  # a multiplier means nothing without its unit
        return replace(learners, policy=policies, states=before.states, multipliers=multipliers, log_norms=norms)

    def predict(self, policies: BankPolicy, safety: SafetyModel) -> list[PlanRow]:
        assert isinstance(policies, NetworkPolicy)
        self.planner.set_safety_model(safety)
        mean = jax.tree.map(np.asarray, self.planner.test(replace(self.learners, policy=policies))["mean"])
        return [
            PlanRow(
                mean_return=mean["return"][slot].item(),
                mean_return_deviation=mean["return_deviation"][slot].item(),
                mean_costs=tuple(mean["costs"][slot].tolist()),
            )
            for slot in range(self.schedule.slots)
        ]

    def noisy(self, noise: float) -> NetworkPolicy:
        return replace(self.policies, log_std=jnp.full_like(self.policies.log_std, jnp.log(noise)))

    def _select_starts(self, number: int, tolerances: np.ndarray, lost: bool) -> Learner:
        """Each slot's learner goes on from the best policy for its tolerance, freshly searched or old.

        Where a safety model sees nothing but harm its gradient leads nowhere, and a policy that got there stays: then
        the search, which needs no gradient, is due again.
        """
        searching = number < self.schedule.searching_rounds or lost
        learners = [] if searching and not number else [self.learners]
        if searching:
            keys = jax.vmap(lambda key: jax.random.fold_in(key, number))(self.keys)
            fresh = self.planner.start(keys, tolerances=tolerances).learners
            learners.append(fresh)
            if self.free and number == FREE_ROUND:
                learners.append(self._without_constraint(self.free))
        stacked = learners[0]
        if searching or number <= self.schedule.rounds // 2:
            tests = [self.planner.test(group)["mean"] for group in learners]
            returns = np.concatenate([np.asarray(test["return"]) for test in tests])
            costs = np.concatenate([np.asarray(test["costs"]) for test in tests])
            picks = select_starts(returns, costs, tolerances)
            stacked = picked(learners, picks)
        epoch = jnp.full_like(stacked.epoch, number * self.config.test_every)
        return replace(retarget(stacked, tolerances, self.config), key=self.keys, epoch=epoch)

    def _without_constraint(self, free: Planner) -> Learner:
        """The loosest slot's policy, trained further as if nothing could do harm."""
        keys = self.keys[-1:]
        *_, (state, _) = free.run(free.start(keys, jax.tree.map(lambda leaf: leaf[-1], self.policies)))
        return self.planner.start(keys, jax.tree.map(lambda leaf: leaf[0], state.best)).learners


def _free_planner(model: Model, planning: PlanConfig) -> Planner | None:
    """A planner without constraints, which looks ahead; None where this kind of planning has no lookahead."""
    if planning.lookahead is None:
        return None
    about: dict[str, str | int | float] = {"epochs": FREE_EPOCHS, "search_rounds": 0, "constraint_gradient": "none"}
    return Planner(model, None, (), with_options(planning, about), quick_compile=True)


def _observing(learners: Learner, safety: CountedEvents) -> Learner:
    """Learners whose policies see the memory of this safety model. Their optimisers have a blank one in its place."""
    runs = len(learners.epoch)
    stacked = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[None], (runs, *leaf.shape)), safety)
    blank = jax.tree.map(lambda leaf: None, safety)

    def observed(node: PyTree) -> PyTree:
        if not isinstance(node, CountedEvents):
            return node
        return stacked if jax.tree.leaves(node) else blank

    return jax.tree.map(observed, learners, is_leaf=lambda node: isinstance(node, CountedEvents))


def _annealed(last: PlanConfig) -> PlanConfig:
    """The settings of the last planning's second phase."""
    if not isinstance(last.reward, Pathwise):
        return last
    reward = replace(last.reward, batch=ANNEAL_BATCH, noise_start=ANNEAL_NOISE, noise_end=ANNEAL_NOISE_END)
    cost = last.constraint and replace(last.constraint, cap=ANNEAL_CAP)
    rate, epochs = last.learning_rate / POLISH_RATE, ANNEAL_EPOCHS * last.epochs
    methods = replace(last, reward=reward, constraint=cost, squash="clip", learning_rate=rate)
    return replace(methods, epochs=epochs, test_every=epochs // ANNEAL_TESTS)


def _first(learners: Learner) -> Polishing:
    return Polishing(learners, np.full(len(learners.epoch), -np.inf, np.float32), np.array(0))


def _restarted(learners: Learner, returns: np.ndarray, costs: np.ndarray) -> Learner:
    """The learners, where those whose cost planning is not expected to mend go on from the best one for them."""
    tolerances = np.asarray(learners.tolerances)
    lost = np.any(costs > mendable(tolerances), axis=1)
    picks = np.where(lost, select_starts(returns, costs, tolerances), np.arange(len(lost)))
    restarted = picked([learners], picks)
    return replace(restarted, tolerances=learners.tolerances, key=learners.key)


def _as_state(learners: Learner) -> PlannerState:
    """Of learners whose best policy so far nobody asks for: every test gives candidates."""
    return PlannerState(learners, learners.policy, jnp.full(len(learners.epoch), -jnp.inf, float))


def select_starts(
    returns: Float[np.ndarray, " policy"],
    costs: Float[np.ndarray, "policy constraint"],
    tolerances: Float[np.ndarray, "slot constraint"],
) -> np.ndarray:
    """For every slot the policy to go on from: the highest return where planning can still mend the cost."""
    picks = []
    for tolerance in tolerances:
        excess = np.max(np.maximum(costs - mendable(tolerance)[None, :], 0.0), axis=1)
        picks.append(np.lexsort((-returns, excess))[0])
    return np.array(picks)


def mendable(tolerances: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """The cost up to which planning is expected to mend a policy, and above which it has lost its way."""
    return 3.0 * np.maximum(tolerances, 0.02)
