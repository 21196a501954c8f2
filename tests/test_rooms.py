"""The order of the rooms: a room knows those before it, and runtime; never those after it."""

import ast
import importlib
import pkgutil
from pathlib import Path

import pytest

import sidestep

PACKAGE = Path(sidestep.__file__).parent
ORDER = (
    "core",
    "models",
    "labels",
    "safety",
    "finite",
    "policies",
    "planning",
    "runs",
    "certification",
    "campaign",
    "report",
    "serve",
    "deploy",
    "cluster",
    "frontier",
    "reproduce",
    "cli",
)
DOMAINS = ("navigation", "hvac", "reservoir", "boxpushing", "driving")


def imports(file):
    """Every module of ours that a file imports, inside functions too, with its line."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "sidestep":
            names = [node.module] if node.module != "sidestep" else [f"sidestep.{name.name}" for name in node.names]
            yield from ((name, node.lineno) for name in names)
        if isinstance(node, ast.Import):
            yield from ((name.name, node.lineno) for name in node.names if name.name.startswith("sidestep."))


def test_there_are_no_loose_modules_and_no_other_rooms():
    assert {file.name for file in PACKAGE.glob("*.py")} == {"__init__.py", "__main__.py"}
    assert {folder.name for folder in PACKAGE.iterdir() if (folder / "__init__.py").is_file()} == {*ORDER, "runtime"}


@pytest.mark.parametrize("room", [*ORDER, "runtime"])
def test_a_room_knows_those_before_it_only(room):
    known = set(ORDER[: ORDER.index(room) + 1]) | {"runtime"} if room != "runtime" else {"runtime"}
    for file in sorted((PACKAGE / room).rglob("*.py")):
        for name, line in imports(file):
            other = name.split(".")[1]
            # Runtime raises the one error that all of us raise.
            allowed = other in known or other == "__version__" or (room == "runtime" and name == "sidestep.core.errors")
            assert allowed, f"{file.relative_to(PACKAGE)}:{line} imports {name}"


@pytest.mark.parametrize("room", [*ORDER[ORDER.index("labels") : ORDER.index("reproduce")], "runtime"])
def test_no_domain_is_named(room):
    for file in sorted((PACKAGE / room).rglob("*.py")):
        words = {node.value for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Constant)}
        assert not words & set(DOMAINS), f"{file.relative_to(PACKAGE)} names a domain"


@pytest.mark.parametrize("room", [*ORDER, "runtime"])
def test_a_room_says_what_it_is_for(room):
    assert (PACKAGE / room / "__init__.py").read_text().startswith('"""')


def test_every_module_can_be_imported():
    for module in pkgutil.walk_packages([str(PACKAGE)], "sidestep."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def test_import_paths_of_the_first_version_lead_to_the_same_things():
    from sidestep.model import Spec

    assert Spec is sidestep.Spec
