"""The strategy for side effects of single steps of a finite model: ask about state-action pairs.

What has no label is taken as harmless. The exact optimum under what is known visits some pairs; those without a label
are asked about; and so on, until everything that the optimum visits is known. Then no other policy can be better: it
would be allowed more only where something was labelled harmful. Few of all pairs are ever asked about.

    c(s, a) = the label where there is one, else 0
    pi      = argmax return  subject to  sum mu_pi c = 0       (or <= the tolerance, where nothing is free of cost)
    ask     = pairs with mu_pi(s, a) > 0 and no label
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from sidestep.campaign.evidence import Evidence
from sidestep.campaign.records import Candidate, State
from sidestep.campaign.schedule import certifiable_costs
from sidestep.campaign.setting import Question, Setting
from sidestep.core.errors import Infeasible
from sidestep.core.model import is_finite
from sidestep.finite.graph import reachable
from sidestep.finite.occupancy import Bound, Optimum, occupancy_lp
from sidestep.finite.tabular import TabularPolicy
from sidestep.planning.bank import BankPolicy
from sidestep.planning.exact import all_pairs
from sidestep.planning.plan import Planner
from sidestep.policies.files import load_policy
from sidestep.policies.networks import NetworkPolicy
from sidestep.runs.records import Round
from sidestep.safety.base import SafetyModel
from sidestep.safety.config import FitConfig, fit_settings
from sidestep.safety.fit import fit
from sidestep.safety.io import load_safety, make_safety, save_safety

FITTING, PLANNING, SPREADING = range(3)  # streams of keys that never meet
BLOCK = 100  # questions at a time
VISITED = 1e-6  # expected visits from which on a pair counts as visited
ANSWER = "policy.safetensors"


class PairStrategy:
    """Rounds of solving the linear program under the labels so far, and asking about what its optimum visits."""

    arrays: PyTree = ()
    verifies = False

    def __init__(self, setting: Setting) -> None:
        """With the method `gradient` a network is trained by exact gradients; else the optimum is a table."""
        self.setting = setting
        assert is_finite(setting.model), "single steps are labelled on finite models only"
        self.model = setting.model
        self.pairs = jax.tree.map(np.asarray, all_pairs(self.model.finite))

    def prepare(self) -> None:
        """A linear program compiles nothing."""

    def expect(self, *, polishing: bool) -> None:
        """Nothing changes: the last planning is one step."""

    def explore(self) -> list[Question]:
        """The first optimum says where to look."""
        return []

    def advance(self, state: State, evidence: Evidence) -> tuple[State, list[Question]]:
        category = self._categories(evidence)
        optimum = self._optimum(category)
        visits = optimum.occupancy.ravel()
        unknown = np.flatnonzero((visits > VISITED) & (category < 0))
        left = self.setting.config.labels - len(state.asked_ids)
        done = Round(state.round, len(state.asked_ids), len(unknown), optimum.value)
        asked = unknown[np.argsort(-visits[unknown], kind="stable")][: max(min(BLOCK, left), 0)]
        state = replace(state, rounds=(*state.rounds, done), round=state.round + 1)
        if len(asked):
            return state, [self._question(asked)]
        return replace(state, stage="polish"), self._spread(category, left)

    def polish(self, state: State, evidence: Evidence) -> State:
        """The optimum as a table, or as a network that was trained on the learned costs."""
        category = self._categories(evidence)
        optimum = self._optimum(category)
        policy: BankPolicy = TabularPolicy(jnp.asarray(optimum.policy, float), self.model)
        if self._network:
            policy = self._trained(optimum, category)
        self.setting.keep(ANSWER, policy)
        costs = tuple(float(value) for value in optimum.constraint_values)
        return replace(state, stage="verify", candidates=(Candidate(ANSWER, optimum.value, costs),))

    def policy_of(self, candidate: Candidate) -> BankPolicy:
        file = self.setting.run.path / "safety.safetensors"
        safety = load_safety(file) if file.is_file() else None
        return load_policy(self.setting.run.path / candidate.file, self.model, safety)

    @property
    def _network(self) -> bool:
        return self.setting.method == "gradient"

    def _optimum(self, category: np.ndarray) -> Optimum:
        """Free of any cost that is known of; where that cannot be, within what an audit will certify."""
        setting, finite, known = self.setting, self.model.finite, np.maximum(category, 0)
        costs = [np.array(constraint.cost_weights, float)[known] for constraint in setting.constraints]
        costs = [np.where(category >= 0, cost, 0.0).reshape(finite.reward.shape) for cost in costs]
        names = [constraint.text for constraint in setting.constraints]
        try:
            return occupancy_lp(finite, [Bound(cost, 0.0, name) for cost, name in zip(costs, names, strict=True)])
        except Infeasible:
            config = setting.config
            limits = certifiable_costs(setting.constraints, config.rollouts, config.confidence).tolist()
            return occupancy_lp(finite, [Bound(*bound) for bound in zip(costs, limits, names, strict=True)])

    def _spread(self, category: np.ndarray, left: int) -> list[Question]:
        """The labels that are left go to pairs that a network might stray to; a table strays nowhere."""
        if not self._network or left <= 0:
            return []
        finite = self.model.finite
        seen = reachable(finite, np.ones(finite.reward.shape, bool)) & ~finite.absorbing
        candidates = np.flatnonzero((category < 0) & np.repeat(seen, self.model.spec.action.size))
        order = np.asarray(jax.random.permutation(self.setting.key(SPREADING), len(candidates)))
        return [self._question(candidates[order[:left]])] if len(candidates) else []

    def _trained(self, optimum: Optimum, category: np.ndarray) -> NetworkPolicy:
        """A network trained on the learned costs, which may cost what the optimum costs."""
        setting, spec = self.setting, self.model.spec
        setting.show("fitting", None)
        rows = np.flatnonzero(category >= 0)
        sizes = spec.state.size, spec.action.size, len(setting.store.scale)
        key = setting.key(FITTING)
        safety: SafetyModel = make_safety("markov", *sizes, key=key, hidden=(64, 64), dropout=0.0)
        safety, _ = fit(safety, jax.tree.map(lambda leaf: leaf[rows], self.pairs), category[rows], pair_fit(), key)
        names = [*spec.state.names, *spec.action.names]
        target = setting.run.target("safety.safetensors")
        save_safety(target, safety, setting.store.scale, names, {"labels": len(rows)})
        planner = Planner(self.model, safety, setting.constraints, setting.planning)
        tolerances = np.round([optimum.constraint_values], 6)
        state, history = planner.start(setting.key(PLANNING)[None], tolerances=tolerances), []
        setting.run.cut_metrics(0)
        for state, figures in planner.run(state):  # noqa: B007, B020 (each state follows from the one before)
            setting.run.append_metrics(figures)
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
