"""What a run found, as one object: `sidestep.solve(...)` and `sidestep.load("runs/x")` give it."""

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from sidestep.certification.records import Result, result_from_json
from sidestep.certification.words import certificate_lines
from sidestep.core.errors import InputError
from sidestep.deploy.acting import Monitor, PolicyRunner
from sidestep.deploy.export import export_policy
from sidestep.deploy.tables import Table
from sidestep.labels.experts import Expert, expert_from
from sidestep.labels.store import Store
from sidestep.models import load_model
from sidestep.report.finding import Finding, finding
from sidestep.report.folder import Folder
from sidestep.report.html import write_report
from sidestep.report.notebook import answer_html
from sidestep.report.scenes import before_and_after
from sidestep.runs.loaded import LoadedRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Answer", "Monitor", "PolicyRunner", "load"]


class Answer(LoadedRun):
    """A run and what it found. The model is loaded when it is first needed; all else is read from the folder."""

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self.run.path

    @cached_property
    def _records(self) -> Folder:
        return Folder(self.path)

    @cached_property
    def certificate(self) -> Result:
        """What the audit found: `certified`, the bounds of each constraint, the return, the labels behind them."""
        if not self.run.has("result.json"):
            raise InputError("this run has not finished; go on with `sidestep resume`", place=str(self.path))
        return result_from_json(self.result, str(self.path / "result.json"))

    @property
    def certified(self) -> bool:
        """Every constraint is proven."""
        return self.certificate.certified

    @property
    def finding(self) -> Finding:
        """The answer in one sentence."""
        return finding(self.certificate, self.scale, self._records.kept)

    @cached_property
    def policy(self) -> PolicyRunner:
        """The policy by its mean action; the same one every time, since it keeps its clock and memory."""
        return PolicyRunner(self.policy_of(self.model))

    def monitor(self, threshold: float = 0.05) -> Monitor:
        """A monitor for live trajectories, which alarms above this risk of anything but the best category."""
        if self.safety is None:
            raise InputError("this run has no safety model to monitor with", place=str(self.path))
        return Monitor(self.safety, self.categories, threshold)

    @property
    def history(self) -> Table:
        """How it went: one row per round of a campaign, or one per test of a planning."""
        if self.config.kind == "campaign":
            return _rounds(self._records, self.categories)
        columns = ("seed", "epoch", "return", "feasible", *(f"cost of {text}" for text in self.config.constraints))
        rows = [
            (self.config.seed + row.seed_index, row.epoch, row.mean_return, row.feasible, *(row.mean_costs or ()))
            for row in self._records.metrics
        ]
        return Table(columns, [(*row, *[None] * (len(columns) - len(row))) for row in rows])

    @property
    def labels(self) -> Table:
        """Every label that was given: of which trajectory, what, by whom, and where the trajectory came from."""
        columns = ("trajectory", "category", "annotator", "from", "round")
        if not Store.is_made(self.store_path):
            return Table(columns, [])
        with Store.open(self.store_path, scale=self.scale) as store:
            log = store.log()
            ids = [one.trajectory for one in log]
            sources = dict(zip(ids, store.sources(ids), strict=True))
        rows = [
            (
                one.trajectory,
                "cannot tell" if one.category is None else self.categories[one.category],
                one.annotator,
                sources[one.trajectory].policy,
                sources[one.trajectory].round,
            )
            for one in log
        ]
        return Table(columns, rows)

    def plot(self, view: int = 0) -> "Figure":
        """Trajectories before and after, coloured by category, in this one of the model's views."""
        return before_and_after(self._records, view)

    def report(self) -> Path:
        """Write the HTML report into the run's folder."""
        return write_report(self.path)

    def export(self, path: str | Path) -> Path:
        """Write the policy as a Python file that needs only NumPy, or as ONNX: by the ending .py or .onnx."""
        return export_policy(self.policy_of(self.model), path)

    def __repr__(self) -> str:
        if not self.run.has("result.json"):
            return f"Answer({self.config.model}: not finished, {self.path})"
        lines = [f"{self.config.model}: {self.finding.sentence}", *certificate_lines(self.certificate)]
        return "\n".join([*lines, f"  {labels_in_words(self.certificate)}; the run is in {self.path}"])

    def _repr_html_(self) -> str:
        return answer_html(self._records)


def labels_in_words(result: Result) -> str:
    """All labels, those of the audits too."""
    used = "an unknown number of" if result.labels_used is None else f"{result.labels_used:,}"
    audits = f"{result.audits} audit{'' if result.audits == 1 else 's'}"
    marks = f" with {result.marks_used:,} marks" if result.marks_used else ""
    return f"{used} labels{marks} used, {result.audit_labels:,} more for {audits}, {result.seconds:.0f} s"


def _rounds(records: Folder, categories: tuple[str, ...]) -> Table:
    shares = [f"predicted {name}" for name in categories]
    columns = ("round", "labels", "new", "accuracy", "return", "feasible", *shares, "seconds")
    rows = [
        (
            one.round,
            one.labels,
            one.asked,
            one.accuracy,
            one.mean_return,
            one.feasible,
            *(one.predicted or [None] * len(categories)),
            one.seconds,
        )
        for one in records.rounds
    ]
    return Table(columns, rows)


def load(path: str | Path, trust: bool = False, *, model: object = None, expert: object = None) -> Answer:
    """The run in this folder, in a fresh process, by its path alone.

    What needs the model (policy, export) runs its code, where it has any. Your own runs do so without more; for code
    that came with somebody else's folder say `trust=True` once you have read it. A run whose model or expert was a
    Python object needs that object again.
    """
    loaded_model = None if model is None else load_model(model)
    who: Expert | None = None
    if expert is not None:
        who = expert_from(expert, loaded_model or Answer(path, trust).model)
    return Answer(path, trust, model=loaded_model, expert=who)
