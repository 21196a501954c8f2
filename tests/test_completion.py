"""Completion as documented: it is set up in a shell by the documented line, and keys are typed."""

import fcntl
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from sidestep.cli.arguments import arguments_of
from sidestep.cli.commands import COMMANDS
from sidestep.cli.main import main

DOCUMENTED = Path(__file__).parent.parent / "docs" / "options.md"
SETUP = {  # list at the first tab, and Ctrl-X Ctrl-X to show the line
    "bash": """bind 'set show-all-if-ambiguous on'; bind 'set page-completions off'
        bind 'set completion-query-items -1'
        bind -x '"\\C-x\\C-x": echo "<<$READLINE_LINE>>"'""",
    "zsh": """autoload -Uz compinit; compinit -u -d "$HOME/dump"; LISTMAX=1000
        line() { print -r -- "<<$BUFFER>>" }; zle -N line; bindkey '^X^X' line""",
}
START = {"bash": ["bash", "--norc", "--noprofile", "-i"], "zsh": ["zsh", "-f", "-i"]}
PATIENCE = 60  # seconds until a shell that says nothing is given up


@pytest.fixture(params=["bash", "zsh", "fish"])
def shell(request):
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed here")
    return request.param


@pytest.fixture
def home(tmp_path):
    """A user's home with the command on the path, in a folder with a model, options and runs."""
    command = tmp_path / "bin" / "sidestep"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m sidestep "$@"\n')
    command.chmod(0o755)
    work = tmp_path / "work"
    (work / "runs" / "plan").mkdir(parents=True)
    for name in ("my tank.rddl", "options.toml"):
        (work / name).touch()
    return tmp_path


def surroundings(home):
    paths = f"{home / 'bin'}:{os.environ['PATH']}"
    told = {"HOME": str(home), "XDG_CONFIG_HOME": str(home / ".config"), "TERM": "dumb", "PS1": "", "LC_ALL": "C.UTF-8"}
    sources = str(DOCUMENTED.parent.parent)
    return os.environ | told | {"PATH": paths, "PYTHONPATH": sources}


def documented(shell):
    """The line of the docs that sets completion up."""
    return re.search(rf"^\| {shell} \| `([^`]+)`", DOCUMENTED.read_text(), re.MULTILINE)[1]


def offered(shell, typed, home):
    """The words that a shell shows when the tab key is pressed after this text, the completed line among them."""
    if shell == "fish":
        (home / ".config" / "fish" / "completions").mkdir(parents=True)
        for line in (documented("fish"), f"complete -C '{typed}'"):
            done = subprocess.run(
                ["fish", "-c", line],
                env=surroundings(home),
                cwd=home / "work",
                capture_output=True,
                text=True,
                check=True,
            )
        assert not done.stderr
        found = [line.partition("\t")[0] for line in done.stdout.splitlines()]
        return {*found, *(word for line in found for word in line.split())}
    with Terminal(START[shell], surroundings(home), home / "work") as terminal:
        terminal.send(f"{SETUP[shell]}\n{documented(shell)}\necho rea''dy\n")
        terminal.read_until("ready")
        terminal.send(f"{typed}\t\x18\x18")
        shown = terminal.read_until(">>")
    listed, _, line = shown.rpartition("<<")
    return {*listed.split(), *line.partition(">>")[0].split()}


def run_in_fish(line, home):
    told = {"env": surroundings(home), "cwd": home / "work", "capture_output": True, "text": True, "check": True}
    done = subprocess.run(["fish", "-c", line], **told)
    assert not done.stderr
    return done.stdout


class Terminal:
    """A program that believes that somebody types."""

    def __init__(self, command, environment, folder):
        self.ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 200, 400, 0, 0))
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=folder, start_new_session=True
        )
        os.close(theirs)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.ours)

    def send(self, text):
        os.write(self.ours, text.encode())

    def read_until(self, words):
        shown, end = "", time.monotonic() + PATIENCE
        while words not in shown:
            ready, _, _ = select.select([self.ours], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"the shell did not say {words!r}; it said {shown!r}"
            shown += os.read(self.ours, 2**16).decode(errors="replace")
            shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
        return shown


@pytest.mark.parametrize(
    ("typed", "wanted", "unwanted"),
    [
        ("sidestep ", {"demo", "models", "plan", "serve", "reproduce"}, {"--method", "runs/"}),
        ("sidestep pl", {"plan"}, {"models"}),
        ("sidestep --", {"--help", "--version"}, {"--method"}),
        ("sidestep plan ", {"navigation", "hvac", "runs/", "options.toml"}, {"--method", "table1"}),
        ("sidestep plan my", {"tank.rddl"}, {"navigation"}),
        ("sidestep plan --meth", {"--method"}, {"--marks"}),
        ("sidestep plan --no-m", {"--no-marks"}, {"--method"}),
        ("sidestep plan --help", {"--help", "--help-all"}, {"--version"}),
        ("sidestep plan --method ", {"default", "gradient", "paper-mfge"}, {"navigation", "runs/"}),
        ("sidestep plan hvac --method g", {"gradient"}, {"default"}),
        ("sidestep plan --config o", {"options.toml"}, {"navigation"}),
        ("sidestep completion ", {"bash", "zsh", "fish"}, {"runs/", "navigation"}),
        ("sidestep models ", set(), {"runs/", "navigation"}),
        ("sidestep report runs --", {"--trust"}, {"--folder", "--every"}),
    ],
)
def test_the_tab_key_completes(shell, typed, wanted, unwanted, home):
    found = offered(shell, typed, home)
    assert wanted <= found
    assert not unwanted & found


def test_every_option_is_known_to_every_shell(capsys):
    for shell in ("bash", "zsh", "fish"):
        assert main(["completion", shell]) == 0
        script = capsys.readouterr().out
        for command, options in COMMANDS.items():
            assert command in script
            assert all(one.flag[2:] in script for one in arguments_of(options) if not one.metavar)
