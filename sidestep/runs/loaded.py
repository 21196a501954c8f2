"""A run, loaded from its folder: the model, who labels, the constraints, the safety model, the policy."""

from functools import cached_property
from pathlib import Path

from sidestep.core.constraints import Constraint, parse_constraints
from sidestep.core.errors import InputError
from sidestep.core.model import Model, finite_part
from sidestep.core.records import JsonObject, told_with
from sidestep.labels.experts import Expert, expert_of
from sidestep.labels.store import Store, store_place
from sidestep.models import load_model
from sidestep.planning.config import PlanConfig
from sidestep.planning.options import config_from_json
from sidestep.policies.files import AnyPolicy, load_policy
from sidestep.runs.folder import LABELS, Run
from sidestep.safety.base import SafetyModel
from sidestep.safety.io import load_safety

POLICY, SAFETY = "policy.safetensors", "safety.safetensors"


class LoadedRun:
    """A run, loaded from its folder. The model is loaded when it is first needed: much can be read without it.

    A run whose model or expert was a Python object needs that object again, as `model` or `expert`.
    """

    def __init__(
        self, path: str | Path, trust: bool = False, *, model: Model | None = None, expert: Expert | None = None
    ) -> None:
        self.run = Run.open(Path(path))
        self.config, self.files = self.run.config, self.run.files(trust)
        self.categories, self.scale = self.config.categories, self.config.scale
        if model is not None:
            self.model = model
        if expert is not None:
            self.expert = expert

    @cached_property
    def model(self) -> Model:
        self._require_reference("model")
        return load_model(self.config.model, files=self.files)

    @cached_property
    def expert(self) -> Expert:
        """Who labels."""
        self._require_reference("expert")
        return expert_of(self.config.rule, self.config.people, self.model, self.scale, self.files)

    def _require_reference(self, part: str) -> None:
        """Refuse to look for what was an object of the process that began the run."""
        if part in self.config.live:
            raise InputError(
                f"the {part} of this run was a Python object, which no folder can hold; give it again in Python: "
                f"sidestep.load(folder, {part}=...), or sidestep.resume(folder, {part}=...) to go on",
                place=str(self.run.path),
            )

    @cached_property
    def constraints(self) -> tuple[Constraint, ...]:
        return parse_constraints(self.config.constraints, self.scale)

    @property
    def result(self) -> object:
        """result.json."""
        return self.run.read_json("result.json")

    @cached_property
    def safety(self) -> SafetyModel | None:
        file = self.run.path / SAFETY
        return load_safety(file) if file.is_file() else None

    @property
    def store_path(self) -> Path | str:
        """The label store: the run's own, or the file or URL that was given to it."""
        return store_place(self.config.store) if self.config.store else self.run.path / LABELS

    def open_store(self) -> Store:
        """The labels of a run, a new store if it has none yet."""
        if not self.config.store:
            for ending in ("", "-wal", "-shm", "-journal"):  # SQLite's own files beside the store
                self.run.target(LABELS + ending)
        return Store.open_or_create(self.store_path, self.model.spec, self.scale)

    def policy_of(self, model: Model) -> AnyPolicy:
        """The answer's policy by its mean action, for `model`."""
        file = self.run.path / POLICY
        if not file.is_file():
            raise InputError("this run has no policy yet; go on with `sidestep resume`", place=str(self.run.path))
        return load_policy(file, model, self.safety).mean()

    def planner_settings(self, settings: JsonObject, name: str) -> PlanConfig:
        """The planner's settings, which config.json has under `name`."""
        place, finite = f"{self.run.path / 'config.json'}, {name}", finite_part(self.model) is not None
        with told_with(place):
            return config_from_json(settings, place, finite=finite)
