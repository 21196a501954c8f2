"""How fast models roll out: steps a second, with and without gradient, against pyRDDLGym's simulator, and growth.

    python benchmarks/rollout.py [--quick] [--out FOLDER]

writes rollout.json and rollout.md into the folder. Times are the best of several runs of a compiled program; the time
to compile it is shown apart. A step is a real step of a trajectory, before its end. The policy is a small network.
"""

import argparse
import json
import os
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sidestep.core.model import Model, Policy, rollout
from sidestep.models import load_model

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


def measure(model: Model, batch: int, gradient: bool, budget: float, horizon: int | None = None) -> dict[str, Any]:
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
    model: Any = load_model(name)
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


def growth(rows: list[dict[str, Any]], what: str) -> dict[str, Any]:
    """Rows of a study, and the exponent of seconds ~ size^exponent over its larger half."""
    half = rows[len(rows) // 2 - 1 :]
    sizes, seconds = np.log([row[what] for row in half]), np.log([row["seconds"] for row in half])
    return {"rows": rows, "exponent": float(np.polyfit(sizes, seconds, 1)[0])}


def study(quick: bool) -> dict[str, Any]:
    budget, loop_seconds = (0.3, 1.0) if quick else (4.0, 5.0)
    results: dict[str, Any] = {
        "versions": {name: version(name) for name in ("jax", "pyRDDLGym", "pyRDDLGym-jax")},
        "cores": os.cpu_count(),
        "domains": {},
    }
    for name in DOMAINS:
        model = load_model(name)
        baseline = table_speed if hasattr(model, "finite") else simulator_speed
        row = {
            "against": "plain NumPy loop over the table" if hasattr(model, "finite") else "pyRDDLGym simulator",
            "baseline_steps_per_second": baseline(name, loop_seconds),
            "rollout": measure(model, BATCH, False, budget),
            "gradient": measure(model, BATCH, True, budget),
        }
        row["ratio"] = row["rollout"]["steps_per_second"] / row["baseline_steps_per_second"]
        results["domains"][name] = row
        report(f"{name}: {row['rollout']['steps_per_second']:,.0f} steps/s, {row['ratio']:,.0f} x {row['against']}")

    results["batch"] = {}
    for name in DOMAINS[:1] if quick else DOMAINS:
        horizon = 20  # the grids' own horizon of 500 would not fit into memory at the largest batch
        rows = [measure(load_model(name), b, False, budget, horizon) for b in (100, 1_000, 10_000, 100_000)]
        results["batch"][name] = growth(rows, "batch")
        report(f"{name}: seconds ~ batch^{results['batch'][name]['exponent']:.2f}")

    horizons = (10, 40, 160) if quick else (10, 20, 40, 80, 160, 320, 640)
    rooms = (6, 24) if quick else (6, 24, 96, 384)
    for what, sizes, reference in (
        ("horizon", horizons, "navigation?horizon={}"),
        ("rooms", rooms, "hvac?rooms={}"),
    ):
        results[what] = {}
        for batch in (BATCH,) if quick else (100, BATCH):
            for kind, gradient in (("rollout", False), ("gradient", True)):
                models = ((size, load_model(reference.format(size))) for size in sizes)
                rows = [{what: size, **measure(model, batch, gradient, budget)} for size, model in models]
                name = f"{kind}, batch {batch}"
                results[what][name] = growth(rows, what)
                report(f"{name}: seconds ~ {what}^{results[what][name]['exponent']:.2f}")
    return results


def markdown(results: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in results["versions"].items())
    lines = [
        "# Rollouts",
        "",
        f"Batches of {BATCH} trajectories, a policy with one hidden layer of {HIDDEN}, {results['cores']} CPU cores; "
        f"{versions}. Steps are real steps of trajectories; the baseline runs one trajectory at a time.",
        "",
        "| model | steps/s | with gradient, steps/s | compile, s | with gradient, s | baseline, steps/s | ratio |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, row in results["domains"].items():
        forward, gradient = row["rollout"], row["gradient"]
        lines.append(
            f"| {name} | {forward['steps_per_second']:,.0f} | {gradient['steps_per_second']:,.0f} "
            f"| {forward['compile_seconds']:.1f} | {gradient['compile_seconds']:.1f} "
            f"| {row['baseline_steps_per_second']:,.0f} ({row['against']}) | {row['ratio']:,.0f} |"
        )
    for title, study, sizes in (
        ("Growth with the batch (20 steps)", "batch", "batch"),
        ("Growth with the horizon (navigation)", "horizon", "horizon"),
        ("Growth with the rooms (HVAC)", "rooms", "rooms"),
    ):
        lines += ["", f"## {title}", ""]
        some = next(iter(results[study].values()))["rows"]
        lines += [f"| seconds at {sizes} | " + " | ".join(f"{row[sizes]:,}" for row in some) + " | exponent |"]
        lines += ["|---|" + "---:|" * (len(some) + 1)]
        for name, found in results[study].items():
            seconds = " | ".join(f"{row['seconds']:.4f}" for row in found["rows"])
            lines.append(f"| {name} | {seconds} | {found['exponent']:.2f} |")
    lines += ["", "The exponent is that of seconds ~ size^exponent over the larger half of the sizes."]
    return "\n".join(lines) + "\n"


def report(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer sizes and runs, some two minutes")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results", help="folder of the results")
    arguments = parser.parse_args()
    results = study(arguments.quick)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "rollout.json").write_text(json.dumps(results, indent=1) + "\n")
    (arguments.out / "rollout.md").write_text(markdown(results))
    report(f"written to {arguments.out / 'rollout.md'}")


if __name__ == "__main__":
    main()
