"""The strategy for side effects of whole trajectories: learn a safety model, plan a bank of policies against it."""

import time
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, PyTree

from sidestep.campaign.config import LAST_ROUNDS, POLISH_TEST
from sidestep.campaign.evidence import SHOWN, Evidence, varied
from sidestep.campaign.queries import first_questions, round_questions
from sidestep.campaign.records import Candidate, Stage, State
from sidestep.campaign.schedule import SLOTS, certifiable_costs, tolerance_schedule
from sidestep.campaign.setting import Question, Setting
from sidestep.core.model import is_finite
from sidestep.planning.bank import BankPolicy, BankSchedule, GradientBank, PolicyBank, mendable
from sidestep.planning.methods import Exact
from sidestep.planning.rows import PlanRow
from sidestep.planning.table_bank import TableBank
from sidestep.policies.files import load_policy
from sidestep.runs.loaded import SAFETY
from sidestep.runs.records import Round, Slot
from sidestep.safety.base import SafetyModel
from sidestep.safety.config import fit_settings
from sidestep.safety.derived import alike
from sidestep.safety.families import Families
from sidestep.safety.io import load_safety, make_safety, save_safety
from sidestep.safety.learn import learn
from sidestep.safety.pattern import learned_pattern
from sidestep.safety.report import FitReport

EXPLORING, FITTING, PLANNING, ASKING = range(4)  # streams of keys that never meet
NAMES = {"gradient": "polished", "annealing": "annealed"}  # of the policies' files, by the phase that they come from
STEPS_READ = 10_000  # of a minibatch of a fit, at most: long trajectories are read a few at a time


class TrajectoryStrategy:
    """Rounds of fitting, planning on several tolerances at once, and asking about the policies."""

    verifies = True

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        model, config = setting.model, setting.config
        exact = isinstance(setting.planning.reward, Exact)
        sizes = model.spec.state.size, model.spec.action.size, len(setting.store.scale)
        kind, key = config.safety or ("share" if exact else config.learner), setting.key(FITTING)
        if kind == "families":
            self.unfitted = make_safety(
                kind, *sizes, key=key, units=config.units, hazards=config.members, alike=alike(model.spec)
            )
        else:
            shapes: dict[str, dict[str, Any]] = {"share": {"hidden": (64, 64)}, "hazard": {"units": config.units}}
            shape = {} if config.safety else shapes[kind]
            self.unfitted = make_safety(kind, *sizes, key=key, members=config.members, **shape)
        self.safety = self.unfitted
        self.aims = certifiable_costs(setting.constraints, config.rollouts, config.confidence, aim=setting.aim)
        self.loosest: Float[np.ndarray, " constraint"] | None = None
        if setting.loosest:
            self.loosest = certifiable_costs(setting.loosest, config.rollouts, config.confidence, aim=setting.aim)
        key = setting.key(PLANNING)
        self.bank: PolicyBank
        if exact:
            assert is_finite(model), "exact methods are for finite models"
            self.bank = TableBank(model, setting.constraints, SLOTS, key)
        else:
            truth = setting.expert.label if setting.expert.jittable else None  # for the log alone
            schedule = BankSchedule(
                SLOTS,
                config.rounds,
                config.searching_rounds,
                config.round_epochs,
                config.polish_epochs,
                POLISH_TEST,
                LAST_ROUNDS,
            )
            self.bank = GradientBank(model, setting.constraints, setting.planning, schedule, self.safety, key, truth)

    @property
    def fitted(self) -> SafetyModel | None:
        return self.safety if float(self.safety.standardisation.seen) > 0.0 else None

    @property
    def planned(self) -> SafetyModel:
        """What policies are planned against: all that is trusted, which may be one model of several."""
        return self.safety.spoken() if isinstance(self.safety, Families) else self.safety

    def expect(self, state: State) -> None:
        polishing = load_safety(self.setting.run.path / SAFETY) if state.phase else self.unfitted
        self.bank.expect(polishing, state.phase)

    @property
    def arrays(self) -> PyTree:
        return self.bank.state, self.safety

    @arrays.setter
    def arrays(self, saved: PyTree) -> None:
        self.bank.state, self.safety = saved

    def prepare(self) -> None:
        """What is planned against is known from the start, or after the first fit."""
        if not isinstance(self.unfitted, Families):
            self.bank.prepare(self.unfitted)

    def explore(self) -> list[Question]:
        config = self.setting.config
        found = first_questions(self.setting.model, config.ask, config.explored, self.setting.key(EXPLORING))
        return [Question(source, trajectories) for source, trajectories in found]

    def advance(self, state: State, evidence: Evidence) -> tuple[State, list[Question]]:
        began, number, config = time.perf_counter(), state.round, self.setting.config
        state, report, tolerances = self._fit(state, evidence)
        self.setting.show("planning", None)
        self.bank.prepare(self.planned)
        rows = self.bank.advance(number, self.planned, tolerances, lost(state))
        state = self._log(state, rows)
        for slot in range(SLOTS):
            self.setting.keep(_file(number, slot), _of(self.bank.policies, slot))
        if number == 0:
            self.setting.keep("before.safetensors", _of(self.bank.policies, SLOTS - 1))
        known, _ = evidence.labelled
        progress = number / config.rounds
        key = jax.random.fold_in(self.setting.key(ASKING), number)
        plain, others = round_questions(
            self.setting.model, config.ask, self.bank, self.safety, known, config.asked(number), progress, key
        )
        questions = [Question(f"round {number}, policy {slot}", part, slot) for slot, part in enumerate(plain)]
        questions.append(Question(f"round {number}, around", others))
        done = self._round(state, rows, tolerances, evidence.optimism, report, time.perf_counter() - began)
        stage: Stage = "round" if number + 1 < config.rounds else "polish"
        return replace(state, round=number + 1, stage=stage, rounds=(*state.rounds, done)), questions

    def polish(self, state: State, evidence: Evidence) -> State:
        """The last fit, and the last planning against it, up to its next test.

        Every round, by what the last fit predicts of its policies, and every test gives a candidate per slot.
        """
        if not state.candidates:
            state = self._begin_polish(state, evidence)
        began = time.perf_counter()
        highest = max(slot.mean_return for one in state.rounds[:-1] for slot in one.slots)
        phase, rows, policies, slots, finished = self.bank.polish(self.planned, highest)
        self.setting.show("polishing", None)
        state = self._log(state, rows)
        candidates = []
        for index, (slot, row) in enumerate(zip(slots, rows, strict=True)):
            file = f"{NAMES[phase]}-{row.epoch}-{slot}.safetensors"
            self.setting.keep(file, _of(policies, index))
            candidates.append(_candidate(file, row))
        last = _with_rows(state.rounds[-1], rows, slots, time.perf_counter() - began)
        state = replace(state, candidates=(*state.candidates, *candidates), rounds=(*state.rounds[:-1], last))
        state = replace(state, phase=self.bank.phase)
        return replace(state, stage="verify") if finished else state

    def _begin_polish(self, state: State, evidence: Evidence) -> State:
        began = time.perf_counter()
        before = lost(state)
        state, report, tolerances = self._fit(state, evidence)
        candidates = [candidate for earlier in range(state.round) for candidate in self._reconsidered(earlier)]
        if self.setting.forked:
            self.bank.start_nearest(tolerances)
        self.bank.begin_polish(self.planned, tolerances, before)
        blank = [PlanRow() for _ in range(SLOTS)]
        done = self._round(state, blank, tolerances, evidence.optimism, report, time.perf_counter() - began)
        spec, store = self.setting.model.spec, self.setting.store
        names = [*spec.state.names, *spec.action.names]
        pattern = learned_pattern(self.planned, evidence.labelled[0])
        words = pattern.words(names, spec.state.size, store.scale.categories) if pattern else None
        about = {"labels": len(state.asked_ids), "pattern": words}
        target = self.setting.run.target(SAFETY)
        save_safety(target, self.planned, store.scale, names, about)
        made = replace(state, candidates=tuple(candidates), rounds=(*state.rounds, done))
        return replace(made, phase=self.bank.phase)

    def policy_of(self, candidate: Candidate) -> BankPolicy:
        return load_policy(self.setting.run.path / candidate.file, self.setting.model, self.planned)

    def _fit(self, state: State, evidence: Evidence) -> tuple[State, FitReport, Float[np.ndarray, "slot constraint"]]:
        """Fit to all labels so far; how good the fit is, and the tolerances to plan at."""
        setting, config = self.setting, self.setting.config
        known, categories = evidence.trajectories, evidence.categories  # as said; `likelihood` says what is true
        setting.show("fitting", None)
        first = not state.varied
        settings = replace(
            fit_settings(self.bank.kind),
            steps=config.first_fit if first else config.later_fit,
            held_out=0.2 if isinstance(self.unfitted, Families) else 0.15,  # families are weighed by them
            patience=8,
            batch=min(100, max(STEPS_READ // setting.model.spec.horizon, 10)),
        )
        if not first:
            settings = replace(settings, learning_rate=settings.learning_rate / 2)
        key = jax.random.fold_in(setting.key(FITTING), state.round)
        start = self.unfitted if first else self.safety
        marks = evidence.marks if config.marks else None
        new = 0 if first or not state.rounds else len(categories) - state.rounds[-1].labels
        self.safety, report = learn(
            start,
            known,
            categories,
            settings,
            key,
            marks=marks,
            likelihood=evidence.likelihood,
            room=config.labels,
            new=new,
        )
        progress = state.round / config.rounds
        tolerances = tolerance_schedule(setting.constraints, self.aims, progress, evidence.optimism, self.loosest)
        both_sides = varied(setting.constraints, evidence.labelled[1])
        tolerances = np.where(both_sides[None, :], tolerances, 1.0)
        return replace(state, varied=bool(both_sides.any())), report, tolerances

    def _reconsidered(self, number: int) -> list[Candidate]:
        """The policies of an earlier round as candidates, by what today's safety model predicts of them."""
        files = [_file(number, slot) for slot in range(SLOTS)]
        kept = [load_policy(self.setting.run.path / file, self.setting.model, self.planned) for file in files]
        rows = self.bank.predict(jax.tree.map(lambda *leaves: np.stack(leaves), *kept), self.planned)
        return [
            replace(_candidate(file, row), round=number, slot=slot)
            for slot, (file, row) in enumerate(zip(files, rows, strict=True))
        ]

    def _log(self, state: State, rows: list[PlanRow]) -> State:
        self.setting.log([replace(row, round=state.round) for row in rows])
        return replace(state, rows=state.rows + len(rows))

    def _round(
        self,
        state: State,
        rows: list[PlanRow],
        tolerances: np.ndarray,
        gap: float,
        report: FitReport,
        seconds: float,
    ) -> Round:
        scores = report.scores
        assert scores is not None
        done = Round(
            round=state.round,
            labels=len(state.asked_ids),
            asked=0,
            margin=float(1.0 - tolerances[SHOWN, 0] / max(self.setting.constraints[0].tolerance, 1e-9)),
            optimism=gap,
            slots=tuple(Slot(tuple(tolerance.tolist()), 0.0, ()) for tolerance in tolerances),
            accuracy=scores.accuracy,
            log_loss=scores.log_loss,
            ece=scores.calibration_error,
        )
        return _with_rows(done, rows, range(SLOTS), seconds)


def _with_rows(done: Round, rows: list[PlanRow], tested: range, seconds: float) -> Round:
    """A round with the figures of its last test, which was of some slots."""
    middle = rows[tested.index(SHOWN)]
    slots = list(done.slots)
    for slot, row in zip(tested, rows, strict=True):
        slots[slot] = replace(slots[slot], mean_return=row.mean_return, costs=row.mean_costs)
    return replace(
        done,
        mean_return=middle.mean_return,
        predicted=middle.mean_predicted,
        slots=tuple(slots),
        seconds=(done.seconds or 0.0) + seconds,
        feasible=middle.feasible,
    )


def lost(state: State) -> bool:
    """Whether the last round could not bring a policy near its tolerance."""
    slots = state.rounds[-1].slots if state.rounds else ()
    return any(np.any(slot.costs > mendable(np.array(slot.tolerance))) for slot in slots)


def _candidate(file: str, row: PlanRow) -> Candidate:
    return Candidate(file, row.mean_return, row.mean_costs, row.mean_return_deviation)


def _of(policies: BankPolicy, slot: int) -> BankPolicy:
    return jax.tree.map(lambda leaf: leaf[slot], policies)


def _file(number: int, slot: int) -> str:
    return f"round-{number}-{slot}.safetensors"
