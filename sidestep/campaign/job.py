"""What is asked for, by `sidestep plan` or by `sidestep.solve`: checked, and turned into a run's folder.

A job is a campaign, or with a fitted safety model (or a method without constraints) one planning.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from sidestep.campaign.config import STEP_ROLLOUTS, CampaignConfig, Kind, refuse_idle
from sidestep.certification.auditor import Auditor
from sidestep.certification.evaluation import ROLLOUTS
from sidestep.certification.ledger import Ledger
from sidestep.core.constraints import Scale, parse_constraints
from sidestep.core.errors import InputError
from sidestep.core.model import Model, Spec, finite_part
from sidestep.core.options import place_of
from sidestep.core.records import JsonObject, to_json
from sidestep.labels.experts import PEOPLE, Expert, expert_from, expert_of, why_no_marks
from sidestep.labels.store import Store
from sidestep.models import checked_model
from sidestep.planning.config import PlanConfig
from sidestep.planning.options import config_from_json, require_constraints, with_options
from sidestep.planning.plan import Planner
from sidestep.planning.presets import preset_for
from sidestep.runs.folder import Run
from sidestep.runs.loaded import SAFETY, LoadedRun
from sidestep.runs.records import RunConfig
from sidestep.runtime.files import read_bytes
from sidestep.safety.base import SafetyModel
from sidestep.safety.io import load_safety, safety_header, save_safety

CONFIDENCE = 0.95  # of the certificate of one planning
DEFAULT_BOUND = 0.95  # of the best category, where the user asks for nothing else
Note = Callable[[Spec], None]  # told of the model when all is checked, before anything is written


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is asked for. `model`, `expert` and `safety` are references, or the objects themselves."""

    model: object
    expert: object = None  # the model's own rule, or people, without it
    people: bool = False  # people label, although there is a rule
    constraints: tuple[str, ...] = ()
    categories: str | None = None  # of people
    safety: Path | SafetyModel | None = None  # a fitted one: plan once
    safety_kind: str = ""  # the registered safety model that a campaign fits
    network: str = ""  # the registered network of the policies
    method: str = "default"
    seed: int = 0
    seeds: int = 1
    store: Path | str | None = None  # of the labels of a campaign, a file or a URL; the run's own without it
    out: Path
    campaign: dict[str, Any] = field(default_factory=dict)  # options of the campaign, by name
    planning: dict[str, Any] = field(default_factory=dict)  # of the planner, by flat name
    settings: JsonObject | None = None  # of the planner as a whole, in place of those of the method

    @property
    def is_campaign(self) -> bool:
        return self.safety is None and self.method != "ppo"


class Parties(NamedTuple):
    """The model and who labels, with what config.json says of them."""

    model: Model
    expert: Expert
    told: RunConfig


def begin(job: Job, note: Note = lambda spec: None) -> LoadedRun:
    """Check everything, then open the run's folder."""
    if job.is_campaign:
        if job.seeds > 1:
            raise InputError("a campaign has one seed; give --seeds with --safety", place="--seeds")
        return _begin_campaign(job, note)
    only = [name for name in ("categories", "store") if getattr(job, name)]
    for name in [*job.campaign, *only]:
        raise InputError("is an option of a campaign, and this plans once; leave it out", place=place_of(name))
    return _begin_once(job, note)


def _parties(job: Job) -> Parties:
    model = checked_model(job.model)
    scale = Scale.parse(job.categories) if job.categories else None
    given, people = job.expert, job.people or job.expert == PEOPLE
    named = isinstance(job.model, str | Path)
    told = RunConfig(
        model=str(job.model) if named else model.spec.name,
        people=people,
        method=job.method,
        seed=job.seed,
        live=() if named else ("model",),
    )
    if given is None or isinstance(given, str):
        rule = None if given == PEOPLE else given
        return Parties(model, expert_of(rule, people, model, scale), replace(told, rule=rule))
    if isinstance(given, Store):
        store = where(given.path)
        return Parties(model, expert_from(given, model), replace(told, people=True, store=store))
    expert = expert_from(given, model)
    return Parties(model, expert, replace(told, rule=expert.name, live=(*told.live, "expert")))


def where(place: Path | str) -> str:
    """A store's place for config.json, the same from any folder."""
    return place if isinstance(place, str) else str(place.resolve())


def _planning(job: Job, model: Model, *, per_step: bool = True) -> PlanConfig:
    if job.settings is None:
        config = preset_for(model, job.method, per_step=per_step)
    else:
        config = config_from_json(job.settings, "the planner's settings", finite=finite_part(model) is not None)
    config = with_options(config, job.planning)
    return replace(config, network=job.network) if job.network else config


def _begin_campaign(job: Job, note: Note) -> LoadedRun:
    model, expert, told = _parties(job)
    scale = expert.scale
    if job.categories and Scale.parse(job.categories) != scale:
        raise InputError(f"the rule '{expert.name}' has a scale of its own, {scale}", place="--categories")
    constraints = job.constraints or (expert.default_constraint or f"{scale.categories[0]}>={DEFAULT_BOUND}",)
    kind = _kind(model, expert, job)
    refuse_idle(kind, job.campaign, job.planning)
    if "known" in job.campaign and expert.label is not None:
        raise InputError(f"has no effect where the rule '{expert.name}' labels; leave it out", place=place_of("known"))
    tables = kind == "pairs"  # whose chances can be computed, where rollouts prove too little
    config = CampaignConfig(**job.campaign, safety=job.safety_kind)
    refused = why_no_marks(expert, model) if config.marks else None
    wanted = expert.label is None if config.marks is None else config.marks
    config = replace(config, marks=wanted and not refused)
    if tables and "rollouts" not in job.campaign:
        config = replace(config, rollouts=STEP_ROLLOUTS)
    auditor = Auditor(Ledger(Run(job.out)), model, parse_constraints(constraints, scale), expert, exact=tables)
    audits = 1 if expert.labels_steps else config.audits
    auditor.require_certifiable(config.rollouts, config.confidence, first=1, last=audits)
    if job.store is not None:
        told = replace(told, store=where(job.store))
        Store.open_or_create(job.store, model.spec, scale).close()  # refused here if it is of another model
    told = replace(
        told,
        kind="campaign",
        constraints=constraints,
        categories=scale.categories,
        labels=config.labels,
        settings=to_json(config),
        planning=to_json(_planning(job, model)),
    )
    note(replace(model.spec, notes=(*model.spec.notes, *([refused] if refused else []))))
    return _loaded(Run.create(job.out, told), model, expert)


def _kind(model: Model, expert: Expert, job: Job) -> Kind:
    """What is planned: networks or exact tables, by labels of trajectories or of single steps."""
    kind: Kind = "networks"
    if finite_part(model) is not None:
        if expert.labels_steps:
            kind = "network of pairs" if job.method == "gradient" else "pairs"
        elif job.method in ("default", "gradient"):
            kind = "tables"
    if kind != "networks" and (job.network or job.safety_kind):
        what = "policy network" if job.network else "safety model"
        raise InputError(f"'{model.spec.name}' is finite and planned exactly, without a {what} of yours; leave it out")
    return kind


def _begin_once(job: Job, note: Note) -> LoadedRun:
    model, expert, told = _parties(job)
    safety = load_safety(job.safety) if isinstance(job.safety, Path) else job.safety
    config = _planning(job, model, per_step=safety is None or safety.per_step)
    if not config.constrains and (job.safety or job.constraints):
        raise InputError(
            "there is no gradient for constraints; choose one with --constraint-gradient, or leave --safety and "
            "--constraint out",
            place=f"--method {job.method}",
        )
    if not job.constraints:
        require_constraints(config, job.planning)
    if bool(job.safety) != bool(job.constraints):
        raise InputError("a safety model and constraints go together; give both", place="--safety, --constraint")
    scale = _scale(job, expert)
    constraints = parse_constraints(job.constraints, scale)
    Planner(model, safety, constraints, config)
    if expert.label is not None:
        Auditor(Ledger(Run(job.out)), model, constraints, expert).require_certifiable(ROLLOUTS, CONFIDENCE, 1)
    told = replace(
        told,
        constraints=job.constraints,
        categories=scale.categories,
        seeds=job.seeds,
        settings=to_json(config),
    )
    files = {SAFETY: _bytes_of(job.safety, scale, model.spec)} if job.safety is not None else {}
    note(model.spec)
    return _loaded(Run.create(job.out, told, files), model, expert)


def _scale(job: Job, expert: Expert) -> Scale:
    """The safety model's categories, which must be the rule's; a model object has no names for them."""
    scale = expert.scale
    if isinstance(job.safety, Path):
        scale = Scale(safety_header(job.safety).categories)
        if expert.label is not None and expert.scale != scale:
            raise InputError(f"its categories are {scale}, and the rule's {expert.scale}", place=str(job.safety))
    elif job.safety is not None and job.safety.categories != len(scale):
        raise InputError(f"the safety model has {job.safety.categories} categories, and the scale is {scale}")
    return scale


def _bytes_of(safety: Path | SafetyModel, scale: Scale, spec: Spec) -> bytes:
    """The safety model's file."""
    if isinstance(safety, Path):
        return read_bytes(safety)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / SAFETY
        save_safety(file, safety, scale, [*spec.state.names, *spec.action.names])
        return read_bytes(file)


def _loaded(run: Run, model: Model, expert: Expert) -> LoadedRun:
    return LoadedRun(run.path, trust=True, model=model, expert=expert)  # the user has just given the code
