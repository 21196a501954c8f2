"""How good the learned safety models are: accuracy, calibration and blame on Navigation and HVAC.

    python benchmarks/safety.py [--quick] [--out FOLDER]

writes safety.json and safety.md into the folder. Hazard models learn from a mixture of policies of different skill,
each with its own targets, gain and noise: on Navigation it heads for two random places, the goal among them; on HVAC
thermostats aim at random temperatures, and around the limit in the server room, so that many trajectories lie near the
boundary between categories. The paper's classifier learns, as in the paper, from trajectories of agents that learn
without constraint. All scores are on trajectories that no fit has seen.
"""

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from runner import parser, results

from sidestep.campaign.pairs import pair_fit
from sidestep.cluster.jobs import Figures, Job
from sidestep.core.model import Model, Policy, Trajectory, rollout_batch
from sidestep.finite.graph import reachable
from sidestep.labels.rules import load_rule
from sidestep.models import load_model
from sidestep.models.domains.navigation.rule import DIRTY_X, DIRTY_Y
from sidestep.planning.exact import all_pairs
from sidestep.planning.plan import Planner
from sidestep.reproduce.data import AS_THE_PAPER, learning_trajectories
from sidestep.reproduce.grid_work import load_grid
from sidestep.reproduce.methods import settings_of
from sidestep.reproduce.tables import heading, read_rows, write_table
from sidestep.safety.base import SafetyModel, predict
from sidestep.safety.config import FitConfig, fit_settings
from sidestep.safety.explain import blame
from sidestep.safety.fit import fit
from sidestep.safety.io import make_safety
from sidestep.safety.report import Scores, scores

DOMAINS = ("navigation", "hvac")
FIRST_SEED = 11  # settings were chosen on smaller ones
PAIRS = {"boxpushing": 1716, "driving": 3616}
CLASSIFIER = FitConfig(learning_rate=5e-3, balance=0.3, check_every=500, held_out=0.1, patience=0)
PAPER = {"layers": 2, "units": 64, "dropout": 0.5}
LEARNERS, LEARNING_EPOCHS = 5, 1000  # agents that learn side by side
TESTS = 20_000


class Waypoints(Policy):
    """To one place, and from some step on to another."""

    first: jax.Array
    second: jax.Array
    turn: jax.Array
    gain: jax.Array
    noise: jax.Array

    def act(self, state, clock, memory, key):
        target = jnp.where(clock < self.turn, self.first, self.second)
        aim = jnp.clip(self.gain * (target - state), -1.0, 1.0)
        return aim + self.noise * jax.random.normal(key, state.shape), memory


class Thermostats(Policy):
    """Air in proportion to what each room lacks."""

    target: jax.Array
    gain: jax.Array
    noise: jax.Array

    def act(self, state, clock, memory, key):
        return self.gain * (self.target - state) + self.noise * jax.random.normal(key, state.shape), memory


def waypoints(key: jax.Array) -> Waypoints:
    keys = jax.random.split(key, 6)
    low, high = jnp.array([-1.5, -2.0]), jnp.array([9.5, 11.0])
    first, second = (jax.random.uniform(k, (2,), minval=low, maxval=high) for k in keys[:2])
    second = jnp.where(jax.random.uniform(keys[2]) < 0.3, jnp.array([8.0, 9.0]), second)
    gain, noise = jax.random.uniform(keys[3]), jax.random.uniform(keys[4])
    return Waypoints(first, second, jax.random.randint(keys[5], (), 0, 20), gain, noise)


def thermostats(key: jax.Array) -> Thermostats:
    keys = jax.random.split(key, 4)
    target = jax.random.uniform(keys[0], (6,), minval=14.0, maxval=25.0)
    target = target.at[1].set(jax.random.uniform(keys[1], minval=19.0, maxval=22.5))
    gain = 10.0 ** jax.random.uniform(keys[2], minval=-0.7, maxval=0.7)
    return Thermostats(target, gain, jax.random.uniform(keys[3], maxval=1.5))


def gather(domain: str, count: int, seed: int) -> tuple[Trajectory, np.ndarray]:
    """`count` trajectories, each of its own policy, and their true categories."""
    model = load_model(domain)
    draw = {"navigation": waypoints, "hvac": thermostats}[domain]

    def one(key: jax.Array) -> Trajectory:
        policy_key, run_key = jax.random.split(key)
        return rollout_batch(model, draw(policy_key), run_key[None])[0][0]

    trajectory = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(seed), count))
    return trajectory, np.asarray(load_rule(None, model).label(trajectory))


def gather_learners(domain: str, count: int, seed: int) -> tuple[Trajectory, np.ndarray]:
    """`count` trajectories of agents at all stages of learning without constraint, in any order."""
    model = load_model(domain)
    planner = Planner(model, None, (), settings_of("PPO", model, LEARNING_EPOCHS, 25))
    keys = jax.random.split(jax.random.key(seed), LEARNERS)
    trajectory = learning_trajectories(model, planner, keys, count, AS_THE_PAPER)
    trajectory = jax.tree.map(lambda leaf: leaf[np.random.default_rng(seed).permutation(count)], trajectory)
    return trajectory, np.asarray(load_rule(None, model).label(trajectory))


def sizes(model: Model) -> tuple[int, int, int]:
    return model.spec.state.size, model.spec.action.size, len(load_rule(None, model).scale)


def guilty_share(model: SafetyModel, trajectory: Trajectory, categories: np.ndarray) -> float:
    """Of the blame for bad trajectories, what falls on steps in the dirty zone or after the second one in it."""
    x, y = np.asarray(trajectory.states[..., 0]), np.asarray(trajectory.states[..., 1])
    inside = (x >= DIRTY_X[0]) & (x <= DIRTY_X[1]) & (y >= DIRTY_Y[0]) & (y <= DIRTY_Y[1])
    guilty = inside | (np.cumsum(inside, axis=1) >= 2)
    shares = jax.jit(lambda *parts: blame(model, *parts))(trajectory.states, trajectory.actions, trajectory.length)
    return float((np.asarray(shares) * guilty).sum(axis=1)[categories > 0].mean())


def figures(found: Scores) -> dict[str, float]:
    """What the tables say of scores."""
    return {
        "accuracy": found.accuracy,
        "none_or_not": found.best_or_not_accuracy,
        "log_loss": found.log_loss,
        "calibration_error": found.calibration_error,
        "none_calibration_error": found.best_or_not_calibration_error,
    }


Labelled = tuple[Trajectory, np.ndarray]


def measure(
    domain: str, kind: str, config: FitConfig, known: Labelled, seed: int, test: Labelled, **shape: float
) -> Figures:
    trajectory, categories = known
    model = make_safety(kind, *sizes(load_model(domain)), key=jax.random.key(seed), **shape)
    start = time.perf_counter()
    model, report = fit(model, trajectory, categories, config, jax.random.key(1000 + seed))
    seconds = time.perf_counter() - start
    found = scores(np.asarray(predict(model, test[0])), test[1])
    result = {
        "domain": domain,
        "model": kind,
        "shape": shape,
        "labels": len(categories),
        "seed": seed,
        "shares": (np.bincount(categories, minlength=3) / len(categories)).round(4).tolist(),
        **figures(found),
        "steps": report.steps,
        "best_steps": report.best_steps,
        "seconds": seconds,
    }
    if kind == "hazard" and domain == "navigation":
        result["guilty_share"] = guilty_share(model, test[0][:2000], test[1][:2000])
    return result


def measure_pairs(grid: str, number: int, seed: int) -> Figures:
    """The Markov classifier on as many state-action pairs as the paper had, tested on all that can be reached."""
    model = load_grid(f"{grid}?map={number}")
    everything = reachable(model.finite, np.ones(model.finite.reward.shape, bool)) & ~model.finite.absorbing
    rows = np.flatnonzero(np.repeat(everything, model.spec.action.size))
    pairs = jax.tree.map(lambda leaf: np.asarray(leaf)[rows], all_pairs(model.finite))
    truth = np.asarray(load_rule(None, model).label(pairs))
    order = np.random.default_rng(seed).permutation(len(rows))[: PAIRS[grid]]
    safety = make_safety("markov", *sizes(model), key=jax.random.key(seed), hidden=(64, 64), dropout=0.0)
    start = time.perf_counter()
    chosen = jax.tree.map(lambda leaf: leaf[order], pairs)
    safety, report = fit(safety, chosen, truth[order], pair_fit(), jax.random.key(seed))
    found = scores(np.asarray(predict(safety, pairs)), truth)
    return {
        "domain": f"{grid} {number}",
        "model": "markov",
        "shape": {},
        "labels": len(order),
        "seed": seed,
        **figures(found),
        "steps": report.steps,
        "pairs": len(rows),
        "seconds": time.perf_counter() - start,
    }


@dataclass(frozen=True)
class Measured:
    """One safety model, fitted and scored on what it has not seen."""

    model: Literal["hazard", "classifier", "markov"]
    domain: str  # for `markov` a grid and the number of its map
    seed: int
    labels: int

    def run(self, out: Path) -> Figures:
        if self.model == "markov":
            grid, number = self.domain.split()
            return measure_pairs(grid, int(number), self.seed)
        if self.model == "hazard":
            known, test = gather(self.domain, self.labels, self.seed), gather(self.domain, TESTS, 999_999)
            return measure(self.domain, self.model, fit_settings("hazard"), known, self.seed, test)
        trajectory, categories = gather_learners(self.domain, self.labels + TESTS, self.seed)
        known, test = ((trajectory[part], categories[part]) for part in (slice(self.labels), slice(self.labels, None)))
        config = replace(CLASSIFIER, steps=self.labels // 10)
        return measure(self.domain, self.model, config, known, self.seed, test, **PAPER)


def tasks(quick: bool) -> list[Measured]:
    many, seeds, maps = (20_000, 2, 1) if quick else (200_000, 5, 5)
    found = [Measured("hazard", d, s, 2_000) for d in DOMAINS for s in range(FIRST_SEED, FIRST_SEED + seeds)]
    found += [Measured("classifier", domain, FIRST_SEED, many) for domain in DOMAINS]
    return found + [Measured("markov", f"{g} {n + 1}", FIRST_SEED, PAIRS[g]) for g in PAIRS for n in range(maps)]


SHOWN = {
    "labels": "labels",
    "seed": "seed",
    "accuracy": "accuracy",
    "none or not": "none_or_not",
    "log loss": "log_loss",
    "calibration error": "calibration_error",
    "of none": "none_calibration_error",
    "blame on guilty steps": "guilty_share",
    "seconds": "seconds",
}


def main() -> None:
    made = parser(__doc__, "safety")
    made.add_argument("--quick", action="store_true", help="two seeds, 20,000 trajectories for the classifier")
    made.add_argument("--only", choices=["hazard", "classifier", "markov"], help="one of the three studies")
    options = made.parse_args()
    wanted = [task for task in tasks(options.quick) if options.only in (None, task.model)]
    names = [f"{task.model}-{task.domain.replace(' ', '-')}-{task.labels}-{task.seed}" for task in wanted]
    new = results([Job(name, task) for name, task in zip(names, wanted, strict=True)], options)
    rows = [row for row in read_rows(options.out / "safety.json") if options.only not in (None, row["model"])] + new
    shown = []
    for row in rows:
        shape = [f"{name} {value}" for name, value in row["shape"].items()]
        model = {"domain": row["domain"], "model": " ".join([row["model"], *shape])}
        shown.append(model | {name: row.get(key) for name, key in SHOWN.items()})
    about = heading("Safety models on fresh trajectories", sorted({row["seed"] for row in rows}))
    write_table(options.out, "safety", rows, about, shown=shown)


if __name__ == "__main__":
    main()
