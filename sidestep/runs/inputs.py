"""The files that a run's model and rule are made of: copies in its folder, with their hashes in config.json.

A run loads these copies and nothing else, so that its folder works wherever it lies. Their names are those of the
originals, from which models and rules take their own. Runs of format 1 have no copies and need the originals.
"""

from pathlib import Path

from sidestep.core.errors import InputError
from sidestep.models.domains import domain_of_file
from sidestep.models.trust import remember, remembered, sha256, untrusted
from sidestep.runs.records import Copy
from sidestep.runtime.files import read_bytes

FOLDER = "inputs"
CODE = ".py"


def files_named(model: str, rule: str | None) -> list[str]:
    """The files that these references name, as they are written there."""
    names = []
    for reference in (model.partition("?")[0], rule or ""):
        first, _, second = reference.partition(":")
        ending = Path(first).suffix.lower()
        if ending == CODE or domain_of_file(Path(first)):
            names.append(first)
        if ending == ".rddl":
            names += [first, second] if second else [first]
    return list(dict.fromkeys(names))


def copied(model: str, rule: str | None) -> tuple[dict[str, Copy], dict[str, bytes]]:
    """For config.json, which copy stands for each file that the references name; and the copies themselves."""
    listed: dict[str, Copy] = {}
    copies: dict[str, bytes] = {}
    for name in files_named(model, rule):
        content = read_bytes(Path(name))
        file = _free_name(Path(name).name, content, copies)
        copies[file] = content
        listed[name] = Copy(file, sha256(content))
    return listed, copies


def _free_name(name: str, content: bytes, taken: dict[str, bytes]) -> str:
    """inputs/NAME, or inputs/2/NAME and so on where another file of that name is."""
    file, number = f"{FOLDER}/{name}", 1
    while taken.get(file, content) != content:
        number += 1
        file = f"{FOLDER}/{number}/{name}"
    return file


class RunFiles:
    """The files of one run. Code among them is run when this user gave it to a command before, or with `trust`."""

    def __init__(self, folder: Path, listed: dict[str, Copy] | None, trust: bool) -> None:
        """`listed` is what config.json says of the copies; None for a run that has none."""
        self.folder, self.listed, self.trust = folder, listed, trust

    def path(self, name: str) -> Path:
        path, _ = self._found(name)
        return path

    def code(self, name: str, item: str) -> tuple[Path, bytes]:
        path, code = self._found(name)
        if not remembered(code, item):
            if not self.trust:
                raise untrusted(path)
            remember(code, item, path)
        return path, code

    def _found(self, name: str) -> tuple[Path, bytes]:
        if self.listed is None:
            return Path(name), read_bytes(Path(name))
        place = str(self.folder / "config.json")
        if name not in self.listed:
            raise InputError(f"names no copy of '{name}', which the run's model or rule is made of", place=place)
        path = self.folder / self.listed[name].file
        content = read_bytes(path)
        if sha256(content) != self.listed[name].sha256:
            raise InputError(
                "was changed since the run began (see its hash in config.json); put it back", place=str(path)
            )
        return path, content
