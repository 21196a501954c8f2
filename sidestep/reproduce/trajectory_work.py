"""The tasks whose safety model reads whole trajectories: gathering, fitting, and planning on continuous models."""

from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from sidestep.cluster.jobs import Figures
from sidestep.core.constraints import parse_constraints
from sidestep.core.model import Model, Policy, rollout
from sidestep.core.records import to_json
from sidestep.labels.rules import load_rule
from sidestep.models import load_model
from sidestep.planning.plan import Planner
from sidestep.planning.rows import PlanRow
from sidestep.reproduce.data import learning_trajectories
from sidestep.reproduce.grid_work import FITTING, JUDGING, PLANNING, stream
from sidestep.reproduce.methods import settings_of
from sidestep.safety.config import FitConfig
from sidestep.safety.fit import fit
from sidestep.safety.io import load_safety, make_safety, save_safety


@dataclass(frozen=True)
class TrajectoryClassifier:
    """The paper's recurrent classifier, fitted to labelled trajectories of learners, explorers and mixtures."""

    model: str
    rule: str | None
    seed: int
    epochs: int  # of the runs that trajectories are gathered from
    test_every: int
    runs: int
    labels: int
    steps: int  # minibatches
    units: int
    learning_rate: float
    file: str

    def run(self, out: Path) -> Figures:
        model = load_model(self.model)
        rule = load_rule(self.rule, model)
        planner = Planner(model, None, (), settings_of("PPO", model, self.epochs, self.test_every))
        key, fit_key, gather_key = jax.random.split(stream(self.seed, FITTING), 3)
        gathered = learning_trajectories(model, planner, jax.random.split(gather_key, self.runs), self.labels)
        categories = np.asarray(rule.label(gathered))
        sizes = (model.spec.state.size, model.spec.action.size, len(rule.scale))
        fresh = make_safety("classifier", *sizes, key=key, layers=2, units=self.units, dropout=0.5)
        config = FitConfig(
            steps=self.steps,
            learning_rate=self.learning_rate,
            balance=0.3,
            check_every=max(self.steps // 40, 1),
            patience=0,
        )
        safety, report = fit(fresh, gathered, categories, config, fit_key)
        assert report.scores is not None
        (out / self.file).parent.mkdir(parents=True, exist_ok=True)
        save_safety(out / self.file, safety, rule.scale, about={"labels": len(categories), "fit": to_json(report)})
        counts = np.bincount(categories, minlength=len(rule.scale)).tolist()
        return {
            "files": [self.file],
            "labels": len(categories),
            "categories": dict(zip(rule.scale.categories, counts, strict=True)),
            "accuracy": report.scores.accuracy,
            "log_loss": report.scores.log_loss,
            "minibatches": report.steps,
            "fit_seconds": report.seconds,
        }


@dataclass(frozen=True)
class PlanContinuous:
    """All seeds in parallel; one row per test and seed, with the rule's own verdict on the test's trajectories."""

    model: str
    method: str
    seeds: tuple[int, ...]
    epochs: int | None
    constraint: str | None = None  # None: only the reward counts
    safety: str | None = None

    def run(self, out: Path) -> Figures:
        model = load_model(self.model)
        rule = load_rule(None, model)
        safety = load_safety(out / self.safety) if self.safety else None
        constraints = parse_constraints([self.constraint], rule.scale) if self.constraint else ()
        config = settings_of(self.method, model, self.epochs)
        planner = Planner(model, safety, constraints, config, rule.label)
        state = planner.start(jnp.stack([stream(seed, PLANNING) for seed in self.seeds]))
        runs: list[list[Figures]] = [[] for _ in self.seeds]
        seconds = []
        for state, rows in planner.run(state):  # noqa: B020 (each state follows from the one before)
            seconds.append(rows[0].seconds)
            for index, row in enumerate(rows):
                policy = jax.tree.map(lambda leaf, at=index: leaf[at], state.learners.policy)
                key = jax.random.fold_in(stream(self.seeds[index], JUDGING), row.epoch)
                runs[index].append(_tested(row) | _spread(model, policy, key, config.test_batch))
        trained = config.epochs - config.test_every  # without the first stretch, in which programs are compiled
        per_epoch = float(np.sum(seconds[1:]) / max(trained, 1))
        return {"runs": runs, "seconds_per_epoch": per_epoch, "epochs": config.epochs}


def _tested(row: PlanRow) -> Figures:
    """The figures of a test that tables and figures are made from; `free` is the share without side effects."""
    return {
        "epoch": row.epoch,
        "sampled_return": row.sampled_return,
        "mean_return": row.mean_return,
        "sampled_free": row.sampled_true[0],
        "mean_free": row.mean_true[0],
        "predicted_free": row.sampled_predicted[0] if row.sampled_predicted else None,
        "multiplier": row.train_multipliers[0] if row.train_multipliers else None,
    }


def _spread(model: Model, policy: Policy, key: PRNGKeyArray, batch: int) -> Figures:
    """The best and the worst of a test's trajectories, which the paper draws as a band."""
    returns = np.asarray(rollout(model, policy, key, batch).returns())
    return {"lowest_return": float(returns.min()), "highest_return": float(returns.max())}
