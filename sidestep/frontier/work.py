"""The jobs of a sweep: rounds that all tolerances share, one run per tolerance, and exact optima."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from sidestep.campaign.campaign import open_campaign
from sidestep.campaign.config import CampaignConfig
from sidestep.campaign.records import State, read_state
from sidestep.certification.records import Result, result_to_json
from sidestep.cluster.jobs import LOG, Figures
from sidestep.core.constraints import Constraint, parse_constraints
from sidestep.core.errors import Infeasible
from sidestep.core.model import FiniteModel, is_finite
from sidestep.core.records import to_json
from sidestep.deploy.solve import work_on
from sidestep.finite.horizon import Limit, horizon_optimum
from sidestep.labels.experts import Expert
from sidestep.labels.packing import category_table
from sidestep.runs.folder import LABELS, Run
from sidestep.runs.loaded import LoadedRun
from sidestep.runs.records import Round
from sidestep.runtime.files import atomic_write, read_bytes

NOT_SHARED = ("config.json", "run.lock", "audits.json", "result.json", "report.html", "policy.safetensors")
CHECKED = 0.5  # of a campaign's labels for checking candidates: so many each point has for its own


@dataclass(frozen=True)
class SharedRounds:
    """The rounds of a campaign, with a bank of policies that spans all tolerances of the sweep."""

    folder: str  # a run that was begun

    def run(self, out: Path) -> Figures:
        loaded = LoadedRun(out / self.folder, trust=True)  # the user has just given the code
        with loaded.run.held(), open_campaign(loaded, _tell) as campaign:
            state = campaign.share()
        return {"labels": len(state.asked_ids), "files": files_of(out, self.folder)}


@dataclass(frozen=True)
class PointRun:
    """One run at one tolerance, from what was found before: the shared rounds, or the run at the tolerance before it.

    Without a `source` the run was begun already, and is the first of its kind.
    """

    folder: str
    constraints: tuple[str, ...]
    source: str = ""

    def run(self, out: Path) -> Figures:
        before = 0
        if self.source:
            source = Run.open(out / self.source)
            before = len(_state(source).asked_ids)
            if not (out / self.folder / "config.json").exists():
                fork(source, out / self.folder, self.constraints)
        (result,) = work_on(LoadedRun(out / self.folder, trust=True), _tell)
        return {
            "result": result_to_json(result),
            "new_labels": (result.labels_used or 0) - before,
            "files": files_of(out, self.folder),
        }


@dataclass(frozen=True)
class ExactOptimum:
    """The best return of a finite model within constraints on its runs, by the linear program."""

    folder: str  # a run that was begun, for its model and its rule
    constraints: tuple[str, ...]

    def run(self, out: Path) -> Figures:
        loaded = LoadedRun(out / self.folder, trust=True)
        model = loaded.model
        assert is_finite(model)
        limits = [limit_of(one) for one in parse_constraints(self.constraints, loaded.scale)]
        category = categories_of(model, loaded.expert)
        try:
            return {"value": horizon_optimum(model.finite, model.spec.horizon, category, limits).value}
        except Infeasible as error:
            return {"value": None, "reason": str(error)}


def categories_of(model: FiniteModel, expert: Expert) -> np.ndarray:
    """What the expert says of every pair (N, A)."""
    assert expert.label is not None
    return category_table(model.finite, expert.label)


def limit_of(constraint: Constraint) -> Limit:
    return Limit(tuple(float(cost) for cost in constraint.cost_weights), constraint.tolerance, constraint.text)


def fork(source: Run, target: Path, constraints: tuple[str, ...]) -> None:
    """A run with other constraints that goes on from the labels of `source`; from its bank too, where it has one.

    config.json comes last and makes it a run: whoever is killed here begins anew.
    """
    config, state, run = source.config, _state(source), Run(target)
    shared = state.stage == "polish"
    settings = source.settings(CampaignConfig)
    for file in sorted(source.path.rglob("*")):
        name = str(file.relative_to(source.path))
        if file.is_file() and name not in NOT_SHARED and (shared or name == LABELS or name.startswith("inputs")):
            atomic_write(run.target(name), read_bytes(file))
    if shared:
        checked = max(round(CHECKED * settings.checked), 1)
        settings = replace(settings, labels=len(state.asked_ids) + checked)
    else:
        run.save_state((), to_json(State(stage="round", asked=state.asked)))
    told = replace(
        config, constraints=constraints, labels=settings.labels, settings=to_json(settings), loosest=(), forked=shared
    )
    run.write_json("config.json", to_json(told))


def _state(run: Run) -> State:
    header = run.state_header()
    assert header is not None, f"{run.path} holds no checkpoint"
    return read_state(header, len(run.config.constraints), str(run.path))


def files_of(out: Path, folder: str) -> list[str]:
    """The files of a run that is finished, by their names in the sweep's folder."""
    files = (file for file in sorted((out / folder).rglob("*")) if file.is_file() and file.name != "run.lock")
    return [str(file.relative_to(out)) for file in files]


def _tell(stage: str, record: object) -> None:
    if isinstance(record, Round):
        LOG.info("round %d, %d labels, return %.5g", record.round, record.labels, record.mean_return)
    elif isinstance(record, Result):
        LOG.info("%s", "certified" if record.certified else "not certified")
