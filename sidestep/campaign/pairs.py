"""The campaign over state-action pairs: for finite models whose side effects a single step shows.

What has no label is taken as harmless. The exact optimum under what is known visits some pairs; those without a label
are asked about; and so on, until everything that the optimum visits is known. Then no other policy can be better: it
would be allowed more only where something was labelled harmful. Few of all pairs are ever asked about.

    c(s, a) = the label where there is one, else 0
    pi      = argmax return  subject to  sum mu_pi c = 0       (or <= the tolerance, where nothing is free of cost)
    ask     = pairs with mu_pi(s, a) > 0 and no label

A label answers one question for good, so that the store itself is all that a resumed campaign needs.
"""

import time
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sidestep.answers import save_policy
from sidestep.campaign.config import CampaignConfig
from sidestep.campaign.ladder import certifiable_costs
from sidestep.campaign.waiting import Show, campaign_key
from sidestep.certification.auditor import Auditor, audit_until_certified
from sidestep.certification.ledger import Ledger
from sidestep.certification.records import Result, audited_result
from sidestep.constraints import Constraint
from sidestep.errors import Infeasible, LabelsNeeded
from sidestep.finite.graph import reachable
from sidestep.finite.occupancy import Bound, Optimum, occupancy_lp
from sidestep.finite.tabular import TabularPolicy
from sidestep.labels.rules import Rule
from sidestep.labels.store import Store
from sidestep.labels.votes import resolve
from sidestep.planning.config import PlanConfig
from sidestep.planning.exact import all_pairs
from sidestep.planning.plan import Planner
from sidestep.runs import Run
from sidestep.safety.config import fit_settings
from sidestep.safety.fit import fit
from sidestep.safety.io import make_safety, save_safety

FITTING, PLANNING, SPREADING = range(3)  # streams of keys that never meet
BLOCK = 100  # questions at a time
VISITED = 1e-6  # expected visits from which on a pair counts as visited


class PairsCampaign:
    """One campaign in one run's folder; `go_on` takes it from wherever it is to its end."""

    def __init__(
        self,
        run: Run,
        model: Any,
        rule: Rule | None,
        constraints: tuple[Constraint, ...],
        store: Store,
        config: CampaignConfig,
        planning: PlanConfig | None,
        seed: int,
        reference: str,
        show: Show,
    ) -> None:
        """`planning` trains a network by exact gradients; without it the optimum is a table."""
        self.run, self.model, self.rule, self.constraints, self.store = run, model, rule, constraints, store
        self.config, self.planning, self.seed, self.reference, self.show = config, planning, seed, reference, show
        self.key = campaign_key(seed)
        self.pairs = jax.tree.map(np.asarray, all_pairs(model))
        self.category = np.full(model.finite.reward.size, -1)  # of each pair; -1 where there is no label
        self.ids: dict[int, int] = {}  # of the store, for each pair asked about
        self.rounds: list[dict[str, Any]] = []

    def go_on(self) -> Result:
        """Ask until the optimum is known, then audit it; raises LabelsNeeded where people have to label first."""
        began = time.perf_counter()
        self._remember()
        optimum = self._known_optimum()
        self.run.write_lines("rounds.jsonl", self.rounds)
        policy: Any = TabularPolicy(jnp.asarray(optimum.policy, float), self.model)
        if self.planning is not None:
            policy = self._network(optimum)
        file = self.run.target("policy.safetensors")
        save_policy(file, policy, self.reference)
        self.show("auditing", {})
        ledger = Ledger(self.run)
        audit = audit_until_certified(
            Auditor(ledger, self.model, self.constraints, self.rule, self.store),
            1,
            lambda: 0,
            lambda _: file,
            lambda _: policy.mean(),
            seed=self.seed,
            most=self.config.rollouts,
            promised=self.config.confidence,
        )
        return audited_result(
            audit,
            ledger.audits,
            model=self.model.spec.name,
            labels_used=len(self.ids),
            seconds=time.perf_counter() - began,
            seed=self.seed,
            method="default" if self.planning is None else "gradient",
        )

    def _known_optimum(self) -> Optimum:
        """The optimum under the labels so far, until everything that it visits has a label."""
        while True:
            optimum = self._optimum()
            visits = optimum.occupancy.ravel()
            unknown = np.flatnonzero((visits > VISITED) & (self.category < 0))
            left = self.config.labels - len(self.ids)
            self._note(optimum, len(unknown))
            if not len(unknown) or left <= 0:
                return optimum
            self._ask(unknown[np.argsort(-visits[unknown], kind="stable")][: min(BLOCK, left)])

    def _optimum(self) -> Optimum:
        """Free of any cost that is known of; where that cannot be, within what an audit will certify."""
        finite, known = self.model.finite, np.maximum(self.category, 0)
        costs = [np.array(constraint.cost_weights, float)[known] for constraint in self.constraints]
        costs = [np.where(self.category >= 0, cost, 0.0).reshape(finite.reward.shape) for cost in costs]
        names = [constraint.text for constraint in self.constraints]
        try:
            return occupancy_lp(finite, [Bound(cost, 0.0, name) for cost, name in zip(costs, names, strict=True)])
        except Infeasible:
            limits = certifiable_costs(self.constraints, self.config.rollouts, self.config.confidence).tolist()
            return occupancy_lp(finite, [Bound(*bound) for bound in zip(costs, limits, names, strict=True)])

    def _network(self, optimum: Optimum) -> Any:
        """A network trained on the learned costs, which may cost what the optimum costs; the labels that are left go to
        pairs that it might stray to."""
        assert self.planning is not None
        left = self.config.labels - len(self.ids)
        seen = (
            reachable(self.model.finite, np.ones(self.model.finite.reward.shape, bool)) & ~self.model.finite.absorbing
        )
        candidates = np.flatnonzero((self.category < 0) & np.repeat(seen, self.model.spec.action.size))
        order = np.asarray(jax.random.permutation(jax.random.fold_in(self.key, SPREADING), len(candidates)))
        if left > 0 and len(candidates):
            self._ask(candidates[order[:left]])
        self.show("fitting", {"labels": len(self.ids)})
        rows = np.flatnonzero(self.category >= 0)
        sizes = self.model.spec.state.size, self.model.spec.action.size, len(self.store.scale)
        safety: Any = make_safety(
            "markov", *sizes, key=jax.random.fold_in(self.key, FITTING), hidden=(64, 64), dropout=0.0
        )
        pairs = jax.tree.map(lambda leaf: leaf[rows], self.pairs)
        safety, _ = fit(safety, pairs, self.category[rows], pair_fit(), jax.random.fold_in(self.key, FITTING))
        names = [*self.model.spec.state.names, *self.model.spec.action.names]
        save_safety(self.run.target("safety.safetensors"), safety, self.store.scale, names, {"labels": len(self.ids)})
        planner = Planner(self.model, safety, self.constraints, self.planning)
        tolerances = np.round([optimum.constraint_values], 6)
        state, history = planner.start(jax.random.fold_in(self.key, PLANNING)[None], tolerances=tolerances), []
        self.run.cut_metrics(0)
        while int(state.learners.epoch[0]) < self.planning.epochs:
            state, figures = planner.advance(state)
            self.run.append_metrics(figures)
            history += figures
            self.show("planning", {"epoch": figures[0]["epoch"], "epochs": self.planning.epochs})
        return planner.finish(state, history)[0].policy

    def _ask(self, places: np.ndarray) -> None:
        """Put pairs into the store as trajectories of one step; a rule answers at once."""
        questions = jax.tree.map(lambda leaf: leaf[places], self.pairs)
        ids = self.store.add(questions, policy="pair", round=len(self.rounds), seed=self.seed).ids.tolist()
        self.ids |= dict(zip(places.tolist(), ids, strict=True))
        category_of = resolve(self.store.log(), "newest")
        new = [place for place in places.tolist() if self.ids[place] not in category_of]
        if new and self.rule is not None:
            given = np.asarray(self.rule.label(jax.tree.map(lambda leaf: leaf[np.array(new)], self.pairs)))
            self.store.label([self.ids[place] for place in new], given, annotator=self.rule.name)
            category_of = resolve(self.store.log(), "newest")
        missing = [i for i in ids if i not in category_of]
        if missing:
            raise LabelsNeeded(missing)
        self.category[places] = [category_of[i] for i in ids]

    def _remember(self) -> None:
        """What was asked before, from the store."""
        ids, known, categories = self.store.labelled()
        pairs = np.flatnonzero(np.asarray(known.length) == 1) if len(ids) else np.zeros(0, int)
        if len(pairs):
            actions = self.model.spec.action.size
            place = np.asarray(self.model.indices(known.states[pairs, 0])) * actions
            place = place + np.asarray(self.model.action_indices(known.actions[pairs, 0]))
            self.category[place] = categories[pairs]
            self.ids = dict(zip(place.tolist(), ids[pairs].tolist(), strict=True))

    def _note(self, optimum: Optimum, unknown: int) -> None:
        note = {
            "round": len(self.rounds),
            "labels": len(self.ids),
            "asked": unknown,
            "return": optimum.value,
            "predicted": None,
            "labelled": None,
            "seconds": None,
        }
        self.rounds.append(note)
        self.show("pairs", note)


def pair_fit() -> Any:
    """Pairs carry no noise: the fit may be as close as it gets, and holds nothing out."""
    return replace(fit_settings("markov"), held_out=0.0, steps=4000, learning_rate=1e-2, patience=0)
