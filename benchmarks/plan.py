"""How long an epoch of the `paper` preset takes, for one seed and for five at once, and how that grows.

    python benchmarks/plan.py [--quick] [--out FOLDER]

writes plan.json and plan.md into the folder. An epoch is 100 trajectories, the gradient of the constraint through
policy, model and safety model, PPO on the same trajectories, and the multiplier's step; tests are not counted. Times
are the least and the median of several runs of a compiled program; the time to compile it is shown apart. The safety
models have random weights, which is the same arithmetic: on Navigation and HVAC the paper's 4-layer, 64-unit GRU, on
the grids the Markov classifier.
"""

import json
import os
import tempfile
import time
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

import jax
import numpy as np
from runner import parser, results

from sidestep.cluster.jobs import Figures, Job
from sidestep.core.constraints import Scale, parse_constraints
from sidestep.core.model import Model, finite_part
from sidestep.models import load_model
from sidestep.models.domains.boxpushing.model import Boxpushing
from sidestep.models.domains.driving.model import Driving
from sidestep.models.grids import built_in_maps
from sidestep.planning.learner import Learner
from sidestep.planning.plan import Planner
from sidestep.planning.presets import preset_for
from sidestep.reproduce.tables import heading, markdown_table
from sidestep.runtime.files import atomic_write
from sidestep.safety.io import make_safety

# Least and median seconds an epoch of the authors' published PyTorch code, MBGE, on another machine with two cores.
AUTHORS = {"navigation": (0.094, 0.11), "hvac": (0.202, 0.24), "boxpushing": (4.7, 6.2), "driving": (5.1, 6.4)}
PAPER_GRU: Figures = {"layers": 4, "units": 64, "dropout": 0.5}


def measure(model: Model, seeds: int, budget: float, categories: int = 3) -> Figures:
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

    def stretch(learners: Learner) -> tuple[Learner, float]:
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


def growth(rows: list[Figures], what: str) -> Figures:
    """Rows of a study, and the exponent of seconds ~ size^exponent over its larger half."""
    half = rows[len(rows) // 2 - 1 :]
    sizes, seconds = np.log([row[what] for row in half]), np.log([row["seconds"] for row in half])
    return {"rows": rows, "exponent": float(np.polyfit(sizes, seconds, 1)[0])}


@dataclass(frozen=True)
class Epochs:
    """Seconds per epoch; a model that ends in `?tiles=N` is a shipped map repeated N x N."""

    model: str
    seeds: int
    budget: float
    categories: int = 3

    def run(self, out: Path) -> Figures:
        name, _, tiles = self.model.partition("?tiles=")
        with tempfile.TemporaryDirectory() as folder:
            model = load_model(tiled_map(name, int(tiles), Path(folder)) if tiles else name)
        return measure(model, self.seeds, self.budget, self.categories)


def growth_studies(quick: bool) -> dict[str, tuple[str, dict[int, tuple[str, int]]]]:
    """What grows, and for each size the model and the number of categories."""
    found: dict[str, tuple[str, dict[int, tuple[str, int]]]] = {}
    if not quick:
        found["HVAC"] = ("rooms", {n: (f"hvac?rooms={n}", 3) for n in (6, 24, 96, 384)})
        found["Navigation"] = ("horizon", {n: (f"navigation?horizon={n}", 3) for n in (20, 40, 80, 160, 320)})
        found["Navigation, K"] = ("categories", {k: ("navigation", k) for k in (2, 4, 8, 16)})
    for domain in ("driving",) if quick else ("boxpushing", "driving"):
        tiles = (1, 2) if quick else (1, 2, 3, 4)
        found[domain.capitalize()] = ("width", {15 * n: (f"{domain}?tiles={n}", 3) for n in tiles})
    return found


def markdown(about: Figures) -> str:
    parts = [
        f"# {about['title']}",
        f"`{about['command']}`, {about['date']}, {about['cores']} CPU cores, jax {about['versions']['jax']}; "
        "one seed, and five trained in parallel, where the time is that of all five together. The ratio is the "
        "authors' least time for as many seeds over ours. Their figures were measured elsewhere, with their "
        "PyTorch code on another machine with two cores, so that the ratio is a rough one.",
    ]
    rows = [
        {
            "model": name,
            "seeds": run["seeds"],
            "compile, s": f"{run['compile_seconds']:.1f}",
            "seconds per epoch": f"{run['seconds']:.4f}",
            "median": f"{run['median_seconds']:.4f}",
            "authors' code, least / median": f"{row['authors_seconds']} / {row['authors_median_seconds']}",
            "ratio": f"{run['seeds'] * row['authors_seconds'] / run['seconds']:.1f}",
        }
        for name, row in about["domains"].items()
        for run in row["runs"]
    ]
    parts.append(markdown_table(rows))
    for name, found in about["growth"].items():
        what = found["size"]
        shown = [
            {what: label, **{str(row[what]): f"{row[key]:.{digits}f}" for row in found["rows"]}}
            for label, key, digits in (("seconds per epoch", "seconds", 4), ("compile, s", "compile_seconds", 1))
        ]
        parts += [f"## Growth with the {what} ({name})", markdown_table(shown)]
        parts.append(f"seconds ~ {what}^{found['exponent']:.2f} over the larger half")
    return "\n\n".join(parts) + "\n"


def main() -> None:
    made = parser(__doc__, "plan")
    made.add_argument("--quick", action="store_true", help="fewer sizes and runs, three minutes on a quiet machine")
    options = made.parse_args()
    budget, quick = (1.0, True) if options.quick else (5.0, False)
    domains = [
        (name, seeds)
        for name in (("navigation", "driving") if quick else AUTHORS)
        for seeds in ((1,) if quick else (1, 5))
    ]
    studies = growth_studies(quick)
    tasks = [Epochs(name, seeds, budget) for name, seeds in domains]
    tasks += [Epochs(model, 1, budget, k) for _, sizes in studies.values() for model, k in sizes.values()]
    found = iter(results([Job(f"{number}", task) for number, task in enumerate(tasks)], options))
    about = heading("Planning: seconds per epoch of the `paper` preset", [0])
    about |= {"versions": {"jax": version("jax")}, "cores": os.cpu_count(), "quick": quick, "domains": {}, "growth": {}}
    for name, _ in domains:
        least, median = AUTHORS[name]
        row = about["domains"].setdefault(
            name, {"runs": [], "authors_seconds": least, "authors_median_seconds": median}
        )
        row["runs"].append(next(found))
    for name, (what, sizes) in studies.items():
        about["growth"][name] = {"size": what, **growth([{what: size, **next(found)} for size in sizes], what)}
    options.out.mkdir(parents=True, exist_ok=True)
    atomic_write(options.out / "plan.json", json.dumps(about, indent=1) + "\n")
    atomic_write(options.out / "plan.md", markdown(about))


if __name__ == "__main__":
    main()
