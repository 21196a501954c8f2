"""How fast safety models are fitted: trajectories a second, beside a PyTorch loop of the same size, and growth.

    python benchmarks/fit.py [--quick] [--torch-python PATH] [--out FOLDER]

writes fit.json, fit.md and fit.svg. Times are medians of chunks of minibatches after compilation, on random
data. The PyTorch side (nn.GRU with dropout, mean over time, linear head, Adam) runs in an interpreter of its own
and is left out when none is given.
"""

import json
import os
import subprocess
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from runner import parser, results
from safety import PAPER, gather

from sidestep.cluster.jobs import Figures, Job
from sidestep.core.model import Trajectory
from sidestep.reproduce.tables import heading, markdown_table
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


def ours(kind: str, steps: int, chunks: int, **shape: float) -> float:
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


@dataclass(frozen=True)
class Speed:
    """Trajectories per second of fitting a model of this shape, and of PyTorch if there is an interpreter for it."""

    model: str
    steps: int
    shape: Figures
    chunks: int
    torch_python: str | None = None

    def run(self, out: Path) -> Figures:
        row: Figures = {"model": self.model, "steps": self.steps, "shape": self.shape}
        row["per_second"] = BATCH / ours(self.model, self.steps, self.chunks, **self.shape)
        if self.torch_python:
            layers, minibatches = self.shape["layers"], 20 * self.chunks
            row["torch_per_second"] = BATCH / torchs(self.torch_python, layers, self.steps, minibatches)
        return row


@dataclass(frozen=True)
class Accuracy:
    """None-or-not accuracy on fresh trajectories of Navigation against seconds of fitting to 2,000 labels."""

    model: str
    minibatches: tuple[int, ...]
    shape: Figures = field(default_factory=dict)

    def run(self, out: Path) -> Figures:
        labelled, test = gather("navigation", 2_000, 21), gather("navigation", 10_000, 999_999)
        model = make_safety(self.model, 2, 2, 3, key=jax.random.key(0), **self.shape)
        settings = fit_settings("hazard") if self.model == "hazard" else FitConfig(learning_rate=1e-3)
        settings = replace(settings, check_every=50, patience=0)
        fit(model, *labelled, replace(settings, steps=50), jax.random.key(0))  # compiles
        points = []
        for steps in self.minibatches:
            fitted, report = fit(model, *labelled, replace(settings, steps=steps), jax.random.key(0))
            right = scores(np.asarray(predict(fitted, test[0])), test[1]).best_or_not_accuracy
            point = {"model": self.model, "shape": self.shape, "steps": steps}
            points.append(point | {"seconds": report.seconds, "accuracy": right})
        return {"points": points}


def draw(points: list[Figures], file: Path) -> None:
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


def _words(row: Figures) -> str:
    return " ".join([row["model"], *(f"{name} {value}" for name, value in row["shape"].items())])


def write(about: Figures, rows: list[Figures], points: list[Figures], out: Path) -> None:
    speeds = []
    for row in rows:
        torch = row.get("torch_per_second")
        speed = {"model": _words(row), "T": row["steps"], "ours": round(row["per_second"])}
        theirs = (
            {"PyTorch": round(torch), "ratio": row["per_second"] / torch} if torch else {"PyTorch": None, "ratio": None}
        )
        speeds.append(speed | theirs)
    shown = [
        {"model": _words(p), "minibatches": p["steps"], "seconds": p["seconds"], "none or not": f"{p['accuracy']:.4f}"}
        for p in points
    ]
    parts = [
        "# Trajectories fitted per second, minibatches of 100",
        f"`{about['command']}`, {about['date']}, {about['cores']} CPU cores.",
        markdown_table(speeds),
        "# Accuracy against time, Navigation, 2,000 labels",
        markdown_table(shown),
    ]
    draw(points, out / "fit.svg")
    atomic_write(out / "fit.json", json.dumps(about | {"rows": rows, "accuracy": points}, indent=1) + "\n")
    atomic_write(out / "fit.md", "\n\n".join(parts) + "\n")


def shapes(quick: bool) -> list[tuple[str, int, Figures]]:
    """Kind, steps of a trajectory and shape of the models whose fits are timed."""
    found: list[tuple[str, int, Figures]] = [
        ("classifier", steps, {"layers": layers, "units": 64, "dropout": 0.5})
        for layers in (2, 4)
        for steps in (20, 40)
    ]
    found += [("hazard", steps, {"units": units}) for units in (32, 64) for steps in (20, 40)]
    if not quick:
        found += [("hazard", steps, {"units": 32}) for steps in (80, 160)]
        found += [("hazard", 20, {"units": units}) for units in (16, 128)]
        found += [("hazard", 20, {"units": 32, "members": members}) for members in (3, 5, 10)]
    return found


def main() -> None:
    made = parser(__doc__, "fit")
    made.add_argument("--quick", action="store_true", help="fewer minibatches, no growth")
    made.add_argument("--torch-python", help="a Python interpreter that has PyTorch")
    options = made.parse_args()
    torch = {"classifier": options.torch_python}
    speeds = [
        Speed(k, steps, shape, 5 if options.quick else 15, torch.get(k)) for k, steps, shape in shapes(options.quick)
    ]
    minibatches = (100, 400) if options.quick else (100, 200, 400, 800, 1600, 3200)
    models: list[tuple[str, Figures]] = [("hazard", {}), ("hazard", {"units": 32}), ("hazard", {"units": 64})]
    fits = [Accuracy(kind, minibatches, shape) for kind, shape in (*models, ("classifier", PAPER))]
    jobs = [Job(f"{type(task).__name__.lower()}-{number}", task) for number, task in enumerate((*speeds, *fits))]
    found = results(jobs, options)
    points = [point for result in found[len(speeds) :] for point in result["points"]]
    about = heading("How fast safety models are fitted", [0]) | {"cores": os.cpu_count()}
    write(about, found[: len(speeds)], points, options.out)


if __name__ == "__main__":
    main()
