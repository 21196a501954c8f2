"""Safe planning around side effects that nobody wrote into the model.

The names below are imported when they are first used, so that `import sidestep` stays light.
"""

from __future__ import annotations

from importlib import import_module

from sidestep.runtime import moved

TYPE_CHECKING = False  # that of `typing`, which takes longer to import than all else here
if TYPE_CHECKING:
    from typing import Any

__version__ = "0.1.0"

moved.install()

_HOMES = {
    "InputError": "core.errors",
    "Model": "core.model",
    "Policy": "core.model",
    "Space": "core.model",
    "Spec": "core.model",
    "Trajectory": "core.model",
    "UniformPolicy": "core.model",
    "Variable": "core.model",
    "rollout": "core.model",
    "load_model": "models",
    "Constraint": "core.constraints",
    "Scale": "core.constraints",
    "parse_constraints": "core.constraints",
    "load_rule": "labels.rules",
    "Store": "labels.store",
    "PlanConfig": "planning.config",
    "preset": "planning.presets",
    "plan": "campaign.steps",
    "load": "deploy.answers",
    "Answer": "deploy.answers",
    "solve": "deploy.solve",
    "resume": "deploy.solve",
    "Event": "deploy.solve",
    "sweep": "frontier.sweep",
    "collect": "campaign.steps",
    "ask": "campaign.steps",
    "fit": "campaign.steps",
    "certify": "campaign.steps",
    "register_safety": "safety.io",
    "register_network": "policies.networks",
    "runs": "deploy.overview",
    "compare": "deploy.overview",
    "LabelsNeeded": "core.errors",
    "Rule": "core.rules",
}
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"sidestep.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'sidestep' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
