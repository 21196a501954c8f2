"""`sidestep sweep`: the price of safety, as a table, a figure and a page."""

import time
from dataclasses import replace

from sidestep.cli.commands import METHODS
from sidestep.cli.commands import Sweep as Asked
from sidestep.cli.console import say, say_json, show_table
from sidestep.cli.work import CERTIFIED, NOT_CERTIFIED, stoppable
from sidestep.core.errors import InputError
from sidestep.core.records import to_json
from sidestep.frontier.page import HEADS, PAGE, sentence, table_rows
from sidestep.frontier.records import Frontier, Request, ordered_tolerances
from sidestep.frontier.sweep import Sweep, part_of, sweep_all


def sweep(asked: Asked) -> int:
    """0 when every point is certified, 1 when not."""
    methods = asked.methods or ("default",)
    for method in methods:
        if method not in METHODS:
            raise InputError(f"there is no method '{method}'; there are {', '.join(METHODS)}", place="--methods")
    first = Request(
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
    requests = [first, *(replace(first, model=model) for model in asked.models)]
    begun, quiet = time.perf_counter(), asked.quiet or asked.json

    def tell(text: str) -> None:
        say(f"[{time.perf_counter() - begun:7.0f} s] {text}", stderr=True, quiet=quiet)

    with stoppable("give the same command to go on", quiet):
        if asked.models:
            found = sweep_all(requests, asked.out, asked.cluster, asked.workers, tell)
        else:
            found = (Sweep(first, asked.out).run(asked.cluster, asked.workers, tell),)
    if asked.json:
        say_json([to_json(one) for one in found] if asked.models else to_json(found[0]))
    else:
        for frontier in found:
            folder = asked.out / part_of(frontier.request.model) if asked.models else asked.out
            if asked.models:
                say(f"{frontier.request.model}:")
            _print(frontier)
            say(f"open {(folder / PAGE).resolve()}")
    return CERTIFIED if all(one.certified for one in found) else NOT_CERTIFIED


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
