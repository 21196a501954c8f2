"""The campaign over trajectories: rounds of fit, plan, ask; then check, choose and audit.

    first           explorers are labelled
    each round      fit the safety model to all labels so far, plan on the rungs of the ladder, ask about the policies
    at the end      predict every candidate with the last safety model, check the best on rollouts of their own, audit

A stage is a function of the seed, of what the stage before left and of the labels given so far. What it leaves is one
file, written when its questions are in the store: a campaign that is killed, or that waits for people, goes on from
there as if nothing had happened, and never asks twice.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool

from sidestep.answers import load_policy, save_policy
from sidestep.campaign.candidates import Candidate, challenger, favourite, optimism
from sidestep.campaign.config import CampaignConfig
from sidestep.campaign.ladder import RUNGS, certifiable_costs, mendable, rungs
from sidestep.campaign.notes import check_notes
from sidestep.campaign.questions import first_questions, plain_rollouts, round_questions
from sidestep.campaign.rungs import GradientRungs, Rungs, TableRungs
from sidestep.campaign.waiting import Show, campaign_key
from sidestep.certification.auditor import Auditor, audit_until_certified
from sidestep.certification.ledger import Ledger
from sidestep.certification.records import Audit, Result, audited_result
from sidestep.constraints import Constraint, cost_matrix
from sidestep.errors import LabelsNeeded
from sidestep.labels.rules import Rule
from sidestep.labels.store import Store
from sidestep.labels.votes import resolve
from sidestep.model import Model, Trajectory
from sidestep.planning.config import PlanConfig
from sidestep.runs import Run
from sidestep.safety.config import fit_settings
from sidestep.safety.fit import fit
from sidestep.safety.io import make_safety, save_safety

EXPLORING, FITTING, PLANNING, ASKING, CHECKING = range(5)  # streams of keys that never meet
SHOWN = RUNGS // 2  # the rung whose figures stand for a round
LAST_AIM = 0.5  # share of the certifiable cost that is aimed at in the last audit
RECENT = 3 * RUNGS  # groups of labels from which the gap between predicted and true costs is read
CHECKS = 4  # blocks of labels in which candidates are checked
LAST_ROUNDS = 0.1  # share of the step size that is left in the last rounds, which still follow new labels
FEW = 10  # labels of either side of a constraint with which a fit can begin
STEPS_READ = 10_000  # of a minibatch of a fit, at most: long trajectories are read a few at a time
ENOUGH = 120  # labels of its own after which a candidate needs no further check


class Campaign:
    """One campaign in one run's folder; `go_on` takes it from wherever it is to its end."""

    def __init__(
        self,
        run: Run,
        model: Model,
        rule: Rule | None,
        constraints: tuple[Constraint, ...],
        store: Store,
        config: CampaignConfig,
        planning: PlanConfig,
        seed: int,
        reference: str,
        show: Show,
    ) -> None:
        self.run, self.model, self.rule, self.constraints, self.store = run, model, rule, constraints, store
        self.config, self.seed, self.reference, self.show = config, seed, reference, show
        self.key, self.ledger = campaign_key(seed), Ledger(run)
        self.aims = certifiable_costs(constraints, config.rollouts, config.confidence)
        exact = planning.reward_gradient == "exact"
        sizes = model.spec.state.size, model.spec.action.size, len(store.scale)
        kind, shape = ("share", {"hidden": (64, 64)}) if exact else ("hazard", {"units": config.units})
        self.unfitted: Any = make_safety(kind, *sizes, key=self._key(FITTING), members=config.members, **shape)
        self.safety = self.unfitted
        epochs = config.round_epochs
        planning = replace(
            planning,
            epochs=epochs * (config.rounds + 1),
            test_every=epochs,
            search_population=1000,
            learning_rate_end=max(planning.learning_rate_end, LAST_ROUNDS),
        )
        label = rule.label if rule and rule.compiled else None
        self.rungs: Rungs = (
            TableRungs(model, constraints, self._key(PLANNING))
            if exact
            else GradientRungs(
                model,
                constraints,
                planning,
                self.safety,
                self._key(PLANNING),
                config.rounds,
                config.searching_rounds,
                config.polish_epochs,
                label,
            )
        )
        self.notes: dict[str, Any] = {
            "stage": "explore",
            "round": 0,
            "asked": [],  # groups of questions: ids, and whose plain rollouts they are
            "varied": False,  # whether the last fit knew enough of either side of a constraint
            "gaps": [],  # (costly, predicted) of groups of labels
            "candidates": [],
            "rounds": [],
            "rows": 0,
            "seconds": 0.0,
        }

    def go_on(self) -> Result:
        """From the last saved stage to the end; raises LabelsNeeded where people have to label first."""
        self._load()
        waits = self.notes["stage"] == "explore" and self.rule is None  # for people, before anything is planned
        if self.notes["stage"] in ("explore", "round") and not waits:
            self.rungs.prepare()
        stages = {"explore": self._explore, "round": self._round, "polish": self._polish, "check": self._check}
        while self.notes["stage"] in stages:
            began = time.perf_counter()
            stages[self.notes["stage"]]()
            self.notes["seconds"] += time.perf_counter() - began
        return self._finish()

    def _explore(self) -> None:
        self.show("exploring", {})
        questions = first_questions(self.model, self.config.ask, self.config.explored, self._key(EXPLORING))
        self.notes["stage"] = "round"
        self._ask([(source, None, part) for source, part in questions])
        self._save()

    def _round(self) -> None:
        number = self.notes["round"]
        self._answered()
        began = time.perf_counter()
        known, report, tolerances, gap = self._learn(number)
        self.show("planning", {"round": number})
        rows = self.rungs.advance(number, self.safety, tolerances, self._lost())
        self._log(number, rows)
        for rung in range(RUNGS):
            self._keep(_round_file(number, rung), _of(self.rungs.policies, rung))
        if number == 0:
            self._keep("before.safetensors", _of(self.rungs.policies, RUNGS - 1))
        plain, others = round_questions(
            self.model,
            self.config.ask,
            self.rungs,
            self.safety,
            known,
            self.config.asked(number),
            number / self.config.rounds,
            jax.random.fold_in(self._key(ASKING), number),
        )
        groups = [(f"round {number}, rung {rung}", rung, part) for rung, part in enumerate(plain)]
        self._ask([*groups, (f"round {number}, around", None, others)])
        self._note_round(number, rows, tolerances, gap, report, time.perf_counter() - began)
        self.notes |= {"round": number + 1, "stage": "round" if number + 1 < self.config.rounds else "polish"}
        self._save()

    def _polish(self) -> None:
        """The last fit, and the last planning against it; every round and every test gives a candidate a rung."""
        number = self.notes["round"]
        self._answered()
        began = time.perf_counter()
        _, report, tolerances, gap = self._learn(number)
        self.notes["candidates"] = []
        for earlier in range(number):
            self._reconsider(earlier)
        for rows, policies in self.rungs.polish(self.safety, tolerances, self._lost()):
            self.show("polishing", {"epoch": rows[0]["epoch"]})
            self._log(number, rows)
            for rung, row in enumerate(rows):
                file = f"polished-{row['epoch']}-rung-{rung}.safetensors"
                self._keep(file, _of(policies, rung))
                self._propose(file, row)
        self._note_round(number, rows, tolerances, gap, report, time.perf_counter() - began)
        names = [*self.model.spec.state.names, *self.model.spec.action.names]
        about = {"labels": self.labels_used}
        save_safety(self.run.target("safety.safetensors"), self.safety, self.store.scale, names, about)
        self.notes["stage"] = "check"
        self._save()

    def _reconsider(self, number: int) -> None:
        """The policies of an earlier round as candidates: today's prediction, and the labels that they had then."""
        files = [_round_file(number, rung) for rung in range(RUNGS)]
        kept = [load_policy(self.run.path / file, self.model, self.safety) for file in files]
        rows = self.rungs.predict(jax.tree.map(lambda *leaves: np.stack(leaves), *kept), self.safety)
        for rung, (file, row) in enumerate(zip(files, rows, strict=True)):
            labelled = [i for g in self.notes["asked"] if (g["round"], g["rung"]) == (number, rung) for i in g["ids"]]
            self._propose(file, row, labelled)

    def _propose(self, file: str, row: dict[str, Any], labelled: Sequence[int] = ()) -> None:
        """Add a candidate, given the labelled rollouts that it has already."""
        none = [0.0] * len(self.constraints)
        candidate = Candidate(file, row["mean_return"], row["mean_costs"], 0, none, row["mean_return_deviation"])
        if labelled:
            category_of = resolve(self.store.log(), "newest")
            candidate.add(cost_matrix(self.constraints).T[[category_of[i] for i in labelled]])
        self.notes["candidates"].append(asdict(candidate))

    def _check(self) -> None:
        """Labels of their own for the candidate that would be chosen, then for its challengers, a block at a time."""
        self._answered()
        left = self.config.labels - self.labels_used
        index = self._unchecked()
        if left <= 0 or index is None:
            self.notes["stage"] = "audit"
        else:
            self.show("checking", {"candidates": len(self.notes["candidates"]), "left": left})
            count = min(left, max(self.config.checked // CHECKS, 1))
            key = jax.random.fold_in(self._key(CHECKING), len(self.notes["asked"]))
            policies = jax.tree.map(lambda leaf: leaf[None], self.policy_of(index))
            questions = jax.tree.map(lambda leaf: leaf[0], plain_rollouts(self.model, policies, count, key))
            self._ask([(f"check of candidate {index}", None, questions)], candidate=index)
        self._save()

    def _finish(self) -> Result:
        """Audit favourites until one is certified; write the answer."""
        began = time.perf_counter()
        self.show("auditing", {})
        audit = audit_until_certified(
            Auditor(self.ledger, self.model, self.constraints, self.rule, self.store),
            self.config.audits,
            self._favourite,
            lambda index: self.run.path / self.notes["candidates"][index]["file"],
            lambda index: self.policy_of(index).mean(),
            seed=self.seed,
            most=self.config.rollouts,
            promised=self.config.confidence,
            show=lambda audit: self.show("audited", {"audit": audit.number, "status": audit.status}),
        )
        assert audit.candidate is not None
        self._keep("policy.safetensors", self.policy_of(audit.candidate))
        return audited_result(
            audit,
            self.ledger.audits,
            model=self.model.spec.name,
            labels_used=self.labels_used,
            seconds=self.notes["seconds"] + time.perf_counter() - began,
            seed=self.seed,
            method="default",
            harmless_return=best_harmless(self.constraints, *self._labelled()),
            candidate=self.notes["candidates"][audit.candidate],
        )

    def _learn(self, number: int) -> tuple[Trajectory, Any, np.ndarray, float]:
        """Fit to all labels so far; what they are, how good the fit is, the rungs' tolerances, and the gap."""
        known, categories = self._labelled()
        self.show("fitting", {"round": number, "labels": len(categories)})
        first = not self.notes["varied"]
        config = replace(
            fit_settings(self.rungs.kind),
            steps=self.config.first_fit if first else self.config.later_fit,
            held_out=0.15,
            patience=8,
            batch=min(100, max(STEPS_READ // self.model.spec.horizon, 10)),
        )
        if not first:
            config = replace(config, learning_rate=config.learning_rate / 2)
        key = jax.random.fold_in(self._key(FITTING), number)
        start = self.unfitted if first else self.safety
        self.safety, report = fit(start, known, categories, config, key, room=self.config.labels)
        gap = self._optimism()
        tolerances = rungs(self.constraints, self.aims, number / self.config.rounds, gap)
        both_sides = varied(self.constraints, categories)
        self.notes["varied"] = bool(both_sides.any())
        return known, report, np.where(both_sides[None, :], tolerances, 1.0), gap

    def _lost(self) -> bool:
        """Whether the last round could not bring a rung near its tolerance."""
        rungs = self.notes["rounds"][-1]["rungs"] if self.notes["rounds"] else []
        return any(np.any(rung["costs"] > mendable(np.array(rung["tolerance"]))) for rung in rungs)

    def _log(self, number: int, rows: list[dict[str, Any]]) -> None:
        self.run.append_metrics([{"round": number, **row} for row in rows])
        self.notes["rows"] += len(rows)

    def _note_round(
        self, number: int, rows: list[dict[str, Any]], tolerances: np.ndarray, gap: float, report: Any, seconds: float
    ) -> None:
        middle = rows[SHOWN]
        note = {
            "round": number,
            "labels": self.labels_used,
            "asked": len({i for group in self.notes["asked"] if group["round"] == number for i in group["ids"]}),
            "return": middle["mean_return"],
            "predicted": middle["mean_predicted"],
            "labelled": None,
            "margin": float(1.0 - tolerances[SHOWN, 0] / max(self.constraints[0].tolerance, 1e-9)),
            "optimism": gap,
            "rungs": [
                {"tolerance": tolerance.tolist(), "return": row["mean_return"], "costs": row["mean_costs"]}
                for tolerance, row in zip(tolerances, rows, strict=True)
            ],
            "accuracy": report.scores.accuracy,
            "log_loss": report.scores.log_loss,
            "ece": report.scores.calibration_error,
            "seconds": seconds,
            "feasible": middle["feasible"],
        }
        self.notes["rounds"].append(note)
        self.show("round", note)

    def _ask(self, groups: list[tuple[str, int | None, Trajectory]], candidate: int | None = None) -> None:
        """Put questions into the store; a rule answers at once."""
        number = self.notes["round"]
        for source, rung, questions in groups:
            ids = self.store.add(questions, policy=source, round=number, seed=self.seed).ids.tolist()
            self.notes["asked"].append(
                {"ids": ids, "round": number, "rung": rung, "candidate": candidate, "counted": False}
            )
        if self.rule is not None:
            category_of = resolve(self.store.log(), "newest")
            new = [i for i in dict.fromkeys(self._asked_ids()) if i not in category_of]
            if new:
                self.store.label(new, np.asarray(self.rule.label(self.store.get(new))), annotator=self.rule.name)

    def _answered(self) -> None:
        """All questions have labels, and the labels of plain rollouts are counted for their candidates."""
        category_of = resolve(self.store.log(), "newest")
        missing = [i for i in dict.fromkeys(self._asked_ids()) if i not in category_of]
        if missing:
            raise LabelsNeeded(missing)
        weights = cost_matrix(self.constraints).T
        for group in self.notes["asked"]:
            if group["counted"] or (group["rung"] is None and group["candidate"] is None):
                continue
            categories = [category_of[i] for i in group["ids"]]
            costs = weights[categories]
            if group["candidate"] is None:
                note = self.notes["rounds"][group["round"]]
                predicted = note["rungs"][group["rung"]]["costs"]
                if group["rung"] == SHOWN:
                    note["labelled"] = (np.bincount(categories, minlength=len(weights)) / len(costs)).tolist()
            else:
                candidate = Candidate(**self.notes["candidates"][group["candidate"]])
                predicted = candidate.predicted_costs
                candidate.add(costs)
                self.notes["candidates"][group["candidate"]] = asdict(candidate)
            self.notes["gaps"].append([float(costs.sum()), float(len(costs) * np.sum(predicted))])
            group["counted"] = True

    def _labelled(self) -> tuple[Trajectory, np.ndarray]:
        """Every trajectory that was asked about, in that order, and its category."""
        ids = list(dict.fromkeys(self._asked_ids()))
        category_of = resolve(self.store.log(), "newest")
        missing = [i for i in ids if i not in category_of]
        if missing:
            raise LabelsNeeded(missing)
        return self.store.get(ids), np.array([category_of[i] for i in ids], np.int32)

    def _asked_ids(self) -> list[int]:
        return [i for group in self.notes["asked"] for i in group["ids"]]

    @property
    def labels_used(self) -> int:
        """Trajectories whose label had an influence on the answer."""
        return len(set(self._asked_ids()))

    def _candidates(self) -> list[Candidate]:
        return [Candidate(**candidate) for candidate in self.notes["candidates"]]

    def _unchecked(self) -> int | None:
        """The candidate that labels should go to: the favourite until it has enough, then who might replace it."""
        candidates, index = self._candidates(), self._favourite()
        if index is None or candidates[index].labels < ENOUGH:
            return index
        return challenger(candidates, self._next_aims(), self._optimism(), index, ENOUGH)

    def _favourite(self) -> int | None:
        """The candidate to audit next; None when all have been."""
        audits = self.ledger.of_run
        tried = [audit.candidate for audit in audits]
        rollouts = sum(audit.rollouts for audit in audits)
        return favourite(self._candidates(), self._next_aims(), self._optimism(), tried, rollouts)

    def _optimism(self) -> float:
        """By how much true costs exceed predicted ones, from labels and audits."""
        return optimism([*self.notes["gaps"], *(self._audited_gap(audit) for audit in self.ledger.of_run)][-RECENT:])

    def _audited_gap(self, audit: Audit) -> tuple[float, float]:
        """(costly, predicted) of an audit's rollouts."""
        if audit.figures is None or audit.candidate is None:
            return 0.0, 0.0
        shares = np.array([audit.figures.side_effects[name] for name in self.store.scale.categories])
        costly = float(cost_matrix(self.constraints).dot(shares).sum()) * audit.rollouts
        predicted = np.sum(self.notes["candidates"][audit.candidate]["predicted_costs"])
        return costly, float(audit.rollouts * predicted)

    def _next_aims(self) -> np.ndarray:
        """For the next audit. Where others were refused, the last is no time to try for the most return."""
        audit = len(self.ledger.of_run) + 1
        aims = certifiable_costs(self.constraints, self.config.rollouts, self.config.confidence, audit)
        return aims * (LAST_AIM if 1 < audit == self.config.audits else 1.0)

    def policy_of(self, index: int) -> Any:
        return load_policy(self.run.path / self.notes["candidates"][index]["file"], self.model, self.safety)

    def _keep(self, file: str, policy: Any) -> None:
        save_policy(self.run.target(file), policy, self.reference)

    def _save(self) -> None:
        self.run.write_lines("rounds.jsonl", self.notes["rounds"])
        self.run.save_state((self.rungs.state, self.safety), self.notes)

    def _load(self) -> None:
        saved = self.run.load_state((self.rungs.state, self.safety))
        if saved is not None:
            (self.rungs.state, self.safety), notes = saved
            check_notes(notes, len(self.constraints), self.config.rounds, str(self.run.path / "state.safetensors"))
            self.notes |= {name: notes[name] for name in self.notes if name in notes}
            if notes.get("audits") and not self.ledger.audits:  # an earlier version kept them here until the end
                self.run.write_json("audits.json", notes["audits"])
        self.run.cut_metrics(self.notes["rows"])

    def _key(self, stream: int) -> jax.Array:
        return jax.random.fold_in(self.key, stream)


def _of(policies: Any, rung: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[rung], policies)


def _round_file(number: int, rung: int) -> str:
    return f"round-{number}-rung-{rung}.safetensors"


def best_harmless(constraints: Sequence[Constraint], known: Trajectory, categories: np.ndarray) -> float | None:
    """What the best labelled trajectories that cost nothing earned, in the mean: what a policy may hope for."""
    free = cost_matrix(constraints)[:, categories].sum(axis=0) == 0
    earned = np.where(np.asarray(known.mask), np.asarray(known.rewards), 0.0).sum(axis=1)[free]
    return float(np.sort(earned)[-FEW:].mean()) if len(earned) >= FEW else None


def varied(constraints: Sequence[Constraint], categories: np.ndarray) -> Bool[np.ndarray, " constraint"]:
    """Of which constraints labels show both sides. Of one side alone nothing can be learned, so plans go without the
    constraint; and who learned from one side only is too sure of itself to learn more, so the next fit begins anew."""
    costly = cost_matrix(constraints)[:, categories].sum(axis=1)
    return np.minimum(costly, len(categories) - costly) >= FEW
