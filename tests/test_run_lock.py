"""One process per run: the second is refused by the first one's name, and a dead one holds nothing."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from sidestep.cli.main import main
from sidestep.core.errors import InputError
from sidestep.runs import lock as run_lock
from sidestep.runs.folder import Run
from sidestep.runs.lock import LOCK, locked

HOLD = """
import sys, time, pathlib
from sidestep.runs.lock import locked
with locked(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    """A process that holds the lock of `tmp_path`."""
    child = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "held\n"
    yield child
    child.kill()
    child.wait()
    child.stdout.close()


def test_the_second_is_told_who_is_first(tmp_path, holder):
    with pytest.raises(InputError) as refused, locked(tmp_path):
        pass
    said = str(refused.value)
    assert said.startswith(f"{tmp_path}: another process is at work on this run (process {holder.pid} on ")
    assert socket.gethostname() in said
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert json.loads((tmp_path / LOCK).read_text())["pid"] == holder.pid, "a killed process leaves its name"
    with locked(tmp_path):
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid(), "and nothing else"
    assert (tmp_path / LOCK).read_text() == ""


def test_without_locks_of_the_system_the_name_counts(tmp_path, holder, monkeypatch):
    monkeypatch.setattr(run_lock, "fcntl", None)  # as on a file system that has none
    with pytest.raises(InputError, match=f"process {holder.pid} on "), locked(tmp_path):
        pass
    holder.kill()
    holder.wait()
    with locked(tmp_path):
        pass
    other = {"pid": os.getpid(), "host": socket.gethostname(), "began": 1, "since": "then", "command": "x"}
    (tmp_path / LOCK).write_text(json.dumps(other))  # this number, used before by a process that began long ago
    with locked(tmp_path):
        pass
    (tmp_path / LOCK).write_text(json.dumps(other | {"host": "elsewhere"}))
    with (
        pytest.raises(InputError, match=r"on elsewhere since then: x.*if that machine is gone, delete"),
        locked(tmp_path),
    ):
        pass


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"pid": "x"}', "[" * 5000, "\0\0", '{"pid": 1e400}'])
def test_a_lock_that_says_nonsense_is_free(tmp_path, content, monkeypatch):
    (tmp_path / LOCK).write_text(content)
    with locked(tmp_path):
        pass
    (tmp_path / LOCK).write_text(content)
    monkeypatch.setattr(run_lock, "fcntl", None)
    if content.startswith("{") and "pid" in content:
        return  # of a machine without a name nobody can say whether it is gone
    with locked(tmp_path):
        pass


def test_no_link_is_followed(tmp_path):
    other = tmp_path / "precious"
    other.write_text("keep me")
    (tmp_path / LOCK).symlink_to(other)
    with pytest.raises(InputError, match="cannot write here"), locked(tmp_path):
        pass
    (tmp_path / LOCK).unlink()
    os.mkfifo(tmp_path / LOCK)
    with pytest.raises(InputError, match="expected a plain file"), locked(tmp_path):
        pass
    assert other.read_text() == "keep me"


def test_of_two_resumes_at_once_one_goes_on(tmp_path, capsys):
    """Two real processes on a stopped planning run: one is refused, and the metrics are those of one run."""
    run = tmp_path / "run"
    small = "--epochs 400 --test-every 10 --batch 8 --test-batch 8 --widths 4 --quiet"
    begin = ["plan", "navigation", "--method", "ppo", "--out", str(run), *small.split()]
    first = subprocess.Popen([sys.executable, "-m", "sidestep", *begin], stdout=subprocess.DEVNULL)
    while not (run / "state.safetensors").exists():
        assert first.poll() is None
        time.sleep(0.05)
    first.kill()
    first.wait()
    resume = [sys.executable, "-m", "sidestep", "resume", str(run), "--quiet"]
    both = [subprocess.Popen(resume, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [one.communicate()[1] for one in both]
    status = [one.returncode for one in both]
    assert status.count(2) == 1, said
    refused = said[status.index(2)]
    assert f"process {both[1 - status.index(2)].pid} on" in refused
    assert refused.count("\n") == 1
    assert f"resume {run} --quiet" in refused
    epochs = [row.epoch for row in Run.open(run).metrics()]
    assert epochs == list(range(10, 401, 10))


def test_every_command_that_changes_a_run_is_refused(tmp_path, capsys):
    run = tmp_path / "run"
    small = "--epochs 1 --test-every 1 --batch 4 --test-batch 4 --widths 4 --start-share 0 --quiet"
    assert main(["plan", "boxpushing?horizon=30", "--method", "ppo", "--out", str(run), *small.split()]) == 0
    child = subprocess.Popen([sys.executable, "-c", HOLD, str(run)], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "held\n"
    before = {file.name: file.read_bytes() for file in run.iterdir()}
    capsys.readouterr()
    for command in ("resume", "certify", "report"):
        assert main([command, str(run)]) == 2
        assert f"process {child.pid} on" in capsys.readouterr().err
    assert before == {file.name: file.read_bytes() for file in run.iterdir()}
    child.kill()
    child.wait()
    child.stdout.close()


HALF = """
import os, signal, sys
from sidestep.runtime.files import atomic_file
with atomic_file(sys.argv[1]) as handle:
    handle.write(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_half_written_is_removed(tmp_path):
    (tmp_path / ".kept.part").write_text("of somebody else")
    subprocess.run([sys.executable, "-c", HALF, str(tmp_path / "result.json")], check=False)
    assert len(list(tmp_path.glob(".*.part"))) == 2
    with Run(tmp_path).held():
        assert [file.name for file in tmp_path.glob(".*.part")] == [".kept.part"]
