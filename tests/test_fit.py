"""Fitting: it learns, it is deterministic, it continues, it calibrates, and it reports what is true."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sidestep.core.errors import InputError
from sidestep.core.model import Trajectory
from sidestep.safety.base import predict
from sidestep.safety.config import FitConfig
from sidestep.safety.fit import fit
from sidestep.safety.io import make_safety
from sidestep.safety.report import scores

QUICK = FitConfig(steps=400, batch=64, check_every=50)


def labelled(count, seed):
    """Random walks on a line; mild from two steps above 1 on, severe from four on."""
    random = np.random.default_rng(seed)
    states = np.cumsum(random.normal(scale=0.5, size=(count, 10, 1)), axis=1).astype(np.float32)
    length = random.integers(3, 11, count)
    above = ((states[..., 0] > 1.0) & (np.arange(10) < length[:, None])).sum(axis=1)
    trajectory = Trajectory(jnp.asarray(states), jnp.zeros((count, 10, 1)), jnp.zeros((count, 10)), jnp.asarray(length))
    return trajectory, (above >= 2).astype(int) + (above >= 4)


@pytest.fixture(scope="module")
def data():
    return labelled(1200, 0)


def fresh(kind="hazard", members=1, **config):
    return make_safety(kind, 1, 1, 3, key=jax.random.key(0), members=members, **({"units": 12} | config))


@pytest.fixture(scope="module")
def fitted(data):
    return fit(fresh(), *data, QUICK, jax.random.key(1))


@pytest.mark.parametrize("kind", ["hazard", "classifier"])
def test_it_learns_the_pattern(data, fitted, kind):
    model, report = fitted if kind == "hazard" else fit(fresh(kind, dropout=0.1), *data, QUICK, jax.random.key(1))
    trajectory, categories = labelled(600, 99)
    measured = scores(np.asarray(predict(model, trajectory)), categories)
    most_common = np.bincount(categories).max() / len(categories)
    assert measured.best_or_not_accuracy > 0.93
    assert measured.accuracy > most_common + 0.1
    assert report.scores.accuracy == pytest.approx(measured.accuracy, abs=0.06), "the report must not flatter"


def test_the_same_key_gives_the_same_model(data, fitted):
    again, _ = fit(fresh(), *data, QUICK, jax.random.key(1))
    for a, b in zip(jax.tree.leaves(fitted[0]), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(a, b)


def test_more_labels_continue_an_earlier_fit(data, fitted):
    model, report = fitted
    more, labels = labelled(2400, 5)
    further, later = fit(model, more, labels, replace(QUICK, steps=200), jax.random.key(2))
    np.testing.assert_array_equal(further.standardisation.mean, model.standardisation.mean)
    assert later.scores.log_loss < report.scores.log_loss + 0.02
    cold, _ = fit(fresh(), more, labels, replace(QUICK, steps=50), jax.random.key(2))
    warm, _ = fit(model, more, labels, replace(QUICK, steps=50), jax.random.key(2))
    truth = labelled(600, 98)
    assert (
        scores(np.asarray(predict(warm, truth[0])), truth[1]).log_loss
        < scores(np.asarray(predict(cold, truth[0])), truth[1]).log_loss
    )


def test_members_of_an_ensemble_differ_and_their_mean_is_no_worse(data, fitted):
    model, report = fit(fresh(members=3), *data, QUICK, jax.random.key(3))
    trajectory, categories = labelled(600, 99)
    alone = scores(np.asarray(predict(fitted[0], trajectory)), categories).log_loss
    assert scores(np.asarray(predict(model, trajectory)), categories).log_loss < alone + 0.05
    assert np.asarray(model.disagreement(trajectory.states, trajectory.actions, trajectory.length)).max() > 0.01
    assert len(report.best_steps) == 3


def test_rare_categories_are_found_when_drawn_more_often(data):
    trajectory, categories = data
    keep = np.flatnonzero((categories < 2) | (np.arange(len(categories)) % 8 == 0))
    rare = (trajectory[keep], categories[keep])
    model, report = fit(fresh(), *rare, replace(QUICK, balance=1.0), jax.random.key(4))
    assert report.scores.recall[2] is not None
    plain, _ = fit(fresh(), *rare, QUICK, jax.random.key(4))
    severe = rare[1] == 2
    found = [np.asarray(predict(m, rare[0]))[severe, 2].mean() for m in (model, plain)]
    assert found[0] > 0.3
    assert found[0] > found[1] - 0.05
    shares = np.asarray(predict(model, rare[0])).mean(axis=0)
    np.testing.assert_allclose(shares, np.bincount(rare[1]) / len(rare[1]), atol=0.05)


@pytest.mark.parametrize("kind", ["hazard", "classifier"])
def test_calibration_mends_a_model_that_is_too_sure(data, kind):
    trajectory, categories = data
    noisy = np.where(np.random.default_rng(0).random(len(categories)) < 0.25, 0, categories)
    _, report = fit(
        fresh(kind, dropout=0.0), trajectory, noisy, replace(QUICK, patience=0, steps=600), jax.random.key(5)
    )
    assert report.scores.log_loss <= report.before_calibration.log_loss + 1e-6


def test_markov_classifier_learns_single_steps():
    random = np.random.default_rng(0)
    states = random.uniform(-1, 1, (1500, 1, 1)).astype(np.float32)
    actions = random.uniform(-1, 1, (1500, 1, 1)).astype(np.float32)
    categories = ((states[:, 0, 0] > 0.2) & (actions[:, 0, 0] > 0)).astype(int)
    pairs = Trajectory(*map(jnp.asarray, (states, actions, np.zeros((1500, 1)), np.ones(1500, int))))
    model = make_safety("markov", 1, 1, 2, key=jax.random.key(0), dropout=0.1)
    model, report = fit(model, pairs, categories, replace(QUICK, steps=1200), jax.random.key(1))
    assert report.scores.accuracy > 0.97
    counts = model.expected_counts(pairs.states, pairs.actions, pairs.length)
    np.testing.assert_allclose(counts.sum(axis=1), 1.0, rtol=1e-5)


def test_a_share_of_the_steps_is_no_sum():
    """Unsafe when a fifth of the steps are dangerous, in walks of 5 to 60 steps."""
    random = np.random.default_rng(0)
    count, steps = 1200, 60
    length = random.integers(5, steps + 1, count)
    frequency = random.uniform(0.0, 0.4, (count, 1))
    states = (random.uniform(size=(count, steps)) < frequency).astype(np.float32)
    dangerous = (states * (np.arange(steps) < length[:, None])).sum(axis=1)
    walks = Trajectory(
        *map(jnp.asarray, (states[..., None], np.zeros((count, steps, 1)), np.zeros((count, steps)), length))
    )
    categories = (5 * dangerous >= length).astype(int)
    accuracy = {}
    for kind, shape in (("share", {"hidden": (8,)}), ("markov", {"hidden": (8,), "dropout": 0.0})):
        model = make_safety(kind, 1, 1, 2, key=jax.random.key(0), **shape)
        config = replace(QUICK, steps=1500, learning_rate=1e-2)
        accuracy[kind] = fit(model, walks, categories, config, jax.random.key(1))[1].scores.accuracy
    assert accuracy["share"] > 0.97
    assert accuracy["markov"] < 0.93


@pytest.mark.parametrize(
    ("rows", "change", "words"),
    [(1, None, "at least two"), (10, -1, "categories go"), (10, 7, "categories go"), (9, None, "one whole number")],
)
def test_bad_labels_are_refused(data, rows, change, words):
    trajectory, categories = data
    labels = np.array(categories[:rows])
    if change is not None:
        labels[0] = change
    with pytest.raises(InputError, match=words):
        fit(fresh(), trajectory[: rows if words != "one whole number" else 10], labels, QUICK, jax.random.key(0))


@pytest.mark.parametrize("bad", [{"steps": 0}, {"learning_rate": 0.0}, {"held_out": 1.0}, {"balance": 1.5}])
def test_bad_options_are_refused(bad):
    with pytest.raises(InputError, match=next(iter(bad)).replace("_", "-")):
        FitConfig(**bad)
