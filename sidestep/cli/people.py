"""A run's label store, and what people are told of it and of their model."""

from collections.abc import Sequence

from sidestep.cli.console import say
from sidestep.core.constraints import Scale
from sidestep.core.model import Spec
from sidestep.labels.store import Store
from sidestep.runs.folder import LABELS, Run


def run_store(run: Run, spec: Spec, scale: Scale) -> Store:
    """The labels of a run, a new store if it has none yet."""
    for ending in ("-wal", "-shm", "-journal"):  # SQLite's own files beside the store
        run.target(LABELS + ending)
    return Store.open_or_create(run.target(LABELS), spec, scale)


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
