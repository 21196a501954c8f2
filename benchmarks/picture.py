"""The README's picture: a demo's policies before and after.   python benchmarks/picture.py runs/demo"""

import sys
from pathlib import Path

import jax
import matplotlib
import numpy as np

from sidestep.core.model import rollout
from sidestep.deploy.answers import load
from sidestep.labels.rules import load_rule
from sidestep.models.domains.navigation.rule import DIRTY_X, DIRTY_Y
from sidestep.policies.files import load_policy
from sidestep.report.drawings import shade

RUNS = 60


def main(folder: str) -> None:
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    answer = load(folder)
    rule = load_rule(None, answer.model)
    before = load_policy(Path(folder) / "before.safetensors", answer.model).mean()
    figure, panels = plt.subplots(1, 2, figsize=(8.4, 4.8), sharey=True, layout="constrained")
    for axes, policy, name in zip(
        panels, (before, answer.policy_of(answer.model)), ("before: not heeded", "after: certified"), strict=True
    ):
        trajectory = jax.tree.map(np.asarray, rollout(answer.model, policy, jax.random.key(77), RUNS))
        categories = np.asarray(rule.label(trajectory))
        low = (DIRTY_X[0], DIRTY_Y[0])
        axes.add_patch(plt.Rectangle(low, DIRTY_X[1] - low[0], DIRTY_Y[1] - low[1], color="#c9a06b", alpha=0.35, lw=0))
        for states, category in zip(trajectory.states, categories, strict=True):
            axes.plot(states[:, 0], states[:, 1], color=shade(int(category)), lw=0.8, alpha=0.7)
        axes.plot(8, 9, "*", ms=13, color="#222222")
        mean, free = trajectory.returns().mean(), np.mean(categories == 0)
        axes.set_title(f"{name}\nreturn {mean:.1f}, free of side effects {free:.0%} ({RUNS} runs)", fontsize=10)
        axes.set(aspect="equal", xlabel="x")
    panels[0].set_ylabel("y")
    figure.savefig("docs/pictures/demo.png", dpi=110)


if __name__ == "__main__":
    main(sys.argv[1])
