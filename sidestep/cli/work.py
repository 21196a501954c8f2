"""What the commands that work on a run have in common: exit status, notes, and how they are stopped."""

import contextlib
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

from sidestep.cli.console import say
from sidestep.core.model import Spec
from sidestep.planning.programs import prepare_no_more

CERTIFIED, NOT_CERTIFIED, LABELS_NEEDED = 0, 1, 3  # exit statuses; 2 is bad input


def tell_people(file: Path | str, before: Sequence[str], after: str) -> None:
    """How to look at a store's trajectories and how to give their labels, between what is asked and how to go on."""
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
