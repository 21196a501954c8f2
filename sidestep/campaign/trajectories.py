"""The campaign over trajectories: rounds of fit, plan, ask; then check, choose and audit.

    first           explorers are labelled
    each round      fit the safety model to all labels so far, plan on the rungs of the ladder, ask about the policies
    at the end      predict every candidate with the last safety model, check the best on rollouts of their own, audit

A stage is a function of the seed, of what the stage before left and of the labels given so far. What it leaves is one
file, written when its questions are in the store: a campaign that is killed, or that waits for people, goes on from
there as if nothing had happened, and never asks twice.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sidestep.answers import save_policy
from sidestep.audits import split_confidence
from sidestep.campaign.audit import Auditor, audited, costly_of
from sidestep.campaign.candidates import Candidate, favourite, optimism
from sidestep.campaign.config import CampaignConfig
from sidestep.campaign.ladder import RUNGS, certifiable, rungs
from sidestep.campaign.questions import first_questions, plain_rollouts, round_questions
from sidestep.campaign.rungs import GradientRungs, Rungs, TableRungs
from sidestep.campaign.waiting import Waiting
from sidestep.constraints import Constraint
from sidestep.labels.rules import Rule
from sidestep.labels.store import Store
from sidestep.labels.votes import resolve
from sidestep.model import Model, Trajectory
from sidestep.planning.config import PlanConfig
from sidestep.runs import Run
from sidestep.safety.config import fit_settings
from sidestep.safety.fit import fit
from sidestep.safety.io import make_safety, save_safety
from sidestep.trees import load_tree

EXPLORING, FITTING, PLANNING, ASKING, CHECKING = range(5)  # streams of keys that never meet
CAMPAIGN = 0xCA49  # folded into a seed's key: see certify.CERTIFICATION
RECENT = 3 * RUNGS  # groups of labels from which the gap between predicted and true costs is read
KEPT = 3  # last rounds whose policies are candidates, the final one among them
CHECKS = 4  # blocks of labels in which candidates are checked
ENOUGH = 120  # labels of its own after which a favourite needs no further check

Show = Callable[[str, dict[str, Any]], None]


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
        self.key = jax.random.fold_in(jax.random.key(seed), CAMPAIGN)
        level = split_confidence(config.confidence, 1)
        joint = 1.0 - (1.0 - level) / len(constraints)
        self.aims = np.array([certifiable(constraint, config.rollouts, joint) for constraint in constraints])
        exact = planning.reward_gradient == "exact"
        sizes = model.spec.state.size, model.spec.action.size, len(store.scale)
        shape = {"hidden": (64, 64), "dropout": 0.0} if exact else {"units": config.units}
        kind = "markov" if exact else "hazard"
        self.safety: Any = make_safety(kind, *sizes, key=self._key(FITTING), members=config.members, **shape)
        epochs = config.round_epochs
        planning = replace(planning, epochs=epochs * (config.rounds + 1), test_every=epochs, search_population=1000)
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
                label,
            )
        )
        self.notes: dict[str, Any] = {
            "stage": "explore",
            "round": 0,
            "asked": [],  # groups of questions: ids, and whose plain rollouts they are
            "gaps": [],  # (costly, predicted) of groups of labels
            "candidates": [],
            "rounds": [],
            "rows": 0,
            "audits": [],
            "tried": [],
            "seconds": 0.0,
        }

    def go_on(self) -> dict[str, Any]:
        """From the last saved stage to the end, and the result; raises Waiting where people have to label first."""
        self._load()
        stages = {"explore": self._explore, "round": self._round, "check": self._check}
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
        last = number == self.config.rounds
        self._answered()
        began = time.perf_counter()
        known, categories = self._labelled()
        report = self._fit(number, known, categories)
        gap = optimism(self.notes["gaps"][-RECENT:])
        tolerances = rungs(self.constraints, self.aims, number / self.config.rounds, gap)
        self.show("planning", {"round": number})
        rows = self.rungs.advance(number, self.safety, tolerances)
        self.run.append_metrics([{"round": number, **row} for row in rows])
        self.notes["rows"] += len(rows)
        for rung, row in enumerate(rows):
            self._add_candidate(number, rung, row)
        if not last:
            progress = number / self.config.rounds
            plain, others = round_questions(
                self.model,
                self.config.ask,
                self.rungs,
                self.safety,
                known,
                self.config.asked(number),
                progress,
                jax.random.fold_in(self._key(ASKING), number),
            )
            groups = [(f"round {number}, rung {rung}", rung, part) for rung, part in enumerate(plain)]
            self._ask([*groups, (f"round {number}, around", None, others)])
        self._note_round(number, rows, tolerances, gap, report, time.perf_counter() - began)
        self.notes |= {"round": number + 1, "stage": "check" if last else "round"}
        if last:
            self._predict_candidates()
        self._save()

    def _check(self) -> None:
        """Labels of their own for the candidates that would be chosen, a block at a time."""
        self._answered()
        left = self.config.labels - self.labels_used
        index = self._favourite()
        candidate = self._candidates()[index]
        if left <= 0 or candidate.labels >= ENOUGH:
            self.notes["stage"] = "audit"
        else:
            self.show("checking", {"candidates": len(self.notes["candidates"]), "left": left})
            count = min(left, max(self.config.checked // CHECKS, 1))
            key = jax.random.fold_in(self._key(CHECKING), len(self.notes["asked"]))
            policies = jax.tree.map(lambda leaf: leaf[None], self.policy_of(index))
            questions = jax.tree.map(lambda leaf: leaf[0], plain_rollouts(self.model, policies, count, key))
            self._ask([(f"check of candidate {index}", None, questions)], candidate=index)
        self._save()

    def _finish(self) -> dict[str, Any]:
        """Audit favourites until one is certified; write the answer."""
        began = time.perf_counter()
        self.show("auditing", {})
        rollouts, confidence = self.config.rollouts, self.config.confidence
        auditor = Auditor(self.model, self.rule, self.constraints, self.store, self.seed, rollouts, confidence)

        def learn(index: int, result: dict[str, Any]) -> None:
            candidate = self._candidates()[index]
            costly = costly_of(self.constraints, result, self.store.scale.categories)
            expected = result["rollouts"] * np.sum(candidate.predicted_costs)
            self.notes["gaps"].append([float(costly.sum()), float(expected)])
            self.notes["tried"].append(index)
            self._save()
            self.show("audited", result)

        index, result = audited(
            auditor,
            self.notes["audits"],
            self.config.audits,
            self._favourite,
            lambda index: self.policy_of(index).mean(),
            learn,
        )
        self.notes["seconds"] += time.perf_counter() - began
        save_policy(self.run.path / "policy.safetensors", self.policy_of(index), self.reference)
        names = [*self.model.spec.state.names, *self.model.spec.action.names]
        about = {"labels": self.labels_used}
        save_safety(self.run.path / "safety.safetensors", self.safety, self.store.scale, names, about)
        self.run.write_json("audits.json", self.notes["audits"])
        result |= {"labels_used": self.labels_used, "seconds": self.notes["seconds"], "seed": self.seed}
        return result | {"candidate": self.notes["candidates"][index]}

    def _fit(self, number: int, known: Trajectory, categories: np.ndarray) -> Any:
        config = replace(
            fit_settings(self.rungs.kind),
            steps=self.config.later_fit if number else self.config.first_fit,
            held_out=0.15,
            patience=8,
        )
        if number:
            config = replace(config, learning_rate=config.learning_rate / 2)
        self.show("fitting", {"round": number, "labels": len(categories)})
        key = jax.random.fold_in(self._key(FITTING), number)
        self.safety, report = fit(self.safety, known, categories, config, key, room=self.config.labels)
        return report

    def _add_candidate(self, number: int, rung: int, row: dict[str, Any]) -> None:
        save_policy(self._file(number, rung), self._rung_policy(rung), self.reference)
        if number == 0 and rung == RUNGS - 1:
            save_policy(self.run.path / "before.safetensors", self._rung_policy(rung), self.reference)
        costs = [0.0] * len(self.constraints)
        candidate = Candidate(number, rung, row["mean_return"], row["mean_costs"], 0, costs)
        self.notes["candidates"].append(asdict(candidate))

    def _note_round(
        self, number: int, rows: list[dict[str, Any]], tolerances: np.ndarray, gap: float, report: Any, seconds: float
    ) -> None:
        middle = rows[RUNGS // 2]
        note = {
            "round": number,
            "labels": self.labels_used,
            "asked": len({i for group in self.notes["asked"] if group["round"] == number for i in group["ids"]}),
            "return": middle["mean_return"],
            "predicted": middle["mean_predicted"],
            "labelled": None,
            "margin": float(1.0 - tolerances[RUNGS // 2, 0] / max(self.constraints[0].tolerance, 1e-9)),
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

    def _predict_candidates(self) -> None:
        """What the last safety model says of all kept candidates, on rollouts that need no label."""
        kept = self.config.rounds + 1 - KEPT
        self.notes["candidates"] = [c for c in self.notes["candidates"] if c["round"] >= kept]
        for start in range(0, len(self.notes["candidates"]), RUNGS):
            group = self.notes["candidates"][start : start + RUNGS]
            policies = [self._load_policy(c["round"], c["rung"]) for c in group]
            stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *policies)
            returns, costs = self.rungs.predict(stacked, self.safety)
            for candidate, value, cost in zip(group, returns, costs, strict=True):
                candidate |= {"predicted_return": float(value), "predicted_costs": cost.tolist()}

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
            raise Waiting(missing)
        weights = np.array([constraint.cost_weights for constraint in self.constraints]).T
        for group in self.notes["asked"]:
            whose = group["candidate"]
            if group["counted"]:
                continue
            if group["rung"] is not None:
                whose = next(
                    place
                    for place, c in enumerate(self.notes["candidates"])
                    if (c["round"], c["rung"]) == (group["round"], group["rung"])
                )
            if whose is None:
                continue
            costs = weights[[category_of[i] for i in group["ids"]]]
            candidate = Candidate(**self.notes["candidates"][whose])
            expected = len(costs) * np.sum(candidate.predicted_costs)
            self.notes["gaps"].append([float(costs.sum()), float(expected)])
            candidate.add(costs)
            self.notes["candidates"][whose] = asdict(candidate)
            group["counted"] = True

    def _labelled(self) -> tuple[Trajectory, np.ndarray]:
        """Every trajectory that was asked about, in that order, and its category."""
        ids = list(dict.fromkeys(self._asked_ids()))
        category_of = resolve(self.store.log(), "newest")
        return self.store.get(ids), np.array([category_of[i] for i in ids], np.int32)

    def _asked_ids(self) -> list[int]:
        return [i for group in self.notes["asked"] for i in group["ids"]]

    @property
    def labels_used(self) -> int:
        """Trajectories whose label had an influence on the answer."""
        return len(set(self._asked_ids()))

    def _candidates(self) -> list[Candidate]:
        return [Candidate(**candidate) for candidate in self.notes["candidates"]]

    def _favourite(self) -> int:
        gap = optimism(self.notes["gaps"][-RECENT:])
        return favourite(self._candidates(), self.aims, gap, self.notes["tried"])

    def policy_of(self, index: int) -> Any:
        candidate = self.notes["candidates"][index]
        return self._load_policy(candidate["round"], candidate["rung"])

    def _load_policy(self, number: int, rung: int) -> Any:
        return load_tree(self._file(number, rung), self._rung_policy(rung))

    def _rung_policy(self, rung: int) -> Any:
        return jax.tree.map(lambda leaf: leaf[rung], self.rungs.policies)

    def _file(self, number: int, rung: int) -> Any:
        return self.run.path / f"round-{number}-rung-{rung}.safetensors"

    def _save(self) -> None:
        self.run.write_lines("rounds.jsonl", self.notes["rounds"])
        self.run.save_state((self.rungs.state, self.safety), self.notes)

    def _load(self) -> None:
        saved = self.run.load_state((self.rungs.state, self.safety))
        if saved is not None:
            (self.rungs.state, self.safety), notes = saved
            self.notes |= {name: notes[name] for name in self.notes}
        self.run.cut_metrics(self.notes["rows"])

    def _key(self, stream: int) -> jax.Array:
        return jax.random.fold_in(self.key, stream)
