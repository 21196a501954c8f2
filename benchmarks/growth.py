"""What grows how: rooms, reservoirs, cells of a grid, the horizon, labels, categories.

    python benchmarks/growth.py [--what rooms cells] [--quick] [--out FOLDER]

writes growth.json and growth.md; points that are not measured now stay as they are. A point is measured in a process
of its own, for its peak of memory. Seconds are CPU seconds of that process, which other work on the machine changes
little. The exponent of a quantity is the slope of log(seconds) over log(size) between the two largest sizes; 1 is
linear.
"""

import json
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from runner import merged, parser, results

from sidestep.cluster.jobs import Figures, Job, Jobs
from sidestep.reproduce.tables import heading, markdown
from sidestep.runtime.files import atomic_write

BATCH = 64  # trajectories of a rollout
LABEL_FIT = 100  # minibatches of a fit
SIZES = {
    "rooms": (6, 24, 96, 384),
    "reservoirs": (20, 50, 100, 200),
    "cells": (100, 900, 2500, 10_000, 40_000),
    "horizon": (20, 100, 300, 1000),
    "labels in the store": (1000, 10_000, 100_000),
    "labels of a fit": (500, 2000, 8000),
    "categories": (2, 3, 6, 12),
}
CELLS = (
    "of a square map with puddles; its runs have 10 steps for every cell of a side, so that the work of an exact "
    "method is cells times steps: an exponent of 1.5"
)
QUICK = {name: sizes[:2] for name, sizes in SIZES.items()}


@dataclass(frozen=True)
class Point:
    """One size of one quantity."""

    what: str
    size: int

    def run(self, out: Path) -> Figures:
        context = multiprocessing.get_context("spawn")
        receive, send = context.Pipe(duplex=False)
        child = context.Process(target=measure, args=(self.what, self.size, send))
        child.start()
        send.close()
        found: Figures = receive.recv()
        child.join()
        return found


def measure(what: str, size: int, send) -> None:
    seconds: dict[str, float] = {}

    def clock(name: str, act: Callable[[], object]) -> object:
        begun = time.process_time()
        done = act()
        seconds[name] = time.process_time() - begun
        return done

    MEASURES[what](size, clock)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    send.send({"what": what, "size": size, "seconds": seconds, "peak MB": peak})


def of_model(reference: str, clock) -> None:
    """Building a model; compiling and running a batch of rollouts, and its gradient in the policy."""
    import jax
    from rollout import small_policy

    from sidestep.core.model import rollout_batch
    from sidestep.models import load_model

    model = clock("build", lambda: load_model(reference))
    policy, keys = small_policy(model), jax.random.split(jax.random.key(0), BATCH)
    dynamic, static = jax.tree.flatten(policy)

    def earned(leaves):
        return rollout_batch(model, jax.tree.unflatten(static, leaves), keys)[0].rewards.sum(axis=1).mean()

    for name, function in (("rollout", earned), ("gradient", jax.value_and_grad(earned))):
        program = clock(f"{name}: compile", lambda function=function: jax.jit(function).lower(dynamic).compile())
        clock(f"{name}: run", lambda program=program: jax.block_until_ready(program(dynamic)))


def of_rooms(size: int, clock) -> None:
    of_model(f"hvac?rooms={size}", clock)


def of_reservoirs(size: int, clock) -> None:
    of_model(f"reservoir?reservoirs={size}", clock)


def of_horizon(size: int, clock) -> None:
    of_model(f"navigation?horizon={size}", clock)


def of_cells(size: int, clock) -> None:
    """The exact optimum of a square grid with puddles, by the linear program over runs of the model's horizon."""
    from sidestep.labels.rules import load_rule
    from sidestep.reproduce.exact import best_return, side_effects

    model = clock("build", lambda: square_map(size))
    tables = clock("label all pairs", lambda: side_effects(model, load_rule(None, model)))
    clock("best return", lambda: best_return(model.finite, tables, [], 1.0))
    exact_frontier_point(model, clock)


def square_map(cells: int):
    """A square with puddles on a fifth of its cells, from corner to corner."""
    from sidestep.models.domains.driving.model import Driving

    side = round(cells**0.5)
    ground = np.where(np.random.default_rng(0).random((side, side)) < 0.2, "@", ".")
    ground[0, 0], ground[-1, -1] = "S", "G"
    return Driving("\n".join("".join(row) for row in ground), name="square", horizon=10 * side)


def exact_frontier_point(model, clock) -> None:
    from sidestep.core.constraints import parse_constraints
    from sidestep.finite.horizon import horizon_optimum
    from sidestep.frontier.work import categories_of, limit_of
    from sidestep.labels.experts import expert_of

    expert = expert_of(None, False, model)
    category = categories_of(model, expert)
    limits = [limit_of(one) for one in parse_constraints(["none>=0.9"], expert.scale)]
    clock("linear program", lambda: horizon_optimum(model.finite, model.spec.horizon, category, limits))


def of_store(size: int, clock) -> None:
    """Writing so many labelled trajectories, and reading them all."""
    from sidestep.core.constraints import Scale
    from sidestep.labels.store import Store

    spec, trajectories = walks(size, 20)
    with tempfile.TemporaryDirectory() as folder, Store.create(Path(folder) / "labels.store", spec, Scale()) as store:
        ids = clock("add", lambda: store.add(trajectories, policy="random")).ids
        clock("label", lambda: store.label(ids, np.arange(size) % 3, "ann"))
        clock("read", store.labelled)


def walks(count: int, time: int):
    from sidestep.core.model import Space, Spec, Trajectory, Variable

    rng = np.random.default_rng(0)
    states = rng.normal(size=(count, time, 2)).astype(np.float32)
    actions = rng.uniform(-1, 1, (count, time, 1)).astype(np.float32)
    rewards = rng.normal(size=(count, time)).astype(np.float32)
    space = Space((Variable("place", size=2),)), Space((Variable("move", low=-1.0, high=1.0),))
    return Spec("walk", *space, horizon=time), Trajectory(states, actions, rewards, np.full(count, time, np.int32))


def fit_of(labels: int, categories: int, clock) -> None:
    import jax

    from sidestep.safety.config import FitConfig
    from sidestep.safety.fit import fit
    from sidestep.safety.io import make_safety

    spec, trajectories = walks(labels, 20)
    key = jax.random.key(0)
    worst = np.clip((trajectories.states[:, :, 0].max(axis=1) * 0.5 * categories).astype(int), 0, categories - 1)
    fresh = make_safety("hazard", spec.state.size, spec.action.size, categories, key=key, units=16)
    config = FitConfig(steps=LABEL_FIT)
    clock("fit, with compiling", lambda: fit(fresh, trajectories, worst, config, key))
    clock("fit again", lambda: fit(fresh, trajectories, worst, config, key))


MEASURES: dict[str, Callable] = {
    "rooms": of_rooms,
    "reservoirs": of_reservoirs,
    "cells": of_cells,
    "horizon": of_horizon,
    "labels in the store": of_store,
    "labels of a fit": lambda size, clock: fit_of(size, 3, clock),
    "categories": lambda size, clock: fit_of(2000, size, clock),
}


def exponent(sizes: list[int], seconds: list[float]) -> float | None:
    """Of the two largest sizes; None where the time is too short to be told."""
    if len(sizes) < 2 or min(seconds[-2:]) < 0.005:
        return None
    return float(np.log(seconds[-1] / seconds[-2]) / np.log(sizes[-1] / sizes[-2]))


def table(points: list[Figures]) -> list[Figures]:
    """One row per quantity and part of the work: seconds at each size, exponent, memory at the largest."""
    rows = []
    for what in dict.fromkeys(point["what"] for point in points):
        some = [point for point in points if point["what"] == what]
        sizes = [point["size"] for point in some]
        for part in some[0]["seconds"]:
            seconds = [point["seconds"][part] for point in some]
            grown = exponent(sizes, seconds)
            rows.append(
                {
                    "what": what,
                    "sizes": " / ".join(f"{size:,}" for size in sizes),
                    "work": part,
                    "CPU seconds": " / ".join(f"{one:.3g}" for one in seconds),
                    "exponent": "-" if grown is None else f"{grown:.2f}",
                    "peak MB": f"{some[-1]['peak MB']:,.0f}",
                    "measured": "; ".join(dict.fromkeys(point["measured"] for point in some)),
                }
            )
    return rows


def measured(runs: Path, job: Job) -> str:
    """When, and with which code."""
    record = Jobs(runs).record(job)
    assert record is not None
    return f"{record.finished[:10]}, {record.commit}"


def main() -> None:
    made = parser(__doc__, "growth")
    made.add_argument("--quick", action="store_true", help="the two smallest sizes of each")
    made.add_argument("--what", nargs="+", choices=list(SIZES), default=list(SIZES))
    options = made.parse_args()
    chosen = QUICK if options.quick else SIZES
    tasks = [Point(what, size) for what in options.what for size in chosen[what]]
    jobs = [Job(f"{task.what.replace(' ', '-')}-{task.size}", task) for task in tasks]
    new = [
        {**found, "measured": measured(options.runs, job)}
        for job, found in zip(jobs, results(jobs, options), strict=True)
    ]
    file = options.out / "growth.json"
    old = json.loads(file.read_text())["points"] if file.exists() else []
    order = list(SIZES)
    points = sorted(merged(old, new, ["what", "size"]), key=lambda one: (order.index(one["what"]), one["size"]))
    about = heading("Growth: CPU seconds by size", [0], "python benchmarks/growth.py") | {"cells": CELLS}
    document = {**about, "points": points, "rows": table(points)}
    options.out.mkdir(parents=True, exist_ok=True)
    atomic_write(file, json.dumps(document, indent=1) + "\n")
    atomic_write(options.out / "growth.md", markdown(table(points), about))


if __name__ == "__main__":
    main()
