"""Safety models: padding changes nothing, probabilities are ordered, gradients are right, files are bit-identical."""

from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidestep.core.constraints import Scale
from sidestep.core.errors import InputError
from sidestep.core.model import Trajectory
from sidestep.safety.base import Standardisation, predict
from sidestep.safety.explain import blame, explanation
from sidestep.safety.io import About, load_safety, make_safety, safety_header, save_safety

STATE, ACTION, STEPS = 3, 2, 9
MODELS = {
    "classifier": {"layers": 2, "units": 6, "dropout": 0.5},
    "lstm": {"cell": "lstm", "layers": 1, "units": 5, "dropout": 0.0},
    "hazard": {"units": 6},
    "hazard-lstm": {"cell": "lstm", "units": 5, "layers": 2},
    "markov": {"hidden": (7, 5)},
    "share": {"hidden": (7, 5)},
    "counted": {"limit": 4, "alike": (0, 3, 3, 2)},
    "counted-run": {"statistic": "run", "limit": 3},
    "counted-share": {"statistic": "share", "limit": 9},
    "families": {"units": 4, "limit": 3, "alike": (0, 3)},
}
KIND_OF = {
    "lstm": "classifier",
    "hazard-lstm": "hazard",
    "counted-run": "counted",
    "counted-share": "counted",
}


def make(name, categories=3, members=1):
    model = make_safety(
        KIND_OF.get(name, name), STATE, ACTION, categories, key=jax.random.key(3), members=members, **MODELS[name]
    )
    mean, deviation = jnp.arange(5.0) / 3, jnp.linspace(0.5, 2.0, 5)
    return model.with_standardisation(Standardisation(mean, deviation, jnp.asarray(100.0)))


def batch(count=4, seed=0, steps=STEPS):
    random = np.random.default_rng(seed)
    return Trajectory(
        jnp.asarray(random.normal(size=(count, steps, STATE)), jnp.float32),
        jnp.asarray(random.normal(size=(count, steps, ACTION)), jnp.float32),
        jnp.zeros((count, steps)),
        jnp.asarray(random.integers(1, steps + 1, count)),
    )


every_model = pytest.mark.parametrize("name", MODELS)


@every_model
@settings(max_examples=25)
@given(length=st.integers(1, STEPS), rubbish=st.sampled_from([0.0, 1e30, np.inf, np.nan]), seed=st.integers(0, 99))
def test_padding_changes_nothing(name, length, rubbish, seed):
    """The first `length` steps followed by rubbish, in rows of two widths, against zeros in its place."""
    predict = compiled(name)
    one = batch(1, seed)
    plain = Trajectory(one.states, one.actions, one.rewards, jnp.array([length]))
    soiled = [jnp.where(plain.mask[..., None], part, rubbish) for part in (one.states, one.actions)]
    wide = [jnp.pad(part, [(0, 0), (0, 12), (0, 0)], constant_values=rubbish) for part in soiled]
    clean = predict(one.states, one.actions, plain.length)
    np.testing.assert_array_equal(predict(*soiled, plain.length), clean)
    np.testing.assert_allclose(predict(*wide, plain.length), clean, rtol=1e-5, atol=1e-6)


@cache
def compiled(name):
    """The answers of a model: thousands of small programs become one."""
    model = make(name)
    return jax.jit(lambda states, actions, length: model.log_probabilities(states, actions, length))


@every_model
def test_a_trajectory_cut_to_its_own_length_is_the_same(name):
    answers, one = compiled(name), batch(1, seed=4)
    for length in (1, 5):
        whole = answers(one.states, one.actions, jnp.array([length]))[0]
        cut = answers(one.states[0, :length], one.actions[0, :length], jnp.asarray(length))
        np.testing.assert_allclose(cut, whole, rtol=1e-5, atol=1e-6)


@every_model
def test_alone_and_in_a_batch_are_the_same(name):
    model, many = make(name), batch(7)
    together = predict(model, many)
    for row in range(7):
        np.testing.assert_allclose(predict(model, many[row : row + 1])[0], together[row], rtol=1e-5, atol=1e-7)


@every_model
@pytest.mark.parametrize(("categories", "members"), [(2, 1), (4, 3)])
def test_probabilities_sum_to_one_and_survival_is_ordered(name, categories, members):
    model, many = make(name, categories, members), batch(16)
    parts = (many.states, many.actions, many.length)
    both = eqx.filter_jit(lambda model, *parts: (model.log_probabilities(*parts), model.log_survival(*parts)))
    log_probabilities, survival = map(np.asarray, both(model, *parts))
    np.testing.assert_allclose(np.exp(log_probabilities).sum(axis=1), 1.0, rtol=1e-5)
    assert survival.shape == (16, categories - 1)
    assert (np.diff(survival, axis=1) >= -1e-6).all()
    assert (survival <= 1e-6).all()


@every_model
def test_gradients_agree_with_finite_differences(name):
    with jax.enable_x64(True):
        model = jax.tree.map(lambda leaf: leaf.astype(jnp.float64) if eqx.is_inexact_array(leaf) else leaf, make(name))
        one = jax.tree.map(lambda leaf: leaf.astype(jnp.float64) if eqx.is_inexact_array(leaf) else leaf, batch(1))
        random = np.random.default_rng(1)
        directions = [jnp.asarray(random.normal(size=part.shape)) for part in (one.states, one.actions)]

        @jax.jit
        def total(step):
            states, actions = (p + step * d for p, d in zip((one.states, one.actions), directions, strict=True))
            return jnp.sum(model.log_probabilities(states, actions, one.length) * jnp.array([[1.0, -0.5, 0.3]]))

        numeric = (total(1e-6) - total(-1e-6)) / 2e-6
        np.testing.assert_allclose(jax.grad(total)(0.0), numeric, rtol=1e-5, atol=1e-9)


@every_model
@pytest.mark.parametrize("members", [1, 2])
def test_saved_and_loaded_predicts_bit_for_bit(name, members, tmp_path):
    model, many = make(name, members=members), batch(20)
    file = tmp_path / "model.safetensors"
    save_safety(file, model, Scale(), ("a", "b", "c", "d", "e"), {"labels": 7})
    again = load_safety(file)
    np.testing.assert_array_equal(predict(model, many), predict(again, many))
    assert safety_header(file).about == About(labels=7)
    assert safety_header(file).categories == ("none", "mild", "severe")


@pytest.mark.parametrize("content", [b"", b"rubbish", b"\x08\x00\x00\x00\x00\x00\x00\x00{}      "])
def test_files_that_are_no_safety_models_are_refused_in_one_sentence(content, tmp_path):
    file = tmp_path / "bad.safetensors"
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"bad\.safetensors"):
        load_safety(file)
    with pytest.raises(InputError, match="no such file"):
        load_safety(tmp_path / "missing.safetensors")


def compiled_stream(name, members):
    model = make(name, members=members)
    return (
        jax.jit(lambda: model.start()),
        jax.jit(lambda memory, state, action: model.advance(memory, state, action)),
        jax.jit(lambda memory: (model.risk(memory), model.features(memory))),
        jax.jit(lambda states, actions, length: model.log_probabilities(states, actions, length)),
    )


@every_model
@pytest.mark.parametrize("members", [1, 2])
def test_streaming_ends_where_the_whole_trajectory_does(name, members):
    one = batch(1, seed=5)
    length = int(one.length[0])
    start, advance, seen, answers = compiled_stream(name, members)
    memory = start()
    for step in range(length):
        memory = advance(memory, one.states[0, step], one.actions[0, step])
    whole = np.exp(np.asarray(answers(one.states[0], one.actions[0], one.length[0])))
    worse = np.cumsum(whole[::-1])[::-1][1:]
    risk, features = map(np.asarray, seen(memory))
    np.testing.assert_allclose(risk, worse, rtol=1e-4, atol=1e-6)
    assert features.shape == seen(start())[1].shape
    assert np.isfinite(features).all()


def test_risk_so_far_of_the_hazard_model_never_falls():
    model, one = make("hazard"), batch(1, seed=2)
    memory, risks = model.start(), []
    for step in range(STEPS):
        memory = model.advance(memory, one.states[0, step], one.actions[0, step])
        risks.append(float(model.risk(memory)[0]))
    assert (np.diff(risks) >= 0).all()


def test_hazard_model_does_not_saturate_in_log_space():
    model = eqx.tree_at(lambda m: m.head_bias, make("hazard"), jnp.array([50.0, 0.0]))
    one = batch(1)

    def best(states):
        return model.log_probabilities(states, one.actions, one.length)[0, 0]

    value, gradient = jax.value_and_grad(best)(one.states)
    assert value < -100
    assert float(jnp.max(jnp.abs(gradient))) > 1e-3


@every_model
def test_blame_is_a_share_and_falls_on_real_steps(name):
    model, many = make(name), batch(5, seed=8)
    shares = np.asarray(blame(model, many.states, many.actions, many.length))
    assert (shares >= 0).all()
    np.testing.assert_allclose(shares.sum(axis=1), 1.0, rtol=1e-4)
    assert (shares[~np.asarray(many.mask)] == 0).all()
    words = explanation(model, many[:1], ("none", "mild", "severe")).lines(("x", "y", "z"))
    assert len(words) >= 3


def test_ensemble_disagreement_is_zero_only_for_twins():
    model, many = make("hazard", members=3), batch(6)
    parts = (many.states, many.actions, many.length)
    assert (np.asarray(model.disagreement(*parts)) > 0).any()
    twins = eqx.tree_at(
        lambda m: m.members, model, jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[:1], leaf.shape), model.members)
    )
    np.testing.assert_allclose(twins.disagreement(*parts), 0.0, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("oracle", {}, "no safety model"),
        ("hazard", {"units": 0}, "at least one"),
        ("hazard", {"cell": "rnn"}, "gru"),
        ("classifier", {"dropout": 1.0}, "dropout"),
        ("markov", {"hidden": ()}, "hidden layer"),
    ],
)
def test_impossible_shapes_are_refused(kind, options, words):
    with pytest.raises(InputError, match=words):
        make_safety(kind, 2, 2, 3, key=jax.random.key(0), **options)
