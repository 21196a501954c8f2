"""The exact gradient on grid maps: how near to the linear program's optimum does a network come?

    python benchmarks/exact.py [--maps FOLDER] [--seeds 1] [--first-seed 11] [--out FOLDER]

writes exact.json and exact.md into the folder. On every shipped map (and those of the folder) a Markov classifier
learns every pair, a network is planned against it with the settings of `--method gradient`, and both its likeliest
and its sampled actions are judged without sampling, by the model and the true rule.
"""

import time
from dataclasses import dataclass
from pathlib import Path

import jax
from runner import merged, parser, results, seeds_of

from sidestep.campaign.pairs import pair_fit
from sidestep.cluster.jobs import Figures, Job
from sidestep.core.constraints import parse_constraints
from sidestep.finite.occupancy import Bound
from sidestep.labels.rules import load_rule
from sidestep.planning.plan import plan
from sidestep.planning.presets import preset_for
from sidestep.reproduce.exact import PENALTY, best_return, side_effects
from sidestep.reproduce.experiments import FULL, find_maps
from sidestep.reproduce.grid_work import judged, load_grid
from sidestep.reproduce.markov_ha_s import random_queries
from sidestep.reproduce.tables import heading, read_rows, write_table
from sidestep.safety.fit import fit
from sidestep.safety.io import make_safety


@dataclass(frozen=True)
class ExactGradient:
    """A network planned against a classifier of every pair of a map."""

    model: str
    seed: int

    def run(self, out: Path) -> Figures:
        model = load_grid(self.model)
        rule = load_rule(None, model)
        tables = side_effects(model, rule)
        sizes = (model.spec.state.size, model.spec.action.size, len(rule.scale))
        key, fit_key, plan_key, query_key = jax.random.split(jax.random.key(self.seed), 4)
        every = random_queries(model, rule, model.finite.reward.size, query_key)
        safety = make_safety("markov", *sizes, key=key, hidden=(64, 64), dropout=0.0)
        safety, _ = fit(safety, every.pairs, every.categories, pair_fit(), fit_key)
        start = time.perf_counter()
        constraints = parse_constraints([f"{rule.scale.categories[0]}>=1"], rule.scale)
        found = plan(model, safety, constraints, preset_for(model, "gradient"), plan_key)
        seconds = time.perf_counter() - start
        best = best_return(model.finite, tables, [Bound(tables[PENALTY], 0.0, PENALTY)], 1.0).value
        row: Figures = {"map": self.model.rsplit("/")[-1], "seed": self.seed, "optimum": best}
        for name, sampled in (("likeliest", False), ("sampled", True)):
            worth = judged(model, found.policy, tables, sampled=sampled)
            row[name] = worth["return"]
            row[f"side effects ({name})"] = sum(worth[category] for category in rule.scale.categories[1:])
        return row | {"gap": best - row["likeliest"], "seconds": seconds}


def main() -> None:
    made = parser(__doc__, "exact", first_seed=11, seeds=1)
    made.add_argument("--maps", type=Path, help="a folder with further .bp and .nav files")
    options = made.parse_args()
    grids = find_maps(None, FULL) + (find_maps(options.maps, FULL) if options.maps else [])
    tasks = {f"{grid.name}-{seed}": ExactGradient(grid.reference, seed) for grid in grids for seed in seeds_of(options)}
    new = results([Job(name, task) for name, task in tasks.items()], options)
    rows = merged(read_rows(options.out / "exact.json"), new, by=("map", "seed"))
    write_table(options.out, "exact", rows, heading("The exact gradient against the linear program", seeds_of(options)))


if __name__ == "__main__":
    main()
