"""Tolerances where single steps are labelled: campaigns on grid maps against the optimum for tolerance and horizon.

    python benchmarks/step_tolerances.py [--maps FOLDER] [--only NAME ...] [--seeds 1] [--first-seed 21] [--runs FOLDER]

writes step_tolerances.json, .csv and .md into benchmarks/results. Maps: all built-in ones, examples/ledge.bp, and those
of the folder. A campaign has default options but for its constraint. Its policy is judged without sampling, by the
model and the true rule; the optimum knows all labels.
"""

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from runner import merged, parser, results, seeds_of

from sidestep.campaign.campaign import continue_campaign
from sidestep.campaign.job import Job as Asked
from sidestep.campaign.job import begin
from sidestep.cluster.jobs import Figures, Job
from sidestep.core.errors import Infeasible
from sidestep.finite.horizon import Limit, horizon_optimum
from sidestep.finite.runs import prospect
from sidestep.finite.tabular import HorizonPolicy
from sidestep.models.grids import Grid, built_in_maps
from sidestep.policies.files import load_policy
from sidestep.reproduce.experiments import FULL, GRIDS, GridMap, find_maps
from sidestep.reproduce.grid_work import load_grid
from sidestep.reproduce.tables import heading, read_rows, write_table

TOLERANCES = ("0", "0.05", "0.2")
COSTLY = (0.0, 1.0, 1.0)


@dataclass(frozen=True)
class StepTolerance:
    """A campaign for `mild+<=tolerance` on a map."""

    name: str
    model: str
    tolerance: str
    seed: int

    def run(self, out: Path) -> Figures:
        model, folder = load_grid(self.model), out / f"{self.name}-{self.tolerance}-{self.seed}"
        asked = Asked(model=self.model, constraints=(f"mild+<={self.tolerance}",), seed=self.seed, out=folder)
        shutil.rmtree(folder, ignore_errors=True)  # of a job that was stopped
        start = time.perf_counter()
        result = continue_campaign(begin(asked), lambda stage, record: None)
        seconds = time.perf_counter() - start
        policy = load_policy(folder / "policy.safetensors", model)
        assert isinstance(policy, HorizonPolicy)
        assert result.steps is not None
        assert result.constraints is not None
        assert result.returns is not None
        true = prospect(model, policy, model.side_effect, 3)
        optimum = best(model, float(self.tolerance))
        assert optimum is not None
        return {
            "map": self.name,
            "tolerance": float(self.tolerance),
            "seed": self.seed,
            "no tolerance": best(model, 1.0),
            "optimum": optimum,
            "avoiding": best(model, 0.0),
            "return": true.value,
            "gap": optimum - true.value,
            "chance": float(true.chances[1:].sum()),
            "ends": true.ended,
            "certified": result.certified,
            "by": result.constraints[0].proof,
            "bound": result.constraints[0].upper,
            "bounded": result.steps.used,
            "policy": result.evaluation.policy,
            "return in rollouts": result.returns.mean,
            "rollouts": result.rollouts,
            "labels": result.labels_used,
            "pairs": model.finite.reward.size,
            "seconds": seconds,
        }


def best(model: Grid, tolerance: float) -> float | None:
    """The exact optimum where every label is known; None where nothing is within the tolerance."""
    try:
        return horizon_optimum(model.finite, model.spec.horizon, model.side_effect, [Limit(COSTLY, tolerance)]).value
    except Infeasible:
        return None


def all_maps(folder: Path | None) -> list[GridMap]:
    built_in = [
        GridMap(domain, f"{domain}-{name}", f"{domain}?map={name}")
        for domain, grid in GRIDS.items()
        for name in built_in_maps(grid)
    ]
    ledge = GridMap("boxpushing", "ledge", str(Path(__file__).parents[1] / "examples" / "ledge.bp"))
    return [ledge, *built_in, *(find_maps(folder, FULL) if folder else [])]


def main() -> None:
    made = parser(__doc__, "step_tolerances", first_seed=21, seeds=1)
    made.add_argument("--maps", type=Path, help="a folder with further .bp and .nav files")
    made.add_argument("--only", nargs="*", default=[], help="maps whose names begin so")
    options = made.parse_args()
    tasks = [
        StepTolerance(grid.name, grid.reference, tolerance, seed)
        for grid in all_maps(options.maps)
        if not options.only or grid.name.startswith(tuple(options.only))
        for tolerance in TOLERANCES
        for seed in seeds_of(options)
    ]
    new = results([Job(f"{task.name}-{task.tolerance}-{task.seed}", task, "all") for task in tasks], options)
    rows = merged(read_rows(options.out / "step_tolerances.json"), new, by=("map", "tolerance", "seed"))
    title = heading("Tolerances on labelled steps against the exact optimum", seeds_of(options))
    write_table(options.out, "step_tolerances", rows, title)


if __name__ == "__main__":
    main()
