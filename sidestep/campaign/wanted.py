"""What people are asked now, what for, and how far it is."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from sidestep.campaign.config import CampaignConfig
from sidestep.campaign.records import State, read_state
from sidestep.certification.records import Audit, Forecast
from sidestep.certification.words import foreseen
from sidestep.core.errors import LabelsNeeded
from sidestep.runs.folder import Run

Purpose = Literal["learning", "checking", "opinions", "audit"]


@dataclass(frozen=True)
class Wanted:
    """Labels that a campaign needs before it can go on."""

    purpose: Purpose
    trajectories: tuple[int, ...]  # of the store
    ahead: tuple[int, ...]  # those whose labels are needed later, and may be given already
    labels: int  # given so far: of the budget, or of the audit's runs
    budget: int  # labels that may influence the answer
    round: int  # that follows, from 1
    rounds: int
    audit: int = 0  # its number, from 1
    at_best: int = 0  # further labels that decide the audit if all of them are clean
    forecast: Forecast | None = None  # what the audit was expected to come to before its first label

    @property
    def words(self) -> str:
        if not self.trajectories:
            return f"{len(self.ahead)} trajectories can be labelled meanwhile, to check and audit the best candidates"
        count = len(self.trajectories)
        need = f"{count} trajector{'y needs a label' if count == 1 else 'ies need labels'}"
        given = f"{self.labels} of {self.budget} labels are there"
        given += f"; {len(self.ahead)} more can be labelled already" if self.ahead else ""
        if self.purpose == "audit":
            said = f"for audit {self.audit}: {self.labels} of its runs are labelled"
            known = "" if self.forecast is None else f"; {foreseen(self.forecast)}"
            return f"{need} {said}, and {self.at_best} more decide it if all of them are clean{known}"
        if self.purpose == "opinions":
            return f"{need} once more: second opinions on what decides which policy is audited; {given}"
        if self.purpose == "checking":
            return f"{need} to check the best candidates; {given}"
        return f"{need} to learn from, before round {self.round} of {self.rounds}; {given}"


def wanted(needed: LabelsNeeded | None, run: Run) -> Wanted:
    """What the campaign of this run needs, by its last checkpoint; None: nothing now, while it works."""
    config, header = run.settings(CampaignConfig), run.state_header()
    place = str(run.path / "state.safetensors")
    state = State() if header is None else read_state(header, len(run.config.constraints), place)
    ids = () if needed is None else tuple(needed.ids)
    budget, rounds = config.labels, config.rounds
    if needed is not None and isinstance(needed.audit, Audit):
        audit = needed.audit
        forecast = audit.design.forecast
        return Wanted("audit", ids, (), audit.rollouts, budget, rounds, rounds, audit.number, needed.at_best, forecast)
    checking = state.stage in ("verify", "certify") or (state.stage == "polish" and bool(state.candidates))
    again = bool(state.asked) and state.asked[-1].deciding and bool(set(ids) & set(state.asked[-1].ids))
    purpose: Purpose = "opinions" if again else "checking" if checking else "learning"
    given = len(state.due.asked_ids) - len(ids)
    random = np.random.default_rng(len(state.ahead))  # known cases are in no order that gives them away
    ahead = tuple(random.permutation(np.array(state.ahead, int)).tolist())
    return Wanted(purpose, ids, ahead, given, budget, min(state.round + 1, rounds), rounds)
