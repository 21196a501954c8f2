"""Scales of side effects and constraints on them: "none>=0.95", "severe<=0.01", "mild+<=0.05".

A constraint bounds the probability of an event, a set of categories of the scale: one category, or a category "or
worse", written with a plus. The planner wants all of them in the paper's one form, E[C(trajectory)] <= d:

    P(event) <= b    C = [category in event]        d = b
    P(event) >= b    C = [category not in event]    d = 1 - b
"""

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal, cast

from sidestep.core.errors import InputError, shortened

if TYPE_CHECKING:
    import numpy as np

Sense = Literal["<=", ">="]

CANNOT_TELL = "cannot tell"  # what an annotator says in place of a category
LONGEST_NUMBER = 40  # characters of a bound
ROUNDING = 1e-7  # relative: what a share loses when it is summed in float32


@dataclass(frozen=True)
class Scale:
    """Ordered categories of side effects, from harmless to worst; the names are the user's."""

    categories: tuple[str, ...] = ("none", "mild", "severe")

    def __post_init__(self) -> None:
        object.__setattr__(self, "categories", tuple(self.categories))
        if len(self.categories) < 2:
            raise InputError(f"a scale has at least two categories, not {len(self.categories)}: {self}")
        for name in self.categories:
            if not isinstance(name, str) or not name or name != " ".join(name.split()):
                raise InputError(f"a category needs a name without blanks around it, not {name!r}")
            if not name.isprintable() or re.search(r"[<>=+%,;\"']", name):
                raise InputError(f"category {name!r} holds a character that constraints and tables use themselves")
            if self.categories.count(name) > 1:
                raise InputError(f"category '{name}' is given twice in the scale {self}")
            if name.casefold() == CANNOT_TELL:
                raise InputError(
                    f"'{name}' is what annotators say when they have no answer, so it cannot be a category"
                )

    @classmethod
    def parse(cls, text: str) -> "Scale":
        """A scale from "none < mild < severe"."""
        return cls(tuple(" ".join(name.split()) for name in text.split("<")))

    def __str__(self) -> str:
        return " < ".join(map(str, self.categories))

    def __len__(self) -> int:
        return len(self.categories)

    def find(self, name: str) -> int | None:
        """Where `name` stands on the scale, whatever its case where only one category is meant; None if nowhere."""
        if name in self.categories:
            return self.categories.index(name)
        alike = [
            place for place, own in enumerate(self.categories) if own.casefold() == " ".join(name.casefold().split())
        ]
        return alike[0] if len(alike) == 1 else None

    def index(self, name: str, *, place: str | None = None) -> int:
        """Where `name` stands on the scale, 0 for the harmless end."""
        found = self.find(name)
        if found is not None:
            return found
        close = difflib.get_close_matches(name.lower(), self.categories, n=1)
        hint = f" (did you mean '{close[0]}'?)" if close else ""
        raise InputError(f"there is no category '{name}'{hint}; the scale is {self}", place=place)


@dataclass(frozen=True)
class Constraint:
    """P(event) <= bound or P(event) >= bound, the event being the categories whose weight is 1."""

    text: str
    weights: tuple[int, ...]
    sense: Sense
    exact_bound: Fraction  # as written: 1 - 0.95 is 0.05 here, and conflicts are decided exactly

    @classmethod
    def parse(cls, text: str, scale: Scale) -> "Constraint":
        name_text, sense, bound_text = _split(text)
        name = " ".join(name_text.split())
        place = _place(text, name_text)
        or_worse = name.endswith("+")
        name = name.removesuffix("+").rstrip()
        first = scale.index(name, place=place)
        if or_worse and first == 0:
            raise InputError(f"'{name}+' is every category of {scale}, and always has probability 1", place=place)
        last = len(scale) if or_worse else first + 1
        weights = tuple(int(first <= category < last) for category in range(len(scale)))
        bound = _bound(text, bound_text)
        tidy = f"{name}{'+' * or_worse}{sense}{''.join(bound_text.split())}"
        return cls(tidy, weights, sense, bound)

    @property
    def bound(self) -> float:
        return float(self.exact_bound)

    @property
    def cost_weights(self) -> tuple[int, ...]:
        """C of the normal form E[C(trajectory)] <= tolerance: the cost of each category."""
        return self.weights if self.sense == "<=" else tuple(1 - weight for weight in self.weights)

    @property
    def tolerance(self) -> float:
        """d of the normal form E[C(trajectory)] <= d."""
        return float(self.exact_tolerance)

    @property
    def exact_tolerance(self) -> Fraction:
        return self.exact_bound if self.sense == "<=" else 1 - self.exact_bound

    def share(self, shares: Sequence[float]) -> float:
        """P(event) when the categories have these probabilities or observed shares."""
        return sum(float(share) for share, weight in zip(shares, self.weights, strict=True) if weight)

    def met(self, shares: Sequence[float]) -> bool:
        """Whether these shares of the categories satisfy the constraint, up to rounding."""
        slack = ROUNDING * self.bound
        share = self.share(shares)
        return share <= self.bound + slack if self.sense == "<=" else share >= self.bound - slack


def cost_matrix(constraints: Sequence[Constraint]) -> "np.ndarray":
    """(constraint, category): the cost of each category for each constraint."""
    import numpy as np  # the command line reads this file for --help

    return np.array([constraint.cost_weights for constraint in constraints], np.float32)


def parse_constraints(texts: Iterable[str], scale: Scale) -> tuple[Constraint, ...]:
    """The constraints that `texts` say, refused when one is said twice or when they cannot hold together."""
    constraints = tuple(Constraint.parse(text, scale) for text in texts)
    for number, constraint in enumerate(constraints):
        for earlier in constraints[:number]:
            if constraint.cost_weights == earlier.cost_weights:
                looser, stricter = sorted((earlier, constraint), key=lambda one: one.exact_tolerance, reverse=True)
                raise InputError(
                    f"constraints '{earlier.text}' and '{constraint.text}' bound the same thing; leave out "
                    f"'{constraint.text if looser.exact_tolerance == stricter.exact_tolerance else looser.text}'"
                )
    conflict = find_conflict(constraints)
    if conflict:
        quoted = [f"'{constraint.text}'" for constraint in conflict]
        raise InputError(
            f"constraints {', '.join(quoted[:-1])} and {quoted[-1]} cannot hold together: no shares of "
            f"{', '.join(scale.categories)} satisfy them; loosen one"
        )
    return constraints


def find_conflict(constraints: Sequence[Constraint]) -> tuple[Constraint, ...]:
    """Constraints that cannot hold together although they can without any one of them; () when there are none."""
    if satisfiable(constraints):
        return ()
    conflict = list(constraints)
    for constraint in constraints:
        rest = [other for other in conflict if other is not constraint]
        if not satisfiable(rest):
            conflict = rest
    return tuple(conflict)


def satisfiable(constraints: Sequence[Constraint]) -> bool:
    """Whether some distribution over the categories satisfies all constraints; exact.

    Every event is an interval of the scale, so that in the cumulative probabilities F_0 = 0 <= F_1 <= ... <= F_K = 1 a
    constraint bounds a difference F_j - F_i. Such a system has a solution if and only if the graph with an edge i -> j
    of length d for each F_j - F_i <= d has no negative cycle (Floyd-Warshall; Fractions, hence no rounding).
    """
    if not constraints:
        return True
    top = len(constraints[0].weights)
    limits: dict[tuple[int, int], Fraction] = {(k + 1, k): Fraction(0) for k in range(top)}  # F_k <= F_{k+1}
    limits |= {(0, top): Fraction(1), (top, 0): Fraction(-1)}  # F_K - F_0 = 1

    def bound_difference(i: int, j: int, d: Fraction) -> None:
        limits[i, j] = min(d, limits.get((i, j), d))

    for constraint in constraints:
        start = constraint.weights.index(1)
        end = start + sum(constraint.weights)
        if constraint.sense == "<=":
            bound_difference(start, end, constraint.exact_bound)
        else:
            bound_difference(end, start, -constraint.exact_bound)
    for middle in range(top + 1):
        into = [(i, d) for (i, j), d in limits.items() if j == middle]
        out_of = [(j, d) for (i, j), d in limits.items() if i == middle]
        for i, d_in in into:
            for j, d_out in out_of:
                bound_difference(i, j, d_in + d_out)
    return all(limits.get((k, k), 0) >= 0 for k in range(top + 1))


def _split(text: str) -> tuple[str, Sense, str]:
    """The three parts of a constraint as written: category, operator, number."""
    operators = list(re.finditer(r"[<>=]+", text))
    if not operators:
        raise InputError("needs '<=' or '>=' between category and bound, as in none>=0.95", place=_place(text, "", -1))
    operator = operators[0]
    name, found, bound = text[: operator.start()], operator.group(), text[operator.end() :]
    if found not in ("<=", ">="):
        advice = {"<": "strict; write '<='", ">": "strict; write '>='", "=>": "no operator; write '>='"}.get(
            found, "no operator here; write '<=' or '>='"
        )
        raise InputError(f"'{found}' is {advice}", place=_place(text, found, operator.start()))
    if len(operators) > 1:
        raise InputError(
            "holds two operators; write two constraints", place=_place(text, operators[1].group(), operators[1].start())
        )
    if not name.strip():
        raise InputError(f"needs a category before '{found}'", place=_place(text, found, operator.start()))
    return name, cast(Sense, found), bound


def _bound(text: str, bound_text: str) -> Fraction:
    place = _place(text, bound_text, len(text) - len(bound_text))
    if not bound_text.strip():
        raise InputError("needs a number after the operator", place=place)
    number = re.fullmatch(r"\s*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?)\s*(%?)\s*", bound_text)
    if not number:
        raise InputError(f"'{bound_text.strip()}' is not a number such as 0.95 or 95%", place=place)
    if len(number.group(1)) > LONGEST_NUMBER:
        raise InputError(f"the bound has {len(number.group(1))} characters; {LONGEST_NUMBER} are enough", place=place)
    bound = Fraction(number.group(1)) / (100 if number.group(2) else 1)
    if not 0 <= bound <= 1:
        hint = f"; for per cent write {bound_text.strip()}%" if 1 < bound <= 100 and not number.group(2) else ""
        raise InputError(f"the bound {bound_text.strip()} of a probability must lie between 0 and 1{hint}", place=place)
    return bound


def _place(text: str, part: str, start: int = 0) -> str:
    """Where the first letter of `part`, found at `start` in `text`, stands: columns count from 1, -1 is the end."""
    if start < 0:
        start = len(text.rstrip())
    blanks = len(part) - len(part.lstrip()) if part.strip() else 0
    shown = shortened(f"'{text}'" if text.isprintable() else repr(text))
    return f"constraint {shown}, column {start + blanks + 1}"
