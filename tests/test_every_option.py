"""Every option of every command, found from the commands: another value has an effect, or is refused by name.

What a command writes and prints is compared with what it writes and prints without the option; config.json, which only
repeats what was asked for, does not count. An option of the planner changes the programs that the planner runs. These
are compared before they are compiled, which takes most of a plan's time.
"""

import contextlib
import functools
import hashlib
import io
import re
import shutil
from pathlib import Path
from typing import Literal, get_args, get_origin

import equinox as eqx
import jax
import numpy as np
import pytest
from run_helpers import LINE, SMALL_PLAN

from sidestep.cli.arguments import arguments_of
from sidestep.cli.commands import COMMANDS
from sidestep.cli.main import _parse, main
from sidestep.cli.reproduce import JOBS, request_of
from sidestep.core.constraints import Scale, parse_constraints
from sidestep.core.errors import InputError
from sidestep.labels.store import Store
from sidestep.models import load_model
from sidestep.models.domains.driving.model import Driving
from sidestep.planning import loop
from sidestep.planning.learner import Learner
from sidestep.planning.options import BY_ROUNDS, CHOICES, PARTS, TABLE, flattened, plan_options, with_options
from sidestep.planning.plan import Planner
from sidestep.planning.presets import preset, preset_for
from sidestep.safety.io import make_safety, save_safety

RULES = """
def rule(trajectory, model):
    return (trajectory.states[:, -1, 0] > 0.5).astype(int)

def other(trajectory, model):
    return (trajectory.states[:, -1, 0] > -0.5).astype(int) * 2
"""
COLLECT = "collect line.py:Line --store new.store --count 3"
BY_RULE = "label s.store --model line.py:Line --rule line.py:rule"
FIT = "fit s.store --out f.safetensors --kind markov --steps 2 --batch 4"
NETWORK = "fit s.store --out f.safetensors --steps 1 --batch 4 --units 2"
MARKED = FIT.replace("s.store", "marked.store")
PLAN = "plan yard.nav --rollouts 100"
ONCE = "plan line.py:Line --epochs 2 --test-every 1 --batch 4 --test-batch 4 --widths 4"
PEOPLE = "plan line.py:Line --people"
CERTIFY = "certify yard --rollouts 100"

# For each option: a command line, and what is added to it.
CASES: dict[str, dict[str, tuple[str, str]]] = {
    "demo": {
        "out": ("demo", "--out other"),
        "seed": ("demo", "--seed 1"),
        "quiet": ("demo", "--quiet"),
    },
    "models": {},
    "check": {"seed": ("check line.py:Line", "--seed 1")},
    "collect": {
        "store": (COLLECT, "--store other.store"),
        "policy": (COLLECT, "--policy uniform"),
        "count": (COLLECT, "--count 4"),
        "horizon": (COLLECT, "--horizon 2"),
        "rule": ("collect yard.nav --store new.store --count 3", "--rule none-of-these"),
        "seed": (COLLECT, "--seed 1"),
        "quiet": (COLLECT, "--quiet"),
    },
    "label": {
        "rule": (BY_RULE, "--rule line.py:other"),
        "model": ("label s.store --rule line.py:rule", "--model line.py:Line"),
        "annotator": (BY_RULE, "--annotator ann"),
        "every": (BY_RULE, "--every"),
        "marks": (BY_RULE, "--marks"),
        "verify": ("label s.store", "--verify"),
        "import_": ("label s.store", "--import labels.csv"),
        "export": ("label s.store", "--export out.csv"),
        "next": ("label s.store --safety hazard.safetensors", "--next 2"),
        "safety": ("label s.store --next 2", "--safety hazard.safetensors"),
    },
    "fit": {
        "out": (FIT, "--out g.safetensors"),
        "kind": (FIT, "--kind share"),
        "layers": (NETWORK, "--layers 2"),
        "units": (NETWORK, "--units 3"),
        "dropout": (NETWORK, "--dropout 0.5"),
        "members": (FIT, "--members 2"),
        "start": ("fit s.store --out f.safetensors --steps 1 --batch 4", "--start hazard.safetensors"),
        "resolve": (FIT, "--resolve newest"),
        "marks": (MARKED, "--no-marks"),
        "slack": (MARKED, "--slack 0"),
        "steps": (FIT, "--steps 3"),
        "batch": (FIT, "--batch 3"),
        "learning_rate": (FIT, "--learning-rate 0.5"),
        "balance": (FIT, "--balance 1"),
        "sparsity": (FIT, "--sparsity 0.5"),
        "average": (FIT, "--average 0.5"),
        "held_out": (FIT, "--held-out 0.5"),
        "seed": (FIT, "--seed 1"),
        "quiet": (FIT, "--quiet"),
        "json": (FIT, "--json"),
    },
    "explain": {
        "safety": ("explain s.store 1 --safety hazard.safetensors", "--safety other.safetensors"),
        "out": ("explain s.store 1 --safety hazard.safetensors", "--out picture.png"),
    },
    "plan": {
        "store": (PEOPLE, "--store team.store"),
        "safety": (f"{ONCE} --constraint none>=0.5", "--safety hazard.safetensors"),
        "constraint": (PLAN, "--constraint mild+<=0.2"),
        "rule": (PLAN, "--rule none-of-these"),
        "people": (PLAN, "--people"),
        "categories": (PEOPLE, "--categories fine<poor"),
        "method": (ONCE, "--method ppo"),
        "seeds": (PLAN, "--seeds 2"),
        "out": (PEOPLE, "--out elsewhere"),
        "seed": (PEOPLE, "--seed 1"),
        "quiet": (PLAN, "--quiet"),
        "json": (PEOPLE, "--json"),
        "config": (PEOPLE, "--config options.toml"),
        "labels": (PEOPLE, "--labels 40"),
        "marks": (PLAN, "--marks"),
        "explore_share": (PEOPLE, "--explore-share 0.1"),
        "rollouts": (PLAN, "--rollouts 120"),
        "step_tolerance": (PLAN, "--step-tolerance chance"),
        "confidence": (PLAN, "--confidence 0.9"),
        **{
            name: (PLAN, f"--{name.replace('_', '-')} {value}")  # what a campaign over single steps does not have
            for name, value in {
                "rounds": 2,
                "check_share": 0.1,
                "ask": "random",
                "members": 1,
                "learner": "families",
                "units": 3,
                "first_fit": 5,
                "later_fit": 5,
                "round_epochs": 50,
                "searching_rounds": 1,
                "polish_epochs": 50,
                "audits": 2,
                "audit": "stratified",
                "known": 50,
                "aim": 0.5,
            }.items()
        },
    },
    "resume": {
        "trust": ("resume stranger", "--trust"),
        "quiet": ("resume yard", "--quiet"),
        "json": ("resume yard", "--json"),
    },
    "certify": {
        "rollouts": (CERTIFY, "--rollouts 120"),
        "people": (CERTIFY, "--people"),
        "confidence": (CERTIFY, "--confidence 0.9"),
        "seed": ("certify yard --people --rollouts 100", "--seed 1"),
        "trust": ("certify stranger --rollouts 100", "--trust"),
        "audit": (CERTIFY, "--audit stratified"),
        "known": (CERTIFY, "--known 5"),
        "signed_by": (CERTIFY, "--signed-by Ann"),
        "json": (CERTIFY, "--json"),
    },
    "report": {"trust": ("report stranger", "--trust")},
    "export": {"trust": ("export stranger policy.py", "--trust")},
    "runs": {"folder": ("runs", "--folder maps"), "json": ("runs", "--json")},
    "compare": {"every": ("compare yard other", "--every"), "json": ("compare yard other", "--json")},
    "completion": {},
    "limits": {
        "constraint": ("limits yard.nav", "--constraint penalty<=5"),
        "rule": ("limits yard.nav", "--rule none-of-these"),
        "discount": ("limits yard.nav", "--discount 0.5"),
        "json": ("limits yard.nav", "--json"),
    },
    "reproduce": {
        "maps": ("reproduce table1", "--maps maps"),
        "quick": ("reproduce table1", "--quick"),
        "seeds": ("reproduce table1", "--seeds 2"),
        "epochs": ("reproduce table1", "--epochs 5"),
        "seed": ("reproduce table1", "--seed 1"),
    },
}
# Of `reproduce`: `test_reproduce_all.py` runs it with these, and sees where its files are and what it prints.
RUN_ELSEWHERE = {("reproduce", name) for name in ("out", "cluster", "workers", "quiet", "json")}
RUN_ELSEWHERE |= {("demo", "quick")}  # test_wheel.py runs the demo with it
# `test_sweep.py` goes through those of `sweep`: they change its jobs, or where these are done.
RUN_ELSEWHERE |= {("sweep", one.name) for one in arguments_of(COMMANDS["sweep"]) if one.group != "planning"}
RUN_ELSEWHERE -= {("sweep", one.name) for one in arguments_of(COMMANDS["sweep"]) if one.metavar}
# `test_serve.py` goes through those of `serve`; `test_page.py` runs `plan --serve`, which runs `resume --wait`.
RUN_ELSEWHERE |= {("serve", one.name) for one in arguments_of(COMMANDS["serve"]) if not one.metavar}
RUN_ELSEWHERE |= {("plan", "serve"), ("resume", "wait")}

# What must be chosen beside an option of the planner for it to have an effect.
BESIDE = {
    "log_cap": {"constraint_form": "log"},
    "constraint_clip": {"ppo_joint": True},
    "ppo_joint": {"constraint_gradient": "score"},
    "entropy_share": {"entropy": 0.5},
    "entropy_in_reward": {"entropy": 0.5},
}
REFUSED = "refused: "
VALUES = {"search_population": 512, "epochs": 4, "test_every": 2, "widths": (5,), "learning_starts": 1}


def options():
    """(command, option) of all that the command classes say, without those that are told where they go."""
    return [
        (name, argument.name)
        for name, command in COMMANDS.items()
        for argument in arguments_of(command)
        if not argument.metavar and argument.group != "planning"
    ]


CASED = [one for one in options() if one[0] != "reproduce" and one not in RUN_ELSEWHERE]


def test_every_option_has_its_case():
    listed = {(command, option) for command, cases in CASES.items() for option in cases} | RUN_ELSEWHERE
    assert listed == set(options())


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A model, a grid, a store, two safety models, a run of each kind; nothing of it is changed."""
    folder = tmp_path_factory.mktemp("options")
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()):
        Path("line.py").write_text(LINE.replace("discount=1.0", "discount=0.9") + RULES)
        Path("options.toml").write_text("labels = 40")
        Path("yard.nav").write_text("S.@..\n.....\n..@.G\n")
        Path("labels.csv").write_text("trajectory,label\n1,none\n2,severe\n")
        Path("maps").mkdir()
        shutil.copy("yard.nav", "maps")
        for name, seed in (("hazard", 0), ("other", 1)):
            model = make_safety("hazard", 1, 1, 3, key=jax.random.key(seed), units=2)
            save_safety(Path(f"{name}.safetensors"), model, Scale())
        assert main(["collect", "line.py:Line", "--store", "s.store", "--count", "30", "--quiet"]) == 0
        assert main(BY_RULE.split()) == 0
        with Store.open(Path("s.store")) as store:
            store.label([1, 2, 3], ["severe", "mild", "none"], "ann")
            store.label([1, 2], ["severe", "none"], "bob")
            store.label([1, 2, 3], ["none", "severe", "mild"], "cid")
        shutil.copy("s.store", "marked.store")
        with Store.open(Path("marked.store")) as store:
            store.label(range(1, 11), ["mild"] * 10, "dan", marks=[{"mild": 0}] * 10)
        assert main(["collect", "line.py:Line", "--store", "s.store", "--count", "30", "--seed", "1", "--quiet"]) == 0
        assert main([*PLAN.split(), "--out", "yard", "--quiet"]) in (0, 1)
        small = ["--safety", "hazard.safetensors", "--constraint", "none>=0.5", *SMALL_PLAN.split()]
        assert main(["plan", "line.py:Line", *small, "--out", "stranger"]) in (0, 1)
        Path("stranger/scenes.safetensors").unlink()  # so that its report needs the model
        Path("runs").mkdir()
        for name in ("runs/demo", "other"):
            shutil.copytree("yard", name)
            Path(name, "result.json").unlink()
    return folder


@pytest.fixture(scope="module")
def outcome(home, tmp_path_factory):
    """What a command line gives, in a copy of the folder; each is run once."""
    known = {}

    def run(words):
        if words not in known:
            folder = tmp_path_factory.mktemp("copy") / "home"
            shutil.copytree(home, folder)
            report = words.startswith("report")
            before = {file: digest(file) for file in files_of(folder, report)}
            out, err = io.StringIO(), io.StringIO()
            with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                status = main(words.split())
            after = {file: digest(file) for file in files_of(folder, report)}
            changed = {str(file.relative_to(folder)): text for file, text in after.items() if before.get(file) != text}
            known[words] = status, plain(out.getvalue()), plain(err.getvalue()), changed
            shutil.rmtree(folder)
        return known[words]

    return run


def files_of(folder, report=False):
    other = (".lock", "-wal", "-shm", ".pyc", *(() if report else (".html",)))  # a report repeats config.json
    return [file for file in folder.rglob("*") if file.is_file() and not file.name.endswith(other)]


def digest(file):
    """What a file says, without times; nothing of config.json, which repeats what was asked for."""
    if file.name == "config.json":
        return ""
    if file.suffix == ".store":
        with Store.open(file) as store:
            _, trajectories = store.everything()
            rows = [label._replace(time="") for label in store.log()]
            return str((store.scale, rows, hashlib.sha256(trajectories.states.tobytes()).hexdigest()))
    if file.suffix in (".json", ".jsonl"):
        return plain(file.read_text())
    return hashlib.sha256(file.read_bytes()).hexdigest()


def plain(text):
    """Without what differs from time to time."""
    text = re.sub(r'"seconds": [\d.e-]+|\b\d+ s\b|\d:\d\d:\d\d|━|╸|╺', "", text)
    return re.sub(r"/\S*/copy\d+/", "", text)


@pytest.mark.parametrize(("command", "option"), CASED)
def test_an_option_has_an_effect_or_is_refused(command, option, outcome, monkeypatch, tmp_path):
    words, more = CASES[command][option]
    if option == "trust":
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))  # nobody has trusted anything
    without, given = outcome(words), outcome(f"{words} {more}")
    assert given != without
    if given[0] == 2 and without[0] != 2:
        assert more.split()[0] in given[2], "the refusal names the option"


@pytest.mark.parametrize("option", CASES["reproduce"])
def test_an_option_of_reproduce_changes_its_jobs(option, home, monkeypatch):
    monkeypatch.chdir(home)
    words, more = CASES["reproduce"][option]
    without, given = (JOBS["table1"](request_of(_parse(line.split()))) for line in (words, f"{words} {more}"))
    assert given != without


# The planner's options


def planner_cases():
    """(option, the part of the planner that it belongs to, the method that has it)."""
    cases = [(name, place.part, place.kind) for name, places in TABLE.items() for place in places]
    return cases + [(choice, "", "") for choice in CHOICES.values()]


def test_every_option_of_the_planner_is_among_the_cases():
    group = {argument.name for argument in arguments_of(COMMANDS["plan"]) if argument.group == "planning"}
    assert {name for name, _, _ in planner_cases()} == group


@pytest.fixture(scope="module")
def programs(home):
    """The state that training starts from and the programs that it runs, under these options, as text."""
    with contextlib.chdir(home):
        line, grid = load_model("line.py:Line"), Driving("S.@..\n.....\n..@.G\n", name="yard", horizon=5)
    constraints = parse_constraints(["none>=0.5"], Scale())
    small = {"epochs": 2, "test_every": 1, "test_batch": 2, "widths": (4,)}

    @functools.cache
    def text(given, finite):
        model, kind = (grid, "markov") if finite else (line, "hazard")
        safety = make_safety(kind, model.spec.state.size, model.spec.action.size, 3, key=jax.random.key(0))
        options = small | ({} if finite else {"batch": 2, "search_rounds": 0, "lookahead_rounds": 0}) | dict(given)
        try:
            config = with_options(preset_for(model, "default", per_step=finite), options)
            planner = Planner(model, safety, constraints, config)
        except InputError as error:
            return f"{REFUSED}{error}"
        problem = planner.problem
        learner = Learner.start(problem, config, jax.random.key(0), None)
        told = [str(np.asarray(leaf).tolist()) for leaf in jax.tree.leaves(eqx.filter(learner, eqx.is_inexact_array))]
        never = Planner(model, safety, parse_constraints(["severe<=0"], Scale()), config)
        told.append(str(never._feasible({"costs": np.full((1, 1), 0.007)}, np.zeros((1, 1)))))
        parts = [loop.train_chunk, loop.test_phase]
        parts += [loop.search_phase] if config.search else []
        parts += [loop.lookahead_phase] if config.lookahead else []
        for part in parts:
            program = eqx.filter_make_jaxpr(part(problem, config))(learner)[0]
            told += [str(program), *(str(np.asarray(value)) for value in program.consts if value.dtype == float)]
        return "".join(told)

    return text


def another(name, kind, current):
    """A value of this type that is not the current one."""
    if name in VALUES:
        return VALUES[name]
    if get_origin(kind) is Literal:
        return next(choice for choice in get_args(kind) if choice != current)
    if kind is bool:
        return not current
    return (current or 0) + 1 if kind is int else 0.5 * current if current else 0.5


@pytest.mark.parametrize(("name", "part", "kind"), planner_cases())
def test_an_option_of_the_planner_changes_what_it_computes_or_is_refused(name, part, kind, programs):
    finite = kind == "exact"
    by_rounds = part in BY_ROUNDS
    chosen = {PARTS[part].choice: 1} if by_rounds else {CHOICES[part]: kind} if part and not finite else {}
    beside = chosen | (BESIDE.get(name, {}) if kind != "exact" else {})
    config = with_options(preset("default", finite=finite), beside)
    value = another(name, plan_options()[name][0], flattened(config).get(name))
    words = ["plan", "line.py:Line", f"--{name.replace('_', '-')}", *map(str, value if name == "widths" else [value])]
    assert _parse(words).planning == {name: value}
    without = programs(tuple(sorted(beside.items())), finite)
    assert not without.startswith(REFUSED)
    given = programs(tuple(sorted((beside | {name: value}).items())), finite)
    assert given != without
    if given.startswith(REFUSED):
        assert f"--{name.replace('_', '-')}" in given
