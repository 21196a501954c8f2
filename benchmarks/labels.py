"""What labels buy: return and certificate of a campaign on Navigation against its budget, asking well and at random.

    python benchmarks/labels.py [--budgets 250 500 1000 2000 4000] [--seeds 2] [--first-seed 21] [--runs FOLDER]

adds to labels.json and labels.md in benchmarks/results and draws docs/pictures/labels.svg. Finished runs found in the
folder are not run again.
"""

import argparse
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from campaign import certified, run

from sidestep.runtime.files import atomic_write

matplotlib.use("svg")
WAYS = {"well": "asking well", "random": "asking at random"}


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| labels allowed | asking | seeds | certified | return of the certified, mean (worst) | labels used |",
        "|---|---|---|---|---|---|",
    ]
    for budget, ask in dict.fromkeys((row["budget"], row["ask"]) for row in rows):
        own = [row for row in rows if (row["budget"], row["ask"]) == (budget, ask)]
        returns = np.array([row["return"]["mean"] for row in own if certified(row)])
        shown = f"{returns.mean():.2f} ({returns.min():.2f})" if len(returns) else "-"
        used = np.mean([row["labels_used"] for row in own])
        lines.append(f"| {budget} | {ask} | {len(own)} | {len(returns)} | {shown} | {used:.0f} |")
    return "\n".join(lines) + "\n"


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """A point a run, hollow where no audit certified it, and a line through the means of the certified."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
    for number, (ask, name) in enumerate(WAYS.items()):
        own = [row for row in rows if row["ask"] == ask]
        colour = f"C{number}"
        for row in own:
            fill = colour if certified(row) else "none"
            axes.scatter(row["budget"], row["return"]["mean"], edgecolors=colour, facecolors=fill, zorder=3)
        budgets = sorted({row["budget"] for row in own if certified(row)})
        means = [np.mean([r["return"]["mean"] for r in own if r["budget"] == b and certified(r)]) for b in budgets]
        axes.plot(budgets, means, color=colour, label=name)
    axes.axhline(-86.5, color="0.5", linestyle=":", label="best possible")
    axes.set_xscale("log", base=2)
    budgets = sorted({row["budget"] for row in rows})
    axes.set_xticks(budgets, [str(budget) for budget in budgets])
    axes.set_xlabel("labelled trajectories allowed (hollow: not certified)")
    axes.set_ylabel("return")
    axes.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budgets", type=int, nargs="*", default=[250, 500, 1000, 2000, 4000])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--first-seed", type=int, default=21)
    parser.add_argument("--runs", type=Path, default=Path("runs/labels"))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--picture", type=Path, default=Path("docs/pictures/labels.svg"))
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    options.runs.mkdir(parents=True, exist_ok=True)
    wanted = [
        (budget, ask, seed)
        for seed in range(options.first_seed, options.first_seed + options.seeds)
        for budget in options.budgets
        for ask in WAYS
    ]

    def one(job: tuple[int, str, int]) -> dict[str, Any]:
        budget, ask, seed = job
        arguments = ["--labels", str(budget), "--ask", ask]
        return {"budget": budget, "ask": ask, **run(f"{ask} {budget}", "navigation", arguments, seed, options.runs)}

    def place(row: dict[str, Any]) -> tuple[int, str, int]:
        return row["budget"], row["ask"], row["seed"]

    file = options.out / "labels.json"
    rows = {place(row): row for row in json.loads(file.read_text())} if file.exists() else {}
    with ThreadPoolExecutor(options.workers) as pool:
        for row in pool.map(one, wanted):
            rows[place(row)] = row
            print(table([row]).splitlines()[-1], flush=True)
            ordered = [rows[key] for key in sorted(rows)]
            atomic_write(file, json.dumps(ordered, indent=1))
            atomic_write(options.out / "labels.md", table(ordered))
            draw(ordered, options.picture)


if __name__ == "__main__":
    main()
