"""`sidestep demo`: the main job on Navigation, with the rule as the expert."""

from pathlib import Path

from sidestep.cli.campaign import begin, continue_run
from sidestep.cli.console import say
from sidestep.runs.folder import Run

STORY = (
    "A robot crosses a plane to its goal. The model says where it moves and what it earns, not that it dirties the "
    "area in its way. An expert (here a rule) labels whole trajectories none, mild or severe; Sidestep learns the "
    "pattern, plans a policy with no side effect in 95 of 100 runs, and proves it on fresh ones.\n"
)
SHORTER = {"polish_epochs": 150}  # half a minute less than the main job


def demo(out: Path, seed: int, quiet: bool) -> int:
    """The campaign; a demo that was stopped goes on."""
    say(STORY, quiet=quiet, wrap=True)
    if (out / "config.json").exists() and not (out / "result.json").exists():
        run = Run.open(out)
        with run.held():
            return continue_run(run, quiet, False)
    folder = out
    number = 1
    while folder.exists() and any(folder.iterdir()):
        number += 1
        folder = out.with_name(f"{out.name}-{number}")
    return begin("navigation", ("none>=0.95",), None, False, "default", None, SHORTER, {}, seed, folder, quiet, False)
