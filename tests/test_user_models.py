"""Models of the user's own: RDDL in one file or two, Python objects, and what `check` says of good and bad ones."""

import textwrap
import warnings
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sidestep.cli.work import tell_notes
from sidestep.core.errors import InputError
from sidestep.core.model import FunctionPolicy, Space, Spec, UniformPolicy, Variable, rollout
from sidestep.labels.rules import load_rule
from sidestep.models import load_model
from sidestep.models.check import check_model
from sidestep.planning.zero_gradient import has_zero_gradient

TANK_DOMAIN = """
// A tank with valves and a pump. Rain comes and goes; after twelve openings the valves are worn out.
domain tank {
    types { pipe : object; };
    pvariables {
        WIDTH(pipe) : { non-fluent, real, default = 1.0 };
        CAPACITY    : { non-fluent, real, default = 10.0 };
        WET         : { non-fluent, real, default = 0.3 };

        leaving     : { interm-fluent, real };

        water       : { state-fluent, real, default = 5.0 };
        raining     : { state-fluent, bool, default = false };
        openings    : { state-fluent, int, default = 0 };
        flow(pipe)  : { state-fluent, real, default = 0.0 };

        valve(pipe) : { action-fluent, bool, default = false };
        pump        : { action-fluent, real, default = 0.0 };
    };
    cpfs {
        raining' = Bernoulli(WET);
        leaving = sum_{?p : pipe} [valve(?p) * WIDTH(?p)];
        flow'(?p) = if (valve(?p)) then WIDTH(?p) else 0.0;
        openings' = openings + (sum_{?p : pipe} [valve(?p)]);
        water' = max[0.0, min[CAPACITY, water + pump + raining - leaving]];
    };
    reward = -abs[water - 7.0] - 0.1 * openings - (if (raining) then 1.0 else 0.0);
    action-preconditions {
        pump >= 0.0;
        pump <= 2.0;
    };
    termination {
        water <= 0.5;
        openings >= 12;
    };
}
"""

TANK_INSTANCE = """
non-fluents two_pipes {
    domain = tank;
    objects { pipe : { p1, p2 }; };
    non-fluents { WIDTH(p2) = 0.5; };
}
instance small_tank {
    domain = tank;
    non-fluents = two_pipes;
    init-state { water = 6.0; };
    max-nondef-actions = pos-inf;
    horizon = 15;
    discount = 0.95;
}
"""

# Real and smooth, with bounds that depend on the state on both sides; no objects and no non-fluents block.
CART = """
domain cart {
    pvariables {
        place  : { state-fluent, real, default = 2.0 };
        speed  : { state-fluent, real, default = 0.0 };
        push   : { action-fluent, real, default = 0.0 };
        turn   : { action-fluent, real, default = 0.0 };
    };
    cpfs {
        place' = place + 0.1 * speed;
        speed' = speed + 0.1 * push - 0.01 * sin[turn] + Normal(0.0, 0.01);
    };
    reward = -pow[place, 2] - 0.1 * pow[push, 2] - 0.1 * turn * turn;
    action-preconditions {
        push <= 1.0 + abs[place];
        -1.0 - abs[place] <= push;
        turn >= -3.0;
        turn < 3.0;
    };
}
instance cart_from_two {
    domain = cart;
    horizon = 10;
    discount = 1.0;
}
"""


def noise(formula, state="real, default = 1.0"):
    """A model of one number that `formula` moves."""
    return textwrap.dedent(f"""
        domain noise {{
            pvariables {{
                SHAPE : {{ non-fluent, real, default = 2.5 }};
                x : {{ state-fluent, {state} }};
                push : {{ action-fluent, real, default = 0.0 }};
            }};
            cpfs {{ x' = {formula}; }};
            reward = -x - push;
            action-preconditions {{ push >= 0.0; push <= 1.0; }};
        }}
        instance i {{ domain = noise; horizon = 5; discount = 0.9; }}
        """)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("models")
    (path / "tank.rddl").write_text(TANK_DOMAIN + TANK_INSTANCE)
    (path / "domain.rddl").write_text(TANK_DOMAIN)
    (path / "instance.rddl").write_text(TANK_INSTANCE)
    (path / "cart.rddl").write_text(CART)
    return path


@pytest.fixture(scope="module")
def tank(folder):
    return load_model(str(folder / "tank.rddl"))


@pytest.fixture(scope="module")
def cart(folder):
    return load_model(str(folder / "cart.rddl"))


def written(folder, name, text):
    (folder / f"{name}.rddl").write_text(text)
    return str(folder / f"{name}.rddl")


# RDDL.


def test_kinds_bounds_and_names(tank):
    assert tank.spec.state.names == ("water", "raining", "openings", "flow[p1]", "flow[p2]")
    assert [variable.kind for variable in tank.spec.state.variables] == ["real", "bool", "int", "real"]
    assert tank.spec.action.names == ("valve[p1]", "valve[p2]", "pump")
    np.testing.assert_array_equal(tank.spec.action.low, [0, 0, 0])
    np.testing.assert_array_equal(tank.spec.action.high, [1, 1, 2])
    assert (tank.spec.horizon, tank.spec.discount, tank.spec.name) == (15, 0.95, "tank")
    np.testing.assert_array_equal(tank.reset(None), [6, 0, 0, 0, 0])


def simulator_of(*paths):
    """pyRDDLGym's own simulator, read by its own reader and parser."""
    from pyRDDLGym.core.compiler.model import RDDLLiftedModel
    from pyRDDLGym.core.parser.parser import RDDLParser
    from pyRDDLGym.core.parser.reader import RDDLReader
    from pyRDDLGym.core.simulator import RDDLSimulator

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parser = RDDLParser(lexer=None, verbose=False)
        parser.build()
        tree = parser.parse(RDDLReader(*map(str, paths)).rddltxt)
        return RDDLSimulator(RDDLLiftedModel(tree), keep_tensors=True, rng=np.random.default_rng(3))


def test_steps_equal_those_of_the_simulator(tank, folder):
    """Everything but the draw of the weather; each step starts from the simulator's state."""
    simulator = simulator_of(folder / "domain.rddl", folder / "instance.rddl")
    rng, step = np.random.default_rng(0), jax.jit(tank.step)
    state, _ = simulator.reset()
    ends = rains = 0
    for t in range(150):
        vector = np.concatenate([np.ravel(state[v.name]).astype(np.float32) for v in tank.spec.state.variables])
        valve, pump = rng.random(2) < 0.3, 2.0 * rng.random()
        ours, reward, done = step(vector, np.array([*valve, pump], np.float32), jax.random.key(t))
        state, expected_reward, expected_done = simulator.step({"valve": valve, "pump": pump})
        for name in ("water", "openings", "flow"):
            np.testing.assert_allclose(tank.spec.state.take(ours, name), np.ravel(state[name]), rtol=1e-6, atol=1e-6)
        assert float(reward) == pytest.approx(expected_reward, rel=1e-5)
        assert bool(done) == bool(expected_done)
        assert float(ours[1]) in (0.0, 1.0)
        ends, rains = ends + bool(done), rains + int(state["raining"])
        if done:
            state, _ = simulator.reset()
    assert ends > 5
    assert rains > 20


def test_rollouts_keep_booleans_and_integers_and_end_where_they_should(tank):
    trajectory = rollout(tank, UniformPolicy(tank), jax.random.key(0), 400)
    mask, length = np.asarray(trajectory.mask), np.asarray(trajectory.length)
    states = np.asarray(trajectory.states)
    assert set(np.unique(states[mask][:, 1])) == {0.0, 1.0}
    assert np.array_equal(states[mask][:, 2], np.round(states[mask][:, 2]))
    assert set(np.unique(np.asarray(trajectory.actions)[mask][:, :2])) == {0.0, 1.0}
    weather = states[:, 1:, 1][mask[:, 1:]]  # the first state is dry
    assert weather.mean() == pytest.approx(0.3, abs=4 * np.sqrt(0.21 / weather.size))
    # A state in which the model has ended is never acted in; a trajectory that is short has ended.
    over = (states[..., 0] <= 0.5) | (states[..., 2] >= 12)
    assert not np.any(over & mask)
    assert length.min() < 15
    assert length.max() == 15


def test_two_files_are_the_same_model(tank, folder):
    two = load_model(f"{folder / 'domain.rddl'}:{folder / 'instance.rddl'}")
    key, action = jax.random.key(5), jnp.asarray([1.0, 0.0, 1.5])
    for ours, theirs in zip(
        two.step(two.reset(key), action, key), tank.step(tank.reset(key), action, key), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


def test_horizon_option_replaces_that_of_the_file(folder):
    assert load_model(f"{folder / 'tank.rddl'}?horizon=4").spec.horizon == 4


def test_check_says_what_a_discrete_model_can_be_used_for(tank, key):
    findings = check_model(tank, key)
    assert not [finding for finding in findings if finding.verdict == "bad"]
    said = {finding.what: finding.found for finding in findings}
    assert "none" in said["gradient"]
    assert "pathwise" not in said["methods"]
    assert "PPO and score function" in said["methods"]
    notes = " ".join(finding.found for finding in findings if finding.what == "note")
    for fluent in ("'raining'", "'openings'", "'valve'"):
        assert fluent in notes


@pytest.mark.mixes_types("pow[x, 2] of its text: JAX differentiates it by promoting the exponent")
def test_check_says_what_a_smooth_model_can_be_used_for(cart, folder, key):
    findings = check_model(cart, key, lambda: load_model(str(folder / "cart.rddl"), double=True))
    assert {finding.verdict for finding in findings} == {"good"}
    said = {finding.what: finding.found for finding in findings}
    assert "pathwise (exact gradient)" in said["methods"]
    assert "32 of 32 directions" in said["gradient"]
    assert said["bounds"] == "depend on the state"


def test_bounds_of_both_sides_may_depend_on_the_state(cart):
    low, high = cart.action_bounds(jnp.asarray([-2.5, 0.0]))
    np.testing.assert_allclose(low, [-3.5, -3.0])
    np.testing.assert_allclose(high, [3.5, 3.0], rtol=1e-5)  # turn < 3 leaves a small margin
    pushing = rollout(cart, FunctionPolicy(lambda state, clock, key: jnp.full(2, 9.0)), jax.random.key(0), 3)
    np.testing.assert_allclose(pushing.actions[..., 0], 1.0 + np.abs(pushing.states[..., 0]), rtol=1e-6)


def test_relaxed_discrete_model_gives_gradients(folder):
    relaxed = load_model(f"{folder / 'tank.rddl'}?relaxed")
    assert relaxed.spec.gradient == "straight-through"
    state = jnp.asarray([6.0, 0.0, 0.0, 0.0, 0.0])
    gradient = jax.grad(lambda a: jnp.sum(relaxed.step(state, a, jax.random.key(0))[0]))(jnp.asarray([0.4, 0.6, 1.0]))
    assert np.all(np.isfinite(gradient))
    assert np.all(np.asarray(gradient) != 0)


def test_gamma_noise_whose_shape_depends_on_the_state_keeps_its_gradient(folder):
    model = load_model(written(folder, "shape", noise("Gamma(1.0 + x + push, 0.5)")))
    keys = jax.random.split(jax.random.key(0), 4000)

    def after(push, key):
        return model.step(jnp.ones(1), push, key)[0][0]

    samples, slopes = jax.jit(jax.vmap(jax.value_and_grad(after), in_axes=(None, 0)))(jnp.full(1, 0.5), keys)
    assert np.mean(samples) == pytest.approx(2.5 * 0.5, rel=0.05)
    assert np.mean(slopes) == pytest.approx(0.5, rel=0.05)  # d(shape * scale) / d(push)


def test_gamma_noise_of_fixed_shape_and_moving_scale(folder):
    from scipy import stats

    model = load_model(written(folder, "scale", noise("Gamma(SHAPE, 1.0 + push)")))
    keys = jax.random.split(jax.random.key(0), 4000)
    samples = jax.jit(jax.vmap(lambda key: model.step(jnp.ones(1), jnp.ones(1), key)[0][0]))(keys)
    assert stats.kstest(np.asarray(samples), stats.gamma(2.5, scale=2.0).cdf).pvalue > 1e-3


def test_gamma_function(folder):
    model = load_model(written(folder, "function", noise("gamma[x] + 0.5 * lngamma[x]")))
    after = model.step(jnp.full(1, 4.0), jnp.zeros(1), jax.random.key(0))[0]
    assert float(after[0]) == pytest.approx(6.0 + 0.5 * np.log(6.0), rel=1e-5)


def test_what_the_model_forbids_is_told_by_check_and_not_as_a_note(folder, key, capsys):
    text = TANK_DOMAIN.replace("pump <= 2.0;", "pump <= 2.0; (sum_{?p : pipe} [valve(?p)]) <= 1;")
    model = load_model(written(folder, "limits", text + TANK_INSTANCE.replace("pos-inf", "1")))
    assert model.spec.unenforced == ()
    assert not any("enforced" in note for note in model.spec.notes)
    said = {finding.what: finding for finding in check_model(model, key)}
    assert said["rules"].verdict == "good"
    assert said["rules"].found == "all 4 kept on these trajectories"
    trajectory = rollout(model, UniformPolicy(model), key, 50)
    assert np.asarray(trajectory.actions != 0)[np.asarray(trajectory.mask)].sum(axis=1).max() == 1
    tell_notes(model.spec, quiet=True)
    assert capsys.readouterr().err == ""
    tell_notes(model.spec, quiet=False)
    assert "note: the state-fluent 'raining' is not real" in capsys.readouterr().err


AGGREGATED = {
    "max": "max_{?p : pipe} [WIDTH(?p) * valve(?p)]",
    "min": "min_{?p : pipe} [WIDTH(?p) + valve(?p)]",
    "argmax": "if ((argmax_{?p : pipe} [WIDTH(?p)]) == @p1) then 1.0 else 0.0",
    "Discrete": "if ((Discrete_{?p : pipe} [CHANCE(?p)]) == @p1) then 1.0 else 0.0",
    "UnnormDiscrete": "if ((UnnormDiscrete_{?p : pipe} [WIDTH(?p)]) == @p1) then 1.0 else 0.0",
}


@pytest.mark.parametrize("name", AGGREGATED)
def test_every_aggregation_of_the_language_is_taken(folder, name):
    text = TANK_DOMAIN.replace("sum_{?p : pipe} [valve(?p) * WIDTH(?p)]", AGGREGATED[name])
    text = text.replace("types { pipe : object; };", "types { pipe : { @p1, @p2 }; };")
    text = text.replace("WIDTH(pipe) :", "CHANCE(pipe) : { non-fluent, real, default = 0.5 };\n        WIDTH(pipe) :")
    instance = TANK_INSTANCE.replace("objects { pipe : { p1, p2 }; };", "").replace("WIDTH(p2)", "WIDTH(@p2)")
    model = load_model(written(folder, "aggregated", text + instance))
    after = model.step(model.reset(None), jnp.asarray([1.0, 1.0, 0.0]), jax.random.key(0))[0]
    leaving = {"max": (1.0,), "min": (1.5,), "argmax": (1.0,)}.get(name, (0.0, 1.0))
    assert 6.0 - float(after[0]) in leaving


def test_a_comment_may_hold_any_bytes(tank, folder):
    text = (TANK_DOMAIN + TANK_INSTANCE).encode().replace(b"// A tank", b"// Ein Beh\xe4lter: A tank")
    (folder / "latin.rddl").write_bytes(text)
    model = load_model(str(folder / "latin.rddl"))
    np.testing.assert_array_equal(model.reset(None), tank.reset(None))
    (folder / "latin.rddl").write_bytes(text.replace(b"domain tank", b"domain t\xe4nk"))
    with pytest.raises(InputError, match=r"latin\.rddl:3: expected UTF-8 text"):
        load_model(str(folder / "latin.rddl"))


def test_object_valued_state_is_an_index(folder):
    text = """
    domain machine {
        types { mode : { @idle, @busy, @broken }; };
        pvariables {
            now  : { state-fluent, mode, default = @busy };
            heat : { state-fluent, real, default = 0.0 };
            push : { action-fluent, real, default = 0.0 };
        };
        cpfs {
            now' = if (push > 0.5) then @broken else now;
            heat' = heat + push * (now == @busy);
        };
        reward = if (now == @broken) then -1.0 else 0.0;
        action-preconditions { push >= 0.0; push <= 1.0; };
    }
    instance i { domain = machine; horizon = 3; discount = 1.0; }
    """
    model = load_model(written(folder, "machine", text))
    assert model.spec.state.variables[0].kind == "int"
    np.testing.assert_array_equal(model.reset(None), [1.0, 0.0])
    state, reward, _ = model.step(model.reset(None), jnp.ones(1), jax.random.key(0))
    np.testing.assert_array_equal(state, [2.0, 1.0])
    assert float(reward) == 0.0
    assert float(model.step(state, jnp.zeros(1), jax.random.key(0))[1]) == -1.0


# Python objects.

PYTHON = """
import jax, jax.numpy as jnp
from sidestep.core.model import Space, Spec, Variable

SPEC = Spec("point", Space((Variable("x"),)), Space((Variable("push", "real", 1, -1.0, 1.0),)), 12, ends=False)

class Point:
    spec = SPEC

    def reset(self, key):
        return jnp.zeros(1)

    def step(self, state, action, key):
        after = state + action + 0.1 * jax.random.normal(key, (1,))
        return after, -jnp.sum((after - 3.0) ** 2), jnp.asarray(False)

class Bounded(Point):
    def action_bounds(self, state):
        return -jnp.ones(1), 0.5 + 0.5 * jax.nn.sigmoid(state)

def build():
    return Point()

point = Point()
number = 3

class NoStep:
    spec = SPEC
    def reset(self, key):
        return jnp.zeros(1)

class NoSpec(Point):
    spec = "one number"

def needs(argument):
    return Point()

def fails():
    raise RuntimeError("no such thing")
"""


@pytest.fixture(scope="module")
def python_file(folder):
    path = folder / "mine.py"
    path.write_text(PYTHON)
    return path


@pytest.mark.parametrize("name", ["point", "Point", "build", "Bounded"])
def test_python_objects_classes_and_factories(python_file, name):
    model = load_model(f"{python_file}:{name}")
    trajectory = rollout(model, UniformPolicy(model), jax.random.key(0), 3)
    assert trajectory.states.shape == (3, 12, 1)
    low, high = model.action_bounds(jnp.zeros(1))
    assert (float(low[0]), float(high[0])) == (-1.0, 0.75 if name == "Bounded" else 1.0)


def test_check_of_a_python_object(python_file, key):
    reference = f"{python_file}:Bounded"
    findings = check_model(load_model(reference), key, lambda: load_model(reference, double=True))
    assert {finding.verdict for finding in findings} == {"good"}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("absent", "there is no 'absent' in this file"),
        ("number", "this object has no 'spec'"),
        ("NoStep", "this object has no 'step'"),
        ("NoSpec", "must be a sidestep.Spec, not a str"),
        ("needs", "calling it for a model failed: TypeError"),
        ("fails", "calling it for a model failed: RuntimeError: no such thing"),
    ],
)
def test_python_objects_that_are_no_models(python_file, name, words):
    with pytest.raises(InputError) as caught:
        load_model(f"{python_file}:{name}")
    assert words in str(caught.value)
    assert str(python_file) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [("x = 1\nif x\n", 2, "SyntaxError"), ("x = 1\ny = 2\nx.append(y)\n", 3, "AttributeError")],
)
def test_python_files_that_do_not_run(folder, text, line, words):
    path = folder / "broken.py"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        load_model(f"{path}:model")
    assert str(caught.value).startswith(f"{path}:{line}: cannot be run: {words}")


# Every way in which `check` can find a model bad.


class Good:
    """x moves with the action; each bad model below spoils one thing."""

    spec = Spec(
        "good", Space((Variable("x", size=2),)), Space((Variable("push", size=2, low=-1.0, high=1.0),)), 6, ends=False
    )

    def reset(self, key):
        return jnp.zeros(2)

    def step(self, state, action, key):
        return state + action, -jnp.sum((state - 1.0) ** 2), jnp.asarray(False)

    def action_bounds(self, state):
        return -jnp.ones(2), jnp.ones(2)


class ResetShape(Good):
    def reset(self, key):
        return jnp.zeros(3)


class StepShape(Good):
    def step(self, state, action, key):
        return jnp.zeros(3), jnp.asarray(0.0), jnp.asarray(False)


class RewardShape(Good):
    def step(self, state, action, key):
        return state, state, jnp.asarray(False)


class DoneKind(Good):
    def step(self, state, action, key):
        return state, jnp.sum(state), jnp.asarray(0.0)


class TwoResults(Good):
    def step(self, state, action, key):
        return state, jnp.sum(state)


class IntegerState(Good):
    def reset(self, key):
        return jnp.zeros(2, int)


class OtherWidth(Good):
    def step(self, state, action, key):
        return state.astype(jnp.float16), jnp.sum(state), jnp.asarray(False)


class Raises(Good):
    def step(self, state, action, key):
        raise ValueError("the pump is dry")


class BoundsShape(Good):
    def action_bounds(self, state):
        return -jnp.ones(3), jnp.ones(3)


class BoundsCrossed(Good):
    def action_bounds(self, state):
        return jnp.asarray([0.0, 2.0]), jnp.ones(2)


class BoundsMissing(Good):
    def action_bounds(self, state):
        return -jnp.ones(2), jnp.asarray([1.0, jnp.nan])


class Impure(Good):
    def __init__(self):
        self.calls = 0

    def step(self, state, action, key):
        self.calls += 1
        return state + self.calls, jnp.sum(state), jnp.asarray(False)


class OwnDice(Good):
    def __init__(self):
        self.dice = np.random.default_rng(0)

    def step(self, state, action, key):
        return state + float(self.dice.random()), jnp.sum(state), jnp.asarray(False)


class Branches(Good):
    def step(self, state, action, key):
        return (state if float(state[0]) > 0 else state + action), jnp.sum(state), jnp.asarray(False)


class Overflows(Good):
    def step(self, state, action, key):
        return 1e20 * (1.0 + state), -jnp.sum(state), jnp.asarray(False)


class RewardIsNan(Good):
    def step(self, state, action, key):
        return state + 1.0, jnp.log(2.0 - jnp.sum(state)), jnp.asarray(False)


class Rounded(Good):
    def step(self, state, action, key):
        return jnp.round(state + action), -jnp.sum((state - 1.0) ** 2), jnp.asarray(False)


class Hidden(Good):
    def step(self, state, action, key):
        return state + jax.lax.stop_gradient(action), -jnp.sum((state - 1.0) ** 2), jnp.asarray(False)


class WrongGradient(Good):
    def step(self, state, action, key):
        hidden = jax.lax.stop_gradient(action)
        return state + hidden + 0.1 * action, -jnp.sum((state - 1.0) ** 2), jnp.asarray(False)


class InfiniteGradient(Good):
    def step(self, state, action, key):
        return state + action, jnp.sum(jnp.sqrt(0.0 * action)), jnp.asarray(False)


class NoDerivative(Good):
    def step(self, state, action, key):
        count = jax.lax.while_loop(lambda x: jnp.sum(x) < 3.0, lambda x: x + 1.0, action)
        return state + count, jnp.sum(state), jnp.asarray(False)


class Choosing(Good):
    """Straight-through: the action is a choice. Nothing it does changes the reward."""

    spec = Spec(
        "choosing",
        Space((Variable("x", size=2),)),
        Space((Variable("way", "one-hot", 2, 0.0, 1.0),)),
        6,
        gradient="straight-through",
        ends=False,
    )

    def step(self, state, action, key):
        return state + action, jnp.asarray(-1.0), jnp.asarray(False)

    def action_bounds(self, state):
        return jnp.zeros(2), jnp.ones(2)


class Detached(Choosing):
    def step(self, state, action, key):
        return jax.lax.stop_gradient(state + action), jnp.sum(state), jnp.asarray(False)


BAD = [
    (ResetShape, "shapes", "reset's state is float32 of shape (3,), expected floats of shape (2,)"),
    (StepShape, "shapes", "step's state has shape (3,), expected (2,)"),
    (RewardShape, "shapes", "step's reward has shape (2,), expected ()"),
    (DoneKind, "shapes", "done must be a boolean, found float32"),
    (TwoResults, "shapes", "step must return (state, reward, done)"),
    (IntegerState, "shapes", "reset's state is int32 of shape (2,), expected floats of shape (2,)"),
    (OtherWidth, "shapes", "states must keep one float type, found float32 then float16"),
    (Raises, "runs", "ValueError: the pump is dry"),
    (BoundsShape, "bounds", "two vectors of 2, found (3,) and (3,)"),
    (BoundsCrossed, "bounds", "the lower bound of 'push[1]' lies above its upper bound"),
    (BoundsMissing, "bounds", "not a number"),
    (Impure, "purity", "the same key gave two different results"),
    (OwnDice, "purity", "the same key gave two different results"),
    (Branches, "runs", "a compiled step failed"),
    (Overflows, "values", "state 'x[0]' is inf at step 2"),
    (RewardIsNan, "values", "the reward is -inf at step 1"),
    (Hidden, "gradient", "zero in every direction"),
    (WrongGradient, "gradient", "disagrees with central differences in 32 of 32 directions"),
    (InfiniteGradient, "gradient", "not finite in 32 of 32 directions"),
    (Detached, "gradient", "zero everywhere: no state depends on the actions"),
    (NoDerivative, "runs", "the gradient of a rollout failed"),
]


@pytest.mark.parametrize(("bad", "what", "words"), BAD, ids=[case[0].__name__ for case in BAD])
def test_check_finds_what_is_bad(bad, what, words, key):
    finding = check_model(bad(), key)[-1]
    assert finding.verdict == "bad"
    assert finding.what == what
    assert words in finding.found


def test_a_return_that_random_actions_do_not_change_is_no_fault(key):
    findings = {finding.what: finding for finding in check_model(Choosing(), key)}
    assert findings["gradient"].verdict == "note"
    assert "pathwise (straight-through gradient)" in findings["methods"].found


def test_a_return_made_of_steps_is_no_fault(key):
    findings = {finding.what: finding for finding in check_model(Rounded(), key)}
    assert findings["gradient"].verdict == "note"
    assert "piecewise constant" in findings["gradient"].found
    assert "PPO and score function" in findings["methods"].found
    assert has_zero_gradient(Rounded())  # and `plan` takes them


def test_check_names_the_line_of_the_user(key):
    finding = check_model(Raises(), key)[-1]
    line = Raises.step.__code__.co_firstlineno + 1
    assert f"a first step failed at {__file__}:{line}: " in finding.found


def test_the_example_of_the_tutorial_labels_days_by_their_longest_humid_spell():
    folder = Path(__file__).parents[1] / "examples"
    model = load_model(str(folder / "greenhouse.rddl"))
    rule = load_rule(f"{folder / 'mould.py'}:rule", model)
    days = rollout(model, UniformPolicy(model), jax.random.key(0), 3)
    humidity = model.spec.state.slices["humidity"]
    states = np.zeros_like(days.states)
    for day, hours in enumerate((2, 4, 6)):
        states[day, 3 : 3 + hours, humidity] = 1.5
    assert np.asarray(rule.label(replace(days, states=states))).tolist() == [0, 1, 2]
