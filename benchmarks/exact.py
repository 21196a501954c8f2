"""The exact gradient on grid maps: how near to the linear program's optimum does a network come?

    python benchmarks/exact.py [--maps FOLDER] [--seeds 1] [--first-seed 11] [--out FOLDER]

writes exact.json and exact.md into the folder. On every shipped map (and those of the folder) a Markov classifier
learns every pair, a network is planned against it with the settings of `--method gradient`, and both its likeliest
and its sampled actions are judged without sampling, by the model and the true rule.
"""

import argparse
import json
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

import jax

from sidestep.campaign.pairs import pair_fit
from sidestep.core.constraints import parse_constraints
from sidestep.finite.occupancy import Bound
from sidestep.labels.rules import load_rule
from sidestep.models import load_model
from sidestep.planning.plan import plan
from sidestep.planning.presets import preset_for
from sidestep.reproduce.exact import PENALTY, best_return, side_effects
from sidestep.reproduce.experiments import FULL, find_maps
from sidestep.reproduce.grid_work import judged
from sidestep.reproduce.markov_ha_s import random_queries
from sidestep.reproduce.tables import write_table
from sidestep.safety.fit import fit
from sidestep.safety.io import make_safety


def study(reference: str, seed: int) -> dict[str, Any]:
    model: Any = load_model(reference)
    rule = load_rule(None, model)
    tables = side_effects(model, rule)
    sizes = (model.spec.state.size, model.spec.action.size, len(rule.scale))
    key, fit_key, plan_key, query_key = jax.random.split(jax.random.key(seed), 4)
    every = random_queries(model, rule, model.finite.reward.size, query_key)
    safety = make_safety("markov", *sizes, key=key, hidden=(64, 64), dropout=0.0)
    safety, _ = fit(safety, every.pairs, every.categories, pair_fit(), fit_key)
    start = time.perf_counter()
    constraints = parse_constraints([f"{rule.scale.categories[0]}>=1"], rule.scale)
    found = plan(model, safety, constraints, preset_for(model, "gradient"), plan_key)
    seconds = time.perf_counter() - start
    best = best_return(model.finite, tables, [Bound(tables[PENALTY], 0.0, PENALTY)], 1.0).value
    row: dict[str, Any] = {"map": reference.rsplit("/")[-1], "seed": seed, "optimum": best}
    for name, sampled in (("likeliest", False), ("sampled", True)):
        worth = judged(model, found.policy, tables, sampled=sampled)
        row[name] = worth["return"]
        row[f"side effects ({name})"] = sum(worth[category] for category in rule.scale.categories[1:])
    return row | {"gap": best - row["likeliest"], "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--maps", type=Path, help="a folder with further .bp and .nav files")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=11)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    grids = find_maps(None, FULL) + (find_maps(options.maps, FULL) if options.maps else [])
    about = {
        "title": "The exact gradient against the linear program",
        "command": " ".join(["python benchmarks/exact.py", *sys.argv[1:]]),
        "date": date.today().isoformat(),
    }
    file = options.out / "exact.json"
    rows = json.loads(file.read_text())["rows"] if file.exists() else []
    for grid in grids:
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            row = study(grid.reference, seed)
            print(row, flush=True)
            rows = [old for old in rows if (old["map"], old["seed"]) != (row["map"], seed)] + [row]
            write_table(options.out, "exact", rows, about)


if __name__ == "__main__":
    main()
