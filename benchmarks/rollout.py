"""How fast models roll out: steps a second, with and without gradient, against pyRDDLGym's simulator, and growth.

    python benchmarks/rollout.py [--quick] [--out FOLDER]

writes rollout.json and rollout.md into the folder. Times are the best of several runs of a compiled program; the time
to compile it is shown apart. A step is a real step of a trajectory, before its end. The policy is a small network.
"""

import json
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from plan import growth
from runner import parser, results

from sidestep.cluster.jobs import Figures, Job
from sidestep.core.model import Model, Policy, is_finite, rollout
from sidestep.models import load_model
from sidestep.reproduce.grid_work import load_grid
from sidestep.reproduce.tables import heading, markdown_table
from sidestep.runtime.files import atomic_write

DOMAINS = ("navigation", "hvac", "reservoir", "boxpushing", "driving")
HIDDEN = 32
BATCH = 1000


class SmallPolicy(Policy):
    """One hidden layer; real actions anywhere between the bounds of the state, choices drawn straight-through."""

    hidden: jax.Array
    head: jax.Array
    model: Model = eqx.field(static=True)

    def act(self, state, clock, memory, key):
        output = jnp.tanh(state @ self.hidden) @ self.head
        if self.model.spec.action.kinds == {"one-hot"}:
            soft = jax.nn.softmax(output)
            hard = jax.nn.one_hot(jax.random.categorical(key, output), soft.shape[0], dtype=soft.dtype)
            return hard + soft - jax.lax.stop_gradient(soft), memory
        low, high = self.model.action_bounds(state)
        return low + (high - low) * jax.nn.sigmoid(output), memory


def small_policy(model: Model) -> SmallPolicy:
    inputs, outputs = model.spec.state.size, model.spec.action.size
    keys = jax.random.split(jax.random.key(0))
    scale = 0.1 / np.sqrt(inputs)
    return SmallPolicy(
        scale * jax.random.normal(keys[0], (inputs, HIDDEN)), 0.3 * jax.random.normal(keys[1], (HIDDEN, outputs)), model
    )


def measure(model: Model, batch: int, gradient: bool, budget: float, horizon: int | None = None) -> Figures:
    """Seconds to compile and to run one batch, and real steps a second: the best of the runs that the budget allows."""
    policy = small_policy(model)
    parameters, rest = eqx.partition(policy, eqx.is_array)

    def run(parameters, key):
        trajectory = rollout(model, eqx.combine(parameters, rest), key, batch, horizon)
        return jnp.mean(trajectory.returns()), trajectory.length

    program = jax.jit(jax.value_and_grad(run, has_aux=True) if gradient else run)
    start = time.perf_counter()
    compiled = program.lower(parameters, jax.random.key(0)).compile()
    compile_seconds = time.perf_counter() - start
    jax.block_until_ready(compiled(parameters, jax.random.key(0)))

    best, steps, repeat, begin = np.inf, 0, 0, time.perf_counter()
    while repeat < 3 or time.perf_counter() - begin < budget:
        repeat += 1
        start = time.perf_counter()
        result = jax.block_until_ready(compiled(parameters, jax.random.key(repeat)))
        seconds = time.perf_counter() - start
        if seconds < best:
            length = result[0][1] if gradient else result[1]
            best, steps = seconds, int(np.sum(np.asarray(length, np.int64)))
    return {"batch": batch, "compile_seconds": compile_seconds, "seconds": best, "steps_per_second": steps / best}


def steps_per_second(step: Callable[[], bool], reset: Callable[[], Any], seconds: float) -> float:
    """Of a plain loop over single steps; `step` says whether the trajectory has ended."""
    reset()
    count, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < seconds:
        if step():
            reset()
        count += 1
    return count / spent


def simulator_speed(name: str, seconds: float) -> float:
    """pyRDDLGym's simulator on the same text, with its cheapest interface and actions drawn between their bounds."""
    from pyRDDLGym.core.simulator import RDDLSimulator

    model: Any = load_model(name)
    spec, rng = model.spec, np.random.default_rng(0)
    simulator = RDDLSimulator(model.rddl, keep_tensors=True, rng=rng)
    (state,), (action,) = (tuple(variable.name for variable in space.variables) for space in (spec.state, spec.action))
    clock = 0

    def step() -> bool:
        nonlocal clock
        clock += 1
        high = np.where(np.isfinite(spec.action.high), spec.action.high, simulator.state[state])
        simulator.step({action: spec.action.low + rng.random(high.shape) * (high - spec.action.low)})
        return clock % spec.horizon == 0

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return steps_per_second(step, simulator.reset, seconds)


def table_speed(name: str, seconds: float) -> float:
    """A plain loop over the exact transition table, with uniform actions: grids have no RDDL to simulate."""
    model = load_grid(name)
    table, rng = model.finite, np.random.default_rng(0)
    cumulative = np.cumsum(table.probability, axis=-1)
    first = int(np.argmax(table.start))
    state, clock, total = first, 0, 0.0

    def step() -> bool:
        nonlocal state, clock, total
        action = int(rng.integers(cumulative.shape[1]))
        outcome = int(np.searchsorted(cumulative[state, action], rng.random(), side="right"))
        total += table.reward[state, action]
        state = int(table.successor[state, action, min(outcome, cumulative.shape[2] - 1)])
        clock += 1
        return bool(table.absorbing[state]) or clock == model.spec.horizon

    def reset() -> None:
        nonlocal state, clock, total
        state, clock, total = first, 0, 0.0

    return steps_per_second(step, reset, seconds)


@dataclass(frozen=True)
class Rollouts:
    """Time of rollouts, with or without gradient."""

    model: str
    batch: int
    gradient: bool
    budget: float
    horizon: int | None = None

    def run(self, out: Path) -> Figures:
        return measure(load_model(self.model), self.batch, self.gradient, self.budget, self.horizon)


@dataclass(frozen=True)
class Baseline:
    """Steps per second of a plain loop: over a grid's table, or in pyRDDLGym's simulator."""

    model: str
    seconds: float

    def run(self, out: Path) -> Figures:
        if is_finite(load_model(self.model)):
            against, speed = "plain NumPy loop over the table", table_speed
        else:
            against, speed = "pyRDDLGym simulator", simulator_speed
        return {"against": against, "baseline_steps_per_second": speed(self.model, self.seconds)}


def study(quick: bool, found: Callable[[list[Rollouts | Baseline]], list[Figures]]) -> Figures:
    """All that is measured; `found` does tasks."""
    budget, loop_seconds = (0.3, 1.0) if quick else (4.0, 5.0)
    domains: Figures = {}
    for name in DOMAINS:
        tasks = [Baseline(name, loop_seconds), *(Rollouts(name, BATCH, g, budget) for g in (False, True))]
        baseline, forward, gradient = found(tasks)
        ratio = forward["steps_per_second"] / baseline["baseline_steps_per_second"]
        domains[name] = baseline | {"rollout": forward, "gradient": gradient, "ratio": ratio}
    studies: Figures = {"domains": domains, "batch": {}, "horizon": {}, "rooms": {}}
    for name in DOMAINS[:1] if quick else DOMAINS:
        # The grids' own horizon of 500 would not fit into memory at the largest batch.
        tasks = [Rollouts(name, batch, False, budget, 20) for batch in (100, 1_000, 10_000, 100_000)]
        studies["batch"][name] = growth(found(tasks), "batch")
    horizons = (10, 40, 160) if quick else (10, 20, 40, 80, 160, 320, 640)
    rooms = (6, 24) if quick else (6, 24, 96, 384)
    for what, sizes, reference in (("horizon", horizons, "navigation?horizon={}"), ("rooms", rooms, "hvac?rooms={}")):
        for batch in (BATCH,) if quick else (100, BATCH):
            for kind, gradient in (("rollout", False), ("gradient", True)):
                measured = found([Rollouts(reference.format(size), batch, gradient, budget) for size in sizes])
                rows = [{what: size, **row} for size, row in zip(sizes, measured, strict=True)]
                studies[what][f"{kind}, batch {batch}"] = growth(rows, what)
    return studies


def markdown(about: Figures) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    rows = [
        {
            "model": name,
            "steps/s": f"{row['rollout']['steps_per_second']:,.0f}",
            "with gradient, steps/s": f"{row['gradient']['steps_per_second']:,.0f}",
            "compile, s": f"{row['rollout']['compile_seconds']:.1f}",
            "with gradient, s": f"{row['gradient']['compile_seconds']:.1f}",
            "baseline, steps/s": f"{row['baseline_steps_per_second']:,.0f} ({row['against']})",
            "ratio": f"{row['ratio']:,.0f}",
        }
        for name, row in about["domains"].items()
    ]
    parts = [
        "# Rollouts",
        f"`{about['command']}`, {about['date']}. Batches of {BATCH} trajectories, a policy with one hidden layer of "
        f"{HIDDEN}, {about['cores']} CPU cores; {versions}. Steps are real steps of trajectories; the baseline runs "
        "one trajectory at a time.",
        markdown_table(rows),
    ]
    for title, what in (("batch (20 steps)", "batch"), ("horizon (navigation)", "horizon"), ("rooms (HVAC)", "rooms")):
        shown = [
            {f"seconds at {what}": name}
            | {f"{row[what]:,}": f"{row['seconds']:.4f}" for row in found["rows"]}
            | {"exponent": f"{found['exponent']:.2f}"}
            for name, found in about[what].items()
        ]
        parts += [f"## Growth with the {title}", markdown_table(shown)]
    parts.append("The exponent is that of seconds ~ size^exponent over the larger half of the sizes.")
    return "\n\n".join(parts) + "\n"


def main() -> None:
    made = parser(__doc__, "rollout")
    made.add_argument("--quick", action="store_true", help="fewer sizes and runs, some two minutes")
    options = made.parse_args()

    def found(tasks: list[Rollouts | Baseline]) -> list[Figures]:
        names = ["-".join(str(value) for value in vars(task).values() if value is not None) for task in tasks]
        return results([Job(f"{type(t).__name__}-{n}", t) for n, t in zip(names, tasks, strict=True)], options)

    about = heading("Rollouts", [0])
    about["versions"] = {name: version(name) for name in ("jax", "pyRDDLGym", "pyRDDLGym-jax")}
    about |= {"cores": os.cpu_count()} | study(options.quick, found)
    options.out.mkdir(parents=True, exist_ok=True)
    atomic_write(options.out / "rollout.json", json.dumps(about, indent=1) + "\n")
    atomic_write(options.out / "rollout.md", markdown(about))


if __name__ == "__main__":
    main()
