"""`sidestep demo`, `plan` and `resume`: a campaign, or with --safety one planning."""

from sidestep.cli import campaign, plan_once
from sidestep.cli.commands import Demo, Plan, Resume
from sidestep.cli.console import say
from sidestep.core.errors import InputError
from sidestep.core.options import place_of
from sidestep.deploy.answers import Answer
from sidestep.runs.folder import Run

STORY = (
    "A robot crosses a plane to its goal. The model says where it moves and what it earns, not that it dirties the "
    "area in its way. An expert (here a rule) labels whole trajectories none, mild or severe; Sidestep learns the "
    "pattern, plans a policy with no side effect in 95 of 100 runs, and proves it on fresh ones.\n"
)
SHORTER = {"polish_epochs": 150}  # half a minute less than the main job


def demo(asked: Demo) -> int:
    """The campaign on Navigation, with the rule as the expert; a demo that was stopped goes on."""
    say(STORY, quiet=asked.quiet, wrap=True)
    out, number = asked.out, 1
    if (out / "config.json").exists() and not (out / "result.json").exists():
        begun = Run.open(out).config.seed
        if asked.seed not in (0, begun):
            raise InputError(f"the demo in {out} was begun with seed {begun}; choose another --out", place="--seed")
        return resume(Resume(folder=out, quiet=asked.quiet))
    while out.exists() and any(out.iterdir()):
        number += 1
        out = asked.out.with_name(f"{asked.out.name}-{number}")
    job = Plan(
        model="navigation",
        constraint=("none>=0.95",),
        out=out,
        seed=asked.seed,
        quiet=asked.quiet,
        campaign=SHORTER,
        planning={},
    )
    return begin(job)


def begin(asked: Plan) -> int:
    if asked.safety is None and asked.method != "ppo":
        if asked.seeds > 1:
            raise InputError("a campaign has one seed; give --seeds with --safety", place="--seeds")
        run = campaign.begin(asked)
    else:
        for name in [*asked.campaign, *(["categories"] if asked.categories else [])]:
            raise InputError("is an option of a campaign, and this plans once; leave it out", place=place_of(name))
        run = plan_once.begin(asked)
    return _work_on(run, asked.quiet, asked.json, trust=True)  # the user has just given the code


def resume(asked: Resume) -> int:
    return _work_on(Run.open(asked.folder), asked.quiet, asked.json, asked.trust)


def _work_on(run: Run, quiet: bool, as_json: bool, trust: bool) -> int:
    loaded = Answer(run.path, trust)
    kind = campaign if loaded.config.kind == "campaign" else plan_once
    with run.held():
        return kind.continue_run(loaded, quiet, as_json)
