"""Every code block of README and docs is run: Python, and commands; both notebooks too.

A block may be preceded by comments, which a reader of the source sees:

    <!-- test: labels=300 -> labels=40 -->   the test runs it with this in place of that: smaller, and nothing else
    <!-- not run: the reason -->             it needs people, or minutes

Pages are run in one folder, in this order, so that a later one can use what an earlier one made. Every command line in
any block is at least read by the command line's own parser.
"""

import contextlib
import json
import os
import re
import shlex
import shutil
import tomllib
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import pytest

from sidestep.cli.main import _parse, main

ROOT = Path(__file__).parents[1]
RUN_FIRST = ("README.md", "docs/tutorials/own-model.md", "docs/tutorials/people.md", "docs/tutorials/gymnasium.md")
PAGES = [*RUN_FIRST, *sorted({str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md")} - set(RUN_FIRST))]
NOTEBOOKS = sorted((ROOT / "docs/tutorials").glob("*.ipynb"))
FENCE = re.compile(r"((?:^<!-- [^\n]*-->\n)*)^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
MINIMUM = 10  # characters of a reason

pytestmark = [pytest.mark.slow, pytest.mark.mixes_types]  # examples are written as users write them


class Block(NamedTuple):
    language: str
    text: str
    not_run: str  # the reason; "" where it is run


def blocks(page):
    found = []
    for comments, language, text in FENCE.findall((ROOT / page).read_text(encoding="utf-8")):
        for before, after in re.findall(r"<!-- test: (.*?) -> (.*?) -->", comments):
            assert before in text, f"{page}: '{before}' is not in the block behind its comment"
            text = text.replace(before, after)
        reason = re.search(r"<!-- not run: (.*?) -->", comments)
        found.append(Block(language, text, reason.group(1) if reason else ""))
    return found


def commands(block):
    """The lines of a block that are commands of ours, without the words beside them."""
    lines = [line for line in block.text.splitlines() if re.match(r"sidestep [a-z]", line)]
    return [shlex.split(re.split(r"\s{3,}|\s+#", line)[0]) for line in lines]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """One folder and one namespace for all pages."""
    folder = tmp_path_factory.mktemp("documents")
    shutil.copytree(ROOT / "examples", folder / "examples")
    before = os.getcwd()
    os.chdir(folder)
    yield {"__name__": "documents"}
    os.chdir(before)


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs(page, place, monkeypatch):
    monkeypatch.syspath_prepend(os.getcwd())  # what a page exports it may import
    for block in blocks(page):
        if block.not_run:
            assert len(block.not_run) > MINIMUM, f"{page}: say why a block is not run"
            continue
        if block.language == "python":
            with contextlib.redirect_stdout(None), contextlib.redirect_stderr(None):
                exec(compile(block.text, page, "exec"), place)
        elif block.language == "toml":
            assert tomllib.loads(block.text)
        elif block.language == "bash":
            for words in commands(block):
                assert main(words[1:]) in (0, 1, 3), f"{page}: {shlex.join(words)}"


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_is_one(page):
    for block in blocks(page):
        for words in commands(block):
            if words[1] == "COMMAND" or "..." in words or "," in words[1]:
                continue
            words = [word.replace("[", "").replace("]", "") for word in words]
            if "--config" not in words:
                _parse(words[1:])


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(notebook, place):
    space = {"__name__": notebook.stem}
    for number, cell in enumerate(json.loads(notebook.read_text(encoding="utf-8"))["cells"]):
        if cell["cell_type"] == "code":
            assert not cell["outputs"], "outputs are not kept: they would be out of date"
            with contextlib.redirect_stderr(None):
                exec(compile("".join(cell["source"]), f"{notebook.name}, cell {number}", "exec"), space)


def test_there_are_two_notebooks():
    assert len(NOTEBOOKS) == 2


@pytest.mark.parametrize("name", ["navigation", "hvac", "reservoir"])
def test_the_readme_counts_the_labels_of_every_audit(name):
    kept = json.loads((ROOT / "benchmarks/results/campaign.json").read_text())["rows"]
    runs = [row for row in kept if row["name"] == name]
    planned, audited = (round(fmean(run[count] for run in runs)) for count in ("labels_used", "audit_labels"))
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    (line,) = (line for line in lines if line.lower().startswith(f"| {name} |"))
    assert f"{planned:,} + {audited:,} = {planned + audited:,}" in line
    assert f" {len(runs)} " in line
