"""`sidestep demo`: what a side effect looks like, on Navigation, in a minute."""

from pathlib import Path

import jax
import numpy as np
from rich.console import Console

from sidestep.labels.collect import explore
from sidestep.labels.rules import load_rule
from sidestep.models import load_model
from sidestep.report.drawings import draw

COUNT = 200


def demo(out: Path, seed: int, quiet: bool) -> int:
    """Roll out explorers, have the rule label them, draw them."""
    console = Console(quiet=quiet)
    model = load_model("navigation")
    rule = load_rule(None, model)
    console.print(f"rolling out {COUNT} exploring trajectories of {model.spec.name} ...")
    trajectory = explore(model, jax.random.key(seed), COUNT)
    categories = np.asarray(rule.label(trajectory))
    for name, count in zip(rule.scale.categories, np.bincount(categories, minlength=3), strict=True):
        console.print(f"  {name:7} {count / COUNT:6.1%}")
    out.mkdir(parents=True, exist_ok=True)
    picture = out / "navigation.png"
    draw(model, trajectory, categories, rule.scale.categories).savefig(picture, dpi=130)
    Console().print(f"open {picture.resolve()}")
    return 0
