"""What a campaign is given, and what its strategies have in common."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import jax
from jaxtyping import PyTree

from sidestep.campaign.config import CampaignConfig
from sidestep.campaign.evidence import Evidence
from sidestep.campaign.records import Candidate, State
from sidestep.campaign.schedule import PEOPLE_AIM
from sidestep.certification.records import Audit
from sidestep.core.constraints import Constraint
from sidestep.core.errors import LabelsNeeded
from sidestep.core.model import Model, Trajectory
from sidestep.labels.experts import Expert
from sidestep.labels.store import Store
from sidestep.planning.bank import BankPolicy
from sidestep.planning.config import PlanConfig
from sidestep.planning.rows import PlanRow
from sidestep.policies.files import save_policy
from sidestep.runs.folder import Run
from sidestep.runs.records import Round
from sidestep.safety.base import SafetyModel

CAMPAIGN = 0xCA49  # folded into a seed's key: its random numbers never meet those of certification

# What is going on, in a word, and its record where there is one.
Show = Callable[[str, Round | Audit | PlanRow | None], None]
# Stays until people have labelled what is needed; False where nobody is there to do it.
Wait = Callable[[LabelsNeeded], bool]


@dataclass(frozen=True)
class Setting:
    """A campaign in one run's folder."""

    run: Run
    model: Model
    expert: Expert
    constraints: tuple[Constraint, ...]
    store: Store
    config: CampaignConfig
    planning: PlanConfig
    method: str
    seed: int
    reference: str  # MODEL, as the user wrote it
    show: Show
    loosest: tuple[Constraint, ...] = ()  # of a sweep, for whose tolerances these rounds are
    forked: bool = False  # whether the rounds were those of a sweep

    def key(self, stream: int) -> jax.Array:
        return jax.random.fold_in(jax.random.fold_in(jax.random.key(self.seed), CAMPAIGN), stream)

    def log(self, rows: Sequence[PlanRow]) -> None:
        """Tests of policies, into metrics.jsonl and to whoever watches."""
        self.run.append_metrics(rows)
        for row in rows:
            self.show("tested", row)

    @property
    def aim(self) -> float | None:
        """Share of a tolerance that policies aim at; None: as much as an audit can certify."""
        return self.config.aim or (PEOPLE_AIM if self.expert.label is None else None)

    def keep(self, file: str, policy: BankPolicy) -> Path:
        """Write a policy into the run's folder."""
        target = self.run.target(file)
        save_policy(target, policy, self.reference)
        return target


class Question(NamedTuple):
    """Trajectories to ask about, and whose plain rollouts they are, if anybody's."""

    source: str
    trajectories: Trajectory
    slot: int | None = None
    ahead: bool = False  # the labels are not needed before the stage after the next one


class Strategy(Protocol):
    """How a campaign learns, plans and asks: about whole trajectories, or about single steps."""

    arrays: PyTree  # what a checkpoint holds beside the state
    verifies: bool  # whether costs of candidates are predicted, so that labels of their own are worth having

    @property
    def fitted(self) -> SafetyModel | None:
        """The safety model, once it is fitted; None where there is none."""
        ...

    @property
    def planned(self) -> SafetyModel | None:
        """The safety model that policies are planned against, and judged by."""
        ...

    def prepare(self) -> None:
        """Compile in the background what will be needed."""
        ...

    def expect(self, state: State) -> None:
        """Give `arrays` the structure that they have in the rounds, or during the last planning."""
        ...

    def explore(self) -> list[Question]:
        """The first questions."""
        ...

    def advance(self, state: State, evidence: Evidence) -> tuple[State, list[Question]]:
        """One round: learn from all labels, plan, and say what to ask; the stage says whether another round follows."""
        ...

    def polish(self, state: State, evidence: Evidence) -> State:
        """The last planning, up to its next test: the state with more candidates, the stage "verify" after the last."""
        ...

    def policy_of(self, candidate: Candidate) -> BankPolicy: ...
