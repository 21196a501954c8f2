"""Policies by name, for the commands that roll one out."""

from pathlib import Path

from sidestep.core.errors import InputError
from sidestep.core.model import Model, Policy

NAMES = "uniform, explore, or the folder of a run"


def named_policy(name: str, model: Model) -> Policy:
    """`uniform` (independent random actions), `explore` (random behaviour that covers much), or a run's own."""
    from sidestep.core.model import UniformPolicy
    from sidestep.labels.collect import ExploringPolicy

    if name == "uniform":
        return UniformPolicy(model)
    if name == "explore":
        return ExploringPolicy(model)
    if Path(name).is_dir():
        from sidestep.deploy.answers import load

        return load(name).policy_of(model)
    raise InputError(f"expected {NAMES}", place=f"--policy {name}")
