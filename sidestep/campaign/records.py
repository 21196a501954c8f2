"""What a campaign remembers from stage to stage, and what it tells of each round."""

import re
from collections.abc import Container
from dataclasses import dataclass, replace
from typing import Literal

from sidestep.certification.records import KnownCase, StepPlan
from sidestep.core.errors import InputError
from sidestep.core.records import from_json
from sidestep.planning.rows import Phase
from sidestep.runs.records import Round
from sidestep.runtime.files import Json

Stage = Literal["explore", "round", "polish", "verify", "certify"]


@dataclass(frozen=True)
class Group:
    """Trajectories of the store that were asked about together."""

    ids: tuple[int, ...]
    round: int
    slot: int | None = None  # of the bank in that round, if they are plain rollouts of its policy
    candidate: int | None = None  # likewise of a candidate
    repeats: tuple[int, ...] = ()  # the trajectories that these are blind copies of, where questions are asked twice
    due: int = 0  # rounds after which the labels are needed; people may give them earlier
    deciding: bool = False  # copies that were chosen because much depends on them, not at random

    def only(self, known: Container[int]) -> "Group":
        """With these trajectories alone; a copy counts where its original does."""
        kept = [
            row for row, i in enumerate(self.ids) if i in known and (not self.repeats or self.repeats[row] in known)
        ]
        repeats = tuple(self.repeats[row] for row in kept) if self.repeats else ()
        return replace(self, ids=tuple(self.ids[row] for row in kept), repeats=repeats)


@dataclass(frozen=True)
class Candidate:
    """A policy that may be the answer: from the bank of a round, or from a test of the last planning."""

    file: str  # in the run's folder
    predicted_return: float = 0.0  # on rollouts that need no label
    predicted_costs: tuple[float, ...] = ()
    deviation: float = 0.0  # of the return from rollout to rollout
    round: int | None = None  # with `slot`: whose plain rollouts were labelled in that round
    slot: int | None = None
    labels: int = 0  # of plain rollouts of this policy
    costly: tuple[float, ...] = ()  # how many of them count for each constraint
    expected: tuple[float, ...] = ()  # how many of them the safety model expected to


@dataclass(frozen=True)
class State:
    """Where a campaign stands. With the labels in the store, all else follows from it and from the seed."""

    stage: Stage = "explore"
    round: int = 0
    asked: tuple[Group, ...] = ()
    varied: bool = False  # whether the last fit knew enough of both sides of a constraint
    candidates: tuple[Candidate, ...] = ()
    rounds: tuple[Round, ...] = ()
    rows: int = 0  # of metrics.jsonl
    seconds: float = 0.0
    steps: StepPlan | None = None  # where single steps are labelled
    phase: Phase = ""  # of the last planning
    known: tuple[KnownCase, ...] = ()  # of the first audit, where some are asked about before it
    hidden: tuple[int, ...] = ()  # their copies, in the same order, as far as they are asked about already

    @property
    def asked_ids(self) -> list[int]:
        """Every trajectory that was asked about, once, in that order."""
        return list(dict.fromkeys(i for group in self.asked for i in group.ids))

    def with_group(
        self, ids: list[int], slot: int | None = None, candidate: int | None = None, due: int = 0
    ) -> "State":
        return replace(self, asked=(*self.asked, Group(tuple(ids), self.round, slot, candidate, due=due)))

    @property
    def copied(self) -> dict[int, int]:
        """Of every blind copy the trajectory that it is a copy of."""
        return {copy: own for one in self.asked for copy, own in zip(one.ids, one.repeats, strict=bool(one.repeats))}

    @property
    def due(self) -> "State":
        """With the questions alone whose labels are needed now: at the end all of them."""
        at_the_end = self.stage in ("verify", "certify")
        return replace(self, asked=tuple(group for group in self.asked if at_the_end or group.due <= self.round))

    @property
    def ahead(self) -> list[int]:
        """Trajectories whose labels are needed later, or in the first audit."""
        due = set(self.due.asked_ids)
        return [*(i for i in self.asked_ids if i not in due), *self.hidden]

    def only(self, known: Container[int]) -> "State":
        """With these trajectories alone."""
        groups = (group.only(known) for group in self.asked)
        return replace(self, asked=tuple(group for group in groups if group.ids))


def read_state(data: Json, constraints: int, place: str) -> State:
    """The state in a checkpoint; refused where no campaign with so many constraints could have left it."""
    if isinstance(data, dict) and "gaps" in data:
        raise InputError("an earlier version began this campaign; finish it with that one, or begin anew", place=place)
    state: State = from_json(State, data, place)
    wrong = next((what for what, fine in _looks(state, constraints) if not fine), None)
    if wrong:
        raise InputError(f"this checkpoint is damaged: {wrong}; put the file back as it was", place=place)
    return state


def _looks(state: State, constraints: int) -> list[tuple[str, bool]]:
    made, candidates = len(state.rounds), state.candidates
    lists = [numbers for one in state.rounds for slot in one.slots for numbers in (slot.tolerance, slot.costs)]
    lists += [state.steps.chances, state.steps.numbers] if state.steps else []
    lists += [candidate.predicted_costs for candidate in candidates]
    return [
        ("there is no such round", 0 <= state.round <= made <= state.round + 1),
        ("rounds are not counted up", all(one.round == number for number, one in enumerate(state.rounds))),
        ("there are other constraints", all(len(numbers) == constraints for numbers in lists)),
        ("there is no candidate", bool(candidates) or state.stage not in ("verify", "certify")),
        ("a file's name leads elsewhere", all(re.fullmatch(r"[\w-]+\.safetensors", c.file) for c in candidates)),
        ("numbers are negative", state.rows >= 0 and state.seconds >= 0),
        ("a question belongs to nothing", all(_belongs(group, state) for group in state.asked)),
        ("copies are of nothing", all(len(one.repeats) in (0, len(one.ids)) for one in state.asked)),
        ("copies are of no known case", len(state.hidden) <= len(state.known)),
    ]


def _belongs(group: Group, state: State) -> bool:
    slots = state.rounds[group.round].slots if 0 <= group.round < len(state.rounds) else ()
    known_slot = group.slot is None or 0 <= group.slot < len(slots)
    return bool(group.ids) and known_slot and (group.candidate is None or 0 <= group.candidate < len(state.candidates))
