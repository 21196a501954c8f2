"""The desk: who is asked what, and what becomes of an answer.

A question is handed to as many people as are to answer it (`overlap`), and is kept for each of them for a while; who
does not answer in time may lose it to somebody else, and may answer all the same. An answer is checked, written into
the label store, and acknowledged when it is on disk. The same answer given twice is one label, so that a page which did
not hear back may simply send it again.

Now and then a question is a blind check: a pinned example whose answer is known, or one that the same person has
answered before. Answers to checks are notes about the annotator, never labels.

One thread at a time is here, and it never waits for the disk: answers are written by another one.
"""

import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from sidestep.core.errors import InputError
from sidestep.labels.marks import marks_fault, marks_of
from sidestep.labels.schema import checked_comment
from sidestep.labels.store import Store
from sidestep.labels.votes import Label
from sidestep.serve.book import Book, Check, CheckKind, Person, Pin
from sidestep.serve.scenes import Drawing, Scene

TRAY = 12  # drawings on a tray
REPEAT_AFTER = 20  # own answers between a question and its repetition
MOST_AT_ONCE = 100  # answers in one request
SAMPLE = 300  # trajectories that the axes of a drawing are made for
SCENES = 3000  # kept in memory
MOST_COMPARED = 600  # questions among which a tray looks for similar ones


@dataclass(frozen=True)
class Rules:
    """How questions are shared out."""

    overlap: int = 1  # people who answer each question
    lease: float = 300.0  # seconds for which a question is kept for the one who has it
    checks: int = 25  # one question in so many is a blind check; 0 for none


@dataclass(frozen=True)
class Given:
    """An answer as the page sends it: the number of the category, None for "cannot tell"."""

    trajectory: int
    category: int | None = None
    marks: dict[str, int] = field(default_factory=dict)
    comment: str = ""


@dataclass(frozen=True)
class Own:
    """What a person said of a trajectory last."""

    trajectory: int
    category: int | None
    marks: dict[str, int]
    comment: str
    time: str = ""


@dataclass(frozen=True)
class Question:
    """A trajectory to look at, with what this person said of it before, if they did."""

    scene: Scene
    own: Own | None = None
    skipped: bool = False  # this person could not tell, and nobody else has


@dataclass(frozen=True)
class Progress:
    """How far the questions of now are, for everybody and for one person."""

    questions: int
    answered: int  # by as many people as are asked
    own: int  # labels that this person has given to anything so far
    skipped: int  # questions of now to which this person said "cannot tell"


class Desk:
    def __init__(self, store: Store, book: Book, drawing: Drawing, rules: Rules, *, whole_store: bool) -> None:
        """`whole_store`: every trajectory of the store is a question; otherwise those that a campaign asks about."""
        self.store, self.book, self.drawing, self.rules = store, book, drawing, rules
        self.whole_store = whole_store
        self.votes: dict[int, dict[str, Label]] = {}  # the last label of each person
        self.own: dict[str, OrderedDict[int, Label]] = {}  # the same by person, the latest at the end
        self.log: list[Label] = []
        self._scenes: OrderedDict[int, Scene] = OrderedDict()
        self._leases: dict[int, dict[str, float]] = {}
        self._at: dict[str, int] = {}  # what each person has in front of them
        self._checks: dict[str, Check] = {}  # the check that each person has in front of them
        self._since_check: dict[str, int] = {}
        self._here: dict[str, float] = {}  # who has been handed anything, and until when they keep it
        self._doubtful: set[int] = set()  # of which somebody could not tell
        for trajectory, person, until in book.handed():
            self._leases.setdefault(trajectory, {})[person] = until
            self._here[person] = until
        self._open: dict[int, None] = {}
        self._batch: list[int] = []
        self._asked: set[int] = set()
        self._ahead: set[int] = set()
        self._purpose = ""
        self._stored = 0
        self.read_log()
        self.read_questions()

    def close(self) -> None:
        self.store.close()
        self.book.close()

    # What is asked.

    def read_questions(self) -> None:
        """Take up the questions of now."""
        if self.whole_store:
            new = range(self._stored + 1, len(self.store) + 1)
            self._stored = len(self.store)
            self._batch = [*self._batch, *new]
            self._open |= dict.fromkeys(i for i in new if not self.is_answered(i))
        else:
            self._batch, self._purpose = self.book.asked()
            self._open = dict.fromkeys(i for i in self._batch if not self.is_answered(i))
        ahead = self.purpose.get("ahead")
        self._asked, self._ahead = set(self._batch), set(ahead if isinstance(ahead, list) else ())
        if self._batch and not any(frame.y_range for frame in self.drawing.frames):
            self.drawing.fit(self.store.get(self._batch[:SAMPLE]))
            self._scenes.clear()

    def ask(self, trajectories: Sequence[int], purpose: Mapping[str, object]) -> None:
        """The campaign asks about these now; `purpose` says what for, and which of them are needed later (`ahead`)."""
        self.book.ask(trajectories, json.dumps(purpose))
        self.read_log()
        self.read_questions()

    @property
    def purpose(self) -> dict[str, object]:
        """What the questions are for, as the campaign put it."""
        return json.loads(self._purpose) if self._purpose else {}

    @property
    def questions(self) -> list[int]:
        return self._batch

    @property
    def all_answered(self) -> bool:
        """All that is needed now."""
        return self._open.keys() <= self._ahead

    def is_answered(self, trajectory: int) -> bool:
        """By as many people as are asked. Where somebody cannot tell, it is left when two have looked at it, or when
        nobody else is there."""
        votes, overlap = self.votes.get(trajectory, {}), self.rules.overlap
        cannot_tell = sum(label.category is None for label in votes.values())
        if not cannot_tell or len(votes) - cannot_tell >= overlap:
            return len(votes) - cannot_tell >= overlap
        now = self.book.clock()
        others = [name for name, until in self._here.items() if until > now and name not in votes]
        return len(votes) >= max(overlap, 2) or not others

    def read_log(self) -> None:
        """Take up labels that were added since the last look, by this page or by any other process."""
        for label in self.store.log(after=len(self.log)):
            self.log.append(label)
            votes = self.votes.setdefault(label.trajectory, {})
            votes.pop(label.annotator, None)
            votes[label.annotator] = label  # the newest last
            mine = self.own.setdefault(label.annotator, OrderedDict())
            mine[label.trajectory] = label
            mine.move_to_end(label.trajectory)
            if label.category is None:
                self._doubtful.add(label.trajectory)
            if label.trajectory in self._open or label.category is None:
                self._reconsider(label.trajectory)

    def leave_doubtful(self) -> None:
        """Leave questions of which somebody could not tell, once the others have gone."""
        for trajectory in [i for i in self._doubtful if i in self._open]:
            self._reconsider(trajectory)

    def _reconsider(self, trajectory: int) -> None:
        """A question is open as long as it has too few answers; an answer that was taken back opens it again."""
        if self.is_answered(trajectory):
            self._open.pop(trajectory, None)
        elif trajectory in self._asked:
            self._open[trajectory] = None

    def progress(self, person: str) -> Progress:
        mine = self._labels_of(person)
        skipped = sum(i in self._asked and i in mine and mine[i].category is None for i in self._doubtful)
        given = sum(label.category is not None for label in mine.values())
        return Progress(len(self._batch), len(self._batch) - len(self._open), given, skipped)

    # To whom.

    def next(self, person: Person, *, extra: bool = False) -> Question | None:
        """The question that this person gets now; None where nothing is to be answered by them.

        `extra`: a blind check will do as well, since there is nothing else.
        """
        self.read_log()
        if self.whole_store and len(self.store) > self._stored:
            self.read_questions()
        name = person.name
        if (check := self._checks.pop(name, None)) and check.given is None and not extra:
            return self._show_check(check)
        if check := self._check_due(person, extra):
            return self._show_check(check)
        found = self._free(name)
        if found is None:
            return None
        self._hand([found], name)
        self._since_check[name] = self._since_check.get(name, 0) + 1
        own = self.own_label(name, found)
        return Question(self.scene(found), None, skipped=own is not None)

    def _free(self, name: str) -> int | None:
        """What this person has already, else the first open question that is not kept for enough others; at the end
        what they could not tell."""
        mine, skipped = self._labels_of(name), None
        held = self._at.get(name)
        if held in self._open and held not in mine:
            return held
        for trajectory in self._open:
            if trajectory in mine:
                if mine[trajectory].category is None and skipped is None and self._has_room(trajectory, name):
                    skipped = trajectory
            elif self._has_room(trajectory, name):
                return trajectory
        return skipped

    def _has_room(self, trajectory: int, name: str) -> bool:
        now, votes = self.book.clock(), self.votes.get(trajectory, {})
        others = {who for who, until in self._leases.get(trajectory, {}).items() if until > now and who not in votes}
        voted = {who for who, label in votes.items() if label.category is not None}
        return len((others | voted) - {name}) < self.rules.overlap

    def _hand(self, trajectories: Sequence[int], name: str) -> None:
        self.book.hand(trajectories, name, self.rules.lease)
        until = self.book.clock() + self.rules.lease
        for trajectory in trajectories:
            self._leases.setdefault(trajectory, {})[name] = until
        self._at[name], self._here[name] = trajectories[0], until

    def hold(self, person: Person, trajectories: Sequence[int]) -> None:
        """Keep questions longer for somebody who is still looking at them."""
        self._require_handed(person.name, trajectories)
        kept = [i for i in trajectories if i in self._open]
        if kept:
            self._hand(kept, person.name)

    def tray(self, person: Person) -> list[Question]:
        """A dozen questions that look alike: the closest company among those that are free. Unless almost all of them
        are, no two are the same: nobody is to see what is asked twice."""
        self.read_log()
        mine = self._labels_of(person.name)
        free: list[int] = []
        for trajectory in self._open:
            if trajectory not in mine and self._has_room(trajectory, person.name):
                free.append(trajectory)
                if len(free) == MOST_COMPARED:
                    break
        if not free:
            return []
        features = self.drawing.features(self.store.get(free))
        different = np.sort(np.unique(features.round(5), axis=0, return_index=True)[1])
        if len(different) >= TRAY // 2:
            free, features = [free[row] for row in different.tolist()], features[different]
        if len(free) > TRAY:
            squares = (features**2).sum(axis=1)
            distances = squares[:, None] + squares[None, :] - 2.0 * features @ features.T
            company = np.argsort(distances, axis=1)[:, :TRAY]
            spread = np.take_along_axis(distances, company, axis=1).sum(axis=1)
            free = [free[row] for row in company[int(spread.argmin())].tolist()]
        self._hand(free, person.name)
        return [Question(scene) for scene in self.scenes(free)]

    # Answers.

    def answer(self, answers: Sequence[tuple[Person, Given]]) -> list[Own | InputError]:
        """Write answers of several people in one go, those that are good; they are on disk when this returns."""
        checked = self.check(answers)
        write_answers(self.store, checked.good)
        return self.replies(checked)

    def check(self, answers: Sequence[tuple[Person, Given]]) -> "Checked":
        """Which answers are to be written. One that is in the store already, or comes twice, is written once."""
        self.read_log()
        refused: dict[int, InputError] = {}
        known: dict[int, Own] = {}
        good: list[tuple[Person, Given]] = []
        last: dict[tuple[str, int], Given] = {}  # what is about to be written of each
        for place, (person, given) in enumerate(answers):
            try:
                own = self._without_writing(person, given)
            except InputError as error:
                refused[place] = error
                continue
            before = last.get((person.name, given.trajectory))
            if before is None and own is not None:
                known[place] = own
            elif before != given:
                last[person.name, given.trajectory] = given
                good.append((person, given))
        return Checked(tuple(answers), refused, known, tuple(good))

    def replies(self, checked: "Checked") -> list[Own | InputError]:
        """What each of these answers is told, once the good ones are written."""
        self.read_log()
        found: list[Own | InputError] = []
        for place, (person, given) in enumerate(checked.answers):
            reply = checked.refused.get(place) or checked.known.get(place)
            found.append(reply or self._saved(person.name, given.trajectory))
        return found

    def _saved(self, name: str, trajectory: int) -> Own:
        own = self.own_label(name, trajectory)
        assert own is not None  # it was written
        return own

    def _without_writing(self, person: Person, given: Given) -> Own | None:
        """The answer to a check, or one that is in the store already, as it is known; None for one to be written."""
        self._validate(given)
        check = self._checks.get(person.name)
        if check and check.trajectory == given.trajectory:
            self.book.answer_check(check.id, given.category)
            self._checks[person.name] = check._replace(given=given.category)
            return Own(given.trajectory, given.category, given.marks, given.comment.strip())
        self._require_handed(person.name, [given.trajectory])
        own = self.own_label(person.name, given.trajectory)
        said = (given.category, given.marks, given.comment.strip())
        return own if own and (own.category, own.marks, own.comment) == said else None

    def _validate(self, given: Given) -> None:
        """Everything that the store would refuse, so that one bad answer does not hold up the others."""
        categories = self.store.scale.categories
        if not 1 <= given.trajectory <= len(self.store):
            raise InputError(f"there is no trajectory {given.trajectory}")
        if given.category is not None and not 0 <= given.category < len(categories):
            raise InputError(f"a label is a number from 0 to {len(categories) - 1}, not {given.category}")
        checked_comment(given.comment)
        marks = marks_of(given.marks, self.store.scale)
        if fault := marks_fault(marks, given.category, self.scene(given.trajectory).length, self.store.scale):
            raise InputError(fault)

    def _require_handed(self, name: str, trajectories: Iterable[int]) -> None:
        for trajectory in trajectories:
            if name not in self._leases.get(trajectory, {}) and trajectory not in self.own.get(name, {}):
                raise InputError(f"trajectory {trajectory} was not handed to you")

    def own_label(self, name: str, trajectory: int) -> Own | None:
        label = self.votes.get(trajectory, {}).get(name)
        return None if label is None else own_of(label)

    def category(self, trajectory: int) -> int:
        """What counts for this trajectory now, the newest vote; -1 where there is none."""
        said = [label.category for label in self.votes.get(trajectory, {}).values() if label.category is not None]
        return said[-1] if said else -1

    def mine(self, name: str, skip: int, most: int) -> list[Own]:
        """What a person said of each trajectory last, the latest first, without so many of the latest."""
        return [own_of(label) for label in islice(reversed(self._labels_of(name).values()), skip, skip + most)]

    def look_again(self, person: Person, trajectory: int) -> Question:
        """A trajectory that this person has answered, with their answer; the owner may look at any."""
        if person.role != "owner":
            self._require_handed(person.name, [trajectory])
        elif not 1 <= trajectory <= len(self.store):
            raise InputError(f"there is no trajectory {trajectory}")
        return Question(self.scene(trajectory), self.own_label(person.name, trajectory))

    def settle(self, owner: Person, given: Given) -> Own:
        """The owner's word on a trajectory on which others disagree; it is the newest, and counts."""
        if given.trajectory not in self.votes:
            raise InputError(f"nobody has labelled trajectory {given.trajectory}")
        self._hand([given.trajectory], owner.name)
        (reply,) = self.answer([(owner, given)])
        if isinstance(reply, InputError):
            raise reply
        return reply

    def _labels_of(self, name: str) -> OrderedDict[int, Label]:
        return self.own.get(name, OrderedDict())

    # Scenes.

    def scene(self, trajectory: int) -> Scene:
        return self.scenes([trajectory])[0]

    def scenes(self, ids: Sequence[int]) -> list[Scene]:
        missing = [i for i in ids if i not in self._scenes]
        if missing:
            found = self.drawing.scenes(missing, self.store.get(missing))
            self._scenes |= {scene.trajectory: scene for scene in found}
        scenes = [self._scenes[i] for i in ids]
        while len(self._scenes) > SCENES:
            self._scenes.popitem(last=False)
        return scenes

    # Blind checks and practice.

    def _check_due(self, person: Person, extra: bool) -> Check | None:
        name, every = person.name, self.rules.checks
        if not extra and (not every or self._since_check.get(name, 0) < every):
            return None
        self._since_check[name] = 0
        done = {(check.kind, check.trajectory) for check in self.book.checks() if check.person == name}
        for kind, trajectory, expected in (*self._plants(name), *self._repeats(name)):
            if (kind, trajectory) not in done:
                number = self.book.begin_check(kind, trajectory, name, expected)
                return Check(number, kind, trajectory, name, expected, None)
        return None

    def _plants(self, name: str) -> list[tuple[CheckKind, int, int]]:
        """Pinned examples that this person has not labelled, unseen as examples or not."""
        mine = self._labels_of(name)
        return [("planted", pin.trajectory, pin.category) for pin in self.book.pins() if pin.trajectory not in mine]

    def _repeats(self, name: str) -> list[tuple[CheckKind, int, int]]:
        """What this person labelled long enough ago, the oldest first."""
        labels = list(self.own.get(name, {}).values())[:-REPEAT_AFTER]
        return [("repeat", label.trajectory, label.category) for label in labels if label.category is not None]

    def _show_check(self, check: Check) -> Question:
        self._checks[check.person] = check
        return Question(self.scene(check.trajectory))

    def practice(self) -> list[Question]:
        """The pinned examples, without their answers."""
        return [Question(scene) for scene in self.scenes([pin.trajectory for pin in self.book.pins()])]

    def practised(self, person: Person, given: Given) -> Pin:
        """What the known answer is, once this person has given theirs."""
        self._validate(given)
        pin = next((pin for pin in self.book.pins() if pin.trajectory == given.trajectory), None)
        if pin is None:
            raise InputError(f"trajectory {given.trajectory} is not an example")
        check = self.book.begin_check("practice", pin.trajectory, person.name, pin.category)
        self.book.answer_check(check, given.category)
        return pin

    def pin(self, pin: Pin) -> None:
        if not 1 <= pin.trajectory <= len(self.store) or not 0 <= pin.category < len(self.store.scale):
            raise InputError("an example is a trajectory of the store with a category of its scale")
        self.book.pin(pin._replace(note=checked_comment(pin.note) or ""))


@dataclass(frozen=True)
class Checked:
    """Answers of several people, by their places: those refused, those known already, and those to be written."""

    answers: tuple[tuple[Person, Given], ...]
    refused: dict[int, InputError]
    known: dict[int, Own]
    good: tuple[tuple[Person, Given], ...]


def write_answers(store: Store, good: Sequence[tuple[Person, Given]]) -> None:
    """In one transaction; they are on disk when this returns."""
    if good:
        store.label(
            [given.trajectory for _, given in good],
            np.array([given.category for _, given in good], object),
            annotator=[person.name for person, _ in good],
            marks=[given.marks or None for _, given in good],
            comment=[given.comment or None for _, given in good],
        )


def own_of(label: Label) -> Own:
    return Own(label.trajectory, label.category, dict(label.marks), label.comment or "", label.time)
