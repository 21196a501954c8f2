"""A full disk: one sentence, exit status 2, everything that was there still there, and `resume` goes on."""

import json
import os
import subprocess
import sys

import pytest

from sidestep.core.errors import DiskFull
from sidestep.labels.store import Store
from sidestep.runs.folder import LABELS, Run
from sidestep.runtime.files import append, atomic_write

MAP = "S.....\n.FF...\n.@@...\n....BG\n"
WALK = ["--rollouts", "100", "--quiet"]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True)
    if mount.returncode:
        pytest.skip("no file system can be mounted here (it takes root)")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


class Ballast:
    """A file that takes up the room of a disk."""

    def __init__(self, folder):
        self.file = folder / "ballast"

    def fill(self, leave=0):
        room = os.statvfs(self.file.parent)
        with self.file.open("ab") as handle:
            handle.write(b"x" * max(room.f_bavail * room.f_frsize - leave, 0))

    def drop(self):
        self.file.unlink(missing_ok=True)


def sidestep(*arguments, **options):
    done = subprocess.run(
        [sys.executable, "-m", "sidestep", *map(str, arguments)], capture_output=True, text=True, **options
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_files_are_whole_or_as_they_were(small_disk):
    file, lines = small_disk / "file", small_disk / "lines"
    atomic_write(file, "before")
    append(lines, "first\n")
    Ballast(small_disk).fill()
    with pytest.raises(DiskFull, match=f"^{file}: there is no space left on the disk; free some and give the command"):
        atomic_write(file, "x" * 100_000)
    with pytest.raises(DiskFull):
        append(lines, "x" * 100_000)
    assert file.read_text() == "before"
    assert lines.read_text().startswith("first\n")
    assert {one.name for one in small_disk.iterdir()} == {"file", "lines", "ballast"}


def test_a_store_on_a_full_disk_is_not_called_unreadable(small_disk):
    from sidestep.models import load_model

    model = load_model("navigation")
    import jax

    from sidestep.core.model import UniformPolicy, rollout

    file = small_disk / "labels.store"
    ballast = Ballast(small_disk)
    with Store.create(file, model.spec) as store:
        store.add(rollout(model, UniformPolicy(model), jax.random.key(0), 20), policy="uniform")
        ballast.fill()
        with pytest.raises(DiskFull):
            store.add(rollout(model, UniformPolicy(model), jax.random.key(1), 500), policy="uniform")
    ballast.fill()
    try:
        with Store.open(file) as store:
            assert len(store) == 20
    except DiskFull:
        pass  # SQLite may need room even to read
    ballast.drop()
    with Store.open(file) as store:
        assert len(store) == 20
        store.add(rollout(model, UniformPolicy(model), jax.random.key(1), 20), policy="uniform")
        assert len(store) == 40


def test_a_run_stops_in_one_sentence_and_resume_goes_on(small_disk, tmp_path):
    """Filled ever less, the disk stops the run at ever later writes; it always goes on, to the same answer."""
    grid = tmp_path / "yard.bp"
    grid.write_text(MAP)
    assert sidestep("plan", grid, "--out", tmp_path / "whole", *WALK).returncode == 0
    whole = json.loads((tmp_path / "whole/result.json").read_text())
    ballast, run = Ballast(small_disk), small_disk / "run"
    stopped = 0
    for leave in (0, 30_000, 90_000, 200_000):
        ballast.drop()
        ballast.fill(leave)
        command = ["resume", run, "--quiet"] if (run / "config.json").exists() else ["plan", grid, "--out", run, *WALK]
        done = sidestep(*command)
        if done.returncode == 0:
            break
        assert done.returncode == 2
        assert "no space left on the disk; free some and" in done.stderr
        assert done.stderr.count("\n") == 1
        if (run / "config.json").exists():
            assert f"go on with sidestep resume {run}" in done.stderr
        else:
            assert not run.exists(), "nothing half made is left behind"
        stopped += 1
    assert stopped >= 2
    ballast.drop()
    assert sidestep("resume", run, "--quiet").returncode == 0
    result = json.loads((run / "result.json").read_text())
    assert {**result, "seconds": 0} == {**whole, "seconds": 0}
    with Store.open(run / LABELS) as store:
        assert len(store.log()) == result["labels_used"]
    assert Run.open(run).metric_rows() == Run.open(tmp_path / "whole").metrics()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_output_that_nobody_can_take():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "sidestep", "models"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 2
    assert (
        done.stderr
        == "sidestep: standard output: there is no space left on the disk; free some and give the command again\n"
    )
