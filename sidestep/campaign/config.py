"""The options of a campaign. Importable without JAX, for `--help`."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from sidestep.core.errors import InputError
from sidestep.core.options import check_ranges, option, place_of

LAST_ROUNDS = 0.1  # share of the step size that is left in the last rounds, which still follow new labels
POLISH_TEST = 50  # epochs between two tests of the last planning, each of which gives candidates
MOST_ROLLOUTS = 10**6  # of an audit


@dataclass(frozen=True)
class CampaignConfig:
    """How the label budget is spent on the way to a certified policy."""

    labels: int = option(
        2000,
        "Labels that may influence the answer; the audit's come on top and are counted apart.",
        least=20,
        most=10**6,
    )
    rounds: int = option(5, "Rounds of fit, plan, ask.", least=1, most=1000)
    explore_share: float = option(
        0.25, "Share of the labels that explorers get before the first round.", above=0, below=0.6
    )
    check_share: float = option(
        0.2,
        "Share of the labels kept for the end, to check the best candidates on rollouts of their own.",
        above=0,
        below=0.6,
    )
    ask: Literal["well", "random"] = option(
        "well",
        "Choose the questions of a round well (disagreement, closeness to the boundary, new states), or at random.",
    )
    members: int = option(2, "Safety models in the ensemble.", least=1, most=100)
    units: int = option(16, "Recurrent units of each.", least=1, most=10_000)
    first_fit: int = option(1500, "Minibatches of the first fit at most.", least=1, most=10**7)
    later_fit: int = option(600, "Minibatches of every later fit, which continues the one before.", least=1, most=10**7)
    round_epochs: int = option(100, "Epochs of planning in a round.", least=1, most=10**6)
    searching_rounds: int = option(
        2, "Rounds that begin with a fresh search in addition to the policies of the round before.", least=0
    )
    polish_epochs: int = option(
        400, "Epochs of the last planning, in which policies also see the safety model's memory.", least=1, most=10**6
    )
    audits: int = option(3, "Audits at most; they share the confidence.", least=1, most=100)
    rollouts: int = option(2000, "Fresh rollouts of an audit.", least=1, most=MOST_ROLLOUTS)
    confidence: float = option(0.95, "Confidence of the certificate.", least=0.5, below=1)

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.polish_epochs % POLISH_TEST:
            raise InputError(
                f"must be a multiple of {POLISH_TEST}, not {self.polish_epochs}", place=place_of("polish_epochs")
            )

    @property
    def explored(self) -> int:
        return round(self.labels * self.explore_share)

    @property
    def checked(self) -> int:
        return round(self.labels * self.check_share)

    def asked(self, number: int) -> int:
        """Questions of round `number`: what is left, evenly, the first rounds getting what does not divide."""
        left = self.labels - self.explored - self.checked
        return left // self.rounds + (number < left % self.rounds)


Kind = Literal["networks", "tables", "pairs", "network of pairs"]
_WITHOUT_ROUNDS = "the model is finite, and this campaign has no such step"
_WITHOUT_NETWORK = "nothing is trained here: the policy is the exact optimum"
_SET_BY_ROUNDS = "a campaign sets it: give --round-epochs and --polish-epochs"
_IDLE_PLANNING: dict[str, dict[str, str]] = {
    "networks": {
        "epochs": _SET_BY_ROUNDS,
        "test_every": _SET_BY_ROUNDS,
        "search_population": "the searches of a campaign have a population of their own",
        "margin": "the tolerances of a campaign follow from what its audits can certify",
    },
    "network of pairs": {"margin": "the network may cost what the exact optimum costs"},
}
_IDLE_CAMPAIGN: dict[str, tuple[str, ...]] = {
    "networks": (),
    "tables": ("units", "round_epochs", "searching_rounds", "polish_epochs"),
}
_OF_PAIRS = ("labels", "rollouts", "confidence")


def refuse_idle(kind: Kind, campaign: Iterable[str], planning: Mapping[str, object]) -> None:
    """Refuse options, by name, that would do nothing in this kind of campaign."""
    for name in planning:
        reason = _IDLE_PLANNING.get(kind, {}).get(name) if kind in _IDLE_PLANNING else _WITHOUT_NETWORK
        if reason:
            raise InputError(f"has no effect here: {reason}; leave it out", place=place_of(name))
    rate = planning.get("learning_rate_end", 1.0)
    if kind == "networks" and isinstance(rate, int | float) and rate < LAST_ROUNDS:
        raise InputError(
            f"must be at least {LAST_ROUNDS} in a campaign, whose last rounds still learn",
            place=place_of("learning_rate_end"),
        )
    for name in campaign:
        if name in _IDLE_CAMPAIGN.get(kind, ()) or (kind not in _IDLE_CAMPAIGN and name not in _OF_PAIRS):
            raise InputError(f"has no effect here: {_WITHOUT_ROUNDS}; leave it out", place=place_of(name))
