"""Bounds and confidences in words. Nothing is ever rounded towards a stronger claim."""

from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

from sidestep.certification.records import Verdict


def percent(confidence: float) -> str:
    """A confidence such as 95 % or 98.75 %, never more than it is."""
    share = 100 * Decimal(repr(float(confidence)))
    return f"{share.quantize(Decimal('0.0001'), ROUND_FLOOR).normalize():f} %"


def at_least(bound: float) -> str:
    """A lower bound in four decimals, rounded down."""
    return f"{Decimal(repr(float(bound))).quantize(Decimal('0.0001'), ROUND_FLOOR):f}"


def at_most(bound: float) -> str:
    """An upper bound in four decimals, rounded up."""
    return f"{Decimal(repr(float(bound))).quantize(Decimal('0.0001'), ROUND_CEILING):f}"


def bound_in_words(verdict: Verdict) -> str:
    """The side that the constraint asks about."""
    if ">=" in verdict.text:
        return f"at least {at_least(verdict.lower)}"
    return f"at most {at_most(verdict.upper)}"


def verdict_in_words(verdict: Verdict) -> str:
    return "certified" if verdict.certified else "met, not certified" if verdict.met else "not met"
