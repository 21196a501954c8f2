"""Small finished runs of a user's own models, written by the product."""

import os
from pathlib import Path

import jax

from sidestep.cli.main import main
from sidestep.core.constraints import Scale
from sidestep.safety.io import make_safety, save_safety

YARD = """
from sidestep.models.domains.driving.model import Driving

yard = Driving("S.@..\\n.....\\n..@.G", name="yard", horizon=20)

def slow(trajectory, model):
    return (trajectory.length > 12).astype(int) * 2

"""
SMALL = "--labels 40 --rounds 1 --members 1 --first-fit 20 --later-fit 10 --rollouts 200 --audits 1 --quiet"


def write_run(folder: Path, more: str = "") -> Path:
    """folder/run, made from folder/mine/yard.py; `more` is code at the end of that file."""
    (folder / "mine").mkdir()
    (folder / "mine/yard.py").write_text(YARD + more)
    before = os.getcwd()
    os.chdir(folder)
    try:
        command = ["plan", "mine/yard.py:yard", "--rule", "mine/yard.py:slow", "--out", "run", *SMALL.split()]
        assert main(command) == 0
    finally:
        os.chdir(before)
    return folder / "run"


LINE = """
import jax, jax.numpy as jnp
from sidestep.core.model import Space, Spec, Variable

class Line:
    spec = Spec(name="line", state=Space((Variable("x", "real", 1, -9.0, 9.0),)),
                action=Space((Variable("move", "real", 1, -1.0, 1.0),)), horizon=3, discount=1.0, gradient="exact")
    def reset(self, key): return jnp.zeros(1)
    def step(self, state, action, key):
        moved = state + action + 0.1 * jax.random.normal(key, (1,))
        return moved, -jnp.abs(moved[0] - 2.0), jnp.zeros((), bool)
    def action_bounds(self, state): return -jnp.ones(1), jnp.ones(1)

"""
SMALL_PLAN = "--epochs 2 --test-every 1 --batch 4 --test-batch 4 --widths 4 --search-rounds 0 --observe memory --quiet"


def write_plan(folder: Path) -> Path:
    """folder/plan: a network that looks at the memory of a safety model, planned once; nobody certifies it."""
    (folder / "line.py").write_text(LINE)
    safety = folder / "hazard.safetensors"
    save_safety(safety, make_safety("hazard", 1, 1, 3, key=jax.random.key(0), units=4, members=2), Scale())
    command = ["plan", f"{folder / 'line.py'}:Line", "--safety", str(safety), "--constraint", "none>=0.5"]
    assert main([*command, "--out", str(folder / "plan"), *SMALL_PLAN.split()]) == 1
    return folder / "plan"
