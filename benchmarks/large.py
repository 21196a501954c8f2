"""How good plans for large models are: rooms, reservoirs, horizon and cells.

    python benchmarks/large.py [--seeds 1] [--only rooms horizon]

Without a constraint, with the default options, mean action, on 2,000 fresh rollouts; beside

rooms       a thermostat that knows the equations of HVAC: air such that each room is expected at 21.75 degrees
reservoirs  the linear program of `bounds.py` for the mean rain, which no policy does better than; nobody reaches it,
            so what counts is how little the share that is lost grows
horizon     Navigation's dynamic program with this horizon, on a grid of 0.1
cells       the bound of the exact method itself, with `none>=0.9`, on the map of `growth.py`; what its policy earns is
            computed
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from bounds import BEST, Thermostat, cooling, reservoir_program
from dynamic_program import solve
from frontier import NAVIGATION
from growth import square_map
from runner import commits, merged, parser, results, seeds_of

import sidestep
from sidestep.cluster.jobs import Figures, Job
from sidestep.core.model import Model, Policy
from sidestep.finite.horizon import horizon_optimum
from sidestep.finite.runs import prospect
from sidestep.finite.tabular import horizon_policy
from sidestep.frontier.work import categories_of, limit_of
from sidestep.labels.experts import expert_of
from sidestep.models.domains.reservoir.model import RESERVOIRS
from sidestep.planning.options import with_options
from sidestep.planning.plan import plan
from sidestep.planning.presets import preset
from sidestep.reproduce.tables import heading, read_rows, write_table

ROLLOUTS = 2000
DP_STEP, DP_FINE_STEP = 0.1, 0.05
SIZES = {
    "rooms": (6, 24, 96, 384),
    "reservoirs": (20, 50, 100, 200),
    "horizon": (20, 100, 300, 1000),
    "cells": (900, 10_000, 40_000),
}


def planned(model: Model, seed: int) -> Policy:
    config = with_options(preset("default"), {"constraint_gradient": "none"})
    return plan(model, None, (), config, jax.random.key(seed)).policy.mean()


def earned(model: Model, policy: Policy, seed: int) -> Figures:
    returns = np.asarray(sidestep.rollout(model, policy, jax.random.key(1000 + seed), ROLLOUTS).returns())
    return {"return": float(returns.mean()), "error": float(returns.std() / np.sqrt(len(returns)))}


def of_rooms(size: int, seed: int) -> Figures:
    model = sidestep.load_model(f"hvac?rooms={size}")
    matrix, offset = (jnp.asarray(part, jnp.float32) for part in cooling(size))
    thermostat = earned(model, Thermostat(jnp.full(size, BEST), matrix, offset), seed)
    return earned(model, planned(model, seed), seed) | {"reference": thermostat["return"]}


def of_reservoirs(size: int, seed: int) -> Figures:
    model = sidestep.load_model(f"reservoir?reservoirs={size}")
    level, shape, scale, _, lower, _ = np.array([RESERVOIRS[i % len(RESERVOIRS)] for i in range(size)]).T
    rain = np.tile(shape * scale, (model.spec.horizon - 1, 1))
    first = float(np.sum(5.0 * np.maximum(0.0, lower - level)))
    most = -(first + reservoir_program(level, rain, discard=True)[0])
    return earned(model, planned(model, seed), seed) | {"reference": most}


def of_horizon(size: int, seed: int) -> Figures:
    model = sidestep.load_model(f"navigation?horizon={size}")
    best = solve(replace(NAVIGATION, horizon=size, automaton=None), 0.0, DP_STEP, DP_FINE_STEP).total
    return earned(model, planned(model, seed), seed) | {"reference": float(best)}


def of_cells(size: int, seed: int) -> Figures:
    model = square_map(size)
    expert = expert_of(None, False, model)
    limits = [limit_of(one) for one in sidestep.parse_constraints(["none>=0.9"], expert.scale)]
    optimum = horizon_optimum(model.finite, model.spec.horizon, categories_of(model, expert), limits)
    true = prospect(model, horizon_policy(optimum, model), model.side_effect, len(expert.scale))
    return {"return": true.value, "error": 0.0, "reference": optimum.bound}


KINDS: dict[str, Callable[[int, int], Figures]] = {
    "rooms": of_rooms,
    "reservoirs": of_reservoirs,
    "horizon": of_horizon,
    "cells": of_cells,
}


@dataclass(frozen=True)
class Large:
    what: str
    size: int
    seed: int

    def run(self, out: Path) -> Figures:
        began = time.process_time()
        found = KINDS[self.what](self.size, self.seed)
        lost = found["reference"] - found["return"]
        print(self.what, self.size, self.seed, found, flush=True)
        about = {"what": self.what, "size": self.size, "seed": self.seed}
        return about | found | {"lost": lost / abs(found["reference"]), "CPU seconds": time.process_time() - began}


def summary(rows: list[Figures]) -> list[Figures]:
    """One row per model: means over seeds, and the largest share that was lost."""
    found = []
    for what, size in dict.fromkeys((row["what"], row["size"]) for row in rows):
        mine = [row for row in rows if (row["what"], row["size"]) == (what, size)]
        lost = max(row["lost"] for row in mine)
        mean = {name: float(np.mean([row[name] for row in mine])) for name in ("return", "error", "reference")}
        found.append(
            {
                "what": what,
                "size": size,
                "seeds": ", ".join(str(row["seed"]) for row in mine),
                **{name: f"{value:,.{2 if abs(value) < 1e5 else 0}f}" for name, value in mean.items()},
                "lost at most": f"{round(lost, 6) + 0.0:.4%}",
                "CPU seconds": round(np.mean([row["CPU seconds"] for row in mine])),
                "commit": ", ".join(sorted({row["commit"] for row in mine})),
            }
        )
    return found


def main() -> None:
    made = parser(__doc__, "large", first_seed=51, seeds=1)
    made.add_argument("--only", nargs="+", choices=list(SIZES), default=list(SIZES))
    options = made.parse_args()
    tasks = [Large(what, size, seed) for what in options.only for size in SIZES[what] for seed in seeds_of(options)]
    jobs = [Job(f"{task.what}-{task.size}-{task.seed}", task) for task in tasks]
    found = results(jobs, options)
    new = [{**row, "commit": own} for row, own in zip(found, commits(jobs, options), strict=True)]
    rows = merged(read_rows(options.out / "large.json"), new, by=("what", "size", "seed"))
    rows.sort(key=lambda row: (list(SIZES).index(row["what"]), row["size"], row["seed"]))
    about = heading("Plans for large models", sorted({row["seed"] for row in rows}))
    del about["commit"]  # each row has its own
    write_table(options.out, "large", rows, about, shown=summary(rows))


if __name__ == "__main__":
    main()
