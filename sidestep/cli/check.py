"""`sidestep check`: what a model is, and what it is fit for."""

import jax

from sidestep.cli.commands import Check
from sidestep.cli.console import say, show_table
from sidestep.models import load_model
from sidestep.models.check import check_model

MARKS = {"good": ("ok", "green"), "note": ("note", "yellow"), "bad": ("bad", "red")}


def check(asked: Check) -> int:
    model = load_model(asked.model)
    spec = model.spec
    say((spec.name, "bold"), f" {spec.description}".rstrip())
    for kind, space in (("state", spec.state), ("action", spec.action)):
        for variable in space.variables:
            where = space.slices[variable.name]
            low, high = space.low[where].min(), space.high[where].max()
            say(f"  {kind:6} {variable.name}: {variable.size} {variable.kind}, from {low:g} to {high:g}")
    say(f"  horizon {spec.horizon}, discount {spec.discount}")
    findings = check_model(model, jax.random.key(asked.seed), lambda: load_model(asked.model, double=True))
    show_table([], [(MARKS[finding.verdict], finding.what, finding.found) for finding in findings])
    return 2 if any(finding.verdict == "bad" for finding in findings) else 0
