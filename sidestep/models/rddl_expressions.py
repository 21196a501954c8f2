"""Expressions of RDDL texts: their parts, and the conjuncts of what must hold."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pyRDDLGym.core.debug.exception import print_stack_trace
from pyRDDLGym.core.parser.expr import Expression

Scope = tuple[tuple[str, str], ...]  # (variable, type)


def walk(expression: object) -> Iterator[Expression]:
    """An expression and all its parts, each before its own parts."""
    if isinstance(expression, tuple | list):
        for part in expression:
            yield from walk(part)
    elif isinstance(expression, Expression):
        yield expression
        yield from walk(expression.args)


def mentioned(expression: object, names: set[str]) -> list[Expression]:
    """The places in an expression where one of these variables stands."""
    return [part for part in walk(expression) if part.etype[0] == "pvar" and part.etype[1] in names]


def in_words(expression: Expression) -> str:
    return " ".join(print_stack_trace(expression).removeprefix(">> ").split())


@dataclass(frozen=True, eq=False)
class Condition:
    """One conjunct of a precondition, for all objects in `scope` for which every guard holds."""

    precondition: int
    expression: Expression
    scope: Scope = ()
    guards: tuple[tuple[Expression, int, bool], ...] = ()  # (expression, size of its scope, value that it must have)


def conjuncts(whole: Condition, actions: set[str]) -> Iterator[Condition]:
    """The conjuncts of a condition: `forall` and `^` are taken apart, `s => c` becomes c with the guard s."""
    (kind, operator), arguments = whole.expression.etype, whole.expression.args
    acting = [a for a in arguments if mentioned(a, actions)] if kind == "boolean" else []
    if (kind, operator) == ("aggregation", "forall"):
        *variables, body = arguments
        parts = [replace(whole, expression=body, scope=whole.scope + tuple(pair for _, pair in variables))]
    elif kind == "boolean" and operator in ("^", "&"):
        parts = [replace(whole, expression=argument) for argument in arguments]
    elif kind == "boolean" and operator == "=>" and arguments[0] not in acting:
        parts = [_guarded(whole, arguments[1], arguments[:1], value=True)]
    elif kind == "boolean" and operator == "|" and len(acting) == 1:
        parts = [_guarded(whole, acting[0], [a for a in arguments if a is not acting[0]], value=False)]
    else:
        yield whole
        return
    for part in parts:
        yield from conjuncts(part, actions)


def _guarded(whole: Condition, rest: Expression, guards: Sequence[Expression], value: bool) -> Condition:
    more = tuple((guard, len(whole.scope), value) for guard in guards)
    return replace(whole, expression=rest, guards=whole.guards + more)
