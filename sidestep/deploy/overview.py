"""Runs side by side: a table of those below a folder, and two of them with what they differ in."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from sidestep.certification.records import Result, result_from_json
from sidestep.certification.words import bound_in_words, verdict_in_words
from sidestep.core.errors import InputError
from sidestep.core.records import Json, JsonObject, to_json
from sidestep.deploy.tables import Table, Value
from sidestep.runs.folder import Run

DEPTH = 4  # folders below the one that is looked in
LISTED = ("run", "model", "constraints", "method", "seed", "status", "return", "labels", "audit labels", "begun")


def runs(folder: str | Path = "runs") -> Table:
    """Every run below this folder, the oldest first."""
    if not Path(folder).is_dir():
        raise InputError("there is no such folder; name the one that your runs are in with --folder", place=str(folder))
    found = [Run.open(path) for path in _run_folders(Path(folder), DEPTH)]
    rows = [_row(run) for run in found]
    return Table(LISTED, sorted(rows, key=lambda row: str(row[-1])))


def compare(first: str | Path, second: str | Path, *, every: bool = False) -> Table:
    """Two runs side by side: what was asked where they differ, all of it with `every`, and what came of it."""
    both = [Run.open(Path(path)) for path in (first, second)]
    asked = [_flat(to_json(run.config)) for run in both]
    came = [_outcome(run) for run in both]
    rows: list[tuple[Value, ...]] = []
    for name in dict.fromkeys([*asked[0], *asked[1]]):
        values = [one.get(name) for one in asked]
        if name not in _OF_FOLDER and (every or values[0] != values[1]):
            rows.append((name, *map(_in_text, values)))
    rows += [(name, *(one.get(name) for one in came)) for name in dict.fromkeys([*came[0], *came[1]])]
    return Table(("", str(first), str(second)), rows)


_OF_FOLDER = ("format", "version")  # what says nothing of what was asked for


def _run_folders(folder: Path, depth: int) -> Iterator[Path]:
    if (folder / "config.json").is_file():
        yield folder  # the runs of its seeds are parts of it
    elif depth:
        for inner in sorted(one for one in folder.iterdir() if one.is_dir() and not one.is_symlink()):
            yield from _run_folders(inner, depth - 1)


def _row(run: Run) -> tuple[Value, ...]:
    config, result = run.config, _result(run)
    begun = datetime.fromtimestamp((run.path / "config.json").stat().st_mtime).strftime("%Y-%m-%d %H:%M")
    came = (status(run, result), *_figures(result))
    return str(run.path), config.model, ", ".join(config.constraints), config.method, config.seed, *came, begun


def _figures(result: Result | None) -> tuple[Value, Value, Value]:
    if result is None:
        return None, None, None
    return (result.returns.mean if result.returns else None, result.labels_used, result.audit_labels)


def status(run: Run, result: Result | None) -> str:
    """How far a run is, in a word or two."""
    if result is None:
        seeds = [one for one in run.path.glob("seed-*") if (one / "result.json").is_file()]
        return f"{len(seeds)} seeds done" if seeds else "not finished"
    if result.constraints is None:
        return "not audited"
    return "certified" if result.certified else "not certified"


def _result(run: Run) -> Result | None:
    if not run.has("result.json"):
        return None
    return result_from_json(run.read_json("result.json"), str(run.path / "result.json"))


def _outcome(run: Run) -> dict[str, Value]:
    result = _result(run)
    found: dict[str, Value] = {"status": status(run, result)}
    if result is None:
        return found
    for verdict in result.constraints or ():
        found[verdict.text] = f"{_in_text(verdict.estimate)}, {bound_in_words(verdict)}: {verdict_in_words(verdict)}"
    if result.returns is not None:
        found["return"] = result.returns.mean
    return found | {
        "labels": result.labels_used,
        "audits": result.audits,
        "audit labels": result.audit_labels,
        "seconds": round(result.seconds),
    }


def _flat(data: JsonObject, before: str = "") -> dict[str, Json]:
    """Nested settings by their path, such as planning.reward.batch."""
    flat: dict[str, Json] = {}
    for name, value in data.items():
        flat |= _flat(value, f"{before}{name}.") if isinstance(value, dict) else {f"{before}{name}": value}
    return flat


def _in_text(value: Json) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
