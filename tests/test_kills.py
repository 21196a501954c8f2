"""A campaign that is killed again and again comes to the answer of the one that nobody disturbed.

`benchmarks/kills.py` does the same twenty times, also with people who label and with a disk that fills up.
"""

import signal
import subprocess
import sys
import time

from sidestep.labels.store import Store
from sidestep.runs.folder import LABELS, Run

MAP = "S.....\n.FF...\n.@@...\n....BG\n"
KILLS = (0.35, 0.6, 0.85)  # shares of the time that the undisturbed run took


def sidestep(*arguments, kill_after=None):
    """The exit status of a command; None when it was killed before its end."""
    command = [sys.executable, "-m", "sidestep", *map(str, arguments)]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        return child.wait(kill_after)
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGKILL)
        child.wait()
        return None


def content(folder):
    run = Run.open(folder)
    with Store.open(folder / LABELS) as store:
        labels = [(label.trajectory, label.category) for label in store.log()]
    files = [(folder / name).read_bytes() for name in ("policy.safetensors", "scenes.safetensors")]
    return {**run.read_json("result.json"), "seconds": 0}, run.metric_rows(), labels, files


def test_killed_and_resumed_it_ends_the_same(tmp_path):
    grid = tmp_path / "yard.bp"
    grid.write_text(MAP)
    begin = ["plan", grid, "--labels", "200", "--rollouts", "1000", "--quiet", "--out"]
    started = time.perf_counter()
    assert sidestep(*begin, tmp_path / "whole") == 0
    length = time.perf_counter() - started
    run = tmp_path / "run"
    kills = 0
    for share in KILLS:
        command = ["resume", run, "--quiet"] if (run / "config.json").exists() else [*begin, run]
        kills += sidestep(*command, kill_after=share * length) is None
    assert kills >= 1
    assert sidestep(*(["resume", run, "--quiet"] if (run / "config.json").exists() else [*begin, run])) == 0
    assert content(run) == content(tmp_path / "whole")
    assert not list(run.glob(".*.part")), "what a kill leaves of a file that was being written is gone"
