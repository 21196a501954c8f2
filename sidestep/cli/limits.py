"""`sidestep limits`: the exact optimum of a finite model, with and without bounds on its side effects."""

import re

import numpy as np

from sidestep.cli.commands import Limits
from sidestep.cli.console import Part, say, say_json, show_table
from sidestep.core.constraints import Constraint
from sidestep.core.errors import InputError
from sidestep.core.model import FiniteModel
from sidestep.finite.horizon import Limit as Bounded
from sidestep.finite.occupancy import Bound
from sidestep.labels.rules import Rule, find_rule
from sidestep.models import checked_model
from sidestep.reproduce.exact import (
    PENALTY,
    Limit,
    best_in_horizon,
    best_return,
    require_finite,
    side_effects,
    step_names,
    step_table,
)

BOUNDED = {
    "nothing": "unconstrained",
    "chance": "chance",
    "number": "number",
    "never": "no side effect",
}


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
    bounded = [parse_limit(text, rule) for text in asked.constraint] if rule else []
    problems: list[list[Bound]] = [[]]
    if bounded and rule:
        category = step_table(model, rule)
        problems.append([Bound(np.array(one.cost)[category], one.limit, one.name) for one in bounded])
    elif PENALTY in tables:
        problems.append([Bound(tables[PENALTY], 0.0, PENALTY)])
    discounts = (1.0, asked.discount or model.spec.discount)
    found = [best_return(model.finite, tables, bounds, discount) for bounds in problems for discount in discounts]
    in_horizon = _in_horizon(model, rule, bounded) if rule else {}
    if asked.json:
        said = {"model": model.spec.name, "rule": rule.name if rule else None}
        within = [{"bounds": bounds} | limit.to_json() for bounds, limit in in_horizon.items()]
        say_json(said | {"limits": [limit.to_json() for limit in found], "in_horizon": within})
    else:
        _print(model.spec.name, found, list(tables))
        _print_in_horizon(model.spec.horizon, in_horizon)
    return 0 if all(limit.value is not None for limit in (*found, *in_horizon.values())) else 1


def _in_horizon(model: FiniteModel, rule: Rule, bounded: list[Bounded]) -> dict[str, Limit]:
    """The best over runs of the model's horizon, by what is bounded. A chance is bounded where the rule calls a run
    as bad as its worst step."""
    problems: dict[str, list[Bounded]] = {"nothing": []}
    if bounded and rule.markovian and all(set(one.cost) <= {0.0, 1.0} and one.limit <= 1.0 for one in bounded):
        problems["chance"] = [one._replace(counts=False) for one in bounded]
    if bounded:
        problems["number"] = bounded
    if rule.penalties:
        problems["never"] = [Bounded((0.0, *[1.0] * (len(rule.scale) - 1)), 0.0, "any side effect")]
    return {bounds: best_in_horizon(model, rule, limits) for bounds, limits in problems.items()}


def parse_limit(text: str, rule: Rule) -> Bounded:
    """ "severe<=0", "mild+<=0.2" (mild or worse), "penalty<=1": at most so many in expectation over a trajectory; and
    "none>=0.95", for at most 0.05 of what is not."""
    place, names = f"constraint '{text}'", step_names(rule)
    if rule.markovian and ">=" in text:
        constraint = Constraint.parse(text, rule.scale)
        if constraint.cost_weights[0] == 0:
            event = constraint.text.partition(">=")[0]
            return Bounded(constraint.cost_weights, constraint.tolerance, f"not {event}", counts=True)
    parts = re.fullmatch(r"\s*([^<>=+]+?)\s*(\+?)\s*<=\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*", text)
    if parts is None:
        last = PENALTY if rule.penalties else names[-1]
        raise InputError(
            "a limit bounds the expected number of steps of a category, or the penalty, from above: write "
            f"{last}<=0 or the like",
            place=place,
        )
    name, worse, limit = parts.group(1), parts.group(2), float(parts.group(3))
    if name == PENALTY and rule.penalties and not worse:
        return Bounded(tuple(rule.penalties), limit, PENALTY, counts=True)
    if name not in names[1:]:
        allowed = ", ".join([*names[1:], *([PENALTY] if rule.penalties else [])])
        raise InputError(f"there is no '{name}' to bound; there are {allowed}", place=place)
    first = names.index(name)
    cost = tuple(float(place == first or (bool(worse) and place > first)) for place in range(len(names)))
    return Bounded(cost, limit, name + worse, counts=True)


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


def _print_in_horizon(horizon: int, found: dict[str, Limit]) -> None:
    """The same over runs of so many steps: what a campaign's tolerance is about."""
    chances = next((list(limit.chances)[1:] for limit in found.values() if limit.chances), [])
    numbers = next((list(limit.side_effects) for limit in found.values() if limit.side_effects), [])
    rows: list[list[Part]] = []
    for bounds, limit in found.items():
        words = BOUNDED[bounds] + (f" {', '.join(limit.constraints)}" if bounds in ("chance", "number") else "")
        figures = ["infeasible", *("-" for _ in (0, *chances, *numbers))]
        if limit.value is not None:
            figures = [f"{limit.value:.3f}", f"{limit.ended:.4g}"]
            figures += [f"{(limit.chances or {})[name]:.3g}" for name in chances]
            figures += [f"{limit.side_effects[name]:.3g}" for name in numbers]
        rows.append([words, *figures])
    if rows:
        say(
            f"in runs of {horizon} steps, by what is bounded: best return, chance that an end is reached, chance of a "
            "run as bad as this, and expected number of steps"
        )
        heads = ["bounded", "best return", "ends", *(f"P({name})" for name in chances), *numbers]
        show_table(heads, rows)
    for reason in dict.fromkeys(limit.reason for limit in found.values() if limit.reason):
        say(reason)
