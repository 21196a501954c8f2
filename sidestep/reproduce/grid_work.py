"""The tasks on grid maps: limits, classifiers of single steps, Markov-HA-S, and planning judged exactly."""

from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from sidestep.certification.evaluation import evaluate
from sidestep.cluster.jobs import Figures
from sidestep.core.constraints import parse_constraints
from sidestep.core.model import Model, Policy
from sidestep.core.records import JsonObject, to_json
from sidestep.finite.occupancy import Bound
from sidestep.finite.tabular import TabularPolicy
from sidestep.labels.experts import RuleExpert
from sidestep.labels.rules import load_rule
from sidestep.models import load_model
from sidestep.models.grids import Grid
from sidestep.planning.plan import Planner
from sidestep.policies.networks import NetworkPolicy
from sidestep.reproduce.exact import PENALTY, best_return, over_horizon, policy_table, side_effects
from sidestep.reproduce.markov_ha_s import markov_ha_s, random_queries
from sidestep.reproduce.methods import settings_of
from sidestep.safety.base import SafetyModel, predict
from sidestep.safety.config import FitConfig
from sidestep.safety.fit import fit
from sidestep.safety.io import load_safety, make_safety, save_safety

ASKING, FITTING, PLANNING, JUDGING = range(4)  # streams of keys of a seed


def stream(seed: int, which: int) -> PRNGKeyArray:
    return jax.random.fold_in(jax.random.key(seed), which)


def load_grid(reference: str) -> Grid:
    model = load_model(reference)
    assert isinstance(model, Grid), f"{reference} is not a grid map"
    return model


@dataclass(frozen=True)
class GridLimits:
    """The best return of a map without bounds and without side effects, plain and discounted."""

    model: str

    def run(self, out: Path) -> Figures:
        model = load_grid(self.model)
        tables = side_effects(model, load_rule(None, model))
        none = [Bound(tables[PENALTY], 0.0, PENALTY)]
        discounts = {"return": 1.0, "discounted": model.spec.discount}
        return {
            name: {scale: best_return(model.finite, tables, bounds, d).value for scale, d in discounts.items()}
            for name, bounds in (("unconstrained", []), ("safe", none))
        }


@dataclass(frozen=True)
class PairClassifier:
    """A Markov classifier from randomly chosen labelled pairs; its accuracy is over every pair that can be met."""

    model: str
    seed: int
    labels: int
    steps: int  # minibatches
    file: str

    def run(self, out: Path) -> Figures:
        model = load_grid(self.model)
        rule = load_rule(None, model)
        asked = random_queries(model, rule, self.labels, stream(self.seed, ASKING))
        key, fit_key = jax.random.split(stream(self.seed, FITTING))
        fresh = make_safety("markov", model.spec.state.size, model.spec.action.size, len(rule.scale), key=key)
        safety, report = fit(fresh, asked.pairs, asked.categories, FitConfig(steps=self.steps, balance=1.0), fit_key)
        (out / self.file).parent.mkdir(parents=True, exist_ok=True)
        about: JsonObject = {"labels": len(asked.states), "fit": to_json(report)}
        save_safety(out / self.file, safety, rule.scale, about=about)
        every = random_queries(model, rule, model.finite.reward.size, stream(self.seed, ASKING))
        right = np.asarray(predict(safety, every.pairs)).argmax(axis=1) == every.categories
        counts = np.bincount(asked.categories, minlength=len(rule.scale)).tolist()
        return {
            "files": [self.file],
            "labels": len(asked.states),
            "categories": dict(zip(rule.scale.categories, counts, strict=True)),
            "accuracy": float(right.mean()),
            "wrong_on_side_effects": int((~right & (every.categories > 0)).sum()),
        }


@dataclass(frozen=True)
class Judge:
    """A rule that judges whole trajectories, on fresh rollouts of a policy."""

    rule: str
    rollouts: int

    def shares(self, model: Model, policy: Policy, seed: int) -> Figures:
        expert = RuleExpert(load_rule(self.rule, model))
        figures = evaluate(model, policy, expert, stream(seed, JUDGING), self.rollouts).figures
        return {"shares": figures.side_effects, "rollouts": self.rollouts}


@dataclass(frozen=True)
class Approval:
    """Markov-HA-S at several budgets, each judged exactly over the horizon."""

    model: str
    seed: int
    budgets: tuple[int, ...]
    judge: Judge | None = None

    def run(self, out: Path) -> Figures:
        model = load_grid(self.model)
        rule = load_rule(None, model)
        tables = side_effects(model, rule)
        budgets = []
        for budget in self.budgets:
            plan = markov_ha_s(model, rule, budget, jax.random.fold_in(stream(self.seed, ASKING), budget))
            found: Figures = {"budget": budget, "queries": plan.queries, "slack": plan.slack}
            for slack, policy in plan.policies.items():
                found[slack] = over_horizon(model.finite, policy, tables, model.spec.horizon, model.spec.discount)
                if self.judge:
                    shown = TabularPolicy(jnp.asarray(policy, jnp.float32), model)
                    found[slack] |= self.judge.shares(model, shown, self.seed)
            budgets.append(found)
        return {"budgets": budgets}


@dataclass(frozen=True)
class PlanGrid:
    """Train one policy against a classifier and judge it: tables exactly, shares of trajectories by rollouts."""

    model: str
    method: str
    seed: int
    constraint: str
    epochs: int | None
    labels: int
    safety: str
    rule: str | None = None
    judge: Judge | None = None

    def run(self, out: Path) -> Figures:
        model, planner = _planner(self, load_safety(out / self.safety))
        tables = side_effects(model, load_rule(None, model))
        state = planner.start(stream(self.seed, PLANNING)[None])
        curve, history, seconds = [], [], []
        for state, rows in planner.run(state):  # noqa: B020 (each state follows from the one before)
            history += rows
            seconds.append(rows[0].seconds)
            policy = jax.tree.map(lambda leaf: leaf[0], state.learners.policy)
            curve.append(
                {
                    "epoch": rows[0].epoch,
                    "deviation": rows[0].sampled_return_deviation,
                    "multiplier": rows[0].train_multipliers[0],
                    **judged(model, policy, tables, sampled=True),
                }
            )
        plan = planner.finish(state, history)[0]
        result: Figures = {
            "labels": self.labels,
            "diagnosis": plan.diagnosis,
            "seconds_per_epoch": float(np.sum(seconds[1:]) / max(history[-1].epoch - history[0].epoch, 1)),
            "curve": curve,
        }
        for name, shown in (("likeliest", plan.last.mean()), ("sampled", plan.last)):  # the last policy, as the paper
            result[name] = judged(model, plan.last, tables, sampled=name == "sampled")
            if self.judge:
                result[name] |= self.judge.shares(model, shown, self.seed)
        return result


def judged(model: Grid, policy: NetworkPolicy, tables: dict[str, np.ndarray], *, sampled: bool) -> dict[str, float]:
    """Exact expectations over the model's horizon, by the policy's sampled or its likeliest actions."""
    table = policy_table(model, policy, sampled=sampled)
    return over_horizon(model.finite, table, tables, model.spec.horizon, model.spec.discount)


_compiled: dict[tuple[str | int | None, ...], tuple[Grid, Planner]] = {}


def _planner(task: PlanGrid, safety: SafetyModel) -> tuple[Grid, Planner]:
    """The model and a planner; seeds of the same method and map share one, since compiling it takes long."""
    what = (task.model, task.method, task.constraint, task.epochs, task.rule)
    if what not in _compiled:
        _compiled.clear()
        model = load_grid(task.model)
        rule = load_rule(task.rule, model)
        config = settings_of(task.method, model, task.epochs, per_step=safety.per_step)
        constraints = parse_constraints([task.constraint], rule.scale)
        _compiled[what] = model, Planner(model, safety, constraints, config, rule.label)
    model, planner = _compiled[what]
    planner.set_safety_model(safety)
    return model, planner
