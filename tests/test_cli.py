"""The command line: what it prints, its exit status, and that it starts light."""

import os
import subprocess
import sys
import textwrap

import pytest

from sidestep import __version__
from sidestep.cli.arguments import arguments_of
from sidestep.cli.commands import COMMANDS
from sidestep.cli.main import main

HEAVY = {"jax", "equinox", "optax", "pyRDDLGym", "pyRDDLGym_jax", "matplotlib", "scipy", "sklearn", "pyarrow"}
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


@pytest.mark.parametrize("arguments", [["--help"], []])
def test_help_lists_the_commands(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 0
    said = capsys.readouterr().out
    assert "models" in said
    assert "check" in said
    assert "List the built-in models" in said


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_all_its_options(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    said = capsys.readouterr().out
    for argument in arguments_of(COMMANDS[command]):
        assert (argument.metavar or argument.flag) in said
        assert argument.help


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
        "from sidestep.cli.main import main\ntry:\n    main(['check', '--help'])\nexcept SystemExit:\n    pass",
        "from sidestep.cli.main import main\nmain(['models'])",
    ],
)
def test_starting_imports_nothing_heavy(code):
    finished = run(code=f"{code}\nimport sys; print('modules:', *sys.modules)")
    assert finished.returncode == 0, finished.stderr
    loaded = {name.partition(".")[0] for name in finished.stdout.rpartition("modules:")[2].split()}
    assert "sidestep" in loaded
    assert not loaded & HEAVY
