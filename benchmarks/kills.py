"""Kill a planning run at random moments and resume it: is the answer that of the run that nobody disturbed?

    python benchmarks/kills.py [--kills 20] [--seed 0] [--out FOLDER]

writes kills.json and kills.md into the folder. One run goes undisturbed and is timed. Then a second one is started and
killed (SIGKILL) after a time drawn between nothing and the length of the first, resumed and killed again, and so on,
until it has been killed so many times or is done, when another one begins. Every run that is done must have the
policy, the metrics and the result of the undisturbed one, bit for bit; seconds apart.
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
from sidestep.runs import Run
from sidestep.safety.io import make_safety, save_safety

SIDESTEP = [sys.executable, "-m", "sidestep"]
SMALLEST = ["--epochs", "60", "--test-every", "5", "--batch", "8", "--test-batch", "8", "--widths", "4"]
SMALLEST += ["--search-rounds", "1", "--search-population", "256"]


def command(run: Path, safety: Path) -> list[str]:
    """Go on with the run, or begin it."""
    if (run / "config.json").is_file():
        return [*SIDESTEP, "resume", str(run), "--quiet"]
    wanted = ["--safety", str(safety), "--constraint", "none>=0.95", "--out", str(run), "--quiet"]
    return [*SIDESTEP, "plan", "navigation", *wanted, *SMALLEST]


def content(folder: Path) -> dict[str, Any]:
    """All of a finished run that must be the same."""
    run = Run(folder)
    result = run.read_json("result.json")
    rows = [{name: value for name, value in row.items() if name != "seconds"} for row in run.metrics()]
    files = {name: (folder / name).read_bytes() for name in ("policy.safetensors", "state.safetensors")}
    return {"result": {k: v for k, v in result.items() if k != "seconds"}, "metrics": rows, **files}


def epoch_of(folder: Path) -> int | None:
    """The epoch of the last checkpoint, where there is one."""
    from sidestep.trees import read_header

    file = folder / "state.safetensors"
    return read_header(file)["epoch"] if file.is_file() else None


def study(kills: int, seed: int, folder: Path) -> dict[str, Any]:
    chance = random.Random(seed)
    safety = folder / "safety.safetensors"
    save_safety(safety, make_safety("hazard", 2, 2, 3, key=jax.random.key(1), units=4), Scale())
    start = time.perf_counter()
    subprocess.run(command(folder / "whole", safety), check=True, stdout=subprocess.DEVNULL)
    length = time.perf_counter() - start
    whole = content(folder / "whole")
    events, finished, number = [], [], 0
    while len(events) < kills or not finished or finished[-1]["run"] != number:
        run = folder / f"run-{number}"
        child = subprocess.Popen(command(run, safety), stdout=subprocess.DEVNULL)
        moment = chance.uniform(0.0, length) if len(events) < kills else None
        try:
            code = child.wait(moment)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGKILL)
            child.wait()
            events.append({"run": number, "seconds": moment, "epoch": epoch_of(run)})
            print(f"kill {len(events)} after {moment:.1f} s, last checkpoint at epoch {epoch_of(run)}", flush=True)
            continue
        if code:
            raise SystemExit(f"the run ended with status {code}")
        same = {name: value == whole[name] for name, value in content(run).items()}
        finished.append({"run": number, "same": same})
        print(f"run {number} is done: {'the same' if all(same.values()) else same}", flush=True)
        number += len(events) < kills
    return {"seconds": length, "kills": events, "finished": finished}


def markdown(results: dict[str, Any]) -> str:
    same = sum(all(run["same"].values()) for run in results["finished"])
    epochs = [event["epoch"] for event in results["kills"]]
    return (
        f"# Kills\n\n{len(epochs)} kills (SIGKILL) at random moments of a planning run of {results['seconds']:.0f} s, "
        f"{sum(epoch is None for epoch in epochs)} of them before its first checkpoint. {same} of "
        f"{len(results['finished'])} runs that were killed and resumed ended with the policy, the checkpoint, the "
        "metrics and the result of the undisturbed run, bit for bit.\n\n"
        "| kill | run | after, s | epoch of the last checkpoint |\n|---:|---:|---:|---:|\n"
        + "".join(
            f"| {place} | {event['run']} | {event['seconds']:.1f} | {event['epoch'] or '-'} |\n"
            for place, event in enumerate(results["kills"], start=1)
        )
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results", help="folder of the results")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = study(arguments.kills, arguments.seed, Path(folder))
    arguments.out.mkdir(parents=True, exist_ok=True)
    atomic_write(arguments.out / "kills.json", json.dumps(results, indent=1) + "\n")
    atomic_write(arguments.out / "kills.md", markdown(results))
    print(f"written to {arguments.out / 'kills.md'}")
    return 0 if all(all(run["same"].values()) for run in results["finished"]) else 1


if __name__ == "__main__":
    sys.exit(main())
