"""The options of a campaign. Importable without JAX, for `--help`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from sidestep.core.errors import InputError
from sidestep.core.options import check_ranges, option, place_of

LAST_ROUNDS = 0.1  # share of the step size that is left in the last rounds, which still follow new labels
POLISH_TEST = 50  # epochs between two tests of the last planning, each of which gives candidates
MOST_ROLLOUTS = 10**6  # of an audit
STEP_ROLLOUTS = 10**6  # of an audit where a table is rolled out by labels of its steps: some seconds


@dataclass(frozen=True)
class CampaignConfig:
    """How the label budget is spent on the way to a certified policy."""

    labels: int = option(
        2000,
        "Labels that may influence the answer; the audit's come on top and are counted apart.",
        least=20,
        most=10**6,
    )
    marks: bool | None = option(
        None,
        "Ask also at which step each severity was reached, and learn from it, so that fewer labels do; without either, "
        "people are asked for marks and rules are not.",
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
    learner: Literal["families", "hazard"] = option(
        "families",
        "families: counted events, which learn from few labels and may be put into words, beside hazard models, which "
        "can learn any pattern; hazard: an ensemble of hazard models alone.",
    )
    units: int = option(16, "Recurrent units of each.", least=1, most=10_000)
    first_fit: int = option(1500, "Minibatches of the first fit at most.", least=1, most=10**7)
    later_fit: int = option(600, "Minibatches of every later fit, which continues the one before.", least=1, most=10**7)
    round_epochs: int = option(100, "Epochs of planning in a round.", least=1, most=10**6)
    searching_rounds: int = option(
        6,
        "Rounds that begin with a fresh search in addition to the policies of the round before, the last planning "
        "being one more: what was found against an earlier safety model may be the wrong way.",
        least=0,
    )
    polish_epochs: int = option(
        200, "Epochs of the last planning, in which policies also see the safety model's memory.", least=1, most=10**6
    )
    step_tolerance: Literal["auto", "chance", "number", "avoid"] = option(
        "auto",
        "Where single steps are labelled: bound the chance of a run with a side effect (chance), the expected number "
        "of them in a run too (number), or have none at all (avoid); auto: avoid where it costs next to nothing, else "
        "chance.",
    )
    audits: int = option(3, "Audits at most; they share the confidence.", least=1, most=100)
    rollouts: int = option(
        2000,
        f"Fresh rollouts of an audit; {STEP_ROLLOUTS:,} without it where a table is planned from labels of steps.",
        least=1,
        most=MOST_ROLLOUTS,
    )
    confidence: float = option(0.95, "Confidence of the certificate.", least=0.5, below=1)
    audit: Literal["auto", "plain", "stratified"] = option(
        "auto",
        "plain: by labels alone; stratified: what the safety model calls costly counts as costly, and labels go to the "
        "rest; auto: stratified where people label, plain where a rule does.",
    )
    known: int = option(
        40,
        "Cases of harm that are known by then, hidden among an audit's questions to people, so that the certificate "
        "holds for the truth although people err; 0 takes their labels for the truth.",
        least=0,
        most=10_000,
    )
    aim: float | None = option(
        None,
        "Share of a tolerance that policies aim at; without it as much as an audit can certify, or 0.3 of the "
        "tolerance where people label, so that their audits are short.",
        above=0,
        most=1,
    )
    safety: str = ""  # a registered kind of safety model, in place of the one that suits the model; for Python alone

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
_WHOLE = "whole trajectories are labelled, not single steps"
_WITHOUT_ROUNDS = "the model is finite, and this campaign has no such step"
_WITHOUT_NETWORK = "nothing is trained here: the policy is the exact optimum"
_SET_BY_ROUNDS = "a campaign sets it: give --round-epochs and --polish-epochs"
_IDLE_PLANNING: dict[str, dict[str, str]] = {
    "networks": {
        "epochs": _SET_BY_ROUNDS,
        "test_every": _SET_BY_ROUNDS,
        "search_population": "the searches of a campaign have a population of their own",
        "margin": "the tolerances of a campaign follow from what its audits can certify",
        "lookahead_rounds": "the last planning of a campaign anneals its policies instead",
    },
    "network of pairs": {"margin": "the network may cost what the exact optimum costs"},
}
_IDLE_CAMPAIGN: dict[str, tuple[str, ...]] = {
    "networks": ("step_tolerance",),
    "tables": ("step_tolerance", "learner", "units", "round_epochs", "searching_rounds", "polish_epochs"),
}
_OF_PAIRS = ("labels", "rollouts", "confidence", "step_tolerance")


def refuse_idle(kind: Kind, campaign: Mapping[str, object], planning: Mapping[str, object]) -> None:
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
            reason = _WHOLE if name == "step_tolerance" else _WITHOUT_ROUNDS
            raise InputError(f"has no effect here: {reason}; leave it out", place=place_of(name))
    if kind == "network of pairs" and campaign.get("step_tolerance") == "chance":
        raise InputError(
            "a network is trained on the expected number of side effects; give number or avoid, or another --method",
            place=place_of("step_tolerance"),
        )
