"""What a run's folder tells while it runs: rounds, audits, the policies' rollouts, and in the end the answer.

Everything is read from the files that the run writes anyway, each of them whole or not at all.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

from sidestep.campaign.config import CampaignConfig
from sidestep.campaign.records import State, read_state
from sidestep.certification.ledger import Ledger
from sidestep.certification.records import Audit, Result, result_from_json
from sidestep.core.constraints import parse_constraints
from sidestep.core.errors import InputError
from sidestep.core.views import Frame
from sidestep.report.kept import read_kept
from sidestep.runs.folder import Run
from sidestep.runs.records import Round, RunConfig
from sidestep.serve.desk import Desk
from sidestep.serve.insight import Need, need
from sidestep.serve.scenes import Points, shorten

T = TypeVar("T")
MOST_DRAWN = 24  # rollouts of one policy
STAGES = {
    "explore": "choosing the first questions",
    "round": "learning from the labels and planning against what was learned",
    "polish": "the last planning",
    "verify": "checking the best candidates",
    "certify": "auditing the favourite on fresh rollouts",
}


@dataclass(frozen=True)
class Rollout:
    """One rollout in one view; category -1 where nobody has judged it."""

    category: int
    points: tuple[Points, ...]


@dataclass(frozen=True)
class PolicyDrawn:
    words: str
    judge: str
    rollouts: tuple[Rollout, ...]


@dataclass(frozen=True)
class RunView:
    """The state of a run, for the owner."""

    model: str
    constraints: tuple[str, ...]
    categories: tuple[str, ...]
    people: bool
    seed: int
    budget: int | None
    rounds_planned: int
    stage: str
    stage_words: str
    round: int
    rounds: tuple[Round, ...]
    audits: tuple[Audit, ...]
    result: Result | None
    certified: bool
    labels: int
    frames: tuple[Frame, ...]
    policies: tuple[PolicyDrawn, ...]
    need: Need | None
    report: bool


class RunReader:
    def __init__(self, folder: Path, people: bool) -> None:
        self.run, self.people = Run.open(folder), people
        self.config: RunConfig = self.run.config
        campaign = self.config.kind == "campaign"
        self.campaign = self.run.settings(CampaignConfig) if campaign else None
        self.constraints = parse_constraints(self.config.constraints, self.config.scale)
        self._known: dict[str, tuple[object, object]] = {}  # what was read of a file, and of which version

    @property
    def finished(self) -> bool:
        return self.run.has("result.json")

    def state(self) -> State:
        """Asked for with every question, so it is read anew only when the file is another."""
        if self.campaign is None:
            return State()
        file, constraints = self.run.path / "state.safetensors", len(self.constraints)
        known = self._read(file.name, lambda: read_state(self.run.state_header(), constraints, str(file)))
        return State() if known is None else known

    def rounds(self) -> list[Round]:
        return self._read("rounds.jsonl", self.run.rounds) or []

    def usual_seconds(self) -> float | None:
        """What the longest round took so far."""
        return max((row.seconds for row in self.rounds() if row.seconds), default=None)

    def _read(self, name: str, read: Callable[[], T]) -> T | None:
        """What `read` makes of a file of the run; None where there is none."""
        try:
            found = (self.run.path / name).stat()
        except FileNotFoundError:
            return None
        version = (found.st_mtime_ns, found.st_size, found.st_ino)
        if self._known.get(name, (None, None))[0] != version:
            self._known[name] = (version, read())
        return cast(T, self._known[name][1])

    def view(self, frames: tuple[Frame, ...], policies: tuple[PolicyDrawn, ...], purpose: dict[str, object]) -> RunView:
        """`policies`: the last round's, in these frames; of a finished run the answer is drawn."""
        state, rounds = self.state(), self.rounds()
        result = result_from_json(self.run.read_json("result.json"), "result.json") if self.finished else None
        frames, policies = self._answer_drawn() or (frames, policies)
        return RunView(
            model=Path(self.config.model.partition("?")[0]).name,
            constraints=self.config.constraints,
            categories=self.config.categories,
            people=self.people,
            seed=self.config.seed,
            budget=self.config.labels,
            rounds_planned=self.campaign.rounds if self.campaign else 0,
            stage=state.stage,
            stage_words=STAGES[state.stage],
            round=state.round,
            rounds=tuple(rounds),
            audits=Ledger(self.run).audits,
            result=result,
            certified=result is not None and result.certified,
            labels=len(state.asked_ids),
            frames=frames,
            policies=policies,
            need=self._need(purpose),
            report=self.run.has("report.html"),
        )

    def _need(self, purpose: dict[str, object]) -> Need | None:
        """What the audit takes: the one that asks now, or the first one of a campaign that is still learning."""
        if self.campaign is None or self.finished or not self.people:
            return None
        audits = Ledger(self.run).audits
        number = audits[-1].number if audits else 1
        confidence = 1.0 - (1.0 - self.campaign.confidence) / 2**number
        given, at_best = purpose.get("labels"), purpose.get("at_best")
        try:
            if purpose.get("purpose") == "audit" and isinstance(given, int) and isinstance(at_best, int):
                return need(self.constraints, confidence, self.campaign.rollouts, given, at_best)
            return need(self.constraints, confidence, self.campaign.rollouts, 0, 0)
        except InputError:  # such constraints were refused when the run began
            return None

    def _answer_drawn(self) -> tuple[tuple[Frame, ...], tuple[PolicyDrawn, ...]] | None:
        """The answer's rollouts, where the run is finished and kept them."""
        kept = read_kept(self.run.path) if self.finished else None
        if kept is None:
            return None
        drawn = tuple(
            PolicyDrawn(
                scene.words,
                scene.judge,
                tuple(
                    Rollout(
                        int(scene.categories[row]),
                        tuple(
                            Points(shorten(x[row, : scene.length[row]]), shorten(y[row, : scene.length[row]]))
                            for x, y in scene.points
                        ),
                    )
                    for row in range(min(len(scene.length), MOST_DRAWN))
                ),
            )
            for scene in kept.scenes
        )
        return tuple(kept.frames), drawn

    def policies(self, desk: Desk) -> tuple[PolicyDrawn, ...]:
        """The labelled rollouts of the last round's policies, while the run goes on; at the desk."""
        asked = () if self.finished else self.state().asked
        plain = [group for group in asked if group.slot is not None or group.candidate is not None]
        if not plain:
            return ()
        last = max(group.round for group in plain)
        found = []
        for group in [group for group in plain if group.round == last][-6:]:
            ids = list(group.ids[:MOST_DRAWN])
            words = (
                f"candidate {group.candidate}" if group.slot is None else f"policy {group.slot + 1} of round {last + 1}"
            )
            rollouts = tuple(Rollout(desk.category(scene.trajectory), scene.views) for scene in desk.scenes(ids))
            found.append(PolicyDrawn(words, "by the labels so far", rollouts))
        return tuple(found)
