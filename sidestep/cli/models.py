"""`sidestep models` and `sidestep check`."""

from sidestep.cli.console import say, show_table
from sidestep.models.domains import all_domains

MARKS = {"good": ("ok", "green"), "note": ("note", "yellow"), "bad": ("bad", "red")}


def list_models() -> int:
    rows = [((name, "bold"), domain.description, ", ".join(domain.options)) for name, domain in all_domains().items()]
    show_table(["name", "what it is", "options"], rows)
    return 0


def check(reference: str, seed: int) -> int:
    import jax

    from sidestep.models import load_model
    from sidestep.models.check import check_model

    model = load_model(reference)
    spec = model.spec
    say((spec.name, "bold"), f" {spec.description}".rstrip())
    for kind, space in (("state", spec.state), ("action", spec.action)):
        for variable in space.variables:
            where = space.slices[variable.name]
            low, high = space.low[where].min(), space.high[where].max()
            say(f"  {kind:6} {variable.name}: {variable.size} {variable.kind}, from {low:g} to {high:g}")
    say(f"  horizon {spec.horizon}, discount {spec.discount}")
    findings = check_model(model, jax.random.key(seed), lambda: load_model(reference, double=True))
    show_table([], [(MARKS[finding.verdict], finding.what, finding.found) for finding in findings])
    return 2 if any(finding.verdict == "bad" for finding in findings) else 0
