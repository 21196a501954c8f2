"""A round of a campaign as a row of a table, for people who wait."""

from sidestep.campaign.evidence import SHOWN
from sidestep.runs.records import Round

ROUND_HEADS = ("round", "labels", "new", "model right", "return", "side effects", "   time")


def round_cells(done: Round) -> tuple[str, ...]:
    """How far the labels have got, how good the safety model is, what the bank's middle policy earns and is predicted
    to cause, and how long the round took."""
    accuracy = "-" if done.accuracy is None else f"{done.accuracy:.1%}"
    costs = done.slots[min(SHOWN, len(done.slots) - 1)].costs if done.slots else ()
    caused = f"{max(costs):.1%}" if costs else "-"
    seconds = "-" if done.seconds is None else f"{done.seconds:.0f} s"
    earned = f"{done.mean_return:,.0f}" if abs(done.mean_return) >= 1e4 else f"{done.mean_return:.4g}"
    return str(done.round), f"{done.labels:,}", f"{done.asked:,}", accuracy, earned, caused, seconds
