"""How noisy the two gradients of a constraint are: pathwise (MBGE) and score function (MFGE), by size of batch.

    python benchmarks/variance.py [--out FOLDER]

writes variance.json, variance.md and variance.svg into the folder. An estimate g of the gradient G is worth
error = sqrt(E |g - G|^2) / |G|: below one it points the right way more often than not. Two problems:

- `push`: T steps, each of which adds a draw a_t of the policy; the cost is Phi((sum_t a_t - c) / w). With a_t from
  Normal(mu, s^2) the expected cost is Phi((T mu - c) / sqrt(w^2 + T s^2)), so that G is known in closed form.
- `navigation`: a hazard model fitted to labelled trajectories, and a policy that heads for the goal. G is the mean
  of all pathwise estimates.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from runner import parser, results

from sidestep.cluster.jobs import Figures, Job
from sidestep.core.constraints import Scale, parse_constraints
from sidestep.core.model import Space, Spec, Variable
from sidestep.labels.collect import explore
from sidestep.labels.rules import load_rule
from sidestep.models import load_model
from sidestep.planning.config import PlanConfig
from sidestep.planning.learner import Learner
from sidestep.planning.methods import Pathwise, PathwiseCost, Score
from sidestep.planning.pathwise import pathwise
from sidestep.planning.problem import Problem
from sidestep.planning.score import score_function
from sidestep.reproduce.tables import heading, write_table
from sidestep.safety.config import FitConfig
from sidestep.safety.fit import fit
from sidestep.safety.io import make_safety

BATCHES = (16, 64, 256, 1024)
REPEATS = 64
NOISE, STEPS, LIMIT, WIDTH = 0.6, 20, 8.0, 2.0  # s, T, c, w
NAMES = {"pathwise": "pathwise (MBGE)", "score": "score function (MFGE)"}


class Push:
    """A state that never moves, and one action without bounds."""

    spec = Spec("push", Space((Variable("x"),)), Space((Variable("a"),)), horizon=STEPS, ends=False)

    def reset(self, key):
        return jnp.zeros(1)

    def step(self, state, action, key):
        return state, jnp.zeros(()), jnp.asarray(False)

    def action_bounds(self, state):
        return jnp.full(1, -jnp.inf), jnp.full(1, jnp.inf)


class TooFar:
    """P(category 1) = Phi((sum_t a_t - c) / w), in the form of a safety model."""

    per_step, categories = False, 2

    def log_probabilities(self, states, actions, length):
        z = (jnp.sum(actions[..., 0], axis=-1) - LIMIT) / WIDTH
        return jnp.stack([jax.scipy.stats.norm.logcdf(-z), jax.scipy.stats.norm.logcdf(z)], axis=-1)


def push() -> tuple[Problem, Learner, PlanConfig, np.ndarray]:
    """The learner has a bias alone, so that its gradient is d/dmu of the expected cost."""
    config = settings(widths=())
    problem = Problem(Push(), TooFar(), parse_constraints(["good>=0.9"], Scale(("good", "bad"))))
    learner = Learner.start(problem, config, jax.random.key(0))
    mean = 0.2
    head = eqx.tree_at(
        lambda head: (head.weight, head.bias), learner.policy.net.head, (jnp.zeros((1, 1)), jnp.full(1, mean))
    )
    learner = eqx.tree_at(lambda learner: learner.policy.net.head, learner, head)
    deviation = np.sqrt(WIDTH**2 + STEPS * NOISE**2)
    z = (STEPS * mean - LIMIT) / deviation
    slope = STEPS / deviation * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    return problem, learner, config, np.array([0.0, slope])  # the state is zero: nothing hangs on the weight


def navigation() -> tuple[Problem, Learner, PlanConfig, None]:
    model, config = load_model("navigation"), settings(widths=(64, 64))
    rule = load_rule(None, model)
    trajectories = explore(model, jax.random.key(1), 2000)
    safety = make_safety("hazard", 2, 2, len(rule.scale), key=jax.random.key(2), units=16)
    labels = np.asarray(rule.label(trajectories))
    safety, _ = fit(safety, trajectories, labels, FitConfig(steps=800, learning_rate=1e-2), jax.random.key(3))
    problem = Problem(model, safety, parse_constraints(["none>=0.95"], rule.scale))
    learner = Learner.start(problem, config, jax.random.key(4))
    return problem, eqx.tree_at(lambda one: one.policy.net.head.bias, learner, jnp.full(2, 0.5)), config, None


def settings(widths: tuple[int, ...]) -> PlanConfig:
    return PlanConfig(
        reward=Pathwise(noise_start=NOISE),
        constraint=PathwiseCost(form="probability"),
        widths=widths,
        squash="clip",
        observe="state",
        balance=False,
    )


def estimates(problem: Problem, learner: Learner, config: PlanConfig, batch: int) -> dict[str, np.ndarray]:
    """REPEATS independent estimates of the constraint's gradient by each way, as (repeat, parameter)."""

    def both(key):
        keys = jax.random.split(key, batch)
        sample = pathwise(problem, config, learner, keys, reward=False)
        score = score_function(problem, config, Score(form="probability"), learner, sample)
        return {"pathwise": _flat(sample.gradients), "score": _flat(score)}

    keys = jax.random.split(jax.random.fold_in(jax.random.key(5), batch), REPEATS)
    return jax.tree.map(np.asarray, jax.jit(lambda keys: jax.lax.map(both, keys))(keys))


def _flat(tree: Any) -> jax.Array:
    return jnp.concatenate([leaf[0].reshape(-1) for leaf in jax.tree.leaves(tree)])


@dataclass(frozen=True)
class Noise:
    """The error of both gradients on one problem, for every size of batch."""

    problem: Literal["push", "navigation"]

    def run(self, out: Path) -> Figures:
        problem, learner, config, known = {"push": push, "navigation": navigation}[self.problem]()
        drawn = {batch: estimates(problem, learner, config, batch) for batch in BATCHES}
        weighted = sum(batch * drawn[batch]["pathwise"].mean(axis=0) for batch in BATCHES) / sum(BATCHES)
        truth = weighted if known is None else known
        rows = []
        for batch in BATCHES:
            row: Figures = {"problem": self.problem, "batch": batch}
            for way, found in drawn[batch].items():
                row[way] = float(np.sqrt(np.mean(np.sum((found - truth) ** 2, axis=1))) / np.linalg.norm(truth))
                row[f"{way}_variance"] = float(np.sum(found.var(axis=0, ddof=1)))
                error = np.sqrt(np.sum(found.var(axis=0, ddof=1)) / REPEATS)
                row[f"{way}_bias"] = float(np.linalg.norm(found.mean(axis=0) - truth) / error)
            rows.append(row | {"ratio": row["score_variance"] / row["pathwise_variance"]})
        return {"rows": rows}


SHOWN = {
    "error, pathwise": "pathwise",
    "error, score": "score",
    "variance ratio": "ratio",
    "offset, pathwise": "pathwise_bias",
    "offset, score": "score_bias",
}


def draw(found: list[list[Figures]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "sidestep"
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(8.0, 3.4), sharey=True, layout="constrained")
    for axes, rows in zip(panels, found, strict=True):
        batches = [row["batch"] for row in rows]
        for way, colour in (("pathwise", "#2a9d8f"), ("score", "#c8463c")):
            axes.loglog(batches, [row[way] for row in rows], "o-", color=colour, label=NAMES[way])
        axes.axhline(1.0, color="#999999", linewidth=1.0, linestyle="--")
        axes.set(title=rows[0]["problem"], xlabel="trajectories in the batch", xticks=batches, xticklabels=batches)
        axes.minorticks_off()
    panels[0].set(ylabel="error of the gradient, relative to its length")
    panels[0].legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    options = parser(__doc__, "variance").parse_args()
    found = [each["rows"] for each in results([Job(p, Noise(p)) for p in ("push", "navigation")], options)]
    rows = [row for each in found for row in each]
    about = heading("Noise of the constraint's gradient", [0]) | {
        "error": f"sqrt(E |g - G|^2) / |G| over {REPEATS} estimates g; the ratio is that of the variances",
        "offset": "of the mean estimate from G, in its own standard errors: about one when there is no bias "
        "(on `navigation`, G itself is the mean of pathwise estimates)",
    }
    shown = [{k: row[k] for k in ("problem", "batch")} | {k: row[v] for k, v in SHOWN.items()} for row in rows]
    write_table(options.out, "variance", rows, about, shown=shown)
    draw(found, options.out / "variance.svg")


if __name__ == "__main__":
    main()
