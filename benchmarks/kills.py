"""Kill a run at random moments and resume it: is the answer that of the run that nobody disturbed?

    python benchmarks/kills.py [--what plan campaign] [--kills 20] [--seed 0] [--out FOLDER]

writes kills.json and kills.md into the folder. One run goes undisturbed and is timed. Then a second one is started and
killed (SIGKILL) after a time drawn between nothing and the length of the first, resumed and killed again, and so on,
until it has been killed so many times or is done, when another one begins. Every run that is done must have the
policy, the metrics, the result and the labels of the undisturbed one, bit for bit; times apart. `plan` is a planning
run against a given safety model, `campaign` the main job from no label on, both as small as they get.
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax

from sidestep.constraints import Scale
from sidestep.files import atomic_write
from sidestep.labels.store import Store
from sidestep.runs import LABELS, Run
from sidestep.safety.io import make_safety, save_safety
from sidestep.trees import read_header

SIDESTEP = [sys.executable, "-m", "sidestep"]
PLAN = "--epochs 1200 --test-every 20 --batch 8 --test-batch 8 --widths 4 --search-rounds 1 --search-population 256"
CAMPAIGN = "--labels 100 --rounds 2 --round-epochs 5 --polish-epochs 50 --first-fit 50 --later-fit 20 --rollouts 200"


def command(what: str, run: Path, safety: Path) -> list[str]:
    """Go on with the run, or begin it."""
    if (run / "config.json").is_file():
        return [*SIDESTEP, "resume", str(run), "--quiet"]
    given = f"--safety {safety} --constraint none>=0.95 {PLAN}" if what == "plan" else CAMPAIGN
    return [*SIDESTEP, "plan", "navigation", "--out", str(run), "--quiet", *given.split()]


def content(folder: Path) -> dict[str, Any]:
    """All of a finished run that must be the same."""
    run = Run(folder)
    result = run.read_json("result.json")
    rows = [{name: value for name, value in row.items() if name != "seconds"} for row in run.metrics()]
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


def study(what: str, kills: int, seed: int, folder: Path) -> dict[str, Any]:
    chance = random.Random(seed)
    safety = folder / "safety.safetensors"
    save_safety(safety, make_safety("hazard", 2, 2, 3, key=jax.random.key(1), units=4), Scale())
    subprocess.run(command(what, folder / "first", safety), check=True, stdout=subprocess.DEVNULL)  # compiles
    start = time.perf_counter()
    subprocess.run(command(what, folder / "whole", safety), check=True, stdout=subprocess.DEVNULL)
    length = time.perf_counter() - start
    whole = content(folder / "whole")
    events: list[dict[str, Any]] = []
    finished: list[dict[str, Any]] = []
    number = 0
    while len(events) < kills or not finished or finished[-1]["run"] != number:
        run = folder / f"run-{number}"
        child = subprocess.Popen(command(what, run, safety), stdout=subprocess.DEVNULL)
        moment = chance.uniform(0.0, length) if len(events) < kills else None
        try:
            code = child.wait(moment)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGKILL)
            child.wait()
            events.append({"run": number, "seconds": moment, "checkpoint": checkpoint_of(run)})
            print(f"kill {len(events)} after {moment:.1f} s, last checkpoint: {checkpoint_of(run)}", flush=True)
            continue
        if code:
            raise SystemExit(f"the run ended with status {code}")
        same = {name: value == whole[name] for name, value in content(run).items()}
        finished.append({"run": number, "same": same})
        print(f"run {number} is done: {'the same' if all(same.values()) else same}", flush=True)
        number += len(events) < kills
    return {"seconds": length, "kills": events, "finished": finished}


def markdown(results: dict[str, dict[str, Any]]) -> str:
    parts = ["# Kills\n"]
    for what, found in results.items():
        same = sum(all(run["same"].values()) for run in found["finished"])
        kills = found["kills"]
        parts.append(
            f"\n## {what}\n\n{len(kills)} kills (SIGKILL) at random moments of a run of {found['seconds']:.0f} s, "
            f"{sum(event['checkpoint'] is None for event in kills)} of them before its first checkpoint. {same} of "
            f"{len(found['finished'])} runs that were killed and resumed ended with the policy, the metrics, the "
            "result and the labels of the undisturbed run, bit for bit.\n\n"
            "| kill | run | after, s | last checkpoint |\n|---:|---:|---:|---|\n"
        )
        parts += [
            f"| {place} | {event['run']} | {event['seconds']:.1f} | {event['checkpoint'] or '-'} |\n"
            for place, event in enumerate(kills, start=1)
        ]
    return "".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--what", nargs="*", choices=["plan", "campaign"], default=["plan", "campaign"])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results", help="folder of the results")
    arguments = parser.parse_args()
    file = arguments.out / "kills.json"
    results = json.loads(file.read_text()) if file.is_file() else {}
    for what in arguments.what:
        with tempfile.TemporaryDirectory() as folder:
            results[what] = study(what, arguments.kills, arguments.seed, Path(folder))
        arguments.out.mkdir(parents=True, exist_ok=True)
        atomic_write(file, json.dumps(results, indent=1) + "\n")
        atomic_write(arguments.out / "kills.md", markdown(results))
    return 0 if all(all(run["same"].values()) for what in arguments.what for run in results[what]["finished"]) else 1


if __name__ == "__main__":
    sys.exit(main())
