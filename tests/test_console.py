"""What a user gave is printed as it is: brackets are no markup, and nothing in a name breaks a line or a stream."""

import re
from pathlib import Path

import pytest

import sidestep
from sidestep.cli.console import progress_bar, say, show_table
from sidestep.cli.main import main
from sidestep.core.errors import InputError

NAMES = ["z[/b].store", "run[v2].store", "[bold]x[/].store", "a:smile:b.store", "\\[x].store", "[link=x].store"]


@pytest.mark.parametrize("name", NAMES)
def test_a_store_may_have_any_name(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path(name).parent.mkdir(exist_ok=True)
    assert main(["collect", "boxpushing", "--store", name, "--count", "3", "--policy", "uniform"]) == 0
    assert f"new trajectories in {name}, " in capsys.readouterr().out
    exported = name.replace(".store", ".csv")
    assert main(["label", name, "--export", exported]) == 0
    said = capsys.readouterr().out
    assert f" trajectories to {exported}\n" in said
    assert f"{name}: " in said
    assert main(["label", name, "--import", exported]) == 0
    assert f" labels from {exported}\n" in capsys.readouterr().out


@pytest.mark.parametrize("name", NAMES)
def test_every_way_to_print_shows_a_text_as_it_is(name, capsys):
    say(name, (name, "green"))
    show_table([name], [[name], [(name, "bold")]])
    with progress_bar("round", 3, quiet=False) as bar:
        bar.update(1, name)
        bar.say(name)
    said = capsys.readouterr()
    assert said.out.splitlines() == [name + name, name, name, name]
    assert said.err.count(name) >= 2


def test_lines_are_not_wrapped_and_bytes_that_are_no_text_are_escaped(capsys):
    path = Path("x" * 300 + "\udcff\x1b[31m")
    say(f"it is in {path}")
    assert capsys.readouterr().out == "it is in " + "x" * 300 + "\\udcff\\x1b[31m\n"
    assert str(InputError("no\nsuch   file", place="a\nb\udcff")) == "a\\nb\\udcff: no such file"


def test_nothing_else_imports_rich():
    """Its markup would meet text of the user's; `sidestep.cli.console` has none."""
    package = Path(sidestep.__file__).parent
    others = [file for file in package.rglob("*.py") if file != package / "cli" / "console.py"]
    found = [str(file) for file in others if re.search(r"^\s*(from|import) rich", file.read_text(), re.MULTILINE)]
    assert not found
    assert "from_markup" not in (package / "cli" / "console.py").read_text()
