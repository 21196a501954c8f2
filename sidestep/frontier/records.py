"""What a sweep asked for and what it found: frontier.json. Figure, table and page read these records."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import sqrt
from statistics import mean, stdev

from sidestep.core.errors import InputError
from sidestep.core.records import JsonObject

PLACE = "--tolerances"


@dataclass(frozen=True)
class Request:
    """What a sweep was asked for."""

    model: str
    tolerances: tuple[str, ...]  # the swept constraint, once for each bound, the loosest first
    constraints: tuple[str, ...] = ()  # that hold at every point
    rule: str | None = None
    methods: tuple[str, ...] = ("default",)
    seed: int = 0
    seeds: int = 1
    campaign: JsonObject = field(default_factory=dict)  # options, by name
    planning: JsonObject = field(default_factory=dict)


@dataclass(frozen=True)
class Point:
    """One run: what its audit certified at one tolerance, and what the policy earned."""

    tolerance: str
    method: str
    seed: int
    certified: bool
    estimate: float | None  # observed frequency of the swept constraint's event
    lower: float
    upper: float
    mean: float | None  # return
    interval: tuple[float, ...] | None  # of the mean return
    labels: int  # that influenced the policy
    new_labels: int  # of these, paid for at this point; the others were shared
    audit_labels: int
    seconds: float
    run: str  # its folder, from that of the sweep
    expected: float | None = None  # the policy's exact mean return, where the model is finite

    @property
    def proven(self) -> float:
        """The probability that is certified: the bound on the side of the constraint."""
        return self.lower if ">=" in self.tolerance else self.upper


@dataclass(frozen=True)
class Optimum:
    """The exact optimum of a finite model at one tolerance; None where no policy keeps it."""

    tolerance: str
    value: float | None


@dataclass(frozen=True)
class Frontier:
    """frontier.json."""

    request: Request
    points: tuple[Point, ...]
    exact: tuple[Optimum, ...] = ()
    labels: int = 0  # paid for, each once; without those of audits
    audit_labels: int = 0
    version: str = ""
    command: str = ""

    def at(self, tolerance: str, method: str) -> list[Point]:
        return [point for point in self.points if (point.tolerance, point.method) == (tolerance, method)]

    def optimum(self, tolerance: str) -> float | None:
        return next((one.value for one in self.exact if one.tolerance == tolerance), None)

    @property
    def used_labels(self) -> int:
        """Of all policies, added up: what separate campaigns with as many labels would have paid for."""
        return sum(point.labels for point in self.points)

    @property
    def certified(self) -> bool:
        return all(point.certified for point in self.points)


# Quantiles 0.975 of Student's t with 1, 2, .. degrees of freedom; further ones are close to that of the normal.
STUDENT = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
NORMAL = 1.96


@dataclass(frozen=True)
class Level:
    """The runs of all seeds at one tolerance, together."""

    tolerance: str
    method: str
    certified: int
    seeds: int
    proven: float
    estimate: float | None
    mean: float | None
    interval: tuple[float, float] | None  # over seeds; of the one run's rollouts where there is one seed
    exact: float | None  # the optimum
    gap: float | None  # by how much the exact mean returns of the policies are below it, in the mean


def levels(frontier: Frontier) -> list[Level]:
    """One row per tolerance and method."""
    found = []
    for method in frontier.request.methods:
        for tolerance in frontier.request.tolerances:
            if points := frontier.at(tolerance, method):
                found.append(_level(points, frontier.optimum(tolerance)))
    return found


def _level(points: list[Point], exact: float | None) -> Level:
    returns = [point.mean for point in points if point.mean is not None]
    estimates = [point.estimate for point in points if point.estimate is not None]
    return Level(
        tolerance=points[0].tolerance,
        method=points[0].method,
        certified=sum(point.certified for point in points),
        seeds=len(points),
        proven=mean(point.proven for point in points),
        estimate=mean(estimates) if estimates else None,
        mean=mean(returns) if returns else None,
        interval=_interval(points, returns),
        exact=exact,
        gap=_gap(points, exact),
    )


def _gap(points: list[Point], exact: float | None) -> float | None:
    expected = [point.expected for point in points if point.expected is not None]
    return exact - mean(expected) if expected and exact is not None else None


def _interval(points: list[Point], returns: list[float]) -> tuple[float, float] | None:
    """mean -+ t s / sqrt(n) over the seeds."""
    if len(returns) == 1 and points[0].interval is not None:
        return points[0].interval[0], points[0].interval[1]
    if len(returns) < 2:
        return None
    freedom = len(returns) - 2
    quantile = STUDENT[freedom] if freedom < len(STUDENT) else NORMAL
    error = quantile * stdev(returns) / sqrt(len(returns))
    return mean(returns) - error, mean(returns) + error


def ordered_tolerances(given: str | Sequence[str]) -> tuple[str, ...]:
    """ "none>=0.9,0.95,0.99" as ("none>=0.9", "none>=0.95", "none>=0.99"), the loosest first."""
    texts = [given] if isinstance(given, str) else list(given)
    parts = [_parted(text) for text in texts]
    heads = {(name, operator) for name, operator, _ in parts}
    bounds = [bound for _, _, some in parts for bound in some]
    if len(heads) != 1 or len(bounds) < 2:
        raise InputError(
            f"expected one constraint with at least two bounds, such as none>=0.9,0.95,0.99, not '{', '.join(texts)}'",
            place=PLACE,
        )
    ((name, operator),) = heads
    numbers = [_number(bound) for bound in bounds]
    if len(set(numbers)) < len(numbers):
        raise InputError(f"a bound stands twice in '{', '.join(texts)}'; leave one out", place=PLACE)
    strictness = [number if operator == ">=" else -number for number in numbers]
    return tuple(f"{name}{operator}{bounds[place]}" for place in sorted(range(len(bounds)), key=strictness.__getitem__))


def _parted(text: str) -> tuple[str, str, list[str]]:
    operator = next((one for one in (">=", "<=") if one in text), None)
    if operator is None:
        raise InputError(f"needs '<=' or '>=' between category and bounds, not '{text}'", place=PLACE)
    name, _, bounds = text.partition(operator)
    return " ".join(name.split()), operator, ["".join(bound.split()) for bound in bounds.split(",")]


def _number(bound: str) -> float:
    try:
        return float(bound.removesuffix("%")) / (100.0 if bound.endswith("%") else 1.0)
    except ValueError:
        raise InputError(f"'{bound}' is not a number such as 0.95 or 95%", place=PLACE) from None
