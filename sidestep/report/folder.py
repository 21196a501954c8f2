"""What a run's folder holds, read part by part: a part that is not there is empty, one that is bad says why."""

from functools import cached_property
from pathlib import Path

import numpy as np

from sidestep.certification.ledger import Ledger
from sidestep.certification.records import Audit, Result, result_from_json
from sidestep.core.model import Model, Policy, Trajectory
from sidestep.labels.store import Source, Store
from sidestep.planning.rows import PlanRow
from sidestep.policies.files import load_policy
from sidestep.report.kept import Kept, read_kept
from sidestep.runs.folder import Run
from sidestep.runs.loaded import LoadedRun
from sidestep.runs.records import Round
from sidestep.safety.base import SafetyModel, predict
from sidestep.safety.io import Scores, load_safety, safety_header


class Folder(LoadedRun):
    """A run of one seed, or the folder above the runs of several."""

    def __init__(self, path: Path, trust: bool = False, above: "Folder | None" = None) -> None:
        """`trust`: code that came with the folder may be run where the records do not suffice."""
        inner = [] if above else [one for one in path.glob("seed-*") if (one / "config.json").is_file()]
        self.path, self.above = path, above
        self.seeds = [Folder(one, trust, self) for one in sorted(inner, key=_number_of)]
        own = (path / "config.json").is_file() or not self.seeds
        super().__init__(path if own else self.seeds[0].path, trust)
        self.run = Run(path)

    @cached_property
    def finished(self) -> Result | None:
        """The run's result, if it has one."""
        if not self.run.has("result.json"):
            return None
        return result_from_json(self.result, str(self.path / "result.json"))

    @cached_property
    def audits(self) -> tuple[Audit, ...]:
        return Ledger(self.run).audits

    @cached_property
    def metrics(self) -> list[PlanRow]:
        return self.run.metrics()

    @cached_property
    def rounds(self) -> list[Round]:
        return self.run.rounds()

    @property
    def histories(self) -> list[list[PlanRow]]:
        """The rows of each seed, in the order of time."""
        rows = self.metrics
        if not rows and self.seeds:
            return [one.metrics for one in self.seeds if one.metrics]
        return [[row for row in rows if row.seed_index == seed] for seed in sorted({row.seed_index for row in rows})]

    @cached_property
    def model(self) -> Model:
        """One object for all seeds, so that what is compiled for it is compiled once."""
        return self.above.model if self.above else super().model

    @cached_property
    def kept(self) -> Kept | None:
        """What the run kept for its pictures; None where it kept nothing, or of another policy."""
        return self.seeds[0].kept if self.seeds else read_kept(self.path)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the entries of the model's state."""
        return self.kept.names if self.kept else self.model.spec.state.names

    @property
    def notes(self) -> tuple[str, ...]:
        """What the model says of itself."""
        return self.kept.notes if self.kept else self.model.spec.notes

    @cached_property
    def safety(self) -> SafetyModel | None:
        file = self._safety_file
        return load_safety(file) if file else None

    @cached_property
    def scores(self) -> Scores | None:
        """How good the safety model's fit was, by its own file."""
        about = safety_header(self._safety_file).about if self._safety_file else None
        return about.fit.scores if about and about.fit else None

    @cached_property
    def pattern(self) -> str | None:
        """What the safety model learned, in words, by its own file."""
        about = safety_header(self._safety_file).about if self._safety_file else None
        return about.pattern if about else None

    def policy_in(self, name: str) -> Policy | None:
        """The mean action of the policy in this file."""
        file = self.path / name
        return load_policy(file, self.model, self.safety).mean() if file.is_file() else None

    @cached_property
    def labels(self) -> tuple[np.ndarray, Trajectory, np.ndarray, list[Source]] | None:
        """Ids, trajectories, categories and sources of all that has a label; None without a store or labels."""
        if not Store.is_made(self.store_path):
            return None
        with Store.open(self.store_path, scale=self.scale) as store:
            ids, trajectories, categories = store.labelled()
            return (ids, trajectories, categories, store.sources(ids.tolist())) if len(ids) else None

    @cached_property
    def predicted(self) -> np.ndarray:
        """What the safety model says of these trajectories: (trajectory, category) probabilities."""
        assert self.labels is not None
        assert self.safety is not None
        return predict(self.safety, self.labels[1])

    @property
    def _safety_file(self) -> Path | None:
        """In this folder, or for the folder of several seeds in that of the first."""
        files = [one / "safety.safetensors" for one in (self.path, *(one.path for one in self.seeds[:1]))]
        return next((file for file in files if file.is_file()), None)


def _number_of(path: Path) -> tuple[int, str]:
    tail = path.name.removeprefix("seed-")
    return (int(tail) if tail.isdigit() else -1, tail)
