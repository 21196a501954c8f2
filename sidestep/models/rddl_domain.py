"""Domains whose models are RDDL: a text in the domain's folder, and where options ask for it an instance built here."""

from importlib.resources import files

from sidestep.models.options import Options
from sidestep.models.rddl_model import RddlModel
from sidestep.models.rddl_text import RddlText


def rddl_model(
    package: str, file: str, options: Options, double: bool, instance: str | None = None, description: str = ""
) -> RddlModel:
    """The model of `file` in the domain's folder, with the options that every RDDL model has."""
    relaxed, horizon = options.flag("relaxed"), options.integer("horizon", None, 1)
    options.finish()
    name = file.removesuffix(".rddl")
    parts = [(file, (files(package) / file).read_text(encoding="utf-8"))]
    if instance is not None:
        parts.append((f"{name} (built instance)", instance))
    return RddlModel(
        RddlText(tuple(parts)), relaxed=relaxed, double=double, horizon=horizon, name=name, description=description
    )


def instance_text(domain: str, objects: str, non_fluents: list[str], first_state: list[str], horizon: int) -> str:
    """An RDDL instance from its lines."""
    newline = "\n"
    init_state = f"init-state {{\n{newline.join(first_state)}\n}};\n" if first_state else ""
    return (
        f"non-fluents layout {{\ndomain = {domain};\nobjects {{ {objects} }};\n"
        f"non-fluents {{\n{newline.join(non_fluents)}\n}};\n}}\n"
        f"instance built {{\ndomain = {domain};\nnon-fluents = layout;\n{init_state}"
        f"max-nondef-actions = pos-inf;\nhorizon = {horizon};\ndiscount = 0.99;\n}}\n"
    )
