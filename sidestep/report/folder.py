"""What a run's folder holds, read part by part: a part that is not there is empty, one that is bad says why."""

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from sidestep.certification.ledger import Ledger
from sidestep.certification.records import Audit, Result, result_from_json
from sidestep.core.constraints import Constraint, Scale, parse_constraints
from sidestep.core.model import Model, Policy, Trajectory
from sidestep.labels.experts import Expert, expert_of
from sidestep.labels.store import Source, Store
from sidestep.models import load_model
from sidestep.report.kept import Kept, read_kept
from sidestep.runs.folder import LABELS, Run
from sidestep.runs.inputs import RunFiles
from sidestep.safety.base import SafetyModel, predict
from sidestep.safety.io import Scores, load_safety, safety_header

Row = dict[str, Any]


class Folder:
    """A run of one seed, or the folder above the runs of several."""

    def __init__(self, path: Path, trust: bool = False, above: "Folder | None" = None) -> None:
        """`trust`: code that came with the folder may be run where the records do not suffice."""
        self.path, self.trust, self.above = path, trust, above
        self.run = Run(path)
        inner = [] if above else [one for one in path.glob("seed-*") if (one / "config.json").is_file()]
        self.seeds = [Folder(one, trust, self) for one in sorted(inner, key=_number_of)]
        if self.run.has("config.json") or not self.seeds:
            self.config: Row = Run.open(path).config
        else:
            self.config = self.seeds[0].config

    @cached_property
    def result(self) -> Result | None:
        if not self.run.has("result.json"):
            return None
        return result_from_json(self.run.read_json("result.json"), str(self.path / "result.json"))

    @cached_property
    def audits(self) -> tuple[Audit, ...]:
        return Ledger(self.run).audits

    @cached_property
    def metrics(self) -> list[Row]:
        return self.run.metrics()

    @cached_property
    def rounds(self) -> list[Row]:
        return self.run.rounds()

    @property
    def histories(self) -> list[list[Row]]:
        """The rows of each seed, in the order of time."""
        rows = self.metrics
        if not rows and self.seeds:
            return [one.metrics for one in self.seeds if one.metrics]
        seeds = sorted({row.get("seed_index", 0) for row in rows})
        return [[row for row in rows if row.get("seed_index", 0) == seed] for seed in seeds]

    @cached_property
    def categories(self) -> tuple[str, ...]:
        return tuple(self.config["categories"])

    @cached_property
    def constraints(self) -> tuple[Constraint, ...]:
        return parse_constraints(self.config.get("constraints") or (), Scale(self.categories))

    @cached_property
    def model(self) -> Model:
        """One object for all seeds, so that what is compiled for it is compiled once."""
        if self.above:
            return self.above.model
        return load_model(self.config.get("model", ""), files=self.files)

    @property
    def files(self) -> RunFiles:
        own = self.run if self.run.has("config.json") else self.seeds[0].run
        return own.files(self.trust)

    @cached_property
    def kept(self) -> Kept | None:
        """What the run kept for its pictures; None where it kept nothing, or of another policy."""
        if self.seeds:
            return self.seeds[0].kept
        return read_kept(self.path)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the entries of the model's state."""
        return self.kept.names if self.kept else self.model.spec.state.names

    @property
    def notes(self) -> tuple[str, ...]:
        """What the model says of itself."""
        return self.kept.notes if self.kept else self.model.spec.notes

    @cached_property
    def expert(self) -> Expert:
        """Who labels."""
        return expert_of(self.config["rule"], self.config["people"], self.model, Scale(self.categories), self.files)

    @cached_property
    def safety(self) -> SafetyModel | None:
        file = self._file("safety.safetensors")
        return load_safety(file) if file else None

    @cached_property
    def fit_scores(self) -> Scores | None:
        """How good the safety model was on what its fit held out, by its own file."""
        file = self._file("safety.safetensors")
        about = safety_header(file).about if file else None
        return about.fit.scores if about and about.fit else None

    def policy(self, name: str) -> Policy | None:
        """The mean action of the policy in this file."""
        from sidestep.policies.files import load_policy

        file = self.path / name
        return load_policy(file, self.model, self.safety).mean() if file.is_file() else None

    @cached_property
    def labels(self) -> tuple[np.ndarray, Trajectory, np.ndarray, list[Source]] | None:
        """Ids, trajectories, categories and sources of all that has a label; None without a store or labels."""
        file = self.path / LABELS
        if not file.is_file():
            return None
        with Store.open(file, scale=Scale(self.categories)) as store:
            ids, trajectories, categories = store.labelled()
            return (ids, trajectories, categories, store.sources(ids.tolist())) if len(ids) else None

    @cached_property
    def predicted(self) -> np.ndarray:
        """What the safety model says of these trajectories: (trajectory, category) probabilities."""
        assert self.safety is not None
        assert self.labels is not None
        return predict(self.safety, self.labels[1])

    def _file(self, name: str) -> Path | None:
        """In this folder, or for the folder of several seeds in that of the first."""
        folders = [self.path, *(one.path for one in self.seeds[:1])]
        return next((folder / name for folder in folders if (folder / name).is_file()), None)


def _number_of(path: Path) -> tuple[int, str]:
    tail = path.name.removeprefix("seed-")
    return (int(tail) if tail.isdigit() else -1, tail)
