"""The strategy for side effects of single steps of a finite model: ask about state-action pairs.

What has no label is taken as harmless. The exact optimum under what is known visits some pairs; those without a label
are asked about; and so on, until everything that the optimum visits is known. Then no other policy can be better: it
would be allowed more only where something was labelled harmful. Few of all pairs are ever asked about.

    c(s, a) = the label where there is one, else harmless
    pi      = argmax return in T steps  subject to  the tolerance
    ask     = pairs that pi visits and that have no label

The tolerance d of a constraint may bound three things:

    chance   P(run is costly) <= d                                      what an audit certifies
    number   E[costly steps of a run] <= d, which implies the former    where every single one counts
    avoid    no costly step at all

An audit on n rollouts needs room: it passes almost surely at a chance a little below d. Where that room costs more than
LITTLE, and where d is 0, the plan uses all of the tolerance, and the chance is proven by computation.
"""

from dataclasses import replace
from typing import Literal, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from sidestep.campaign.evidence import Evidence
from sidestep.campaign.records import Candidate, State
from sidestep.campaign.setting import Question, Setting
from sidestep.certification.bounds import CERTIFYING, certifiable_chance
from sidestep.certification.records import Proof, StepPlan, split_confidence
from sidestep.core.constraints import cost_matrix
from sidestep.core.errors import Infeasible
from sidestep.core.model import is_finite
from sidestep.finite.graph import reachable
from sidestep.finite.horizon import HorizonOptimum, Limit, horizon_optimum
from sidestep.finite.runs import prospect
from sidestep.finite.tabular import HorizonPolicy, horizon_policy
from sidestep.planning.bank import BankPolicy
from sidestep.planning.exact import all_pairs
from sidestep.planning.plan import Planner
from sidestep.policies.files import load_policy
from sidestep.policies.networks import NetworkPolicy
from sidestep.runs.loaded import SAFETY
from sidestep.runs.records import Round
from sidestep.safety.base import SafetyModel
from sidestep.safety.config import FitConfig, fit_settings
from sidestep.safety.fit import fit
from sidestep.safety.io import load_safety, make_safety, save_safety

FITTING, PLANNING, SPREADING = range(3)  # streams of keys that never meet
BLOCK = 100  # questions at a time
VISITED = 1e-6  # expected visits from which on a pair counts as visited; for a proof any chance at all
# Share of the return that is little. 2,000 rollouts do not see it: on the built-in maps their standard error is about
# 0.001 of the return (a deviation of 2.2 at -41).
LITTLE = 0.0005
DETERMINISTIC = 0.0001  # share of the return for which a policy that draws nothing is preferred
PASSING = 0.999  # chance with which an audit of the plan should pass
PROOF_ROOM = 1e-6  # of a tolerance: more than rounding the weights of a policy takes
ANSWER = "policy.safetensors"

Used = Literal["chance", "number", "avoid"]


class Plan(NamedTuple):
    """The optimum for what the tolerance bounds, and how it is to be certified."""

    used: Used
    proof: Proof
    optimum: HorizonOptimum


class PairStrategy:
    """Rounds of finding the exact optimum under the labels so far, and asking about what its optimum visits."""

    arrays: PyTree = ()
    verifies = False
    fitted = planned = None  # no safety model: every pair that the optimum visits is labelled

    def __init__(self, setting: Setting) -> None:
        """With the method `gradient` a network is trained by exact gradients; else the optimum is a table."""
        self.setting = setting
        assert is_finite(setting.model), "single steps are labelled on finite models only"
        self.model = setting.model
        self.pairs = jax.tree.map(np.asarray, all_pairs(self.model.finite))

    def prepare(self) -> None:
        """Exact methods compile nothing."""

    def expect(self, state: State) -> None:
        """Nothing changes: the last planning is one step."""

    def explore(self) -> list[Question]:
        """The first optimum says where to look."""
        return []

    def advance(self, state: State, evidence: Evidence) -> tuple[State, list[Question]]:
        category = self._categories(evidence)
        plan = self._plan(category)
        if state.round == 0:
            self.setting.keep("before.safetensors", horizon_policy(self._ignoring(plan, category), self.model))
        visits = plan.optimum.visits.ravel()
        visited = plan.optimum.possible.ravel() if plan.proof == "exact" else visits > VISITED
        unknown = np.flatnonzero(visited & (category < 0))
        left = self.setting.config.labels - len(state.asked_ids)
        done = Round(state.round, len(state.asked_ids), len(unknown), plan.optimum.value)
        asked = unknown[np.argsort(-visits[unknown], kind="stable")][: max(min(BLOCK, left), 0)]
        state = replace(state, rounds=(*state.rounds, done), round=state.round + 1)
        if len(asked):
            return state, [self._question(asked)]
        return replace(state, stage="polish"), self._spread(category, left)

    def polish(self, state: State, evidence: Evidence) -> State:
        """The optimum as a table, or as a network that was trained on the learned costs."""
        category = self._categories(evidence)
        plan = self._plan(category)
        table = horizon_policy(plan.optimum, self.model)
        steps = self._told(plan, table, category)
        self.setting.keep(ANSWER, self._trained(steps.numbers, category) if self._network else table)
        candidate = Candidate(ANSWER, steps.planned_return, steps.chances)
        return replace(state, stage="verify", candidates=(candidate,), steps=steps)

    def policy_of(self, candidate: Candidate) -> BankPolicy:
        file = self.setting.run.path / SAFETY
        safety = load_safety(file) if file.is_file() else None
        return load_policy(self.setting.run.path / candidate.file, self.model, safety)

    @property
    def _network(self) -> bool:
        return self.setting.method == "gradient"

    def _plan(self, category: np.ndarray) -> Plan:
        """The optimum under the labels so far, for what the tolerance is to bound."""
        wanted = self.setting.config.step_tolerance
        tolerances = np.array([constraint.tolerance for constraint in self.setting.constraints])
        avoiding = self._avoiding(category)
        if avoiding is not None and (wanted == "avoid" or not tolerances.any() or (wanted == "auto" and self._network)):
            return Plan("avoid", "rollouts" if tolerances.all() else "exact", avoiding)
        if wanted == "avoid" or not tolerances.any():
            raise Infeasible(f"no policy avoids all side effects in runs of {self.model.spec.horizon} steps")
        used: Used = "number" if wanted == "number" or self._network else "chance"
        plan = self._within(used, category, tolerances)
        little = LITTLE * abs(plan.optimum.value)
        if wanted == "auto" and avoiding is not None and avoiding.value >= plan.optimum.value - little:
            return Plan("avoid", "rollouts" if tolerances.all() else "exact", avoiding)
        return plan

    def _ignoring(self, plan: Plan, category: np.ndarray) -> HorizonOptimum:
        """The optimum while no side effect is known, which the report shows as the policy before."""
        return (plan if (category < 0).all() else self._plan(np.full_like(category, -1))).optimum

    def _within(self, used: Used, category: np.ndarray, tolerances: np.ndarray) -> Plan:
        """With room for an audit on rollouts, if it costs little; else up to the tolerance, and proven."""
        config, constraints = self.setting.config, self.setting.constraints
        alpha = CERTIFYING * (1.0 - split_confidence(config.confidence, 1)) / len(constraints)
        aims = [certifiable_chance(tolerance, config.rollouts, alpha, PASSING) for tolerance in tolerances]
        if not any(aim is None for aim in aims) or self._network:
            limits = np.array([d / 2 if aim is None else aim for aim, d in zip(aims, tolerances, strict=True)])
            try:
                optimum = self._optimum(used, category, limits)
            except Infeasible:
                if self._network:
                    raise
            else:
                # The value is concave in the limits: its slope here bounds what they lose.
                lost = np.array(optimum.prices[: len(limits)]) @ (tolerances - limits)
                if self._network or lost <= LITTLE * abs(optimum.value):
                    return Plan(used, "rollouts", optimum)
        limits = np.where(tolerances > 0.0, np.maximum(tolerances - PROOF_ROOM, tolerances / 2), 0.0)
        try:
            return Plan(used, "exact", self._optimum(used, category, limits))
        except Infeasible:
            texts = " and ".join(constraint.text for constraint in constraints)
            steps = f"in runs of {self.model.spec.horizon} steps"
            raise Infeasible(f"no policy meets {texts} {steps}; loosen it or change the model") from None

    def _avoiding(self, category: np.ndarray) -> HorizonOptimum | None:
        try:
            return self._optimum("avoid", category, np.zeros(len(self.setting.constraints)))
        except Infeasible:
            return None

    def _optimum(self, used: Used, category: np.ndarray, chances: np.ndarray) -> HorizonOptimum:
        """The optimum with at most these chances of each constraint's cost in a run."""
        model, constraints = self.model, self.setting.constraints
        known = np.maximum(category, 0).reshape(model.finite.reward.shape)
        pairs = list(zip(constraints, chances.tolist(), strict=True))
        limits = [Limit(one.cost_weights, chance, one.text) for one, chance in pairs]
        if used == "number":
            limits += [Limit(one.cost_weights, one.tolerance, one.text, counts=True) for one, _ in pairs]
        return horizon_optimum(model.finite, model.spec.horizon, known, limits, loss=DETERMINISTIC)

    def _told(self, plan: Plan, policy: HorizonPolicy, category: np.ndarray) -> StepPlan:
        """What the plan does, exactly, under the labels so far, and what others would earn."""
        constraints, avoiding = self.setting.constraints, self._avoiding(category)
        known = np.maximum(category, 0).reshape(self.model.finite.reward.shape)
        found = prospect(self.model, policy, known, len(self.setting.store.scale))
        costs = cost_matrix(constraints)
        tolerances = np.array([constraint.tolerance for constraint in constraints])
        best = avoiding if not tolerances.any() else self._optimum("chance", category, tolerances)
        assert best is not None
        return StepPlan(
            used=plan.used,
            proof=plan.proof,
            horizon=self.model.spec.horizon,
            planned_return=found.value,
            chances=tuple((costs @ found.chances).tolist()),
            numbers=tuple((costs @ found.numbers).tolist()),
            ended=found.ended,
            optimum=best.value,
            avoiding=None if avoiding is None else avoiding.value,
        )

    def _spread(self, category: np.ndarray, left: int) -> list[Question]:
        """The labels that are left go to pairs that a network might stray to; a table strays nowhere."""
        if not self._network or left <= 0:
            return []
        finite = self.model.finite
        seen = reachable(finite, np.ones(finite.reward.shape, bool)) & ~finite.absorbing
        candidates = np.flatnonzero((category < 0) & np.repeat(seen, self.model.spec.action.size))
        order = np.asarray(jax.random.permutation(self.setting.key(SPREADING), len(candidates)))
        return [self._question(candidates[order[:left]])] if len(candidates) else []

    def _trained(self, numbers: tuple[float, ...], category: np.ndarray) -> NetworkPolicy:
        """A network trained on the learned costs, which may have as many costly steps as the optimum."""
        setting, spec = self.setting, self.model.spec
        setting.show("fitting", None)
        rows = np.flatnonzero(category >= 0)
        sizes = spec.state.size, spec.action.size, len(setting.store.scale)
        key = setting.key(FITTING)
        safety: SafetyModel = make_safety("markov", *sizes, key=key, hidden=(64, 64), dropout=0.0)
        safety, _ = fit(safety, jax.tree.map(lambda leaf: leaf[rows], self.pairs), category[rows], pair_fit(), key)
        names = [*spec.state.names, *spec.action.names]
        target = setting.run.target(SAFETY)
        save_safety(target, safety, setting.store.scale, names, {"labels": len(rows)})
        planner = Planner(self.model, safety, setting.constraints, setting.planning)
        tolerances = np.round([numbers], 6)
        state, history = planner.start(setting.key(PLANNING)[None], tolerances=tolerances), []
        setting.run.cut_metrics(0)
        for state, figures in planner.run(state):  # noqa: B007, B020 (each state follows from the one before)
            setting.log(figures)
            history += figures
            setting.show("planning", None)
        return planner.finish(state, history)[0].policy

    def _question(self, places: np.ndarray) -> Question:
        """Pairs as trajectories of one step."""
        return Question("pair", jax.tree.map(lambda leaf: leaf[places], self.pairs))

    def _categories(self, evidence: Evidence) -> np.ndarray:
        """The label of each pair; -1 where there is none."""
        category = np.full(self.model.finite.reward.size, -1)
        if evidence.state.asked:
            known, labels = evidence.labelled
            place = np.asarray(self.model.indices(known.states[:, 0])) * self.model.spec.action.size
            category[place + np.asarray(self.model.action_indices(known.actions[:, 0]))] = labels
        return category


def pair_fit() -> FitConfig:
    """Pairs carry no noise: the fit may be as close as it gets, and holds nothing out."""
    return replace(fit_settings("markov"), held_out=0.0, steps=4000, learning_rate=1e-2, patience=0)
