"""The jobs whose safety model reads whole trajectories: gathering, fitting, and planning on continuous models."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sidestep.core.constraints import parse_constraints
from sidestep.core.model import rollout
from sidestep.labels.rules import load_rule
from sidestep.models import load_model
from sidestep.planning.plan import Planner
from sidestep.reproduce.data import learning_trajectories
from sidestep.reproduce.grid_work import FITTING, JUDGING, PLANNING, Settings, stream
from sidestep.reproduce.jobs import Jobs
from sidestep.reproduce.methods import settings_of
from sidestep.safety.config import FitConfig
from sidestep.safety.fit import fit
from sidestep.safety.io import load_safety, make_safety, save_safety


def trajectory_classifier(settings: Settings, jobs: Jobs) -> Settings:
    """The paper's recurrent classifier, fitted to labelled trajectories of learners, explorers and mixtures."""
    model = load_model(settings["model"])
    rule = load_rule(settings["rule"], model)
    seed, runs = settings["seed"], settings["runs"]
    planner = Planner(model, None, (), settings_of("PPO", model, settings["epochs"], settings["test_every"]))
    key, fit_key, gather_key = jax.random.split(stream(seed, FITTING), 3)
    gathered = learning_trajectories(model, planner, jax.random.split(gather_key, runs), settings["labels"])
    categories = np.asarray(rule.label(gathered))
    sizes = (model.spec.state.size, model.spec.action.size, len(rule.scale))
    fresh = make_safety("classifier", *sizes, key=key, layers=2, units=settings["units"], dropout=0.5)
    config = FitConfig(
        steps=settings["steps"],
        learning_rate=settings["learning_rate"],
        balance=0.3,
        check_every=max(settings["steps"] // 40, 1),
        patience=0,
    )
    safety, report = fit(fresh, gathered, categories, config, fit_key)
    assert report.scores is not None
    (jobs.out / "safety").mkdir(parents=True, exist_ok=True)
    save_safety(
        jobs.out / settings["file"], safety, rule.scale, about={"labels": len(categories), "fit": report.to_json()}
    )
    counts = np.bincount(categories, minlength=len(rule.scale)).tolist()
    return {
        "files": [settings["file"]],
        "labels": len(categories),
        "categories": dict(zip(rule.scale.categories, counts, strict=True)),
        "accuracy": report.scores.accuracy,
        "log_loss": report.scores.log_loss,
        "minibatches": report.steps,
        "fit_seconds": report.seconds,
    }


def plan_continuous(settings: Settings, jobs: Jobs) -> Settings:
    """All seeds side by side; one row a test and seed, with the rule's own verdict on the test's trajectories."""
    model = load_model(settings["model"])
    rule = load_rule(None, model)
    constrained = settings["safety"] is not None
    safety = load_safety(jobs.out / settings["safety"]) if constrained else None
    constraints = parse_constraints([settings["constraint"]], rule.scale) if constrained else ()
    config = settings_of(settings["method"], model, settings["epochs"])
    planner = Planner(model, safety, constraints, config, rule.label)
    state = planner.start(jnp.stack([stream(seed, PLANNING) for seed in settings["seeds"]]))
    runs: list[list[Settings]] = [[] for _ in settings["seeds"]]
    seconds = []
    for state, rows in planner.run(state):  # noqa: B020 (each state follows from the one before)
        seconds.append(rows[0]["seconds"])
        for index, row in enumerate(rows):
            policy = jax.tree.map(lambda leaf, at=index: leaf[at], state.learners.policy)
            key = jax.random.fold_in(stream(settings["seeds"][index], JUDGING), row["epoch"])
            runs[index].append(_tested(row) | _spread(model, policy, key, config.test_batch))
    trained = config.epochs - config.test_every  # without the first stretch, in which programs are compiled
    return {"runs": runs, "seconds_per_epoch": float(np.sum(seconds[1:]) / max(trained, 1)), "epochs": config.epochs}


def _tested(row: dict[str, Any]) -> Settings:
    """The figures of a test that tables and figures are made from; `free` is the share without side effects."""
    return {
        "epoch": row["epoch"],
        "sampled_return": row["sampled_return"],
        "mean_return": row["mean_return"],
        "sampled_free": row["sampled_true"][0],
        "mean_free": row["mean_true"][0],
        "predicted_free": row["sampled_predicted"][0] if "sampled_predicted" in row else None,
        "multiplier": row["train_multipliers"][0] if row["train_multipliers"] else None,
    }


def _spread(model: Any, policy: Any, key: Any, batch: int) -> Settings:
    """The best and the worst of a test's trajectories, which the paper draws as a band."""
    returns = np.asarray(rollout(model, policy, key, batch).returns())
    return {"lowest_return": float(returns.min()), "highest_return": float(returns.max())}
