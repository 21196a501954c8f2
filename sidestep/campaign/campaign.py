"""The main job, from no label to a certified policy.

    explore     ask about random behaviour and about good trajectories of every kind
    in rounds   fit the safety model to all labels, plan policies against it, ask about these policies
    polish      fit once more, plan once more; the policies of all rounds and of this planning are candidates
    verify      ask about rollouts of the candidates that might be the answer
    certify     audit the favourite; if it is refused, the next one

A stage is a function from a state to a state. It follows from the seed, from the state and from the labels given so
far, and what it leaves is one file, written when its questions are in the store. So a campaign that is killed, or that
needs labels of people, goes on from there as if nothing had happened, and never asks twice.
"""

import time
from dataclasses import replace

import jax
import numpy as np

from sidestep.campaign.choice import challenger, favourite
from sidestep.campaign.evidence import Evidence, best_harmless
from sidestep.campaign.pairs import PairStrategy
from sidestep.campaign.queries import plain_rollouts
from sidestep.campaign.records import State, read_state
from sidestep.campaign.schedule import certifiable_costs
from sidestep.campaign.setting import Question, Setting, Strategy
from sidestep.campaign.trajectories import TrajectoryStrategy
from sidestep.certification.auditor import Auditor, audit_until_certified
from sidestep.certification.ledger import Ledger
from sidestep.certification.records import Result
from sidestep.core.errors import InputError
from sidestep.core.records import to_json

VERIFYING = 4  # stream of keys: see the strategies for the others
BLOCKS = 4  # in which the labels kept for verification are spent
ENOUGH = 120  # labels of its own after which a candidate needs no more
LAST_AIM = 0.5  # share of the certifiable cost that is aimed at in the last audit


class Campaign:
    """One campaign in one run's folder; `run` takes it from wherever it stands to its end."""

    def __init__(self, setting: Setting) -> None:
        self.setting, self.ledger = setting, Ledger(setting.run)
        steps = setting.expert.labels_steps and hasattr(setting.model, "finite")
        self.strategy: Strategy = PairStrategy(setting) if steps else TrajectoryStrategy(setting)

    def run(self) -> Result:
        """To the certificate; raises LabelsNeeded where people have to label first."""
        stages = {
            "explore": self.explore,
            "round": self.next_round,
            "polish": self.polish,
            "verify": self.verify,
        }
        state = self._load()
        prepared = False
        while state.stage in stages:
            began = time.perf_counter()
            evidence = self._evidence(state)  # waits for people before anything is compiled
            if not prepared and state.stage in ("explore", "round") and (state.asked or self.setting.expert.label):
                self.strategy.prepare()
                prepared = True
            state = stages[state.stage](state, evidence)
            state = replace(state, seconds=state.seconds + time.perf_counter() - began)
            self._save(state)
        return self.certify(state)

    def explore(self, state: State, evidence: Evidence) -> State:
        self.setting.show("exploring", None)
        return self._ask(replace(state, stage="round"), self.strategy.explore())

    def next_round(self, state: State, evidence: Evidence) -> State:
        after, questions = self.strategy.advance(state, evidence)
        asked = self._ask(replace(after, round=state.round), questions)
        new = len(asked.asked_ids) - len(state.asked_ids)
        done = replace(after.rounds[-1], labels=len(asked.asked_ids), asked=new)
        self.setting.show("round", done)
        return replace(asked, round=after.round, rounds=(*state.rounds, done))

    def polish(self, state: State, evidence: Evidence) -> State:
        polished = self.strategy.polish(state, evidence)
        if polished.stage != "polish" and len(polished.rounds) > polished.round:
            self.setting.show("round", polished.rounds[-1])
        return polished

    def verify(self, state: State, evidence: Evidence) -> State:
        """Labels of their own for the candidate that would be chosen, then for those that might replace it."""
        config = self.setting.config
        left = config.labels - len(state.asked_ids)
        index = self._unverified(evidence) if self.strategy.verifies and left > 0 else None
        if index is None:
            return replace(state, stage="certify")
        self.setting.show("verifying", None)
        count = min(left, max(config.checked // BLOCKS, 1))
        key = jax.random.fold_in(self.setting.key(VERIFYING), len(state.asked))
        policy = self.strategy.policy_of(state.candidates[index])
        stack = jax.tree.map(lambda leaf: leaf[None], policy)
        rollouts = jax.tree.map(lambda leaf: leaf[0], plain_rollouts(self.setting.model, stack, count, key))
        return self._ask(state, [Question(f"check of candidate {index}", rollouts)], candidate=index)

    def certify(self, state: State) -> Result:
        """Audit favourites until one is certified, and write the answer."""
        setting, began = self.setting, time.perf_counter()
        setting.show("auditing", None)
        evidence = self._evidence(state)
        audit = audit_until_certified(
            Auditor(self.ledger, setting.model, setting.constraints, setting.expert, setting.store),
            setting.config.audits,
            lambda: self._favourite(replace(evidence, audits=self.ledger.of_run)),
            lambda index: setting.run.path / state.candidates[index].file,
            lambda index: self.strategy.policy_of(state.candidates[index]).mean(),
            seed=setting.seed,
            most=setting.config.rollouts,
            promised=setting.config.confidence,
            show=lambda audit: setting.show("audited", audit),
        )
        assert audit.candidate is not None
        setting.keep("policy.safetensors", self.strategy.policy_of(state.candidates[audit.candidate]))
        result = Result(
            model=setting.model.spec.name,
            labels_used=len(state.asked_ids),
            seconds=state.seconds + time.perf_counter() - began,
            seed=setting.seed,
            method=setting.method,
            harmless_return=best_harmless(setting.constraints, *evidence.labelled) if self.strategy.verifies else None,
            candidate=dict(to_json(evidence.candidates[audit.candidate])),
        )
        return result.with_audit(audit, self.ledger.audits)

    def _unverified(self, evidence: Evidence) -> int | None:
        """The candidate that labels should go to: the favourite until it has enough, then who might replace it."""
        candidates, index = evidence.candidates, self._favourite(evidence)
        if index is None or candidates[index].labels < ENOUGH:
            return index
        return challenger(candidates, self._aims(evidence), evidence.optimism, index, ENOUGH)

    def _favourite(self, evidence: Evidence) -> int | None:
        """The candidate to audit next, by all evidence; None when all have been."""
        tried = [audit.candidate for audit in evidence.audits if audit.status != "abandoned"]
        rollouts = sum(audit.rollouts for audit in evidence.audits)
        return favourite(evidence.candidates, self._aims(evidence), evidence.optimism, tried, rollouts)

    def _aims(self, evidence: Evidence) -> np.ndarray:
        """For the next audit. Where others were refused, the last is no time to try for the most return."""
        config, audit = self.setting.config, len(evidence.audits) + 1
        aims = certifiable_costs(self.setting.constraints, config.rollouts, config.confidence, audit)
        return aims * (LAST_AIM if 1 < audit == config.audits else 1.0)

    def _ask(self, state: State, questions: list[Question], candidate: int | None = None) -> State:
        """Put questions into the store; who can answer at once does so before the state is saved."""
        store, seed = self.setting.store, self.setting.seed
        for source, trajectories, slot in questions:
            ids = store.add(trajectories, policy=source, round=state.round, seed=seed).ids.tolist()
            state = state.with_group(ids, slot, candidate)
        if self.setting.expert.label is not None:
            self.setting.expert.answer(store, state.asked_ids)
        return state

    def _evidence(self, state: State) -> Evidence:
        setting = self.setting
        answers = setting.expert.answer(setting.store, state.asked_ids)
        return Evidence(state, setting.constraints, setting.store, answers, self.ledger.of_run)

    def _save(self, state: State) -> None:
        setting = self.setting
        evidence = Evidence(state, setting.constraints, setting.store, setting.store.categories())
        setting.run.write_lines("rounds.jsonl", [one.to_json() for one in evidence.rounds])
        setting.run.save_state(self.strategy.arrays, to_json(state))

    def _load(self) -> State:
        run, state, header = self.setting.run, State(), self.setting.run.state_header()
        if header is not None:
            state = read_state(header, len(self.setting.constraints), str(run.path / "state.safetensors"))
            self.strategy.expect(polishing=state.stage == "polish" and bool(state.candidates))
            self.strategy.arrays = run.load_state(self.strategy.arrays)
        if any((audit.candidate or 0) >= len(state.candidates) for audit in self.ledger.of_run):
            raise InputError("an audit is of a candidate that the checkpoint does not have", place=self.ledger.place)
        run.cut_metrics(state.rows)
        return state
