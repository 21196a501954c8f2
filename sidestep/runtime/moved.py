"""Import paths of the first version, which models and rules of users may still name, lead to where things are now."""

import importlib
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "sidestep.answers": "sidestep.deploy.answers",
    "sidestep.constraints": "sidestep.core.constraints",
    "sidestep.errors": "sidestep.core.errors",
    "sidestep.model": "sidestep.core.model",
}


class _Moved:
    """Gives the module at its new place under its old name.

    A finder and a loader by its methods alone: the module of their base classes takes longer to import than all else.
    """

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in MOVED else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return importlib.import_module(MOVED[spec.name])

    def exec_module(self, module: ModuleType) -> None:
        """It has been executed under its own name."""


def install() -> None:
    if not any(isinstance(finder, _Moved) for finder in sys.meta_path):
        sys.meta_path.append(_Moved())
