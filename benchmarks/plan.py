"""How long an epoch of the `paper` preset takes, for one seed and for five at once, and how that grows.

    python benchmarks/plan.py [--quick] [--out FOLDER]

writes plan.json and plan.md into the folder. An epoch is 100 trajectories, the gradient of the constraint through
policy, model and safety model, PPO on the same trajectories, and the multiplier's step; tests are not counted. Times
are the least and the median of several runs of a compiled program; the time to compile it is shown apart. The safety
models have random weights, which is the same arithmetic: on Navigation and HVAC the paper's 4-layer, 64-unit GRU, on
the grids the Markov classifier.
"""

import argparse
import json
import os
import tempfile
import time
from dataclasses import replace
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np

from sidestep.core.constraints import Scale, parse_constraints
from sidestep.core.model import Model, finite_part
from sidestep.models import load_model
from sidestep.models.domains.boxpushing.model import Boxpushing
from sidestep.models.domains.driving.model import Driving
from sidestep.models.grids import built_in_maps
from sidestep.planning.plan import Planner
from sidestep.planning.presets import preset_for
from sidestep.runtime.files import atomic_write
from sidestep.safety.io import make_safety

# Least and median seconds an epoch of the authors' published PyTorch code, MBGE, on another machine with two cores.
AUTHORS = {"navigation": (0.094, 0.11), "hvac": (0.202, 0.24), "boxpushing": (4.7, 6.2), "driving": (5.1, 6.4)}
PAPER_GRU: dict[str, Any] = {"layers": 4, "units": 64, "dropout": 0.5}


def measure(model: Model, seeds: int, budget: float, categories: int = 3) -> dict[str, Any]:
    """Seconds to compile a stretch of epochs, and seconds an epoch of the runs that the budget allows."""
    finite = finite_part(model) is not None
    epochs = 2 if finite else 10
    config = preset_for(model, "paper")
    config = replace(config, epochs=epochs, test_every=epochs)
    names = Scale(("none", *(f"grade-{grade}" for grade in range(1, categories))))
    kind, shape = ("markov", {}) if finite else ("classifier", PAPER_GRU)
    sizes = (model.spec.state.size, model.spec.action.size, categories)
    safety = make_safety(kind, *sizes, key=jax.random.key(1), **shape)
    planner = Planner(model, safety, parse_constraints(["none>=0.95"], names), config)
    learners = planner.start(jax.random.split(jax.random.key(0), seeds)).learners

    def stretch(learners: Any) -> tuple[Any, float]:
        start = time.perf_counter()
        learners, _ = jax.block_until_ready(planner._chunk(safety, learners))
        return learners, (time.perf_counter() - start) / epochs

    learners, first = stretch(learners)
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < 3 or time.perf_counter() - begin < budget:
        learners, seconds = stretch(learners)
        times.append(seconds)
    best, median = min(times), float(np.median(times))
    return {"seeds": seeds, "compile_seconds": epochs * (first - best), "seconds": best, "median_seconds": median}


def tiled_map(domain: str, times: int, folder: Path) -> str:
    """A shipped map repeated `times` x `times`, with one start and box in its first corner and the goal in its last."""
    grid = Boxpushing if domain == "boxpushing" else Driving
    rows = built_in_maps(grid)["1"].read_text(encoding="utf-8").split()

    def tile(i: int, j: int, row: str) -> str:
        drop = ("SB" if (i, j) != (0, 0) else "") + ("G" if (i, j) != (times - 1, times - 1) else "")
        return "".join("." if cell in drop else cell for cell in row)

    lines = ["".join(tile(i, j, row) for j in range(times)) for i in range(times) for row in rows]
    file = folder / f"{domain}-{len(lines)}{'.bp' if domain == 'boxpushing' else '.nav'}"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(file)


def growth(rows: list[dict[str, Any]], what: str) -> dict[str, Any]:
    """Rows of a study, and the exponent of seconds ~ size^exponent over its larger half."""
    half = rows[len(rows) // 2 - 1 :]
    sizes, seconds = np.log([row[what] for row in half]), np.log([row["seconds"] for row in half])
    return {"rows": rows, "exponent": float(np.polyfit(sizes, seconds, 1)[0])}


def study(quick: bool, folder: Path) -> None:
    """Every figure is written as soon as it is there."""
    budget = 1.0 if quick else 5.0
    results: dict[str, Any] = {"versions": {"jax": version("jax")}, "cores": os.cpu_count(), "quick": quick}
    results |= {"date": date.today().isoformat(), "domains": {}, "growth": {}}
    for name in ("navigation", "driving") if quick else AUTHORS:
        least, median = AUTHORS[name]
        rows = [measure(load_model(name), seeds, budget) for seeds in ((1,) if quick else (1, 5))]
        results["domains"][name] = {"runs": rows, "authors_seconds": least, "authors_median_seconds": median}
        report(f"{name}: {rows[0]['seconds']:.4f} s an epoch, {least / rows[0]['seconds']:.1f} x")
        write(results, folder)

    with tempfile.TemporaryDirectory() as tiles_folder:
        tiles = (1, 2) if quick else (1, 2, 3, 4)
        rooms, horizons, categories = (6, 24, 96, 384), (20, 40, 80, 160, 320), (2, 4, 8, 16)
        studies: dict[str, tuple[str, list[tuple[int, str, int]]]] = {}
        if not quick:
            studies["HVAC"] = ("rooms", [(n, f"hvac?rooms={n}", 3) for n in rooms])
            studies["Navigation"] = ("horizon", [(n, f"navigation?horizon={n}", 3) for n in horizons])
            studies["Navigation, K"] = ("categories", [(k, "navigation", k) for k in categories])
        for domain in ("driving",) if quick else ("boxpushing", "driving"):
            maps = [(15 * n, tiled_map(domain, n, Path(tiles_folder)), 3) for n in tiles]
            studies[domain.capitalize()] = ("width", maps)
        for name, (what, sizes) in studies.items():
            measured = [{what: size, **measure(load_model(model), 1, budget, k)} for size, model, k in sizes]
            results["growth"][name] = {"size": what, **growth(measured, what)}
            report(f"{name}: seconds ~ {what}^{results['growth'][name]['exponent']:.2f}")
            write(results, folder)


def write(results: dict[str, Any], folder: Path) -> None:
    atomic_write(folder / "plan.json", json.dumps(results, indent=1) + "\n")
    atomic_write(folder / "plan.md", markdown(results))


def markdown(results: dict[str, Any]) -> str:
    lines = [
        "# Planning: seconds an epoch of the `paper` preset",
        "",
        f"{results['date']}, {results['cores']} CPU cores, jax {results['versions']['jax']}; "
        "one seed, and five trained beside each other, where "
        "the time is that of all five together. The ratio is the authors' least time for as many seeds over ours. "
        "Their figures were measured elsewhere, with their PyTorch code on another machine with two cores, so that "
        "the ratio is a rough one.",
        "",
        "| model | seeds | compile, s | seconds an epoch | median | authors' code, least / median | ratio |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, row in results["domains"].items():
        for run in row["runs"]:
            theirs = f"{row['authors_seconds']} / {row['authors_median_seconds']}"
            ratio = f"{run['seeds'] * row['authors_seconds'] / run['seconds']:.1f}"
            lines.append(
                f"| {name} | {run['seeds']} | {run['compile_seconds']:.1f} | {run['seconds']:.4f} "
                f"| {run['median_seconds']:.4f} | {theirs} | {ratio} |"
            )
    for name, found in results["growth"].items():
        what, rows = found["size"], found["rows"]
        lines += ["", f"## Growth with the {what} ({name})", ""]
        lines += [f"| {what} | " + " | ".join(str(row[what]) for row in rows) + " |", "|---|" + "---:|" * len(rows)]
        lines += ["| seconds an epoch | " + " | ".join(f"{row['seconds']:.4f}" for row in rows) + " |"]
        lines += ["| compile, s | " + " | ".join(f"{row['compile_seconds']:.1f}" for row in rows) + " |"]
        lines += ["", f"seconds ~ {what}^{found['exponent']:.2f} over the larger half"]
    return "\n".join(lines) + "\n"


def report(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer sizes and runs, three minutes on a quiet machine")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results", help="folder of the results")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    study(arguments.quick, arguments.out)
    report(f"written to {arguments.out / 'plan.md'}")


if __name__ == "__main__":
    main()
