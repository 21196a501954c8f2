"""A run's folder: what is needed to resume bit for bit, to load the policy elsewhere, to say how numbers came about.

config.json           what was asked for
inputs/               copies of the files that model and rule are made of
state.safetensors     the last checkpoint, with its clock in the header
metrics.jsonl         one line per test and seed
policy.safetensors    the answer; safety.safetensors the safety model it was planned with
result.json           the certificate
labels.store          the labels, where the run asked for any
run.lock              which process works on it: one at a time
"""

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from jaxtyping import PyTree

from sidestep import __version__
from sidestep.core.errors import DiskFull, InputError
from sidestep.core.records import Json, JsonObject, checked, to_json
from sidestep.planning.rows import PlanRow
from sidestep.runs.inputs import RunFiles, copied
from sidestep.runs.lock import locked
from sidestep.runs.records import Round, RunConfig, read_config, read_json, read_metrics, read_rounds, read_rows
from sidestep.runtime.files import append, atomic_write, remove_partial, writing
from sidestep.runtime.serialisation import load_tree, read_header, save_tree

LABELS = "labels.store"
AGAIN = "give the command again"  # after a full disk, where no `resume` is needed


T = TypeVar("T")


class Run:
    """One folder. Files are replaced whole; metrics are appended and cut back to the checkpoint on resume."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, config: RunConfig, files: Mapping[str, bytes] | None = None) -> "Run":
        """A new run in this folder, with copies of its inputs and with `files` from the start.

        config.json comes last and makes it a run.
        """
        run = cls(path)
        referenced = ("" if "model" in config.live else config.model, None if "expert" in config.live else config.rule)
        inputs, copies = copied(*referenced)
        config = replace(config, version=__version__, inputs=inputs)
        new = not path.exists()
        with writing(path):
            path.mkdir(parents=True, exist_ok=True)
        try:
            with locked(path):
                if (path / "config.json").exists():
                    raise InputError(
                        f"there is a run here already; go on with `sidestep resume {path}` or choose another folder",
                        place=str(path),
                    )
                for name, content in {**copies, **(files or {})}.items():
                    atomic_write(run.target(name), content)
                run.write_json("config.json", to_json(config))
        except InputError:
            if new:
                shutil.rmtree(path, ignore_errors=True)
            raise
        return run

    @classmethod
    def open(cls, path: Path) -> "Run":
        run = cls(path)
        if not (path / "config.json").is_file():
            raise InputError("expected a run's folder with a config.json in it, and found none", place=str(path))
        _ = run.config  # refused here if it is damaged
        return run

    def files(self, trust: bool = False) -> RunFiles:
        """Where this run's model and rule are loaded from; `trust`: also where that runs a stranger's code."""
        return RunFiles(self.path, self.config.inputs, trust)

    @property
    def config(self) -> RunConfig:
        return read_config(self.path / "config.json")

    def settings(self, kind: type[T]) -> T:
        """The settings in config.json as this record."""
        return checked(kind, self.config.settings, f"{self.path / 'config.json'}, settings")

    def read_json(self, name: str) -> object:
        return read_json(self.path / name)

    @contextmanager
    def held(self, advice: str = "") -> Iterator[None]:
        """Be the one process that changes this run; a full disk is then told together with how to go on."""
        try:
            with locked(self.path):
                remove_partial(self.path)
                yield
        except DiskFull as full:
            place = full.place or str(self.path)
            raise DiskFull(place, advice or f"go on with sidestep resume {self.path}") from full

    def target(self, name: str) -> Path:
        """Where to write the file `name`: inside this folder, through no link that somebody put there."""
        file = self.path / name
        for place in (file, *(self.path / part for part in Path(name).parents if part.name)):
            if place.is_symlink():
                raise InputError(
                    "is a link, and a run's files are written inside its folder; remove it", place=str(place)
                )
        with writing(file):
            file.parent.mkdir(parents=True, exist_ok=True)
        return file

    def write_json(self, name: str, content: Json) -> None:
        atomic_write(self.target(name), json.dumps(content, indent=1) + "\n")

    def write_lines(self, name: str, rows: Iterable[Mapping[str, Json]]) -> None:
        atomic_write(self.target(name), "".join(json.dumps(row) + "\n" for row in rows))

    def has(self, name: str) -> bool:
        return (self.path / name).is_file()

    def save_state(self, tree: PyTree, header: JsonObject) -> None:
        save_tree(self.target("state.safetensors"), tree, header)

    def load_state(self, like: PyTree) -> PyTree:
        """The last checkpoint, in the structure of `like`."""
        return load_tree(self.path / "state.safetensors", like)

    def state_header(self) -> JsonObject | None:
        """The header of the last checkpoint, which the caller checks; None when the run stopped before its first."""
        file = self.path / "state.safetensors"
        return read_header(file) if file.exists() else None

    def append_metrics(self, rows: Iterable[PlanRow]) -> None:
        append(self.target("metrics.jsonl"), "".join(json.dumps(row.to_json()) + "\n" for row in rows))

    def metrics(self) -> list[PlanRow]:
        return read_metrics(self.path / "metrics.jsonl")

    def metric_rows(self) -> list[JsonObject]:
        """The metrics with everything that their lines say."""
        _ = self.metrics()  # refused here if one is damaged
        return read_rows(self.path / "metrics.jsonl")

    def rounds(self) -> list[Round]:
        return read_rounds(self.path / "rounds.jsonl")

    def cut_metrics(self, keep: int) -> None:
        """Keep the first `keep` lines: those up to the checkpoint that a resumed run starts from."""
        rows = self.metric_rows()
        if not 0 <= keep <= len(rows):
            raise InputError(
                f"holds {len(rows)} lines, and the checkpoint was made after {keep}; put the file back as it was",
                place=str(self.path / "metrics.jsonl"),
            )
        self.write_lines("metrics.jsonl", rows[:keep])
