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
from sidestep.planning.lookahead import prices
from sidestep.planning.methods import Pathwise
from sidestep.planning.options import with_options
from sidestep.planning.plan import Planner, PlannerState, retarget
from sidestep.planning.rows import Phase, PlanRow
from sidestep.policies.networks import NetworkPolicy, with_memory
from sidestep.runtime.parallel import picked
from sidestep.safety.base import SafetyModel
from sidestep.safety.counted import CountedEvents

POLISH: dict[str, str | int | float] = {
    "observe": "memory",
    "batch": 200,
    "learning_rate_end": 0.02,
    "noise_start": 0.05,
    "test_batch": 1000,
    "search_rounds": 0,
}
LOOKING = 2  # slots, the loosest, whose policies are improved by lookahead in the end: the answer is often one of them
LOOKS = 2  # such improvements at most, each with its test
LOOK_PRICE = 2.5  # by which prices rise before the first: few draws of the noise show rare costs too seldom
# Before them, more epochs with a finer gradient. On Navigation, from the same policies, 800 epochs lower the gap to the
# frontier from 2.5 to 1.3 with the usual noise, to 1.5 with that of POLISH. A cap of 1 in place of 5 lowers that of a
# fresh plan from 1.3 to 1.0: what counts is whether a trajectory does harm, and not how deep in it is.
FINE_BATCH, FINE_CAP, FINE_EPOCHS = 500, 1.0, 3  # trajectories; `PathwiseCost.cap`; epochs, in those of the first phase
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

    def begin_polish(
        self, safety: SafetyModel, tolerances: Float[np.ndarray, "slot constraint"], lost: bool, ceiling: float
    ) -> None:
        """Make ready for the last planning, against the final safety model.

        `ceiling`: the highest return of a policy of the rounds, whatever it cost.
        """
        ...

    @property
    def phase(self) -> Phase:
        """Where the last planning stands."""
        ...

    def expect(self, safety: SafetyModel, phase: Phase) -> None:
        """Give `state` the structure that it has in the rounds, or in this phase of the last planning against a safety
        model of this structure: for a checkpoint to be loaded into."""
        ...

    def polish(self, safety: SafetyModel) -> "Polished":
        """The last planning up to its next test."""
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
    ceiling: np.ndarray  # see `PolicyBank.begin_polish`


class Looking(eqx.Module):
    """The last planning between two tests of its second phase: policies of the loosest slots, cut at their bounds."""

    learners: Learner
    looks: np.ndarray  # improvements by lookahead so far
    returns: np.ndarray  # (slot,) of the last test
    ceiling: np.ndarray  # see `PolicyBank.begin_polish`


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
        self.improver = Planner(model, safety, constraints, _fine(last, config, planning), label)
        self.looking = range(schedule.slots)[-LOOKING:]
        self.keys = jax.random.split(key, schedule.slots)
        self.learners = self.planner.start(self.keys, search=False).learners
        self.polishing: Polishing | Looking | None = None

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

    def begin_polish(self, safety: SafetyModel, tolerances: np.ndarray, lost: bool, ceiling: float) -> None:
        """Go on with policies that see the safety model's memory, which the best ones need: some side effects are
        only such the second time."""
        self.planner.set_safety_model(safety)
        self.polisher.set_safety_model(safety)
        searching = lost or self.schedule.searching_rounds > self.schedule.rounds
        before = self._select_starts(self.schedule.rounds, tolerances, lost) if searching else self.learners
        self.polishing = _first(self._remembering(before, safety, tolerances), ceiling)

    @property
    def phase(self) -> Phase:
        if self.polishing is None:
            return ""
        return "lookahead" if isinstance(self.polishing, Looking) else "gradient"

    def expect(self, safety: SafetyModel, phase: Phase) -> None:
        self.polisher.set_safety_model(safety)
        self.polishing = None
        if phase:
            learners = self._remembering(self.learners, safety, np.asarray(self.learners.tolerances))
            first = _first(learners, 0.0)
            chosen = self._looking_at(learners)
            cut = replace(chosen, policy=chosen.policy.cut_at_bounds())
            self.polishing = first if phase == "gradient" else _first_look(cut, first.ceiling)

    def polish(self, safety: SafetyModel) -> Polished:
        """Up to the next test: first by gradients, then by lookahead."""
        if isinstance(self.polishing, Looking):
            self.improver.set_safety_model(safety)
            return self._polish_by_lookahead(self.polishing)
        assert self.polishing is not None
        self.polisher.set_safety_model(safety)
        return self._polish_by_gradient(self.polishing, safety)

    def _polish_by_gradient(self, polishing: Polishing, safety: SafetyModel) -> Polished:
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
        # Lookahead reads the safety model's memory in millions of steps: with recurrent networks that takes minutes.
        looks = self.improver.config.lookahead is not None and isinstance(safety, CountedEvents)
        restarted = _restarted(learners, returns, costs)
        if not done:
            highest = np.where(better, returns, best).astype(np.float32)
            self.polishing = Polishing(restarted, highest, np.array(stale), polishing.ceiling)
        else:
            self.polishing = self._begin_looking(restarted, safety, polishing.ceiling) if looks else None
        return Polished("gradient", rows, learners.policy, range(self.schedule.slots), done and not looks)

    def _looking_at(self, learners: Learner) -> Learner:
        return picked([learners], np.array(self.looking))

    def _begin_looking(self, learners: Learner, safety: SafetyModel, ceiling: np.ndarray) -> Looking:
        self.improver.set_safety_model(safety)
        cut = self.improver.cut_at_bounds(self._looking_at(learners))
        return _first_look(cut, ceiling)

    def _with_prices(self, looking: Looking) -> Learner:
        """With prices at which no gain up to the ceiling is worth a side effect for certain."""
        learners, config = looking.learners, self.improver.config
        values = learners.multipliers.value
        ones = replace(learners, multipliers=replace(learners.multipliers, value=jnp.ones_like(values)))
        units = eqx.filter_vmap(lambda learner: prices(config, learner))(ones)
        least = (looking.ceiling - looking.returns)[:, None] / np.asarray(units)
        raised = LOOK_PRICE * jnp.maximum(values, jnp.asarray(least, values.dtype))
        return replace(learners, multipliers=replace(learners.multipliers, value=raised))

    def _polish_by_lookahead(self, looking: Looking) -> Polished:
        """Epochs of a finer gradient, then lookahead, as long as gains are proven."""
        learners = looking.learners
        if int(learners.epoch[0]) < self.improver.config.epochs:
            state, rows = self.improver.advance(_as_state(learners), look=False)
            looks, finished = looking.looks, False
        else:
            learners = learners if looking.looks else self._with_prices(looking)
            state, rows = self.improver.look_ahead(_as_state(learners))
            looks = looking.looks + 1
            finished = int(looks) >= LOOKS or not any(float(row.train_lookahead_gain) > 0.0 for row in rows)
        returns = np.array([row.mean_return for row in rows], np.float32)
        kept = replace(looking, learners=state.learners, looks=np.asarray(looks), returns=returns)
        self.polishing = None if finished else kept
        rows = [replace(row, seed_index=slot) for slot, row in zip(self.looking, rows, strict=True)]
        return Polished("lookahead", rows, state.learners.policy, self.looking, finished)

    def _remembering(self, before: Learner, safety: SafetyModel, tolerances: np.ndarray) -> Learner:
        """The learners as the last planning begins with them."""
        policies = eqx.filter_vmap(lambda policy: with_memory(policy, safety))(before.policy)
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
            learners.append(replace(fresh, epoch=jnp.full_like(fresh.epoch, number * self.config.test_every)))
        stacked = learners[0]
        if searching or number <= self.schedule.rounds // 2:
            tests = [self.planner.test(group)["mean"] for group in learners]
            returns = np.concatenate([np.asarray(test["return"]) for test in tests])
            costs = np.concatenate([np.asarray(test["costs"]) for test in tests])
            picks = select_starts(returns, costs, tolerances)
            stacked = picked(learners, picks)
        return replace(retarget(stacked, tolerances, self.config), key=self.keys)


def _fine(last: PlanConfig, usual: PlanConfig, planning: PlanConfig) -> PlanConfig:
    """The settings of the last planning's second phase: cut at the bounds, with the usual step size and noise."""
    cost = usual.constraint and replace(usual.constraint, cap=FINE_CAP)
    reward = replace(usual.reward, batch=FINE_BATCH) if isinstance(usual.reward, Pathwise) else last.reward
    epochs, rate = FINE_EPOCHS * last.epochs, usual.learning_rate
    methods = replace(last, reward=reward, constraint=cost, lookahead=planning.lookahead)
    return replace(methods, squash="clip", epochs=epochs, learning_rate=rate)


def _first(learners: Learner, ceiling: float) -> Polishing:
    none_yet = np.full(len(learners.epoch), -np.inf, np.float32)
    return Polishing(learners, none_yet, np.array(0), np.array(ceiling, np.float32))


def _first_look(learners: Learner, ceiling: np.ndarray) -> Looking:
    return Looking(learners, np.array(0), np.zeros(len(learners.epoch), np.float32), ceiling)


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
