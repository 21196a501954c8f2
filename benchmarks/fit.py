"""How fast safety models are fitted: trajectories a second, beside a PyTorch loop of the same size, and growth.

    python benchmarks/fit.py [--quick] [--torch-python PATH] [--out FOLDER]

writes fit.json, fit.md and fit.svg. Times are medians of chunks of minibatches after compilation, on random
data. The PyTorch side (nn.GRU with dropout, mean over time, linear head, Adam) runs in an interpreter of its own
and is left out when none is given.
"""

import argparse
import json
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sidestep.core.model import Trajectory
from sidestep.runtime.files import atomic_write
from sidestep.safety.base import predict
from sidestep.safety.config import FitConfig, fit_settings
from sidestep.safety.fit import fit
from sidestep.safety.io import make_safety
from sidestep.safety.report import scores

BATCH, ROWS = 100, 5_000
TORCH = """
import json, sys, time, torch
layers, steps, units, batch, rows, minibatches, threads = map(int, sys.argv[1:])
torch.set_num_threads(threads)
gru = torch.nn.GRU(4, units, layers, batch_first=True, dropout=0.5 if layers > 1 else 0.0)
drop, head, loss = torch.nn.Dropout(0.5), torch.nn.Linear(units, 3), torch.nn.CrossEntropyLoss()
optimiser = torch.optim.Adam([*gru.parameters(), *head.parameters()], 1e-4)
inputs, labels = torch.randn(rows, steps, 4), torch.randint(0, 3, (rows,))
times = []
for i in range(minibatches + 5):
    start = time.perf_counter()
    drawn = torch.randint(0, rows, (batch,))
    optimiser.zero_grad()
    loss(head(drop(gru(inputs[drawn])[0].mean(1))), labels[drawn]).backward()
    torch.nn.utils.clip_grad_norm_([*gru.parameters(), *head.parameters()], 1.0)
    optimiser.step()
    times.append(time.perf_counter() - start)
print(json.dumps(sorted(times[5:])[minibatches // 2]))
"""


def data(steps: int) -> tuple[Trajectory, np.ndarray]:
    random = np.random.default_rng(0)
    states, actions = random.normal(size=(2, ROWS, steps, 2)).astype(np.float32)
    parts = (states, actions, np.zeros((ROWS, steps)), np.full(ROWS, steps))
    return Trajectory(*map(jnp.asarray, parts)), random.integers(0, 3, ROWS)


def ours(kind: str, steps: int, chunks: int, **shape: Any) -> float:
    """Median seconds a minibatch, of chunks of 20 minibatches, without what is held out."""
    model = make_safety(kind, 2, 2, 3, key=jax.random.key(0), **shape)
    config = FitConfig(steps=20 * (chunks + 1), batch=BATCH, check_every=20, held_out=0.0, calibrate=False)
    clock = [time.perf_counter()]
    fit(model, *data(steps), config, jax.random.key(0), lambda progress: clock.append(time.perf_counter()))
    return float(np.median(np.diff(clock)[1:])) / 20


def torchs(python: str, layers: int, steps: int, minibatches: int) -> float:
    """PyTorch's median seconds a minibatch, with one thread or with all, whichever is faster."""

    def run(threads: int) -> float:
        arguments = (layers, steps, 64, BATCH, ROWS, minibatches, threads)
        command = [python, "-c", TORCH, *map(str, arguments)]
        return float(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))

    return min(run(threads) for threads in {1, os.cpu_count() or 1})


def accuracies(quick: bool) -> Iterator[dict[str, Any]]:
    """None-or-not accuracy on fresh trajectories of Navigation against seconds of fitting to 2,000 labels."""
    from safety import PAPER, gather

    labelled, test = gather("navigation", 2_000, 21), gather("navigation", 10_000, 999_999)
    shapes = [("hazard", {}), ("hazard", {"units": 32}), ("hazard", {"units": 64}), ("classifier", PAPER)]
    for kind, shape in shapes:
        model = make_safety(kind, 2, 2, 3, key=jax.random.key(0), **shape)
        settings = fit_settings(kind) if kind == "hazard" else FitConfig(learning_rate=1e-3)
        settings = replace(settings, check_every=50, patience=0)
        fit(model, *labelled, replace(settings, steps=50), jax.random.key(0))  # compiles
        for steps in (100, 400) if quick else (100, 200, 400, 800, 1600, 3200):
            fitted, report = fit(model, *labelled, replace(settings, steps=steps), jax.random.key(0))
            right = scores(np.asarray(predict(fitted, test[0])), test[1]).best_or_not_accuracy
            yield {"model": kind, "shape": shape, "steps": steps, "seconds": report.seconds, "accuracy": right}


def draw(points: list[dict[str, Any]], file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
    for name in dict.fromkeys(_words(point) for point in points):
        own = [point for point in points if _words(point) == name]
        axes.plot([p["seconds"] for p in own], [p["accuracy"] for p in own], marker="o", label=name)
    axes.set(xscale="log", xlabel="seconds of fitting, 2,000 labels", ylabel="none or not: share right")
    axes.legend()
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)


def _words(row: dict[str, Any]) -> str:
    return " ".join([row["model"], *(f"{name} {value}" for name, value in row["shape"].items())])


def write(rows: list[dict[str, Any]], points: list[dict[str, Any]], out: Path) -> None:
    """All that is known so far."""
    lines = [
        "# Trajectories fitted a second, minibatches of 100\n",
        "| model | T | ours | PyTorch | ratio |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        torch = row.get("torch_per_second")
        beside = f"{torch:.0f} | {row['per_second'] / torch:.2f}" if torch else "- | -"
        lines.append(f"| {_words(row)} | {row['steps']} | {row['per_second']:.0f} | {beside} |")
    lines += [
        "\n# Accuracy against time, Navigation, 2,000 labels\n",
        "| model | minibatches | seconds | none or not |",
        "|---|---|---|---|",
    ]
    for point in points:
        lines.append(f"| {_words(point)} | {point['steps']} | {point['seconds']:.2f} | {point['accuracy']:.4f} |")
    out.mkdir(parents=True, exist_ok=True)
    if points:
        draw(points, out / "fit.svg")
    atomic_write(out / "fit.json", json.dumps({"cpus": os.cpu_count(), "rows": rows, "accuracy": points}, indent=1))
    atomic_write(out / "fit.md", "\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer minibatches, no growth")
    parser.add_argument("--torch-python", help="a Python interpreter that has PyTorch")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    chunks = 5 if options.quick else 15
    shapes: list[tuple[str, int, dict[str, Any]]] = [
        ("classifier", steps, {"layers": layers, "units": 64, "dropout": 0.5})
        for layers in (2, 4)
        for steps in (20, 40)
    ]
    shapes += [("hazard", steps, {"units": units}) for units in (32, 64) for steps in (20, 40)]
    if not options.quick:
        shapes += [("hazard", steps, {"units": 32}) for steps in (80, 160)]
        shapes += [("hazard", 20, {"units": units}) for units in (16, 128)]
        shapes += [("hazard", 20, {"units": 32, "members": members}) for members in (3, 5, 10)]
    rows: list[dict[str, Any]] = []
    for kind, steps, shape in shapes:
        row: dict[str, Any] = {
            "model": kind,
            "steps": steps,
            "shape": shape,
            "per_second": BATCH / ours(kind, steps, chunks, **shape),
        }
        if kind == "classifier" and options.torch_python:
            row["torch_per_second"] = BATCH / torchs(options.torch_python, shape["layers"], steps, 20 * chunks)
        rows.append(row)
        print(row, flush=True)
        write(rows, [], options.out)
    points: list[dict[str, Any]] = []
    for point in accuracies(options.quick):
        points.append(point)
        print(point, flush=True)
        write(rows, points, options.out)


if __name__ == "__main__":
    main()
