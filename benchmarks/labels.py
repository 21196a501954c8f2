"""What labels buy: return and certificate of a campaign on Navigation against its budget, asking well and at random.

    python benchmarks/labels.py [--budgets 250 500 1000 2000 4000] [--seeds 2] [--first-seed 21] [--runs FOLDER]

adds to labels.json and labels.md in benchmarks/results and draws docs/pictures/labels.svg. Finished runs found in the
folder are not run again.
"""

from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
from campaign import Campaign, certified
from runner import merged, parser, results, seeds_of

from sidestep.cluster.jobs import Figures, Job
from sidestep.models.domains import all_domains
from sidestep.reproduce.tables import heading, read_rows, write_table

matplotlib.use("svg")
WAYS = {"well": "asking well", "random": "asking at random"}


@dataclass(frozen=True)
class Labelled:
    """A campaign on Navigation with a budget of labels, asked in one of the ways."""

    budget: int
    ask: str
    seed: int

    def run(self, out: Path) -> Figures:
        options = ("--labels", str(self.budget), "--ask", self.ask)
        found = Campaign(f"{self.ask} {self.budget}", "navigation", options, self.seed).run(out)
        return {"budget": self.budget, "ask": self.ask} | found


def summary(rows: list[Figures]) -> list[Figures]:
    """One row per budget and way of asking."""
    found = []
    for budget, ask in dict.fromkeys((row["budget"], row["ask"]) for row in rows):
        own = [row for row in rows if (row["budget"], row["ask"]) == (budget, ask)]
        returns = np.array([row["return"]["mean"] for row in own if certified(row)])
        found.append(
            {
                "labels allowed": budget,
                "asking": ask,
                "seeds": len(own),
                "certified": len(returns),
                "return of the certified, mean": float(returns.mean()) if len(returns) else None,
                "worst": float(returns.min()) if len(returns) else None,
                "labels used": round(np.mean([row["labels_used"] for row in own])),
            }
        )
    return found


def draw(rows: list[Figures], path: Path) -> None:
    """One point per run, hollow where no audit certified it, and a line through the means of the certified."""
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
    axes.axhline(
        all_domains()["navigation"].best_known["none>=0.95"], color="0.5", linestyle=":", label="best possible"
    )
    axes.set_xscale("log", base=2)
    budgets = sorted({row["budget"] for row in rows})
    axes.set_xticks(budgets, [str(budget) for budget in budgets])
    axes.set_xlabel("labelled trajectories allowed (hollow: not certified)")
    axes.set_ylabel("return")
    axes.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    made = parser(__doc__, "labels", first_seed=21, seeds=2)
    made.add_argument("--budgets", type=int, nargs="*", default=[250, 500, 1000, 2000, 4000])
    made.add_argument("--picture", type=Path, default=Path("docs/pictures/labels.svg"))
    options = made.parse_args()
    tasks = [Labelled(budget, ask, seed) for seed in seeds_of(options) for budget in options.budgets for ask in WAYS]
    new = results([Job(f"{t.ask}-{t.budget}-{t.seed}", t) for t in tasks], options)
    rows = merged(read_rows(options.out / "labels.json"), new, by=("budget", "ask", "seed"))
    rows.sort(key=lambda row: (row["budget"], row["ask"], row["seed"]))
    about = heading("What labels buy: campaigns on Navigation", sorted({row["seed"] for row in rows}))
    write_table(options.out, "labels", rows, about, shown=summary(rows))
    draw(rows, options.picture)


if __name__ == "__main__":
    main()
