"""`sidestep sweep`: the price of safety, as a table, a figure and a page."""

import time

from sidestep.cli.commands import METHODS
from sidestep.cli.commands import Sweep as Asked
from sidestep.cli.console import say, say_json, show_table
from sidestep.cli.work import CERTIFIED, NOT_CERTIFIED, stoppable
from sidestep.core.errors import InputError
from sidestep.core.records import to_json
from sidestep.frontier.page import HEADS, PAGE, sentence, table_rows
from sidestep.frontier.records import Frontier, Request, ordered_tolerances
from sidestep.frontier.sweep import Sweep


def sweep(asked: Asked) -> int:
    """0 when every point is certified, 1 when not."""
    methods = asked.methods or ("default",)
    for method in methods:
        if method not in METHODS:
            raise InputError(f"there is no method '{method}'; there are {', '.join(METHODS)}", place="--methods")
    request = Request(
        model=asked.model,
        tolerances=ordered_tolerances(asked.tolerances),
        constraints=asked.constraint,
        rule=asked.rule,
        methods=tuple(dict.fromkeys(methods)),
        seed=asked.seed,
        seeds=asked.seeds,
        campaign=asked.campaign,
        planning=asked.planning,
    )
    begun, quiet = time.perf_counter(), asked.quiet or asked.json

    def tell(text: str) -> None:
        say(f"[{time.perf_counter() - begun:7.0f} s] {text}", stderr=True, quiet=quiet)

    with stoppable("give the same command to go on", quiet):
        frontier = Sweep(request, asked.out).run(asked.cluster, asked.workers, tell)
    if asked.json:
        say_json(to_json(frontier))
    else:
        _print(frontier)
        say(f"open {(asked.out / PAGE).resolve()}")
    return CERTIFIED if frontier.certified else NOT_CERTIFIED


def _print(frontier: Frontier) -> None:
    several = len(frontier.request.methods) > 1
    rows = table_rows(frontier)
    if several:
        rows = [(method, *row) for method, row in zip(_methods(frontier), rows, strict=True)]
    show_table((*(("method",) if several else ()), *HEADS), rows)
    say(sentence(frontier))
    say(
        f"{frontier.labels:,} labels, each paid for once ({frontier.used_labels:,} in as many separate campaigns), "
        f"and {frontier.audit_labels:,} of audits"
    )


def _methods(frontier: Frontier) -> list[str]:
    return [method for method in frontier.request.methods for _ in frontier.request.tolerances]
