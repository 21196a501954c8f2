"""`sidestep runs` and `sidestep compare`: what was run, side by side."""

from sidestep.cli.commands import Compare, Runs
from sidestep.cli.console import say, say_json
from sidestep.deploy import overview
from sidestep.deploy.tables import Table


def runs(asked: Runs) -> int:
    found = overview.runs(asked.folder)
    if not found and not asked.json:
        say(f"there is no run below {asked.folder}; begin one with `sidestep demo`")
        return 0
    _show(found, asked.json)
    return 0


def compare(asked: Compare) -> int:
    _show(overview.compare(asked.first, asked.second, every=asked.every), asked.json)
    return 0


def _show(table: Table, as_json: bool) -> None:
    if as_json:
        say_json([dict(row) for row in table])
    else:
        say(table.text(most=None))
