"""What a domain is: one folder with all that is particular to it.

__init__.py   DOMAIN, the record below; imports nothing heavy
model.py      build(options, double) -> Model; with `endings` also from_file(path, options) -> Model
rule.py       RULES, name -> function(model) -> Rule; the first is the default (optional)
drawing.py    views(model) -> list of View (optional)
paper.py      PAPER, the paper's settings for this domain (optional)
limits.json   the best returns, where a benchmark computes them (optional)
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from sidestep.models.options import Options

if TYPE_CHECKING:
    from sidestep.core.model import Model
    from sidestep.core.rules import Rule
    from sidestep.core.views import View

RuleMaker = Callable[["Model"], "Rule"]


@dataclass(frozen=True)
class Paper:
    """What the paper's experiments use for a domain. The defaults are for a domain that the paper does not have."""

    planner: Mapping[str, float] = field(default_factory=dict)  # options that differ from the preset `paper`
    methods: tuple[str, ...] = ()  # of the continuous experiments
    pair_labels: int = 0  # labelled state-action pairs for the classifier of a map
    query_budgets: tuple[int, ...] = ()  # of Markov-HA-S
    trajectory_map: str = ""  # the map on which side effects are of whole trajectories


@dataclass(frozen=True)
class Domain:
    """A family of models with a rule, views and settings of its own; its parts are imported when they are needed."""

    name: str
    description: str
    package: str  # the folder as Python knows it, usually __name__
    options: tuple[str, ...] = ()  # what may follow the name, as in hvac?rooms=24
    endings: tuple[str, ...] = ()  # of files that hold a model of this domain, as .bp
    limits: str = ""  # the command that computes the best possible return

    def build(self, options: Options, double: bool) -> "Model":
        """The model for the options behind the domain's name; `double` builds it for float64."""
        return self._known(import_module(f"{self.package}.model").build(options, double))

    def from_file(self, path: Path, options: Options) -> "Model":
        """The model in a file with one of the domain's endings."""
        return self._known(import_module(f"{self.package}.model").from_file(path, options))

    @property
    def rules(self) -> Mapping[str, RuleMaker]:
        """The domain's rules by name, the default first; empty when it has none."""
        return getattr(self._part("rule"), "RULES", {})

    def views(self, model: "Model") -> "list[View]":
        """The domain's ways to look at its trajectories, the most telling first; empty when it has none."""
        drawing = self._part("drawing")
        return drawing.views(model) if drawing else []

    @property
    def best_known(self) -> dict[str, float]:
        """The best returns that the command `limits` found, by constraint ("" for none); empty where none are kept."""
        file = files(self.package) / "limits.json"
        return json.loads(file.read_text(encoding="utf-8"))["best"] if file.is_file() else {}

    @property
    def paper(self) -> Paper:
        return getattr(self._part("paper"), "PAPER", Paper())

    def _known(self, model: "Model") -> "Model":
        """The model, whose spec says that it is of this domain."""
        description = model.spec.description or self.description
        model.spec = replace(model.spec, family=self.name, description=description)
        return model

    def _part(self, name: str) -> ModuleType | None:
        """The domain's module of this name; None when it has none."""
        module = f"{self.package}.{name}"
        return import_module(module) if find_spec(module) else None
