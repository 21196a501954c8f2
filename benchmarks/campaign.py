"""The main job over several seeds: return, certificate and labels of `sidestep plan`, each in a fresh process.

    python benchmarks/campaign.py [--only navigation hvac ...] [--seeds 5] [--first-seed 11] [--runs FOLDER]

writes campaign.json and campaign.md into benchmarks/results. Finished runs found in the folder are not run again.
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from runner import merged, parser, results, seeds_of

from sidestep.cluster.jobs import Figures, Job
from sidestep.finite.occupancy import Bound, occupancy_lp
from sidestep.reproduce.grid_work import load_grid
from sidestep.reproduce.tables import heading, read_rows, write_table

TRAJECTORIES = {
    "navigation": ("navigation", ()),
    "hvac": ("hvac", ()),
    "reservoir": ("reservoir", ()),
    "greenhouse": ("examples/greenhouse.rddl", ("--rule", "examples/mould.py:rule", "--constraint", "none>=0.95")),
    "boxpushing share": ("boxpushing", ("--rule", "share")),
    "driving share": ("driving", ("--rule", "share")),
}


@dataclass(frozen=True)
class Campaign:
    """`sidestep plan` in a process of its own; a run that was stopped is resumed."""

    name: str
    model: str
    options: tuple[str, ...]
    seed: int

    def run(self, out: Path) -> Figures:
        folder = out / f"{self.name.replace(' ', '-')}-{self.seed}"
        if not (folder / "result.json").exists():
            begin = ["plan", self.model, *self.options, "--seed", str(self.seed), "--out", str(folder)]
            start = ["resume", str(folder)] if (folder / "config.json").exists() else begin
            said = subprocess.run([sys.executable, "-m", "sidestep", *start, "--quiet", "--json"], capture_output=True)
            if not (folder / "result.json").exists():
                raise RuntimeError(f"{self.name}, seed {self.seed}: {said.stderr.decode()}")
        result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        limit = best_safe_return(self.model) if "penalty" in result else None
        if self.name.endswith("exact"):
            limit = result["steps"]["optimum"]  # for the tolerance, within the horizon
        shown = " ".join(["sidestep plan", self.model, *self.options])
        return {"command": shown, "limit": limit, "name": self.name, **result}


def problems(only: list[str], maps: Path | None) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Model and options of each problem."""
    found: dict[str, tuple[str, tuple[str, ...]]] = dict(TRAJECTORIES)
    for grid, budget, suffix in (("boxpushing", "2000", "bp"), ("driving", "3500", "nav")):
        references = {f"{grid} {number}": f"{grid}?map={number}" for number in range(1, 6)}
        if maps is not None:
            references |= {f"{grid} {file.stem}": str(file) for file in sorted(maps.rglob(f"*.{suffix}"))}
        for name, reference in references.items():
            found[f"{name} exact"] = (reference, ("--labels", budget))
            found[f"{name} network"] = (reference, ("--labels", budget, "--method", "gradient"))
    return {name: job for name, job in found.items() if not only or any(name.startswith(word) for word in only)}


def best_safe_return(reference: str) -> float:
    """The exact optimum without side effects."""
    model = load_grid(reference)
    return occupancy_lp(model.finite, [Bound(model.side_effect.astype(float), 0.0)]).value


def certified(row: Figures) -> bool:
    return all(verdict["certified"] for verdict in row["constraints"])


def summary(rows: list[Figures]) -> list[Figures]:
    """One row per problem."""
    found = []
    for name in dict.fromkeys(row["name"] for row in rows):
        own = [row for row in rows if row["name"] == name]
        returns = np.array([row["return"]["mean"] for row in own])
        found.append(
            {
                "problem": name,
                "seeds": len(own),
                "certified": sum(map(certified, own)),
                "return, mean (spread)": f"{returns.mean():.6g} ({returns.std():.3g})",
                "worst": f"{returns.min():.6g}",
                "limit": own[0].get("limit"),
                "penalty": float(np.mean([r["penalty"]["mean"] for r in own])) if "penalty" in own[0] else None,
                "labels": round(np.mean([row["labels_used"] for row in own])),
                "seconds": round(np.mean([row["seconds"] for row in own])),
            }
        )
    return found


def main() -> None:
    made = parser(__doc__, "campaigns", first_seed=11)
    made.add_argument("--only", nargs="*", default=[], help="problems whose names begin so")
    made.add_argument("--maps", type=Path, help="a folder with further .bp and .nav files")
    options = made.parse_args()
    jobs = [
        Job(f"{name.replace(' ', '-')}-{seed}", Campaign(name, *problem, seed))
        for name, problem in problems(options.only, options.maps).items()
        for seed in seeds_of(options)
    ]
    new = results(jobs, options)
    order = list(problems([], options.maps))
    rows = merged(read_rows(options.out / "campaign.json"), new, by=("name", "seed"))
    rows.sort(key=lambda row: order.index(row["name"]) if row["name"] in order else len(order))
    about = heading("The main job over several seeds", sorted({row["seed"] for row in rows}))
    write_table(options.out, "campaign", rows, about, shown=summary(rows))


if __name__ == "__main__":
    main()
