"""The options of a campaign. Importable without JAX, for `--help`."""

from dataclasses import dataclass
from typing import Literal

from sidestep.errors import InputError

POLISH_TEST = 50  # epochs between two tests of the last planning, each of which gives candidates

MOST = {"labels": 10**6, "rounds": 1000, "members": 100, "units": 10_000, "audits": 100, "rollouts": 10**6}
MOST |= {"first_fit": 10**7, "later_fit": 10**7, "round_epochs": 10**6, "polish_epochs": 10**6}


@dataclass(frozen=True)
class CampaignConfig:
    """How the label budget is spent on the way to a certified policy."""

    labels: int = 2000
    """Labels that may influence the answer; the audit's come on top and are counted apart."""
    rounds: int = 5
    """Rounds of fit, plan, ask."""
    explore_share: float = 0.25
    """Share of the labels that explorers get before the first round."""
    check_share: float = 0.2
    """Share of the labels kept for the end, to check the best candidates on rollouts of their own."""
    ask: Literal["well", "random"] = "well"
    """Choose the questions of a round well (disagreement, closeness to the boundary, new states), or at random."""
    members: int = 2
    """Safety models in the ensemble."""
    units: int = 16
    """Recurrent units of each."""
    first_fit: int = 1500
    """Minibatches of the first fit at most."""
    later_fit: int = 600
    """Minibatches of every later fit, which goes on from the one before."""
    round_epochs: int = 100
    """Epochs of planning in a round."""
    searching_rounds: int = 2
    """Rounds that begin with a fresh search beside the policies of the round before."""
    polish_epochs: int = 400
    """Epochs of the last planning, in which policies also see the safety model's memory."""
    audits: int = 3
    """Audits at most; they share the confidence."""
    rollouts: int = 2000
    """Fresh rollouts of an audit."""
    confidence: float = 0.95
    """Of the certificate."""

    def __post_init__(self) -> None:
        for name in ("rounds", "members", "units", "first_fit", "later_fit", "round_epochs", "audits", "rollouts"):
            if getattr(self, name) < 1:
                raise InputError(f"must be at least 1, not {getattr(self, name)}", place=_option(name))
        for name, most in MOST.items():
            if getattr(self, name) > most:
                raise InputError(f"must be at most {most:,}, not {getattr(self, name)}", place=_option(name))
        if self.polish_epochs < 1 or self.polish_epochs % POLISH_TEST:
            raise InputError(
                f"must be a multiple of {POLISH_TEST}, not {self.polish_epochs}", place=_option("polish_epochs")
            )
        if self.labels < 20:
            raise InputError(f"a campaign needs at least 20 labels, not {self.labels}", place=_option("labels"))
        for name in ("explore_share", "check_share"):
            if not 0 < getattr(self, name) < 0.6:
                raise InputError(f"must lie in (0, 0.6), not {getattr(self, name)}", place=_option(name))
        if not 0.5 <= self.confidence < 1:
            raise InputError(f"must lie in [0.5, 1), not {self.confidence}", place=_option("confidence"))

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


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
