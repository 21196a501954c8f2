"""`sidestep limits`: the exact optimum of a finite model, with and without bounds on its side effects."""

import re

import numpy as np

from sidestep.cli.commands import Limits
from sidestep.cli.console import Part, say, say_json, show_table
from sidestep.core.errors import InputError
from sidestep.finite.occupancy import Bound
from sidestep.labels.rules import find_rule
from sidestep.models import checked_model
from sidestep.reproduce.exact import PENALTY, Limit, best_return, require_finite, side_effects


def limits(asked: Limits) -> int:
    """0 when all bounds can be met, 1 when not."""
    model = require_finite(checked_model(asked.model))
    rule = find_rule(asked.rule, model)
    if asked.constraint and rule is None:
        raise InputError(
            f"bounds need a rule, and there is none for '{model.spec.name}'; leave --constraint out",
            place="--constraint",
        )
    tables = side_effects(model, rule) if rule else {}
    problems: list[list[Bound]] = [[]]
    if asked.constraint:
        problems.append([parse_bound(text, tables) for text in asked.constraint])
    elif PENALTY in tables:
        problems.append([Bound(tables[PENALTY], 0.0, PENALTY)])
    discounts = (1.0, asked.discount or model.spec.discount)
    found = [best_return(model.finite, tables, bounds, discount) for bounds in problems for discount in discounts]
    if asked.json:
        limits = [limit.to_json() for limit in found]
        say_json({"model": model.spec.name, "rule": rule.name if rule else None, "limits": limits})
    else:
        _print(model.spec.name, found, list(tables))
    return 0 if all(limit.value is not None for limit in found) else 1


def parse_bound(text: str, tables: dict[str, np.ndarray]) -> Bound:
    """ "severe<=0", "mild+<=0.2" (mild or worse), "penalty<=1": at most so many in expectation over a trajectory."""
    place = f"constraint '{text}'"
    parts = re.fullmatch(r"\s*([^<>=+]+?)\s*(\+?)\s*<=\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*", text)
    if parts is None:
        raise InputError(
            "a limit bounds the expected number of steps of a category, or the penalty, from above: write "
            f"{list(tables)[-1]}<=0 or the like",
            place=place,
        )
    name, worse, limit = parts.group(1), parts.group(2), float(parts.group(3))
    names = [each for each in tables if each != PENALTY]
    if name == PENALTY and PENALTY in tables and not worse:
        return Bound(tables[PENALTY], limit, PENALTY)
    if name not in names:
        allowed = ", ".join([*names, *([PENALTY] if PENALTY in tables else [])])
        raise InputError(f"there is no '{name}' to bound; there are {allowed}", place=place)
    counted = names[names.index(name) :] if worse else [name]
    return Bound(np.sum([tables[each] for each in counted], axis=0), limit, name + worse)


def _print(name: str, found: list[Limit], tables: list[str]) -> None:
    rows: list[list[Part]] = []
    for limit in found:
        within = "within " + ", ".join(limit.constraints) if limit.constraints else "unconstrained"
        if limit.value is not None:
            figures = [f"{limit.value:.3f}", *(f"{limit.side_effects[each]:.4g}" for each in tables)]
        else:
            figures = ["infeasible", *("-" for _ in tables)]
        rows.append([within, f"{limit.discount:g}", *figures])
    say((name, "bold"), ": best return until an end is reached, and the side effects of a policy that earns it")
    show_table(["problem", "discount", "best return", *tables], rows)
    for reason in dict.fromkeys(limit.reason for limit in found if limit.reason):
        say(reason)
