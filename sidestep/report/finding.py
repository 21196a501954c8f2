"""What a run found, in one sentence for everybody. Nothing is rounded towards a stronger claim."""

import math
from dataclasses import dataclass
from typing import Literal

from sidestep.certification.records import Result, Verdict
from sidestep.certification.words import percent
from sidestep.core.constraints import Constraint, Scale
from sidestep.report.kept import Kept

LEAST_PRICE = 0.005  # of the return, which is told as "about"
MOST_PRICE = 2.0  # of the return: a larger price is no share of it, since the return is close to zero
BASES = ((0.02, 100), (0.002, 1000))  # of how many runs is spoken, by the tolerance of the constraint


@dataclass(frozen=True)
class Finding:
    """The sentence, and how good the news is."""

    kind: Literal["good", "fair", "bad"]
    sentence: str


def finding(result: Result, scale: Scale, kept: Kept | None) -> Finding:
    """Is it safe, how sure is that, and what does it cost?"""
    verdicts = result.constraints
    if verdicts is None:
        return Finding(
            "fair",
            "A policy was planned but nothing is certified: there was no rule to label fresh runs, so it is not known "
            "what it really does.",
        )
    if not verdicts:
        return Finding("fair", f"A policy was planned without any constraint.{_price(result, kept)}")
    if result.reason:
        return Finding("bad", f"Not certified: {result.reason}.")
    told = "; ".join(_told(verdict, Constraint.parse(verdict.text, scale), result, scale) for verdict in verdicts)
    texts = " and ".join(verdict.text for verdict in verdicts)
    if result.certified:
        return Finding("good", f"Certified: {told}.{_price(result, kept)}")
    price = _price(result, kept)
    if all(verdict.met for verdict in verdicts):
        return Finding("fair", f"Not proved: {texts} held in the audit, too narrowly to be certified: {told}.{price}")
    missed = " and ".join(verdict.text for verdict in verdicts if not verdict.met)
    return Finding("bad", f"Not safe enough: {missed} did not hold in the audit: {told}.{price}")


def _told(verdict: Verdict, constraint: Constraint, result: Result, scale: Scale) -> str:
    """ "97 of 100 runs were free of side effects, at least 96 with 95 % confidence"; at most, where too few were."""
    base = next((base for least, base in BASES if constraint.tolerance >= least), 10_000)
    event, confidence = _event(constraint, scale), percent(result.confidence)
    wanted = constraint.sense == ">="
    lower = wanted == verdict.met  # the side that proves it; where it was not met, the side that refutes it
    bound = _down(verdict.lower * base) if lower else _up(verdict.upper * base)
    sure = "for certain" if verdict.proof == "exact" else f"with {confidence} confidence"
    words = f"at {'least' if lower else 'most'} {bound:,} {sure}"
    if verdict.estimate is None:
        return f"{words} of {base:,} runs {event}"
    seen = verdict.estimate * base
    return f"{_down(seen) if wanted else _up(seen):,} of {base:,} runs {event}, {words}"


def _event(constraint: Constraint, scale: Scale) -> str:
    """What the constraint speaks of, as a predicate of runs."""
    first, name = constraint.weights.index(1), constraint.text.split(constraint.sense)[0]
    if first == 0:
        return "were free of side effects" if name == "none" else f"were '{name}', without side effects"
    if not name.endswith("+"):
        return f"were '{name}'"
    return f"were '{name[:-1]}'" + (" or worse" if first + 1 < len(scale) else "")


def _price(result: Result, kept: Kept | None) -> str:
    """What the constraint costs, compared with a policy that ignores side effects."""
    if result.returns is None:
        return ""
    earned = f" It earns {in_digits(result.returns.mean)}"
    before = kept.scenes[0].mean_return if kept and len(kept.scenes) > 1 else None
    if before is None or not result.constraints:
        return f"{earned} per run."
    price = (before - result.returns.mean) / max(abs(before), 1e-9)
    ignoring = f"the {in_digits(before)} of a policy that ignores side effects"
    if abs(price) < LEAST_PRICE:
        return f"{earned} per run, about {ignoring}."
    if abs(price) > MOST_PRICE:
        return f"{earned} per run instead of {ignoring}."
    share = f"{abs(price):.0%}".replace("%", " %")
    return f"{earned} per run, {share} {'less' if price > 0 else 'more'} than {ignoring}."


def in_digits(value: float) -> str:
    """Three digits that matter, never fewer than those before the point."""
    if not math.isfinite(value):
        return str(value)
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:#.3g}" if value else "0"


def _down(value: float) -> int:
    return math.floor(value + 1e-9)


def _up(value: float) -> int:
    return math.ceil(value - 1e-9)
