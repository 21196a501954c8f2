"""Odd options, paths and files of a user's own: one sentence, exit status 2, and nothing is left behind."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from test_bad_input import sentence

import sidestep
from sidestep.cli.main import main
from sidestep.core.constraints import Scale, parse_constraints
from sidestep.core.errors import InputError

SOUND = """
import jax.numpy as jnp
from sidestep import Space, Spec, Variable

class Walk:
    spec = Spec("walk", Space((Variable("x", size=2),)), Space((Variable("way", low=-1.0, high=1.0),)), 4, ends=False)

    def reset(self, key):
        return jnp.zeros(2)

    def step(self, state, action, key):
        return state + action[0], jnp.sum(state), jnp.asarray(False)
"""
BROKEN = {
    "shape": ("state + action[0], ", "state[:1] + action[0], ", "step's state has shape (1,), expected (2,)"),
    "crossed bounds": (
        "low=-1.0, high=1.0",
        "low=1.0, high=-1.0",
        "the lower bound of 'way' lies above its upper bound",
    ),
    "branch": ("state + action[0]", "(state if state[0] > 0 else -state)", "walk.py:12: TracerBoolConversionError"),
    "impure": ("jnp.sum(state), ", "float(__import__('random').random()), ", "the same key gave two different results"),
    "sys.exit": ("return state +", "raise SystemExit(3)\n        return state +", "walk.py:12: SystemExit: 3"),
    "recursion": ("return state +", "return self.step(state, action, key)\n        return state +", "RecursionError"),
    "exit at import": ("class Walk", "import sys; sys.exit(4)\nclass Walk", "walk.py:5: cannot be run: SystemExit: 4"),
    "Ctrl-C at import": (
        "class Walk",
        "raise KeyboardInterrupt\nclass Walk",
        "walk.py:5: cannot be run: KeyboardInterrupt",
    ),
}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "walk.py"
    path.write_text(textwrap.dedent(SOUND))
    return path


@pytest.mark.parametrize("name", BROKEN)
def test_every_command_tries_a_model_before_it_works(name, file, tmp_path, capsys):
    old, new, words = BROKEN[name]
    assert file.read_text().count(old) == 1
    file.write_text(file.read_text().replace(old, new))
    before = sorted(tmp_path.iterdir())
    model, out = f"{file}:Walk", str(tmp_path / "out")
    for arguments in (
        ["collect", model, "--store", out],
        ["plan", model, "--out", out],
        ["plan", model, "--out", out, "--method", "ppo"],
        ["limits", model],
    ):
        said = sentence(arguments, capsys)
        assert words.replace("walk.py", str(file)) in said
    assert [path for path in sorted(tmp_path.iterdir()) if path.name != "__pycache__"] == before


def test_no_command_loads_a_model_without_trying_it():
    """`check` tries it itself; `resume` goes on with one that was tried."""
    folder = Path(sidestep.__file__).parent / "cli"
    for path in folder.glob("*.py"):
        text = path.read_text()
        begun = text.partition("def continue_run")[0] if path.name in ("campaign.py", "plan.py") else text
        assert "load_model(model" not in begun, path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["check", "navigation", "--seed", str(2**70)], "--seed: must be at most 2,147,483,647 in size"),
        (["check", "navigation", "--seed", str(-(2**70))], "--seed: must be at most 2,147,483,647 in size"),
        (["check", "navigation", "--seed", "-1"], "--seed: must be at least 0, not -1"),
        (["check", "navigation", "--seed", "9" * 5000], "option --seed: "),
        (
            ["collect", "navigation", "--store", "x", "--count", "0"],
            "--count: must be at least 1, not 0",
        ),
        (["collect", "navigation", "--store", "x", "--count", str(10**30)], "--count: must be at most 2,147,483,647"),
        (
            ["collect", "navigation", "--store", "x", "--horizon", "2000000"],
            "--horizon: must be at most 1,000,000, not 2000000",
        ),
        (
            ["collect", "navigation", "--store", "x", "--horizon", "1000000", "--count", "100000"],
            "GB at once, and this",
        ),
        (["collect", "navigation", "--store", ""], "option --store: its value is empty"),
        (["plan", "navigation", "--out="], "option --out: its value is empty"),
        (["plan", "navigation", "--labels", "2000000000"], "--labels: must be at most 1,000,000"),
        (["plan", "navigation", "--rounds", "-3"], "--rounds: must be at least 1, not -3"),
        (["plan", "navigation", "--learning-rate", "nan"], "--learning-rate: must be a finite number, not nan"),
        (["plan", "navigation", "--widths", "64", "0"], "--widths: must be at least 1, not 0"),
        (["plan", "navigation", "--seeds", "2000000000"], "--seeds: must be at most 1,000"),
        (["limits", "boxpushing", "--discount", "inf"], "--discount: must be a finite number, not inf"),
        (["label", "x" * 300], "File name too long"),
        (["label", "a/" * 3000], "File name too long"),
        (["check", "x" * 300 + ".rddl"], "File name too long"),
        (["check", "\0.nav"], "a zero byte cannot be part of an argument"),
        (["label", "\udcff\n.store"], "\\udcff\\n.store: there is no label store here"),
        (["collect", "navigation", "--store", "."], ".: "),
        (["label", "/"], "/: there is no label store here"),
    ],
)
def test_options_that_no_command_can_use(arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert words in sentence(arguments, capsys)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["none>=0." + "9" * 5000, "none>=" + "9" * 5000, "9" * 5000 + ">=0.9"])
def test_a_bound_of_five_thousand_digits(text):
    with pytest.raises(InputError) as caught:
        parse_constraints([text], Scale())
    assert len(str(caught.value)) < 6000
    assert "\n" not in str(caught.value)


def test_what_a_model_prints_does_not_meet_what_a_command_says(file, capsys):
    text = "print('loading')\n" + file.read_text().replace(
        "        return jnp.zeros(2)", "        print('reset')\n        return jnp.zeros(2)"
    )
    file.write_text(text)
    store = file.with_name("x.store")
    assert main(["collect", f"{file}:Walk", "--store", str(store), "--count", "5", "--quiet"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith(f"5 new trajectories in {store}") or said.out.endswith("in all\n")
    assert "reset" not in said.out
    assert "loading" in said.err


def test_json_is_all_that_stands_on_standard_output(file, tmp_path, capsys):
    file.write_text("print('loading')\n" + file.read_text())
    rule = tmp_path / "rules.py"
    rule.write_text(
        "def rule(t):\n    print('labelling')\n    return (t.states[..., 0].max(axis=1) > 0.5).astype(int)\n"
    )
    store = str(tmp_path / "x.store")
    by_rule = ["--rule", f"{rule}:rule"]
    assert main(["collect", f"{file}:Walk", "--store", store, "--count", "60", *by_rule]) == 0
    assert main(["label", store, "--model", f"{file}:Walk", *by_rule]) == 0
    capsys.readouterr()
    out = str(tmp_path / "s.safetensors")
    assert main(["fit", store, "--out", out, "--steps", "100", "--units", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["labels"] > 2


def test_without_a_home(tmp_path):
    """HOME is not set, and the system does not know the user either."""
    code = textwrap.dedent("""
        import os, pathlib, sys
        os.environ.pop("HOME", None)
        os.environ.pop("XDG_CACHE_HOME", None)
        def nobody(*_): raise KeyError("no such user")
        import pwd; pwd.getpwuid = nobody
        from sidestep.cli.main import main
        sys.exit(main(["models"]))
        """)
    environment = {
        k: v for k, v in os.environ.items() if k not in ("HOME", "XDG_CACHE_HOME", "JAX_COMPILATION_CACHE_DIR")
    }
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert "navigation" in done.stdout
