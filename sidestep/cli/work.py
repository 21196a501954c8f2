"""What the commands that work on a run have in common: exit status, label store, notes, and how they are stopped."""

import contextlib
import signal
from collections.abc import Iterator, Sequence

from sidestep.cli.console import say
from sidestep.core.model import Spec, finite_part
from sidestep.core.records import JsonObject, told_with
from sidestep.deploy.answers import Answer
from sidestep.labels.store import Store
from sidestep.planning.config import PlanConfig
from sidestep.planning.options import config_from_json
from sidestep.planning.programs import prepare_no_more
from sidestep.runs.folder import LABELS, Run

CERTIFIED, NOT_CERTIFIED, LABELS_NEEDED = 0, 1, 3  # exit statuses; 2 is bad input


def run_store(loaded: Answer) -> Store:
    """The labels of a run, a new store if it has none yet."""
    for ending in ("-wal", "-shm", "-journal"):  # SQLite's own files beside the store
        loaded.run.target(LABELS + ending)
    return Store.open_or_create(loaded.run.target(LABELS), loaded.model.spec, loaded.scale)


def tell_people(run: Run, before: Sequence[str], after: str) -> None:
    """How to look at the trajectories and how to give their labels, between what is asked and how to go on."""
    file = run.path / LABELS
    for line in (
        *before,
        f"  sidestep label {file} --export runs.csv     to look at them",
        f"  sidestep label {file} --import FILE.csv     with labels: columns trajectory (its number) and label",
        after,
    ):
        say(line)


def tell_notes(spec: Spec, quiet: bool) -> None:
    """What a plan should be read with: why there is no gradient, what the model forbids and rollouts may do."""
    unenforced = tuple(f"nothing can be certified, since {sentence}" for sentence in spec.unenforced)
    for note in () if quiet else (*spec.notes, *unenforced):
        say(f"note: {note}", stderr=True)


def planner_settings(loaded: Answer, settings: JsonObject, name: str) -> PlanConfig:
    """The planner's settings, which config.json has under `name`."""
    place = f"{loaded.run.path / 'config.json'}, {name}"
    with told_with(place):
        return config_from_json(settings, place, finite=finite_part(loaded.model) is not None)


@contextlib.contextmanager
def stoppable(advice: str, quiet: bool = False) -> Iterator[None]:
    """SIGTERM ends the work as Ctrl-C does; what was finished by then is on disk."""
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        say(f"stopped; {advice}", stderr=True, quiet=quiet)
        raise
    finally:
        prepare_no_more()
        signal.signal(signal.SIGTERM, previous)
