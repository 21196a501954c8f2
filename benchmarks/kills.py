"""Kill a run at random moments and resume it: is the answer that of the run that nobody disturbed?

    python benchmarks/kills.py [--what plan campaign people full-disk] [--kills 20] [--seed 0] [--out FOLDER]

writes kills.json and kills.md into the folder. One run goes undisturbed and is timed. Then a second one is started and
killed (SIGKILL) after a time drawn between nothing and a little more than such a command took in the first, taken up
and killed again, and so on, until it has been killed so many times or is done, when another one begins. Every run that
is done must have the policy, the metrics, the result and the labels of the undisturbed one, bit for bit; times apart.

plan        planning against a given safety model
campaign    the main job from no label on, the rule as the expert
people      the same on examples/greenhouse.rddl, labelled by people. They are played by a script that gives the labels
            of examples/mould.py with `sidestep label --import`, which is killed as well.
full-disk   the same on a small disk of its own, which is filled at every third disturbance (it takes root to mount it)
"""

import csv
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from runner import merged, parser, results

from sidestep.cluster.jobs import Figures, Job
from sidestep.core.constraints import Scale
from sidestep.labels.rules import load_rule
from sidestep.labels.store import Store
from sidestep.models import load_model
from sidestep.reproduce.tables import heading, markdown_table, read_rows
from sidestep.runs.folder import LABELS, Run
from sidestep.runtime.files import atomic_write
from sidestep.runtime.serialisation import read_header
from sidestep.safety.io import make_safety, save_safety

SIDESTEP = [sys.executable, "-m", "sidestep"]
EXAMPLES = Path(__file__).parents[1] / "examples"
SETTINGS = {
    "plan": "navigation --safety SAFETY --constraint none>=0.95 --epochs 1200 --test-every 20 --batch 8 "
    "--test-batch 8 --widths 4 --search-rounds 1",
    "campaign": "navigation --labels 100 --rounds 2 --round-epochs 5 --polish-epochs 50 --first-fit 50 "
    "--later-fit 20 --rollouts 200 --audits 1",
    "people": f"{EXAMPLES / 'greenhouse.rddl'} --constraint none>=0.6 --labels 60 --rounds 2 --round-epochs 5 "
    "--polish-epochs 50 --first-fit 50 --later-fit 20 --members 1 --units 4 --batch 16 --test-batch 32 --widths 8 "
    "--search-rounds 2 --rollouts 100 --audits 1",
}
SETTINGS["full-disk"] = SETTINGS["people"]
DISK = "4m"
FILL_EVERY = 3  # disturbances, of which one is a full disk
NEEDS_LABELS, REFUSED = 3, 2
ENDED = (0, 1)  # certified or not


class Player:
    """One run of a study, as its user sees it: begin it, go on with it, label what it asks for."""

    def __init__(self, what: str, run: Path, safety: Path) -> None:
        self.what, self.run, self.safety = what, run, safety
        self.asked: list[int] = []  # trajectories that wait for a label

    def command(self) -> list[str]:
        if self.asked:
            file = self.run.with_suffix(".csv")
            self._answer(file)
            self.asked = []  # whether they arrive or not: the run will say what it still needs
            return [*SIDESTEP, "label", str(self.run / LABELS), "--import", str(file), "--annotator", "ann"]
        if (self.run / "config.json").is_file():
            return [*SIDESTEP, "resume", str(self.run), "--quiet", "--json"]
        given = SETTINGS[self.what].replace("SAFETY", str(self.safety)).split()
        return [*SIDESTEP, "plan", *given, "--out", str(self.run), "--quiet", "--json"]

    def ended(self, command: list[str], status: int, said: str) -> bool:
        """Note what a command that was left to its end came to; is the run done?"""
        if status == NEEDS_LABELS:
            self.asked = json.loads(said)["trajectories"]
        elif status not in ENDED:
            raise SystemExit(f"{' '.join(command)} ended with status {status}")
        return status in ENDED and kind_of(command) != "label"

    def _answer(self, file: Path) -> None:
        """The labels that the rule gives, in a file to be imported."""
        model = load_model(SETTINGS[self.what].split()[0])
        rule = load_rule(f"{EXAMPLES / 'mould.py'}:rule", model)
        with Store.open(self.run / LABELS) as store:
            categories = rule.label(store.get(self.asked)).tolist()
            names = store.scale.categories
        with file.open("w", newline="") as handle:
            rows = csv.writer(handle)
            rows.writerow(["trajectory", "label"])
            rows.writerows([i, names[category]] for i, category in zip(self.asked, categories, strict=True))


def content(folder: Path) -> dict[str, Any]:
    """All of a finished run that must be the same."""
    run = Run(folder)
    result = run.read_json("result.json")
    rows = [{name: value for name, value in row.items() if name != "seconds"} for row in run.metric_rows()]
    found = {"result": {k: v for k, v in result.items() if k != "seconds"}, "metrics": rows}
    if (folder / LABELS).is_file():
        with Store.open(folder / LABELS) as store:
            found["labels"] = [(label.trajectory, label.category) for label in store.log()]
    return found | {"policy": (folder / "policy.safetensors").read_bytes()}


def checkpoint_of(folder: Path) -> str | None:
    """What the last checkpoint says of itself, where there is one."""
    file = folder / "state.safetensors"
    if not file.is_file():
        return None
    header = read_header(file)
    return f"epoch {header['epoch']}" if "epoch" in header else f"{header['stage']}, round {header['round']}"


def undisturbed(player: Player) -> dict[str, float]:
    """Take a run from its beginning to its end; mean seconds of each kind of command."""
    seconds: dict[str, list[float]] = {}
    while True:
        command = player.command()
        start = time.perf_counter()
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        seconds.setdefault(kind_of(command), []).append(time.perf_counter() - start)
        if player.ended(command, done.returncode, done.stdout):
            return {kind: sum(times) / len(times) for kind, times in seconds.items()}


def kind_of(command: list[str]) -> str:
    return command[len(SIDESTEP)]


def study(what: str, kills: int, seed: int, folder: Path) -> dict[str, Any]:
    chance = random.Random(seed)
    safety = folder / "safety.safetensors"
    save_safety(safety, make_safety("hazard", 2, 2, 3, key=jax.random.key(1), units=4), Scale())
    undisturbed(Player(what, folder / "first", safety))  # compiles
    start = time.perf_counter()
    usual = undisturbed(Player(what, folder / "whole", safety))
    seconds = time.perf_counter() - start
    whole = content(folder / "whole")
    events: list[dict[str, Any]] = []
    finished: list[dict[str, Any]] = []
    with small_disk(folder / "disk") if what == "full-disk" else plain_folder(folder / "runs") as disk:
        while len(events) < kills or not finished:
            player = Player(what, disk / f"run-{len(finished)}", safety)
            _disturbed(player, chance, usual, kills, events, len(finished))
            same = {name: value == whole[name] for name, value in content(player.run).items()}
            finished.append({"run": len(finished), "same": same})
            print(f"run {len(finished) - 1} is done: {'the same' if all(same.values()) else same}", flush=True)
    return {"seconds": seconds, "commands": usual, "events": events, "finished": finished}


def _disturbed(
    player: Player,
    chance: random.Random,
    usual: dict[str, float],
    kills: int,
    events: list[dict[str, Any]],
    number: int,
) -> None:
    """Take a run to its end, disturbed as long as there are disturbances left."""
    while True:
        command = player.command()
        left = len(events) < kills
        kind = kind_of(command)
        moment = chance.uniform(0.0, 1.1 * usual.get(kind, usual["plan"])) if left else None
        fill = left and player.what == "full-disk" and len(events) % FILL_EVERY == FILL_EVERY - 1
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        event = {"run": number, "seconds": moment, "command": kind}
        try:
            said, _ = child.communicate(timeout=moment)
        except subprocess.TimeoutExpired:
            if fill:
                with full(player.run.parent):
                    said, error = child.communicate()
                event["what"] = "disk filled: went on without writing" if child.returncode != REFUSED else "disk filled"
                _check_sentence(child.returncode, error)
            else:
                child.send_signal(signal.SIGKILL)
                child.communicate()
                event["what"] = "killed"
            event["checkpoint"] = checkpoint_of(player.run)
            events.append(event)
            print(len(events), event, flush=True)
            if not fill or child.returncode == REFUSED:
                continue
        if player.ended(command, child.returncode, said):
            return


def _check_sentence(status: int, said: str) -> None:
    """A full disk is told in one sentence."""
    fine = said.count("\n") == 1 and "no space left on the disk" in said
    if status == REFUSED and not fine:
        raise SystemExit(f"a full disk was told so: {said}")


@contextmanager
def plain_folder(folder: Path) -> Iterator[Path]:
    folder.mkdir()
    yield folder


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of its own that is soon full."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@contextmanager
def full(folder: Path) -> Iterator[None]:
    """Not a byte is left on this disk."""
    ballast = folder / "ballast"
    room = os.statvfs(folder)
    try:
        with ballast.open("wb", buffering=0) as handle:
            handle.write(b"x" * (room.f_bavail * room.f_frsize))
    except OSError:
        pass  # somebody else took the last of it
    try:
        yield
    finally:
        ballast.unlink()


@dataclass(frozen=True)
class Kills:
    """One of the studies, with so many disturbances at moments that follow from the seed."""

    what: str
    kills: int
    seed: int

    def run(self, out: Path) -> Figures:
        with tempfile.TemporaryDirectory() as folder:
            found = study(self.what, self.kills, self.seed, Path(folder))
        return {"what": self.what, "date": heading("", [])["date"]} | found


def markdown(about: Figures, rows: list[Figures]) -> str:
    parts = [f"# {about['title']}\n\n`{about['command']}` (its head says what is run and compared)\n"]
    for found in rows:
        same = sum(all(run["same"].values()) for run in found["finished"])
        events = found["events"]
        filled = sum(event["what"] != "killed" for event in events)
        disks = f" and {filled} full disks" if filled else ""
        parts.append(
            f"\n## {found['what']}\n\n{len(events) - filled} kills (SIGKILL){disks} at random moments, "
            f"{sum(event['checkpoint'] is None for event in events)} of them before the first checkpoint "
            f"({found['date']}; the undisturbed run took {found['seconds']:.0f} s). {same} of "
            f"{len(found['finished'])} runs that were disturbed and resumed ended with the policy, the metrics, "
            "the result and the labels of the undisturbed run, bit for bit.\n\n"
        )
        shown = [
            {
                "": place,
                "run": event["run"],
                "command": event["command"],
                "after, s": f"{event['seconds']:.1f}",
                "what": event["what"],
                "last checkpoint": event["checkpoint"],
            }
            for place, event in enumerate(events, start=1)
        ]
        parts.append(markdown_table(shown) + "\n")
    return "".join(parts)


def main() -> int:
    made = parser(__doc__, "kills")
    made.add_argument("--what", nargs="*", choices=list(SETTINGS), default=list(SETTINGS))
    made.add_argument("--kills", type=int, default=20)
    made.add_argument("--seed", type=int, default=0, help="of the moments")
    options = made.parse_args()
    new = results([Job(what, Kills(what, options.kills, options.seed)) for what in options.what], options)
    rows = merged(read_rows(options.out / "kills.json"), new, by=("what",))
    about = heading("Kills", [options.seed])
    atomic_write(options.out / "kills.json", json.dumps(about | {"rows": rows}, indent=1) + "\n")
    atomic_write(options.out / "kills.md", markdown(about, rows))
    return 0 if all(all(run["same"].values()) for found in new for run in found["finished"]) else 1


if __name__ == "__main__":
    sys.exit(main())
