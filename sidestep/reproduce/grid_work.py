"""The jobs on grid maps: limits, classifiers of single steps, Markov-HA-S, and planning judged exactly."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sidestep.certification.evaluation import evaluate
from sidestep.core.constraints import parse_constraints
from sidestep.finite.occupancy import Bound
from sidestep.finite.tabular import TabularPolicy
from sidestep.labels.experts import RuleExpert
from sidestep.labels.rules import load_rule
from sidestep.models import load_model
from sidestep.planning.plan import Planner
from sidestep.policies.networks import NetworkPolicy
from sidestep.reproduce.exact import PENALTY, best_return, over_horizon, policy_table, side_effects
from sidestep.reproduce.jobs import Jobs
from sidestep.reproduce.markov_ha_s import markov_ha_s
from sidestep.reproduce.methods import settings_of
from sidestep.reproduce.queries import random_queries
from sidestep.safety.base import predict
from sidestep.safety.config import FitConfig
from sidestep.safety.fit import fit
from sidestep.safety.io import load_safety, make_safety, save_safety

ASKING, FITTING, PLANNING, JUDGING = range(4)  # streams of keys of a seed
Settings = dict[str, Any]


def stream(seed: int, which: int) -> Any:
    return jax.random.fold_in(jax.random.key(seed), which)


def limits(settings: Settings, jobs: Jobs) -> Settings:
    """The best return of a map without bounds and without side effects, plain and discounted."""
    model: Any = load_model(settings["model"])
    tables = side_effects(model, load_rule(None, model))
    none = [Bound(tables[PENALTY], 0.0, PENALTY)]
    discounts = {"return": 1.0, "discounted": model.spec.discount}
    return {
        name: {scale: best_return(model.finite, tables, bounds, d)["return"] for scale, d in discounts.items()}
        for name, bounds in (("unconstrained", []), ("safe", none))
    }


def pair_classifier(settings: Settings, jobs: Jobs) -> Settings:
    """A Markov classifier from randomly chosen labelled pairs; its accuracy is over every pair that can be met."""
    model: Any = load_model(settings["model"])
    rule = load_rule(None, model)
    seed = settings["seed"]
    asked = random_queries(model, rule, settings["labels"], stream(seed, ASKING))
    key, fit_key = jax.random.split(stream(seed, FITTING))
    sizes = (model.spec.state.size, model.spec.action.size, len(rule.scale))
    fresh = make_safety("markov", *sizes, key=key)
    safety, report = fit(fresh, asked.pairs, asked.categories, FitConfig(steps=settings["steps"], balance=1.0), fit_key)
    (jobs.out / "safety").mkdir(parents=True, exist_ok=True)
    save_safety(
        jobs.out / settings["file"], safety, rule.scale, about={"labels": len(asked.states), "fit": report.to_json()}
    )
    every = random_queries(model, rule, model.finite.reward.size, stream(seed, ASKING))
    right = np.asarray(predict(safety, every.pairs)).argmax(axis=1) == every.categories
    counts = np.bincount(asked.categories, minlength=len(rule.scale)).tolist()
    return {
        "files": [settings["file"]],
        "labels": len(asked.states),
        "categories": dict(zip(rule.scale.categories, counts, strict=True)),
        "accuracy": float(right.mean()),
        "wrong_on_side_effects": int((~right & (every.categories > 0)).sum()),
    }


def approval(settings: Settings, jobs: Jobs) -> Settings:
    """Markov-HA-S at several budgets, each judged exactly over the horizon."""
    model: Any = load_model(settings["model"])
    rule = load_rule(None, model)
    tables = side_effects(model, rule)
    budgets = []
    for budget in settings["budgets"]:
        plan = markov_ha_s(model, rule, budget, jax.random.fold_in(stream(settings["seed"], ASKING), budget))
        found: Settings = {"budget": budget, "queries": plan.queries, "slack": plan.slack}
        for slack, policy in plan.policies.items():
            found[slack] = over_horizon(model.finite, policy, tables, model.spec.horizon, model.spec.discount)
            if "judge" in settings:
                found[slack] |= judge_shares(model, TabularPolicy(jnp.asarray(policy, jnp.float32), model), settings)
        budgets.append(found)
    return {"budgets": budgets}


def plan_grid(settings: Settings, jobs: Jobs) -> Settings:
    """Train one policy against a classifier and judge it: tables exactly, shares of trajectories by rollouts."""
    model, planner = _planner(settings, load_safety(jobs.out / settings["safety"]))
    tables = side_effects(model, load_rule(None, model))
    state = planner.start(stream(settings["seed"], PLANNING)[None])
    curve, history, seconds = [], [], []
    for state, rows in planner.run(state):  # noqa: B020 (each state follows from the one before)
        history += rows
        seconds.append(rows[0]["seconds"])
        policy = jax.tree.map(lambda leaf: leaf[0], state.learners.policy)
        exact = judged(model, policy, tables, sampled=True)
        curve.append(
            {
                "epoch": rows[0]["epoch"],
                "deviation": rows[0]["sampled_return_deviation"],
                "multiplier": rows[0]["train_multipliers"][0],
                **exact,
            }
        )
    plan = planner.finish(state, history)[0]
    policy = plan.last  # as the paper
    result: Settings = {
        "labels": settings["labels"],
        "diagnosis": plan.diagnosis,
        "seconds_per_epoch": float(np.sum(seconds[1:]) / max(history[-1]["epoch"] - history[0]["epoch"], 1)),
        "likeliest": judged(model, policy, tables, sampled=False),
        "sampled": judged(model, policy, tables, sampled=True),
        "curve": curve,
    }
    if "judge" in settings:
        for name, shown in (("likeliest", policy.mean()), ("sampled", policy)):
            result[name] |= judge_shares(model, shown, settings)
    return result


def judge_shares(model: Any, policy: Any, settings: Settings) -> Settings:
    """Shares of the categories that the rule `judge` gives to whole trajectories, on fresh rollouts."""
    rule, rollouts = load_rule(settings["judge"], model), settings["rollouts"]
    figures = evaluate(model, policy, RuleExpert(rule), stream(settings["seed"], JUDGING), rollouts).figures
    return {"shares": figures.side_effects, "rollouts": rollouts}


def judged(model: Any, policy: NetworkPolicy, tables: dict[str, np.ndarray], *, sampled: bool) -> dict[str, float]:
    """Exact expectations over the model's horizon, by the policy's sampled or its likeliest actions."""
    table = policy_table(model, policy, sampled=sampled)
    return over_horizon(model.finite, table, tables, model.spec.horizon, model.spec.discount)


_compiled: dict[tuple[Any, ...], tuple[Any, Planner]] = {}


def _planner(settings: Settings, safety: Any) -> tuple[Any, Planner]:
    """The model and a planner; seeds of the same method and map share one, since compiling it takes long."""
    what = tuple(settings.get(key) for key in ("model", "method", "constraint", "epochs", "rule"))
    if what not in _compiled:
        _compiled.clear()
        model: Any = load_model(settings["model"])
        rule = load_rule(settings.get("rule"), model)
        config = settings_of(settings["method"], model, settings["epochs"], per_step=safety.per_step)
        constraints = parse_constraints([settings["constraint"]], rule.scale)
        _compiled[what] = model, Planner(model, safety, constraints, config, rule.label)
    model, planner = _compiled[what]
    planner.set_safety_model(safety)
    return model, planner
