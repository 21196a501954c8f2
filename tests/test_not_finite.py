"""NaN is never safe: what is not finite is refused by model, step and entry; nobody labels, fits to or audits it.

The rule of these tests calls every trajectory of NaN dry, as most rules would: NaN > 6 is False.
"""

import json
import textwrap
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_bad_input import sentence

from sidestep.cli.main import main
from sidestep.core.errors import InputError
from sidestep.core.model import Trajectory, UniformPolicy, require_finite, rollout
from sidestep.deploy.answers import load
from sidestep.deploy.export import export_numpy
from sidestep.labels.rules import load_rule
from sidestep.labels.store import Store
from sidestep.models import load_model
from sidestep.planning.config import PlanConfig
from sidestep.planning.methods import Pathwise
from sidestep.planning.plan import plan
from sidestep.policies.files import save_policy
from sidestep.safety.config import fit_settings
from sidestep.safety.fit import fit
from sidestep.safety.io import load_safety, make_safety

TANK = """
import os
import jax, jax.numpy as jnp
from sidestep.core.model import Space, Spec, Variable

KIND = os.environ.get("TANK_KIND", "sound")

class Tank:
    state = Space((Variable("level"), Variable("clock")))
    spec = Spec("tank", state, Space((Variable("flow", low=-1.0, high=1.0),)), 8, ends=False)

    def __init__(self, kind):
        self.kind = kind

    def reset(self, key):
        return jnp.array([5.0, 0.0]) + jnp.array([0.1, 0.0]) * jax.random.normal(key, (2,))

    def step(self, state, action, key):
        wrong = {
            "always": jnp.asarray(True),
            "sometimes": jax.random.uniform(key) < 0.3,
            "late": state[1] >= 6.0,
            "high": state[0] > 9.0,
            "infinite": state[1] >= 2.0,
        }.get(self.kind, jnp.asarray(False))
        level = state[0] + action[0] + 0.05 * jax.random.normal(key)
        reward = jnp.where((self.kind == "reward") & (state[1] >= 4.0), jnp.nan, level)
        level = jnp.where(wrong, jnp.inf if self.kind == "infinite" else jnp.nan, level)
        return jnp.stack([level, state[1] + 1.0]), reward, jnp.asarray(False)

def tank():
    return Tank(KIND)

def rule(trajectory):
    return (trajectory.states[..., 0] > 6.0).any(axis=1).astype(int)

rule.categories = ("dry", "spilled")
"""
# What each kind of tank does wrong, and what must be said of it.
KINDS = {
    "always": "state 'level' is nan at step 1 ",
    "sometimes": "state 'level' is nan at step 1 ",
    "late": "state 'level' is nan at step 7 ",
    "reward": "the reward is nan at step 4 ",
    "infinite": "state 'level' is inf at step 3 ",
}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("tank") / "tank.py"
    path.write_text(textwrap.dedent(TANK))
    return path


@pytest.fixture
def become(monkeypatch):
    return lambda kind: monkeypatch.setenv("TANK_KIND", kind)


@pytest.mark.parametrize("kind", KINDS)
def test_collect_and_plan_refuse_before_they_make_anything(kind, file, become, tmp_path, capsys):
    become(kind)
    store, out = tmp_path / "x.store", tmp_path / "run"
    for arguments in (
        ["collect", f"{file}:tank", "--store", str(store), "--rule", f"{file}:rule"],
        ["plan", f"{file}:tank", "--rule", f"{file}:rule", "--out", str(out), "--labels", "30"],
    ):
        said = sentence(arguments, capsys)
        assert "model 'tank': " in said
        assert KINDS[kind] in said
    assert not store.exists()
    assert not out.exists()


@pytest.fixture(scope="module")
def fitted(file, tmp_path_factory):
    """A safety model of sound tanks, in its file."""
    folder = tmp_path_factory.mktemp("fitted")
    reference, rule = f"{file}:tank", f"{file}:rule"
    for arguments in (
        ["collect", reference, "--store", f"{folder}/x.store", "--count", "200", "--rule", rule],
        ["label", f"{folder}/x.store", "--model", reference, "--rule", rule],
        ["fit", f"{folder}/x.store", "--out", f"{folder}/safety.safetensors", "--steps", "100", "--units", "4"],
    ):
        assert main(arguments) == 0
    return folder


def planning(file, fitted, out):
    safety = ["--safety", f"{fitted}/safety.safetensors"]
    return ["plan", f"{file}:tank", "--rule", f"{file}:rule", *safety, "--out", str(out)]


@pytest.fixture(scope="module")
def run(file, fitted, tmp_path_factory):
    """A run on sound tanks that plans once, in seconds."""
    out = tmp_path_factory.mktemp("runs") / "run"
    options = [
        "--constraint",
        "dry>=0.5",
        "--epochs",
        "20",
        "--test-every",
        "20",
        "--search-rounds",
        "0",
        "--batch",
        "20",
        "--quiet",
    ]
    assert main([*planning(file, fitted, out), *options]) == 1  # nothing is certified of so short a plan
    return out


@pytest.mark.parametrize("kind", KINDS)
def test_certify_refuses(kind, run, become, capsys):
    """The file is the run's own; its model goes wrong on another machine, say."""
    become(kind)
    before = (run / "result.json").read_bytes()
    said = sentence(["certify", str(run)], capsys)
    assert "model 'tank'" in said
    assert KINDS[kind] in said
    assert (run / "result.json").read_bytes() == before


@pytest.mark.parametrize("kind", KINDS)
def test_an_audit_by_people_asks_nobody_about_it(kind, run, become, tmp_path, capsys):
    become(kind)
    said = sentence(["certify", str(run), "--people"], capsys)
    assert KINDS[kind] in said
    with Store.open(run / "labels.store") as store:
        assert len(store) == 0


def test_what_only_a_planned_policy_reaches_is_refused_in_planning(file, fitted, become, tmp_path, capsys):
    """Random actions never fill the tank to 9; the policy that earns most does."""
    become("high")
    out = tmp_path / "run"
    options = ["--constraint", "dry>=0.01", "--epochs", "100", "--test-every", "20", "--quiet"]
    said = sentence([*planning(file, fitted, out), *options], capsys)
    assert "model 'tank'" in said
    assert "nan" in said or "not finite" in said
    assert not (out / "policy.safetensors").exists()
    assert not (out / "result.json").exists()


def nan_at(batch=3, time=5, **places):
    parts = {
        "states": np.zeros((batch, time, 2)),
        "actions": np.zeros((batch, time, 1)),
        "rewards": np.zeros((batch, time)),
    }
    for name, (place, value) in places.items():
        parts[name][place] = value
    return Trajectory(**parts, length=np.array([time, 2, time]))


@pytest.mark.parametrize(
    ("places", "words"),
    [
        ({"states": ((2, 3, 1), np.nan)}, "state 'clock' is nan at step 3 of trajectory 2"),
        ({"actions": ((0, 4, 0), -np.inf)}, "action 'flow' is -inf at step 4 of trajectory 0"),
        ({"rewards": ((0, 1), np.inf), "states": ((0, 2, 0), np.nan)}, "the reward is inf at step 1"),
        ({"states": ((1, 2, 0), np.nan), "rewards": ((1, 4), np.nan)}, None),  # after the end of trajectory 1
    ],
)
def test_the_first_real_step_that_is_not_finite_is_named(places, words, file):
    model = load_model(f"{file}:tank")
    rule = load_rule(f"{file}:rule", model)
    trajectory = nan_at(**places)
    if words is None:
        assert require_finite(model.spec, trajectory).states.shape == (3, 5, 2)
        assert np.asarray(rule.label(trajectory)).tolist() == [0, 0, 0]
        return
    with pytest.raises(InputError, match=f"model 'tank': {words}"):
        require_finite(model.spec, trajectory)
    with pytest.raises(InputError, match=words):
        rule.label(trajectory)


def broken(tree):
    """The same weights, one of which is NaN."""
    arrays, rest = eqx.partition(tree, eqx.is_inexact_array)
    leaves, structure = jax.tree.flatten(arrays)
    leaves[0] = jnp.asarray(leaves[0]).at[(0,) * leaves[0].ndim].set(jnp.nan)
    return eqx.combine(jax.tree.unflatten(structure, leaves), rest)


def test_a_policy_with_nan_in_its_weights_is_neither_saved_nor_loaded_nor_exported(run, tmp_path, capsys):
    answer = load(run)
    policy = answer.policy_of(answer.model)
    with pytest.raises(InputError, match=r"the policy of 'tank' holds 1 numbers that are not finite.*\.net"):
        export_numpy(broken(policy), tmp_path / "policy.py")
    with pytest.raises(InputError, match="not finite"):
        save_policy(tmp_path / "policy.safetensors", broken(policy), "tank")
    assert not list(tmp_path.iterdir())


def test_weights_that_became_nan_in_their_file_are_refused_by_name(run, fitted, tmp_path, capsys):
    """The bytes of the first number of a sound file are replaced by those of NaN."""
    import shutil

    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    with_nan_first(copy / "policy.safetensors")
    for arguments in (["certify", str(copy)], ["export", str(copy), str(tmp_path / "p.py")]):
        said = sentence(arguments, capsys)
        assert "policy.safetensors" in said
    safety = tmp_path / "safety.safetensors"
    shutil.copyfile(fitted / "safety.safetensors", safety)
    with_nan_first(safety)
    with pytest.raises(InputError, match="the safety model holds 1 numbers that are not finite"):
        load_safety(safety)


def with_nan_first(file):
    data = bytearray(file.read_bytes())
    size = int.from_bytes(data[:8], "little")
    header = json.loads(bytes(data[8 : 8 + size]))
    first = next(
        at["data_offsets"][0] for name, at in header.items() if name != "__metadata__" and at["dtype"] == "F32"
    )
    data[8 + size + first : 8 + size + first + 4] = np.float32("nan").tobytes()
    file.write_bytes(bytes(data))


def test_training_that_fails_is_refused_and_not_certified(file):
    """The gradient of sqrt at zero is infinite: the first epoch leaves a policy of NaN."""
    model = load_model(f"{file}:tank")

    class Steep(type(model.inner)):
        def step(self, state, action, key):
            state, reward, done = super().step(state, action, key)
            return state, reward + jnp.sqrt(jnp.maximum(action[0] - 5.0, 0.0)), done

    steep = replace_inner(model, Steep("sound"))
    config = PlanConfig(reward=Pathwise(batch=4), search=None, epochs=2, test_every=2, test_batch=4)
    with pytest.raises(InputError, match="model 'tank', epoch 2: training failed"):
        plan(steep, None, (), config, jax.random.key(0))


def replace_inner(model, inner):
    return type(model)(inner)


@pytest.mark.parametrize("held_out", [0.0, 0.5])
def test_a_fit_that_ends_in_nan_is_refused(file, held_out):
    model = load_model(f"{file}:tank")
    found = rollout(model, UniformPolicy(model), jax.random.key(0), 20)
    safety = make_safety("hazard", 2, 1, 2, key=jax.random.key(0), units=4)
    settings = replace(fit_settings("hazard"), steps=20, check_every=10, learning_rate=1e38, held_out=held_out)
    with pytest.raises(InputError, match="not a finite number"):
        fit(safety, found, np.arange(20) % 2, settings, jax.random.key(0))


def test_a_monitor_does_not_call_nan_safe_and_an_actor_refuses_it(run):
    answer = load(run)
    monitor = answer.monitor(threshold=0.99)
    monitor.step([5.0, 0.0], [0.0])
    assert not monitor.alarm
    monitor.step([np.nan, 0.0], [0.0])
    assert monitor.alarm
    with pytest.raises(InputError, match="finite"):
        answer.policy.act([np.nan, 0.0])
