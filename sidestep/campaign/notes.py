"""What a campaign notes with its checkpoint, in the header of state.safetensors, and how the notes are checked."""

import re
from dataclasses import dataclass
from typing import Any, Literal

from sidestep.campaign.candidates import Candidate
from sidestep.campaign.ladder import RUNGS
from sidestep.errors import InputError
from sidestep.run_records import checked


@dataclass(frozen=True)
class Group:
    """Questions that were asked together, and whose plain rollouts they are."""

    ids: tuple[int, ...]
    round: int
    rung: int | None
    candidate: int | None
    counted: bool  # whether their labels have been counted


@dataclass(frozen=True)
class RungNote:
    """What a rung came to in a round."""

    tolerance: tuple[float, ...]
    costs: tuple[float, ...]


@dataclass(frozen=True)
class RoundNote:
    """A round, as far as later rounds look at it; all of it stands in rounds.jsonl."""

    rungs: tuple[RungNote, ...]


@dataclass(frozen=True)
class Notes:
    """Everything that a stage leaves to the next, beside the policies and the safety model."""

    stage: Literal["explore", "round", "polish", "check", "audit"]
    round: int
    asked: tuple[Group, ...]
    varied: bool  # whether the last fit knew enough of either side of a constraint
    gaps: tuple[tuple[float, ...], ...]  # (costly, predicted) of groups of labels
    candidates: tuple[Candidate, ...]
    rounds: tuple[RoundNote, ...]
    rows: int  # of metrics.jsonl
    seconds: float


def check_notes(notes: dict[str, Any], constraints: int, rounds: int, place: str) -> None:
    """Refuse notes that no campaign with so many constraints and rounds could have left."""
    read: Notes = checked(Notes, notes, place)
    wrong = next((what for what, fine in _looks(read, constraints, rounds) if not fine), None)
    if wrong:
        raise InputError(f"its notes are damaged: {wrong}; put the file back as it was", place=place)


def _looks(notes: Notes, constraints: int, rounds: int) -> list[tuple[str, bool]]:
    made, candidates = len(notes.rounds), len(notes.candidates)
    rungs = [rung for one in notes.rounds for rung in one.rungs]
    lists = [numbers for rung in rungs for numbers in (rung.tolerance, rung.costs)]
    lists += [numbers for one in notes.candidates for numbers in (one.predicted_costs, one.costly)]
    return [
        ("there is no such round", 0 <= notes.round <= rounds and notes.round <= made <= rounds + 1),
        ("a round has other rungs", all(len(one.rungs) == RUNGS for one in notes.rounds)),
        ("there are other constraints", all(len(numbers) == constraints for numbers in lists)),
        ("there is no candidate", candidates > 0 or notes.stage not in ("check", "audit")),
        ("a file's name leads elsewhere", all(re.fullmatch(r"[\w-]+\.safetensors", c.file) for c in notes.candidates)),
        (
            "numbers are negative",
            notes.rows >= 0 and notes.seconds >= 0 and all(c.labels >= 0 for c in notes.candidates),
        ),
        ("a gap has two numbers", all(len(gap) == 2 for gap in notes.gaps)),
        ("a question belongs to nothing", all(_belongs(group, made, candidates) for group in notes.asked)),
    ]


def _belongs(group: Group, rounds: int, candidates: int) -> bool:
    known_rung = group.rung is None or (0 <= group.rung < RUNGS and 0 <= group.round < rounds)
    return bool(group.ids) and known_rung and (group.candidate is None or 0 <= group.candidate < candidates)
