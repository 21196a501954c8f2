"""Bounds and confidences in words. Nothing is ever rounded towards a stronger claim."""

from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

from sidestep.certification.records import Forecast, Result, StepPlan, Verdict

ARRIVING = 0.999  # share of runs that reach an end, below which it is said


def percent(confidence: float) -> str:
    """A confidence such as 95 % or 98.75 %, never more than it is."""
    share = 100 * Decimal(repr(float(confidence)))
    return f"{share.quantize(Decimal('0.0001'), ROUND_FLOOR).normalize():f} %"


def at_least(bound: float, decimals: int = 4) -> str:
    """A lower bound, rounded down."""
    return f"{Decimal(repr(float(bound))).quantize(Decimal(10) ** -decimals, ROUND_FLOOR):f}"


def at_most(bound: float, decimals: int = 4) -> str:
    """An upper bound, rounded up."""
    return f"{Decimal(repr(float(bound))).quantize(Decimal(10) ** -decimals, ROUND_CEILING):f}"


def bound_in_words(verdict: Verdict, decimals: int = 4) -> str:
    """The side that the constraint asks about."""
    if ">=" in verdict.text:
        return f"at least {at_least(verdict.lower, decimals)}"
    return f"at most {at_most(verdict.upper, decimals)}"


def verdict_in_words(verdict: Verdict) -> str:
    return "certified" if verdict.certified else "met, not certified" if verdict.met else "not met"


def certificate_lines(result: Result) -> list[str]:
    """Return, penalty and constraints, with the confidence that holds for all bounds of all audits of the run."""
    lines = []
    if result.returns is not None:
        spread = f" (about {_interval(result.returns.interval)})" if result.returns.interval else ""
        action = "mean action" if result.evaluation.policy == "mean" else "actions drawn, as the best policy does"
        lines.append(f"  return {result.returns.mean:.5g}{spread}, {action}")
    if result.penalty is not None:
        lines.append(f"  penalty {result.penalty.mean:.4g} ± {result.penalty.std:.3g}")
    if result.steps is not None:
        lines += [f"  {line}" for line in steps_in_words(result.steps)]
    lines += [f"{verdict_line(verdict, result)}{verdict_in_words(verdict)}" for verdict in result.constraints or ()]
    if result.reason:
        lines.append(f"  not certified: {result.reason}")
    if result.basis:
        lines.append(f"  {result.basis}")
    return lines


def verdict_line(verdict: Verdict, result: Result) -> str:
    """What was seen of one constraint, up to the word that judges it."""
    if verdict.proof == "exact":
        return f"  {verdict.text}: {verdict.estimate:.6g}, computed exactly: "
    observed = "unknown" if verdict.estimate is None else f"{verdict.estimate:.4f}"
    return (
        f"  {verdict.text}: {observed} in {result.rollouts:,} fresh rollouts, {bound_in_words(verdict)} "
        f"with {percent(result.confidence)} confidence: "
    )


def foreseen(forecast: Forecast) -> str:
    """What can be proven with these annotators, at what price, and why so many opinions are asked for."""
    said = (
        f"with answers wrong in about {forecast.error:.1%}, and a policy that costs about {forecast.cost:.2f} of the "
        f"tolerance, it should end in a certificate with a chance of {forecast.certified:.0%}, after about "
        f"{forecast.labels:.0f} labels"
    )
    if forecast.opinions > 1:
        said += f", with up to {forecast.opinions} opinions on a run that somebody calls costly"
    if forecast.others:
        others = [f"{one.certified:.0%} after about {one.labels:.0f} with {one.opinions}" for one in forecast.others]
        said += f" ({', '.join(others)})"
    if forecast.provable:
        said += f"; what is likely to be proven is {', '.join(forecast.provable)}"
    return said


def steps_in_words(plan: StepPlan) -> list[str]:
    """How the tolerance was used where single steps are labelled, and what the alternative would earn."""
    bounded = {
        "chance": "the chance of a run with a side effect is bounded",
        "number": "the chance and the expected number of side effects in a run are bounded",
        "avoid": "side effects are avoided altogether",
    }[plan.used]
    lines = [f"{bounded}: the plan earns {plan.planned_return:.6g} in {plan.horizon} steps, computed exactly"]
    if plan.used == "avoid":
        if plan.optimum > plan.planned_return:
            lines.append(f"the best that the tolerance allows earns at most {plan.optimum:.6g}")
    else:
        earned = "is impossible" if plan.avoiding is None else f"would earn at most {plan.avoiding:.6g}"
        lines.append(f"the best that the tolerance allows earns {plan.optimum:.6g}; to avoid them altogether {earned}")
    if plan.ended < ARRIVING:
        lines.append(f"only {100 * plan.ended:.1f} % of the runs reach an end")
    return lines


def _interval(ends: tuple[float, ...]) -> str:
    return f"{ends[0]:.5g} to {ends[1]:.5g}"


def neighbours_in_words(result: Result) -> str:
    """What tolerances next to the ones that were asked for would earn; "" where nothing is known of them."""
    known = [(one.text, one.gain) for one in result.neighbours if one.gain is not None]
    if not known:
        return ""
    words = [f"{text} would earn about {abs(gain):.3g} {'more' if gain > 0 else 'less'}" for text, gain in known]
    return f"Predicted, not certified: {', '.join(words)} (sidestep sweep certifies both sides)."
