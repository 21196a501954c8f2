"""An exported policy is one file that needs NumPy alone, or a runtime of ONNX, and acts as the policy it came from."""

import json
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sidestep
from sidestep.cli.main import main
from sidestep.core.errors import InputError
from sidestep.core.model import Space, Spec, Variable
from sidestep.deploy.answers import PolicyRunner
from sidestep.deploy.export import export_numpy, export_policy
from sidestep.finite.tabular import HorizonPolicy, TabularPolicy
from sidestep.models.python_model import load_object
from sidestep.policies.files import save_policy
from sidestep.policies.networks import make_policy
from sidestep.safety.io import make_safety
from sidestep.safety.survival import Stretch

try:
    import onnx
    from onnx.reference import ReferenceEvaluator
except ImportError:
    onnx = None
try:
    import onnxruntime
except ImportError:
    onnxruntime = None

needs_onnx = pytest.mark.skipif(onnx is None, reason="the package onnx is not installed")

# Runs the exported file where JAX and this package cannot be imported, along a trajectory of given states.
ALONE = """
import json, sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("jax", "jaxlib", "equinox", "sidestep", "scipy"):
            raise ImportError(f"{name} was wanted")
sys.meta_path.insert(0, Blocker())
import importlib.util
import numpy as np
spec = importlib.util.spec_from_file_location("exported", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
states = np.array(json.load(sys.stdin))
policy = module.Policy()
batch = [policy.act(step) for step in states]
policy.restart()
one = [policy.act(step[0]) for step in states]
remembers = policy.about["members"] or policy.about["events"]
function = [] if remembers else [module.act(step, clock) for clock, step in enumerate(states)]
print(json.dumps([np.asarray(part).tolist() for part in (batch, one, function)]))
"""


class Box:
    """Real, whole-number and one-hot actions; the bounds of the real ones are a function of the state."""

    def __init__(self, bounds=None, actions=None):
        actions = actions or (
            Variable("push", "real", 2, -1.0, 3.0),
            Variable("gear", "int", 2, 1, 4),
            Variable("turn", "one-hot", 3, 0.0, 1.0),
        )
        self.spec = Spec("box", Space((Variable("place", "real", 3),)), Space(actions), horizon=6)
        self.bounds = bounds

    def reset(self, key):
        return jax.random.normal(key, (3,))

    def step(self, state, action, key):
        return state + 0.1 * jax.random.normal(key, (3,)), jnp.sum(state), jnp.zeros((), bool)

    def action_bounds(self, state):
        low, high = jnp.asarray(self.spec.action.low, float), jnp.asarray(self.spec.action.high, float)
        return self.bounds(state, low, high) if self.bounds else (low, high)


def lively(policy, scale=30.0):
    """The policy with a head that does not stay near the middle, and statistics that are not the identity."""
    keys = jax.random.split(jax.random.key(7), 2)
    grown = jax.tree.map(lambda leaf: leaf * scale, policy.net.head)
    size = policy.observer.mean.shape
    policy = eqx.tree_at(lambda p: p.net.head, policy, grown)
    policy = eqx.tree_at(lambda p: p.observer.mean, policy, jax.random.normal(keys[0], size))
    return eqx.tree_at(lambda p: p.observer.deviation, policy, 0.5 + jax.random.uniform(keys[1], size))


def same_actions(policy, path, steps=5, batch=4, spread=2.0, still=False):
    """The policy's actions along random states (or one that stays), the exported file's being the same."""
    export_numpy(policy, path)
    rng = np.random.default_rng(0)
    states = spread * rng.normal(size=(steps, batch, policy.model.spec.state.size)).astype(np.float32)
    states = np.broadcast_to(states[:1], states.shape) if still else states
    finished = subprocess.run(
        [sys.executable, "-c", ALONE, str(path)], input=json.dumps(states.tolist()), capture_output=True, text=True
    )
    assert finished.returncode == 0, finished.stderr
    many, one, function = (np.array(part) for part in json.loads(finished.stdout))
    actor = PolicyRunner(policy.mean())
    wanted = np.stack([actor.act(step) for step in states])
    np.testing.assert_allclose(many, wanted, rtol=2e-4, atol=2e-4)
    np.testing.assert_allclose(one, wanted[:, 0], rtol=2e-4, atol=2e-4)
    if policy.observer.safety is None:
        np.testing.assert_array_equal(function, many)
    if onnx is not None:
        given = onnx_actions(policy, path.with_suffix(".onnx"), states)
        np.testing.assert_allclose(given, wanted, rtol=2e-4, atol=2e-4)
    return wanted


def onnx_runner(path):
    """A function of the inputs by name, which gives the outputs by name; by onnxruntime where it is there."""
    if onnxruntime is not None:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        names = [one.name for one in session.get_outputs()]
        return {one.name for one in session.get_inputs()}, lambda given: dict(
            zip(names, session.run(names, given), strict=True)
        )
    model = ReferenceEvaluator(str(path))
    return set(model.input_names), lambda given: dict(zip(model.output_names, model.run(None, given), strict=True))


def onnx_actions(policy, path, states, random=None):
    """The actions of the exported graph along these states (step, batch, entry); the first memory is rubbish."""
    export_policy(policy, path)
    wanted, run = onnx_runner(path)
    about = {one.name: one for one in onnx.load(path).graph.input}
    size = about["memory"].type.tensor_type.shape.dim[1].dim_value if "memory" in wanted else 0
    memory, actions = np.full((states.shape[1], size), 7.0), []
    for clock, state in enumerate(states):
        given = {"state": state.astype(np.float32), "clock": np.array(clock), "memory": memory, "random": random}
        found = run({name: given[name] for name in wanted})
        memory = found.get("memory_after")
        actions.append(found["action"])
    return np.stack(actions)


@pytest.mark.parametrize(("squash", "clock"), [("tanh", True), ("clip", False)])
def test_real_and_discrete_actions(squash, clock, tmp_path):
    policy = lively(make_policy(Box(), jax.random.key(1), widths=(8, 5), squash=squash, clock=clock))
    actions = same_actions(policy, tmp_path / "policy.py")
    assert actions[..., :2].std() > 0.5
    assert len(np.unique(actions[..., 2:4])) > 1
    turns = actions[..., 4:].round(3)
    assert set(np.unique(turns)) == {0.0, 1.0}
    assert (turns.sum(axis=-1) == 1).all()


def test_real_actions_without_bounds(tmp_path):
    model = Box(actions=(Variable("push", "real", 2), Variable("pull", "real", 1, 0.0, np.inf)))
    same_actions(lively(make_policy(model, jax.random.key(1), widths=(8,))), tmp_path / "policy.py")


def test_bounds_that_are_affine_in_the_state(tmp_path):
    def bounds(state, low, high):
        high = high.at[0].min(2.0 * state[1] - state[2] + 0.5)
        low = low.at[1].max(state[0])
        return low, jnp.maximum(low, high)

    policy = lively(make_policy(Box(bounds), jax.random.key(1), widths=(8,)))
    actions = same_actions(policy, tmp_path / "policy.py", batch=20)
    assert actions[..., 0].min() >= -1.0 - 1e-5
    assert actions[..., 1].max() > 3.0, "above the constant bound, where the state's lower bound is"


def test_bounds_of_the_built_in_reservoirs(tmp_path):
    policy = lively(make_policy(sidestep.load_model("reservoir?reservoirs=3"), jax.random.key(1), widths=(8,)))
    actions = same_actions(policy, tmp_path / "policy.py", spread=100.0)
    assert actions.max() > 10.0


@pytest.mark.parametrize(
    "bounds",
    [
        lambda state, low, high: (low, high.at[0].set(3.0 + state[0] ** 2)),
        lambda state, low, high: (low, high.at[0].set(jnp.minimum(2.0, 1.0 + jnp.abs(state[1])))),
    ],
)
def test_other_bounds_are_refused(bounds, tmp_path):
    policy = make_policy(Box(bounds), jax.random.key(1), widths=(8,))
    with pytest.raises(InputError, match=r"action 'push\[0\]' depend on the state in a way that is not affine"):
        export_numpy(policy, tmp_path / "policy.py")
    assert not (tmp_path / "policy.py").exists()


@pytest.mark.parametrize(("cell", "members", "layers"), [("gru", 1, 2), ("lstm", 2, 1)])
def test_memory_of_a_hazard_model(cell, members, layers, tmp_path):
    model = Box(actions=(Variable("push", "real", 2, -1.0, 3.0),))
    safety = make_safety("hazard", 3, 2, 3, key=jax.random.key(2), members=members, cell=cell, layers=layers, units=6)
    safety = safety.with_calibration(Stretch(jnp.asarray(0.3, jnp.float32), jnp.asarray(-0.2, jnp.float32)))
    policy = lively(make_policy(model, jax.random.key(1), widths=(8,), clock=False, safety=safety))
    actions = same_actions(policy, tmp_path / "policy.py", still=True)
    assert np.ptp(actions, axis=0).max() > 0.01, (
        "the state stays and there is no clock: it is the memory that moves them"
    )


def test_memory_of_families(tmp_path):
    model = Box(actions=(Variable("push", "real", 2, -1.0, 3.0),))
    safety = make_safety("families", 3, 2, 3, key=jax.random.key(4), units=3, limit=3, alike=(0, 3))
    policy = lively(make_policy(model, jax.random.key(1), widths=(8,), clock=False, safety=safety))
    actions = same_actions(policy, tmp_path / "policy.py", still=True)
    assert np.ptp(actions, axis=0).max() > 0.01, "the counters move them"


def test_memory_of_another_safety_model_is_refused(tmp_path):
    safety = make_safety("classifier", 3, 7, 3, key=jax.random.key(2), layers=1, units=4)
    policy = make_policy(Box(), jax.random.key(1), widths=(8,), safety=safety)
    with pytest.raises(InputError, match="kind 'classifier'"):
        export_numpy(policy, tmp_path / "policy.py")


def test_a_table_is_exported_with_its_chances(tmp_path):
    model = sidestep.load_model("boxpushing")
    states, actions = model.finite.reward.shape
    table = np.array(jax.nn.one_hot(jnp.arange(states) % actions, actions))
    table[7] = [0.0, 0.3, 0.7, 0.0, 0.0]
    policy = TabularPolicy(jnp.asarray(table), model)
    export_numpy(policy, tmp_path / "policy.py")
    module = load_object(f"{tmp_path / 'policy.py'}:act", "policy")
    encoding = np.asarray(model.finite.encoding)
    certain = np.delete(np.arange(states), 7)
    np.testing.assert_array_equal(module(encoding[certain]), table[certain])
    np.testing.assert_array_equal(module(encoding[3]), table[3])
    drawn = module(np.tile(encoding[7], (4000, 1)), np.random.default_rng(0))
    np.testing.assert_allclose(drawn.mean(axis=0), table[7], atol=0.03)
    with pytest.raises(ValueError, match="a state has shape"):
        module(encoding[0, 1:])


@needs_onnx
@pytest.mark.parametrize("statistic", ["count", "run", "share"])
def test_onnx_memory_of_counted_events(statistic, tmp_path):
    model = Box(actions=(Variable("push", "real", 2, -1.0, 3.0),))
    safety = make_safety("counted", 3, 2, 3, key=jax.random.key(2), statistic=statistic, limit=4, alike=(0, 3))
    policy = lively(make_policy(model, jax.random.key(1), widths=(8,), clock=False, safety=safety))
    actions = same_actions(policy, tmp_path / "policy.py", still=True)
    assert np.ptp(actions, axis=0).max() > 0.01, "the counter moves them"


@needs_onnx
@pytest.mark.parametrize("squash", ["tanh", "clip"])
def test_onnx_actions_at_the_bounds(squash, tmp_path):
    """Thousands of states, many of which ask for more than the bounds allow."""
    policy = lively(make_policy(Box(), jax.random.key(1), widths=(8, 5), squash=squash), scale=1000.0)
    states = 3.0 * np.random.default_rng(0).normal(size=(6, 2000, 3)).astype(np.float32)
    actor = PolicyRunner(policy.mean())
    wanted = np.stack([actor.act(step) for step in states])
    given = onnx_actions(policy, tmp_path / "policy.onnx", states)
    real, chosen = np.abs(given - wanted)[..., :2], np.abs(given - wanted)[..., 2:]
    assert real.max() < 2e-3, "a steep network: outputs of a thousand, and the actions of one range"
    assert (chosen > 1e-3).mean() < 1e-3, "two options that are alike to the last digit may change places"
    assert ((given[..., :2] == -1.0) | (given[..., :2] == 3.0)).mean() > 0.3
    assert given[..., :2].min() >= -1.0
    assert given[..., :2].max() <= 3.0


@needs_onnx
def test_onnx_says_what_stands_where(tmp_path):
    path = export_policy(make_policy(Box(), jax.random.key(1), widths=(8,)), tmp_path / "policy.onnx")
    told = {one.key: json.loads(one.value) for one in onnx.load(path).metadata_props}
    assert told["model"] == "box"
    assert told["state"] == ["place[0]", "place[1]", "place[2]"]
    assert told["action"][:3] == ["push[0]", "push[1]", "gear[0]"]


@needs_onnx
def test_onnx_of_a_table(tmp_path):
    model = sidestep.load_model("boxpushing")
    states, actions = model.finite.reward.shape
    encoding = np.asarray(model.finite.encoding)
    table = np.array(jax.nn.one_hot(jnp.arange(states) % actions, actions))
    given = onnx_actions(TabularPolicy(jnp.asarray(table), model), tmp_path / "certain.onnx", encoding[None])
    np.testing.assert_array_equal(given[0], table)
    table[7] = [0.0, 0.3, 0.7, 0.0, 0.0]
    random = np.random.default_rng(0).random(4000).astype(np.float32)
    mixed = TabularPolicy(jnp.asarray(table), model)
    drawn = onnx_actions(mixed, tmp_path / "mixed.onnx", np.tile(encoding[7], (1, 4000, 1)), random)
    np.testing.assert_allclose(drawn[0].mean(axis=0), table[7], atol=0.03)


@needs_onnx
def test_onnx_of_the_optimum_over_a_horizon(tmp_path):
    """By the same draw as the NumPy file makes, along random states and steps beyond the horizon."""
    model = sidestep.load_model("boxpushing?horizon=4")
    states, actions = model.finite.reward.shape
    rng = np.random.default_rng(0)
    policy = HorizonPolicy(
        jnp.asarray([0.25, 0.75], jnp.float32),
        jnp.asarray(rng.integers(actions, size=(3, 2, states)), jnp.int32),
        jnp.asarray([[0, 1, 2, 1], [2, 0, 1, 0]], jnp.int32),
        jnp.asarray(rng.integers(2, size=(states, actions)), jnp.int32),
        model,
    )
    random = rng.random(200).astype(np.float32)
    along = np.asarray(model.finite.encoding)[rng.integers(states, size=(6, 200))]
    given = onnx_actions(policy, tmp_path / "policy.onnx", along, random)
    export_policy(policy, tmp_path / "policy.py")
    alone = load_object(f"{tmp_path / 'policy.py'}:Policy", "policy")()

    class Drawn:
        def random(self, rows):
            return random

    wanted = np.stack([alone.act(step, Drawn()) for step in along])
    np.testing.assert_array_equal(given, wanted)


def test_without_the_package_one_sentence_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.delitem(sys.modules, "sidestep.deploy.onnx_policy", raising=False)  # as in a fresh process
    with pytest.raises(InputError, match=r"pip install 'sidestep\[onnx\]'"):
        export_policy(make_policy(Box(), jax.random.key(1), widths=(8,)), tmp_path / "policy.onnx")


def test_other_policies_are_refused(tmp_path):
    with pytest.raises(InputError, match="this is a UniformPolicy"):
        export_numpy(sidestep.UniformPolicy(Box()), tmp_path / "policy.py")


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    reference = "driving?horizon=5"
    policy = make_policy(sidestep.load_model(reference), jax.random.key(1), widths=(8,))
    save_policy(folder / "policy.safetensors", policy, reference)
    config = {"format": 1, "kind": "plan", "model": reference, "categories": ["none", "mild", "severe"]}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_run_is_exported_by_command_and_by_method(run, tmp_path, capsys):
    assert main(["export", str(run), str(tmp_path / "a.py")]) == 0
    assert sidestep.load(run).export(tmp_path / "b.py") == tmp_path / "b.py"
    assert (tmp_path / "a.py").read_text() == (tmp_path / "b.py").read_text()
    assert str(tmp_path / "a.py") in capsys.readouterr().out


def test_bad_input_of_the_command(run, tmp_path, capsys):
    assert main(["export", str(run), str(tmp_path / "policy.txt")]) == 2
    assert "ends in .py or .onnx" in capsys.readouterr().err
    assert main(["export", str(tmp_path / "nowhere"), str(tmp_path / "policy.py")]) == 2
    assert "config.json" in capsys.readouterr().err
    (run / "policy.safetensors").unlink()
    assert main(["export", str(run), str(tmp_path / "policy.py")]) == 2
    assert "no policy yet" in capsys.readouterr().err
