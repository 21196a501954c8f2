"""The command line: what it prints, its exit status, and that it starts light."""

import json
import os
import re
import subprocess
import sys
import textwrap

import pytest

from sidestep import __version__
from sidestep.cli.arguments import arguments_of
from sidestep.cli.commands import COMMANDS
from sidestep.cli.main import main

HEAVY = {"numpy", "jax", "equinox", "optax", "pyRDDLGym", "pyRDDLGym_jax", "matplotlib", "scipy", "sklearn", "pyarrow"}
START = "import sys; from sidestep.cli.main import main; status = main(sys.argv[1:])"

MODEL = """
import jax, jax.numpy as jnp
from sidestep.core.model import Space, Spec, Variable

class Walk:
    spec = Spec(
        "walk", Space((Variable("x"),)), Space((Variable("way", "one-hot", 2, 0.0, 1.0, labels=("left", "right")),)), 5,
        gradient="none", notes=("the way is a choice",), ends=False,
    )

    def reset(self, key):
        return jnp.zeros(1)

    def step(self, state, action, key):
        return state + action[1] - action[0], jnp.sum(state), jnp.asarray(False)

class Broken(Walk):
    def step(self, state, action, key):
        return state, state, jnp.asarray(False)
"""


@pytest.fixture(scope="module")
def model_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli") / "walk.py"
    path.write_text(textwrap.dedent(MODEL))
    return path


def run(*arguments, code=START + "; sys.exit(status)", **environment):
    command = [sys.executable, "-c", code, *arguments]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")} | environment
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=variables)


def test_compiled_programs_are_kept_where_the_user_keeps_such_things_if_there_is_a_place(tmp_path, model_file):
    kept = tmp_path / "sidestep" / "programs"
    variables = {"XDG_CACHE_HOME": str(tmp_path), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    found = []
    for _ in range(2):
        done = run("check", f"{model_file}:Walk", **variables)
        assert (done.returncode, done.stderr) == (0, "")
        found.append({entry.name: entry.stat().st_mtime_ns for entry in kept.iterdir()})
    assert found[0], "there are programs"
    assert found[0] == found[1], "the second run compiled nothing, and left nothing behind"
    done = run("check", f"{model_file}:Walk", XDG_CACHE_HOME="/dev/null")
    assert (done.returncode, done.stderr) == (0, "")


def said_and_left(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 0
    return capsys.readouterr().out


def test_help_lists_every_command(capsys):
    said = said_and_left(["--help"], capsys)
    for name, command in COMMANDS.items():
        assert f"  {name:11} {command.__doc__.partition(chr(10))[0]}" in said


def test_without_words_it_says_what_to_do_first(capsys):
    said = said_and_left([], capsys)
    for words in ("sidestep demo", "sidestep models", "sidestep plan", "sidestep --help"):
        assert words in said


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_all_its_options(command, capsys):
    arguments = arguments_of(COMMANDS[command])
    said = said_and_left([command, "--help"], capsys)
    whole = said_and_left([command, "--help-all"], capsys) if any(one.rare for one in arguments) else said
    for argument in arguments:
        assert (argument.metavar or argument.flag) in whole
        assert argument.rare or (argument.metavar or argument.flag) in said
        assert argument.help


def test_the_help_of_plan_shows_few_options_with_their_real_defaults(capsys):
    said, whole = (said_and_left(["plan", word], capsys) for word in ("--help", "--help-all"))
    assert len(re.findall("^  --", said, re.MULTILINE)) <= 16
    assert "--ppo-clip" not in said
    assert "--help-all` shows" in said
    assert "default: None" not in whole
    told = " ".join(whole.split())
    for words in (
        "come on top and are counted apart. (default: 2000)",
        "Clip of the probability ratio. (default: 0.2)",
    ):
        assert words in told


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"sidestep {__version__}\n"


def test_models_are_listed(capsys):
    assert main(["models"]) == 0
    said = capsys.readouterr().out
    for name in ("navigation", "hvac", "reservoir", "boxpushing", "driving"):
        assert name in said


def test_check_of_a_good_model(model_file, capsys):
    assert main(["check", f"{model_file}:Walk", "--seed", "3"]) == 0
    said = capsys.readouterr().out
    for words in ("walk", "1 real, from -inf to inf", "2 one-hot, from 0 to 1", "horizon 5", "the way is a choice"):
        assert words in said
    assert "PPO and score function" in said
    assert "pathwise" not in said


def test_check_of_a_bad_model(model_file, capsys):
    assert main(["check", f"{model_file}:Broken"]) == 2
    said = capsys.readouterr().out
    assert "bad" in said
    assert "step's reward has shape (1,), expected ()" in said


def test_interruption_has_its_own_status(monkeypatch, capsys):
    def interrupted(asked):
        raise KeyboardInterrupt

    monkeypatch.setattr("sidestep.cli.models.list_models", interrupted)
    assert main(["models"]) == 130
    assert capsys.readouterr().err == "sidestep: stopped\n"


@pytest.mark.parametrize("arguments", [["check", "navigaton"], ["check", "nowhere.rddl"], ["chek", "navigation"]])
def test_bad_input_in_a_process_of_its_own(arguments):
    finished = run(*arguments)
    assert finished.returncode == 2
    assert finished.stdout == ""
    assert finished.stderr.startswith("sidestep: ")
    assert finished.stderr.count("\n") == 1
    assert "Traceback" not in finished.stderr


def test_a_fault_of_our_own_has_a_status_of_its_own_and_keeps_its_traceback(tmp_path):
    code = "import sys, sidestep.cli.main as m; m.COMMANDS['models'].does = 'models:gone'; sys.exit(m.program())"
    kept = os.environ | {"TMPDIR": str(tmp_path)}
    finished = subprocess.run([sys.executable, "-c", code, "models"], capture_output=True, text=True, env=kept)
    assert finished.returncode == 70
    assert finished.stderr.count("\n") == 1
    [file] = tmp_path.glob("sidestep-fault-*.txt")
    assert str(file) in finished.stderr
    assert file.read_text().startswith("Traceback")


def test_a_reader_that_goes_away_is_no_error():
    code = textwrap.dedent(f"""
        import os
        reader, writer = os.pipe()
        os.close(reader)
        os.dup2(writer, 1)
        {START}
        sys.stdout.flush()
        sys.exit(status)
        """)
    finished = run("models", code=code)
    assert finished.returncode == 0
    assert finished.stderr == ""


@pytest.mark.parametrize(
    "code",
    [
        "import sidestep",
        "import sidestep.cli.main",
        "import sys; from sidestep.cli.main import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n    pass",
        "from sidestep.cli.main import main\ntry:\n    main(['plan', '--help'])\nexcept SystemExit:\n    pass",
        "from sidestep.cli.main import main\nmain(['models'])",
    ],
)
def test_starting_imports_nothing_heavy(code):
    finished = run(code=f"{code}\nimport sys; print('modules:', *sys.modules)")
    assert finished.returncode == 0, finished.stderr
    loaded = {name.partition(".")[0] for name in finished.stdout.rpartition("modules:")[2].split()}
    assert "sidestep" in loaded
    assert not loaded & HEAVY


YARD = "S.@..\n.....\n..@.G\n"


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory):
    """Two small finished runs, of seeds 0 and 1."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "yard.nav").write_text(YARD)
    for seed in ("0", "1"):
        words = ["plan", str(folder / "yard.nav"), "--rollouts", "100", "--quiet", "--seed", seed]
        assert main([*words, "--out", str(folder / f"runs/{seed}")]) in (0, 1)
    return folder


def test_options_from_a_file_are_those_of_the_command_line(two_runs, capsys):
    options = {"model": str(two_runs / "yard.nav"), "rollouts": 100, "quiet": True}
    lines = [f"{name} = {json.dumps(value)}" for name, value in options.items()]
    file = two_runs / "options.toml"
    file.write_text("\n".join([*lines, "[more]", 'constraint = ["mild+<=0.2"]']))
    out = two_runs / "by_file"
    assert main(["plan", "--config", str(file), "--seed", "1", "--out", str(out)]) in (0, 1)
    asked = json.loads((out / "config.json").read_text())
    assert (asked["model"], asked["seed"], asked["settings"]["rollouts"]) == (options["model"], 1, 100)
    assert asked["constraints"] == ["mild+<=0.2"]


def test_the_config_of_a_run_asks_for_the_same_again(two_runs):
    before, out = two_runs / "runs/1", two_runs / "again"
    assert main(["plan", "--config", str(before / "config.json"), "--out", str(out), "--quiet"]) in (0, 1)
    assert json.loads((out / "config.json").read_text()) == json.loads((before / "config.json").read_text())
    first, second = (json.loads((folder / "result.json").read_text()) for folder in (before, out))
    assert first | {"seconds": 0} == second | {"seconds": 0}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lables = 3", "there is no option 'lables'; did you mean 'labels'?"),
        ("labels = 3", "option --labels: must be at least 20, not 3"),
        ("labels = 'many'", "option --labels: expected a whole number, not 'many'"),
        ("seed = 1979-05-27", "must be a number, a text"),
        ("labels = ", "is not a file of options"),
        ("seed = 1", "the following arguments are required: MODEL"),
    ],
)
def test_a_file_of_options_is_checked_as_the_command_line_is(text, words, tmp_path, capsys):
    file = tmp_path / "options.toml"
    model = "" if "required" in words else "model = 'navigation'\n"
    file.write_text(model + text)
    assert main(["plan", "--config", str(file), "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert "required" in words or "must be at least" in words or str(file) in said
    assert not (tmp_path / "run").exists()


def test_runs_are_listed_and_compared(two_runs, capsys):
    assert main(["runs", "--folder", str(two_runs / "runs"), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["seed"] for row in rows] == [0, 1]
    assert {row["status"] for row in rows} <= {"certified", "not certified"}
    both = [str(two_runs / f"runs/{seed}") for seed in (0, 1)]
    assert main(["compare", *both]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"seed +0 +1", lines[1])
    assert not any(line.startswith("model") for line in lines), "what they have in common is left out"
    assert main(["compare", *both, "--every", "--json"]) == 0
    assert any(row[""] == "model" for row in json.loads(capsys.readouterr().out))
