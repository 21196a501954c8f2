"""The main job, from no label to a certified policy.

    explore     ask about random behaviour and about good trajectories of every kind
    in rounds   fit the safety model to all labels, plan policies against it, ask about these policies
    polish      fit once more, plan once more; the policies of all rounds and of this planning are candidates
    verify      ask about rollouts of the candidates that might be the answer, and again about answers in doubt
    certify     say what an audit can prove and what it takes, and audit the favourite; if it is refused, the next one

A stage is a function from a state to a state. It follows from the seed, from the state and from the labels given so
far, and what it leaves is one file, written when its questions are in the store. So a campaign that is killed, or that
needs labels of people, goes on from there as if nothing had happened, and never asks twice.

People are asked some questions ahead: their labels are needed only one stage later, so that nobody has to wait while
the campaign fits and plans. What they cannot tell, it goes on without.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import jax
import numpy as np

from sidestep.campaign.choice import beliefs, challenger, favourite
from sidestep.campaign.config import CampaignConfig
from sidestep.campaign.evidence import Evidence, best_harmless
from sidestep.campaign.neighbours import neighbours
from sidestep.campaign.opinions import deciding, opinions_on
from sidestep.campaign.pairs import PairStrategy
from sidestep.campaign.queries import plain_rollouts
from sidestep.campaign.records import Group, Stage, State, read_state
from sidestep.campaign.schedule import NEVER, certifiable_costs
from sidestep.campaign.setting import Question, Setting, Show, Strategy, Wait
from sidestep.campaign.trajectories import TrajectoryStrategy
from sidestep.certification.auditor import Auditor, audit_until_certified
from sidestep.certification.forecast import Known, plan_opinions
from sidestep.certification.hearing import first_copies
from sidestep.certification.known import choose_known, make_design
from sidestep.certification.ledger import Ledger
from sidestep.certification.people import can_cover_annotators
from sidestep.certification.records import (
    Audit,
    Design,
    Forecast,
    KnownCase,
    Neighbour,
    Result,
    result_to_json,
    split_confidence,
)
from sidestep.core.constraints import cost_matrix, parse_constraints
from sidestep.core.errors import InputError, LabelsNeeded
from sidestep.core.records import to_json
from sidestep.labels.copies import blind_copies
from sidestep.runs.loaded import SAFETY, LoadedRun
from sidestep.safety.base import predict
from sidestep.safety.io import safety_header

VERIFYING = 4  # stream of keys: see the strategies for the others
BLOCKS = 4  # in which the labels kept for verification are spent
ENOUGH = 120  # labels of its own after which a candidate needs no more
REPEATED = 0.08  # share of the questions that people are asked twice
KEPT = 0.2  # share of the labels kept for verification that wait for answers in doubt, where people err
AHEAD = 12  # questions that people may answer while the campaign works: more than a minute
AHEAD_SLOTS = (0, 1, 3, 2)  # whose rollouts these are in a round: the strictest policies tell a fit the least
# The last planning takes the longest: 450 s of Navigation's on a busy core, of which annealing takes 400, where a label
# takes 6 s. So more is asked ahead of it: of 300 labels 20 in the last round, 23 rollouts at its tests, 43 known cases.
LAST_AHEAD = 16  # questions of the last round
TEST_AHEAD = 4  # rollouts at each test of the last planning
LAST_AIM = 0.5  # share of the certifiable cost that is aimed at in the last audit


Stages = dict[Stage, Callable[[State, Evidence], State]]


class Campaign:
    """One campaign in one run's folder; `run` takes it from wherever it stands to its end."""

    def __init__(self, setting: Setting, wait: Wait | None = None) -> None:
        self.setting, self.ledger, self.wait = setting, Ledger(setting.run), wait
        self._prepared = False
        steps = setting.expert.labels_steps and hasattr(setting.model, "finite")
        self.strategy: Strategy = PairStrategy(setting) if steps else TrajectoryStrategy(setting)

    def run(self) -> Result:
        """To the certificate; where people have to label first it waits for them, or raises LabelsNeeded."""
        stages: Stages = {
            "explore": self.explore,
            "round": self.next_round,
            "polish": self.polish,
            "verify": self.verify,
        }
        while True:
            try:
                return self.certify(self._through(stages))
            except LabelsNeeded as needed:
                if self.wait is None:
                    raise
                self._prepare()  # while people label
                if not self.wait(needed):
                    raise

    def share(self) -> State:
        """The rounds alone, from which the tolerances of a sweep go on."""
        state = self._through({"explore": self.explore, "round": self.next_round})
        self._evidence(state)
        return state

    def _through(self, stages: Stages) -> State:
        """Through these stages, from wherever the campaign stands."""
        state = self._load()
        while state.stage in stages:
            began = time.perf_counter()
            evidence = self._evidence(state)  # waits for people before anything is compiled
            if state.stage in ("explore", "round") and (state.asked or self.setting.expert.label):
                self._prepare()
            after = stages[state.stage](state, evidence)
            after = replace(after, seconds=after.seconds + time.perf_counter() - began)
            self._save(after)
            if after.stage == "polish" and len(after.ahead) > len(state.ahead) and after.candidates:
                self.setting.show("offered", None)
            state = after
        return state

    def _prepare(self) -> None:
        if not self._prepared:
            self.strategy.prepare()
            self._prepared = True

    def explore(self, state: State, evidence: Evidence) -> State:
        self.setting.show("exploring", None)
        return self._ask(replace(state, stage="round"), self._some_ahead(self.strategy.explore(), AHEAD))

    def next_round(self, state: State, evidence: Evidence) -> State:
        after, questions = self.strategy.advance(state, evidence)
        count = LAST_AHEAD if after.stage == "polish" else AHEAD
        asked = self._ask(replace(after, round=state.round), self._some_ahead(questions, count), due=after.round)
        new = len(asked.asked_ids) - len(state.asked_ids)
        done = replace(after.rounds[-1], labels=len(asked.asked_ids), asked=new)
        self.setting.show("round", done)
        return replace(asked, round=after.round, rounds=(*state.rounds, done))

    def polish(self, state: State, evidence: Evidence) -> State:
        polished = self.strategy.polish(state, evidence)
        if polished.stage != "polish" and len(polished.rounds) > polished.round:
            self.setting.show("round", polished.rounds[-1])
        if polished.stage != "polish" or self.setting.expert.label is not None or not self.strategy.verifies:
            return polished
        return self._hide_known(self._check_ahead(polished, evidence), evidence)

    def _check_ahead(self, state: State, evidence: Evidence) -> State:
        """While the last planning goes on, people can look at rollouts of the candidate that would be chosen now."""
        config = self.setting.config
        spent = sum(len(group.ids) for group in state.asked if group.candidate is not None)
        count = min(TEST_AHEAD, config.checked // 2 - spent, config.labels - len(state.asked_ids))
        index = self._favourite(replace(evidence, state=state.only(evidence.category_of))) if count > 0 else None
        return state if index is None else self._check(state, index, count, due=state.round + 1)

    def _hide_known(self, state: State, evidence: Evidence) -> State:
        """Among them, one for one, copies of known cases, whose labels the first audit will need anyway.

        So they are as rare among policies' own rollouts as in an audit, and the audit is shorter by as many questions.
        Which they are is settled before the first label; these say nothing until the audit hears them.
        """
        if not state.known:
            random = np.random.default_rng([self.setting.seed, len(state.asked)])
            known = () if self.ledger.audits or not self.setting.config.known else self._known(evidence)
            state = replace(state, known=tuple(known[row] for row in random.permutation(len(known)).tolist()))
        rollouts = len(state.ahead) - len(state.hidden)
        more = state.known[len(state.hidden) : rollouts]
        if not more:
            return state
        cases = self.setting.store.get([case.trajectory for case in more])
        return replace(state, hidden=(*state.hidden, *first_copies(self.setting.store, cases, audit=1)))

    def verify(self, state: State, evidence: Evidence) -> State:
        """Labels of their own for the candidate that would be chosen, then for those that might replace it.

        Where people err, second opinions on what decides come first, before any audit.
        """
        config = self.setting.config
        left = config.labels - len(state.asked_ids)
        if not self.strategy.verifies or left <= 0:
            return replace(state, stage="certify")
        again = self._deciding(state, evidence)
        if again:
            self.setting.show("second opinions", None)
            return self._ask_deciding(state, again[: min(left, max(config.checked // BLOCKS, 1))])
        index = self._unverified(evidence)
        if index is None:
            return replace(state, stage="certify")
        self.setting.show("verifying", None)
        kept = round(KEPT * config.checked) if evidence.annotators is not None else 0
        count = left - kept if left > kept else left
        return self._check(state, index, min(count, max(config.checked // BLOCKS, 1)))

    def _deciding(self, state: State, evidence: Evidence) -> list[int]:
        """Trajectories on which a second opinion may change which candidate is audited, or what its audit can prove."""
        if self.setting.expert.label is not None:
            return []
        aims, optimism = self._aims(evidence), evidence.optimism
        known = bool(self.setting.config.known)
        return deciding(evidence, state, lambda found: favourite(found, aims, optimism), known)

    def _ask_deciding(self, state: State, chosen: list[int]) -> State:
        """One more opinion on each of these trajectories, blind."""
        store, heard = self.setting.store, opinions_on(state)
        copies = blind_copies(store.get(chosen), np.array([heard[i] for i in chosen]), 0)
        ids = store.add(copies, policy="second opinion", round=state.round, seed=self.setting.seed).ids.tolist()
        group = Group(tuple(ids), state.round, repeats=tuple(chosen), deciding=True)
        return replace(state, asked=(*state.asked, group))

    def _check(self, state: State, index: int, count: int, due: int = 0) -> State:
        """Ask about so many rollouts of a candidate."""
        key = jax.random.fold_in(self.setting.key(VERIFYING), len(state.asked))
        policy = self.strategy.policy_of(state.candidates[index])
        stack = jax.tree.map(lambda leaf: leaf[None], policy)
        rollouts = jax.tree.map(lambda leaf: leaf[0], plain_rollouts(self.setting.model, stack, count, key))
        return self._ask(state, [Question(f"check of candidate {index}", rollouts)], candidate=index, due=due)

    def certify(self, state: State) -> Result:
        """Audit favourites until one is certified, and write the answer."""
        setting, began = self.setting, time.perf_counter()
        setting.show("auditing", None)
        evidence = self._evidence(state)
        audit = audit_until_certified(
            self._auditor(evidence),
            setting.config.audits,
            lambda: self._favourite(self._with_audits(evidence)),
            lambda index: setting.run.path / state.candidates[index].file,
            lambda index: self.strategy.policy_of(state.candidates[index]).mean(),
            seed=setting.seed,
            most=setting.config.rollouts,
            promised=setting.config.confidence,
            show=lambda audit: setting.show("audited", audit),
            best=lambda audits: self._best(audits, self._with_audits(evidence)),
        )
        assert audit.candidate is not None
        evidence = self._with_audits(evidence)
        setting.keep("policy.safetensors", self.strategy.policy_of(state.candidates[audit.candidate]))
        result = Result(
            model=setting.model.spec.name,
            labels_used=len(state.asked_ids),
            marks_used=int((evidence.marks >= 0).sum()) if setting.config.marks else 0,
            seconds=state.seconds + time.perf_counter() - began,
            seed=setting.seed,
            method=setting.method,
            harmless_return=best_harmless(setting.constraints, *evidence.labelled) if self.strategy.verifies else None,
            candidate=dict(to_json(evidence.candidates[audit.candidate])),
            pattern=self._pattern(),
            steps=state.steps,
            neighbours=self._neighbours(evidence, audit.candidate),
            agreement=evidence.agreement if setting.expert.label is None and self.strategy.verifies else None,
        )
        return result.with_audit(audit, self.ledger.audits)

    def _neighbours(self, evidence: Evidence, chosen: int) -> tuple[Neighbour, ...]:
        """Where costs of candidates are predicted, they also tell what other tolerances would earn."""
        if not self.strategy.verifies:
            return ()
        setting = self.setting
        return neighbours(setting.constraints, setting.config, evidence.candidates, evidence.optimism, chosen)

    def _auditor(self, evidence: Evidence) -> Auditor:
        setting, config = self.setting, self.setting.config
        people = setting.expert.label is None
        safety = self.strategy.fitted
        stratified = config.audit == "stratified" or (config.audit == "auto" and people and safety is not None)

        def design(candidate: int | None) -> Design:
            known: tuple[KnownCase, ...] = ()
            if people and safety is not None and config.known:
                known = self._known(evidence) if self.ledger.audits else evidence.state.known or self._known(evidence)
            erring = evidence.annotators is not None
            made = make_design(stratified=stratified, known=known, erring=erring, most=config.rollouts)
            if not people or candidate is None or not self.strategy.verifies:
                return made
            forecast = self._forecast(made, candidate, self._with_audits(evidence))
            return replace(made, opinions=forecast.opinions, forecast=forecast)

        steps = evidence.state.steps
        exact = steps is not None and steps.proof == "exact"
        about = (setting.model, setting.constraints, setting.expert, setting.store, safety, design, exact)
        return Auditor(self.ledger, *about)

    def _known(self, evidence: Evidence) -> tuple[KnownCase, ...]:
        """Known cases for the next audit; none where it would not be long enough to cover annotators as well."""
        config, constraints = self.setting.config, self.setting.constraints
        found = choose_known(*evidence.originals, constraints, config.known)
        confidence = split_confidence(config.confidence, self.ledger.next_number)
        return found if can_cover_annotators(constraints, found, confidence, config.rollouts) else ()

    def _forecast(self, design: Design, candidate: int, evidence: Evidence) -> Forecast:
        """What the next audit can be expected to prove of this candidate, with these annotators and the opinions that
        are planned on a run that somebody calls costly."""
        setting, config, size = self.setting, self.setting.config, len(self.setting.store.scale)
        confusions = np.eye(size)[None] if evidence.annotators is None else evidence.annotators.confusion
        costly = cost_matrix(setting.constraints) > 0
        harmful = sum(bool(costly[:, case.category].any()) for case in design.known)
        return plan_opinions(
            setting.constraints,
            split_confidence(config.confidence, self.ledger.next_number),
            config.rollouts,
            beliefs(evidence.candidates, evidence.optimism)[candidate],
            confusions,
            Known(harmful, len(design.known) - harmful),
        )

    def _best(self, audits: Sequence[Audit], evidence: Evidence) -> Audit:
        """Of audits that certified nothing: that of the best candidate by all evidence, the audits' labels included."""
        audited = [audit.candidate for audit in audits]
        others = [index for index in range(len(evidence.candidates)) if index not in audited]
        tolerances = np.array([max(one.tolerance, NEVER) for one in self.setting.constraints])
        index = favourite(evidence.candidates, tolerances, evidence.optimism, others)
        return max((audit for audit in audits if audit.candidate == index), key=lambda audit: audit.number)

    def _pattern(self) -> str | None:
        """What the safety model learned, in words, where it could be said."""
        file = self.setting.run.path / SAFETY
        about = safety_header(file).about if file.exists() else None
        return about.pattern if about else None

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
        aim = self.setting.aim
        aims = certifiable_costs(self.setting.constraints, config.rollouts, config.confidence, audit, aim)
        return aims * (LAST_AIM if 1 < audit == config.audits else 1.0)

    def _some_ahead(self, questions: list[Question], most: int) -> list[Question]:
        """Where people label, some of these are not needed before the next stage: rollouts of some policies of a round,
        or explorers."""
        if self.setting.expert.label is not None or not self.strategy.verifies:
            return questions
        if all(question.slot is None for question in questions):
            source, found, _, _ = questions[0]
            count = min(most, len(found) // 3)
            now, later = Question(source, found[: len(found) - count]), found[len(found) - count :]
            return [now, *questions[1:], *([Question(source, later, ahead=True)] if count else [])]
        of = {question.slot: question for question in questions}
        ahead, count = set[int | None](), 0
        for slot in AHEAD_SLOTS:
            if count < most:
                ahead.add(slot)
                count += len(of[slot].trajectories)
        return [question._replace(ahead=question.slot in ahead) for question in questions]

    def _ask(self, state: State, questions: list[Question], candidate: int | None = None, due: int = 0) -> State:
        """Put questions into the store; who can answer at once does so before the state is saved."""
        store, seed = self.setting.store, self.setting.seed
        for source, trajectories, slot, ahead in questions:
            ids = store.add(trajectories, policy=source, round=state.round, seed=seed).ids.tolist()
            state = state.with_group(ids, slot, candidate, due + ahead)
            if candidate is None:
                state = self._ask_again(state, source, ids)
        if self.setting.expert.label is not None:
            self.setting.expert.answer(store, state.asked_ids, bool(self.setting.config.marks))
        return state

    def _ask_again(self, state: State, source: str, ids: list[int]) -> State:
        """Where people label, ask about some of these a second time, blind: that shows how often they err."""
        setting = self.setting
        left = setting.config.checked - sum(len(group.repeats) for group in state.asked)  # of labels kept for the end
        count = min(math.ceil(REPEATED * len(ids)), left)
        if setting.expert.label is not None or not setting.config.known or not self.strategy.verifies or count <= 0:
            return state
        random = np.random.default_rng([setting.seed, len(state.asked)])
        chosen: list[int] = random.choice(ids, count, replace=False).tolist()
        copies = blind_copies(setting.store.get(chosen), np.ones(count, int), 0)
        new = setting.store.add(copies, policy=source, round=state.round, seed=setting.seed).ids.tolist()
        copies_asked = Group(tuple(new), state.round, repeats=tuple(chosen), due=state.asked[-1].due)
        return replace(state, asked=(*state.asked, copies_asked))

    def _evidence(self, state: State) -> Evidence:
        """All labels that are needed by now; what people cannot tell is left out."""
        setting, state = self.setting, state.due
        answers = setting.expert.answer(setting.store, state.asked_ids, bool(setting.config.marks))
        safety = self.strategy.fitted if setting.expert.label is None else None
        predictions = None if safety is None else partial(predict, safety)
        known = state.only(answers)
        judge = self.strategy.planned if state.candidates else None
        foresee = None if judge is None else partial(predict, judge)
        return Evidence(known, setting.constraints, setting.store, answers, self.ledger.of_run, predictions, foresee)

    def _with_audits(self, evidence: Evidence) -> Evidence:
        """With all audits that have been made by now."""
        return replace(evidence, audits=self.ledger.of_run)

    def _save(self, state: State) -> None:
        setting = self.setting
        evidence = Evidence(state, setting.constraints, setting.store, setting.store.categories("majority"))
        setting.run.write_lines("rounds.jsonl", [one.to_json() for one in evidence.rounds])
        setting.run.save_state(self.strategy.arrays, to_json(state))

    def _load(self) -> State:
        run, state, header = self.setting.run, State(), self.setting.run.state_header()
        if header is not None:
            state = read_state(header, len(self.setting.constraints), str(run.path / "state.safetensors"))
            self.strategy.expect(state)
            self.strategy.arrays = run.load_state(self.strategy.arrays)
        if any((audit.candidate or 0) >= len(state.candidates) for audit in self.ledger.of_run):
            raise InputError("an audit is of a candidate that the checkpoint does not have", place=self.ledger.place)
        run.cut_metrics(state.rows)
        return state


def continue_campaign(loaded: LoadedRun, show: Show, wait: Wait | None = None) -> Result:
    """From the last saved stage to the end; raises LabelsNeeded where people have to label first, and nobody waits."""
    with open_campaign(loaded, show, wait) as campaign:
        result = campaign.run()
    loaded.run.write_json("result.json", result_to_json(result))
    return result


@contextmanager
def open_campaign(loaded: LoadedRun, show: Show, wait: Wait | None = None) -> Iterator[Campaign]:
    run, asked = loaded.run, loaded.config
    config, planning = run.settings(CampaignConfig), loaded.planner_settings(asked.planning, "planning")
    with loaded.open_store() as store:
        about = (asked.method, asked.seed, asked.model, show)
        parties = (run, loaded.model, loaded.expert, loaded.constraints, store)
        loosest = parse_constraints(asked.loosest, loaded.scale)
        yield Campaign(Setting(*parties, config, planning, *about, loosest, asked.forked), wait)
