"""`sidestep models` and `sidestep check`."""

from rich.console import Console
from rich.table import Table

from sidestep.models.builtin import BUILTINS

MARKS = {"good": "[green]ok[/]", "note": "[yellow]note[/]", "bad": "[red]bad[/]"}


def list_models() -> int:
    table = Table("name", "what it is", "options", box=None, pad_edge=False)
    for name, builtin in BUILTINS.items():
        table.add_row(f"[bold]{name}[/]", builtin.description, builtin.options)
    Console().print(table)
    return 0


def check(reference: str, seed: int) -> int:
    import jax

    from sidestep.models import load_model
    from sidestep.models.check import check_model

    model = load_model(reference)
    console = Console()
    spec = model.spec
    console.print(f"[bold]{spec.name}[/] {spec.description}".rstrip())
    for kind, space in (("state", spec.state), ("action", spec.action)):
        for variable in space.variables:
            where = space.slices[variable.name]
            low, high = space.low[where].min(), space.high[where].max()
            console.print(f"  {kind:6} {variable.name}: {variable.size} {variable.kind}, from {low:g} to {high:g}")
    console.print(f"  horizon {spec.horizon}, discount {spec.discount}")
    findings = check_model(model, jax.random.key(seed), lambda: load_model(reference, double=True))
    table = Table(box=None, show_header=False, pad_edge=False)
    for finding in findings:
        table.add_row(MARKS[finding.verdict], finding.what, finding.found)
    console.print(table)
    return 2 if any(finding.verdict == "bad" for finding in findings) else 0
