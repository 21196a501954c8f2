"""Learning from marks: the likelihood of event times is exact, differentiable, and teaches more than categories do."""

from itertools import product

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sidestep.core.errors import InputError
from sidestep.core.model import Trajectory
from sidestep.safety.base import predict
from sidestep.safety.config import FitConfig
from sidestep.safety.event_times import log_likelihood
from sidestep.safety.fit import fit
from sidestep.safety.io import make_safety
from sidestep.safety.report import scores
from sidestep.safety.survival import category_log_probabilities, nested
from sidestep.safety.windows import windows_of

STEPS = 5


def random_hazards(batch, levels, seed=0):
    """Hazards of `batch` trajectories of random length, zero after the end."""
    random = np.random.default_rng(seed)
    steps = nested(jnp.asarray(random.normal(-1.0, 1.5, (batch, STEPS, levels)), jnp.float32))
    length = random.integers(1, STEPS + 1, batch)
    mask = np.arange(STEPS)[None, :, None] < length[:, None, None]
    return jax.tree.map(lambda part: jnp.where(mask, part, 0.0), steps), length


def by_enumeration(worse, length, windows):
    """P(windows) as a sum over all ways in which the worst so far may go."""
    levels, total = worse.shape[1], 0.0
    for strikes in product(range(levels + 1), repeat=length):
        so_far = np.maximum.accumulate(strikes)
        reached = [np.argmax(so_far >= k) if so_far[-1] >= k else length for k in range(1, levels + 1)]
        if all(windows.first[k] <= reached[k] <= windows.last[k] for k in range(levels)):
            below = np.concatenate([np.exp(-worse), np.ones((STEPS, 1))], axis=1)  # P(no worse than j strikes)
            chances = [below[t, j] - (below[t, j - 1] if j else 0.0) for t, j in enumerate(strikes)]
            total += np.prod(chances)
    return total


@pytest.mark.parametrize(("levels", "slack"), [(1, 0), (1, 1), (2, 0), (2, 1), (3, 1)])
def test_the_likelihood_of_windows_is_the_sum_over_all_ways(levels, slack):
    steps, length = random_hazards(24, levels)
    random = np.random.default_rng(1)
    categories = random.integers(0, levels + 1, 24)
    marks = np.sort(random.integers(0, length[:, None], (24, levels)), axis=1)
    marks = np.where(random.random(marks.shape) < 0.3, -1, marks)
    windows = windows_of(marks, categories, length, slack)
    found = log_likelihood(steps, jnp.asarray(length), jax.tree.map(jnp.asarray, windows))
    for row in range(24):
        one = jax.tree.map(lambda part, row=row: part[row], windows)
        assert np.exp(found[row]) == pytest.approx(
            by_enumeration(np.asarray(steps.worse[row], float), length[row], one), rel=1e-4, abs=1e-7
        )


def test_a_mark_without_slack_is_the_chance_of_its_step():
    steps, length = random_hazards(16, 1)
    marks = length[:, None] - 1
    windows = windows_of(marks, np.ones(16, int), length, 0)
    total, last = steps.worse[..., 0].sum(axis=1), steps.worse[np.arange(16), length - 1, 0]
    expected = -(total - last) + jnp.log(-jnp.expm1(-last))
    found = log_likelihood(steps, jnp.asarray(length), jax.tree.map(jnp.asarray, windows))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("levels", [1, 2, 4])
def test_without_marks_it_is_the_likelihood_of_the_category(levels):
    steps, length = random_hazards(32, levels)
    categories = np.random.default_rng(2).integers(0, levels + 1, 32)
    windows = windows_of(np.full((32, levels), -1), categories, length, 1)
    found = log_likelihood(steps, jnp.asarray(length), jax.tree.map(jnp.asarray, windows))
    totals = jax.tree.map(lambda part: part.sum(axis=1), steps)
    plain = np.take_along_axis(np.asarray(category_log_probabilities(totals)), categories[:, None], axis=1)[:, 0]
    np.testing.assert_allclose(found, plain, rtol=1e-5, atol=1e-5)


def test_windows_keep_the_order_of_severities():
    windows = windows_of(np.array([[4, 4], [-1, 2], [3, -1]]), np.array([2, 2, 1]), np.array([5, 5, 5]), 1)
    assert windows.first.tolist() == [[3, 3], [0, 1], [2, 5]]
    assert windows.last.tolist() == [[4, 4], [3, 3], [4, 5]]
    assert windows.marked.tolist() == [[True, True], [False, True], [True, False]]


def walks(count, seed):
    """Random walks on a line: mild from two steps above 1 on, severe from four on, with the steps of both."""
    random = np.random.default_rng(seed)
    states = np.cumsum(random.normal(scale=0.5, size=(count, 10, 1)), axis=1).astype(np.float32)
    length = random.integers(3, 11, count)
    above = np.cumsum((states[..., 0] > 1.0) & (np.arange(10) < length[:, None]), axis=1)
    marks = np.stack([np.where(above[:, -1] >= n, np.argmax(above >= n, axis=1), -1) for n in (2, 4)], axis=1)
    trajectory = Trajectory(jnp.asarray(states), jnp.zeros((count, 10, 1)), jnp.zeros((count, 10)), jnp.asarray(length))
    return trajectory, (marks >= 0).sum(axis=1), marks


@pytest.mark.parametrize("kind", ["hazard", "markov", "share", "classifier"])
def test_gradients_agree_with_finite_differences(kind):
    trajectory, categories, marks = walks(6, 3)
    windows = jax.tree.map(jnp.asarray, windows_of(marks, categories, np.asarray(trajectory.length), 1))
    with jax.enable_x64(True):

        def wide(tree):
            kinds = {"f": jnp.float64, "i": jnp.int64}
            return jax.tree.map(lambda x: x.astype(kinds.get(x.dtype.kind, x.dtype)) if eqx.is_array(x) else x, tree)

        model, exact, windows = wide((make_safety(kind, 1, 1, 3, key=jax.random.key(0)), trajectory, windows))
        direction = jnp.asarray(np.random.default_rng(1).normal(size=exact.states.shape))

        @jax.jit
        def total(step):
            states = exact.states + step * direction
            return jnp.sum(model.learn_marked(states, exact.actions, exact.length, windows, None)[1])

        numeric = (total(1e-6) - total(-1e-6)) / 2e-6
        np.testing.assert_allclose(jax.grad(total)(0.0), numeric, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("kind", ["hazard", "markov", "share", "classifier"])
def test_a_model_without_marks_learns_from_the_category(kind):
    trajectory, categories, marks = walks(6, 3)
    model = make_safety(kind, 1, 1, 3, key=jax.random.key(0))
    windows = windows_of(np.full_like(marks, -1), categories, np.asarray(trajectory.length), 1)
    parts = (trajectory.states, trajectory.actions, trajectory.length)
    told = (*parts, jax.tree.map(jnp.asarray, windows), None)
    log_probabilities, joint, _ = jax.jit(lambda: model.learn_marked(*told))()
    plain = jax.jit(lambda: model.log_probabilities(*parts))()
    np.testing.assert_allclose(log_probabilities, plain, rtol=1e-6)
    np.testing.assert_allclose(joint, np.asarray(plain)[np.arange(6), categories], rtol=1e-4, atol=1e-5)


QUICK = FitConfig(steps=300, batch=32, check_every=50)


@pytest.fixture(scope="module")
def fresh_walks():
    return walks(2000, 99)


def accuracy(model, fresh_walks):
    trajectory, categories, _ = fresh_walks
    return scores(np.asarray(predict(model, trajectory)), categories).accuracy


def test_marks_teach_more_than_categories(fresh_walks):
    trajectory, categories, marks = walks(60, 0)
    config, key = QUICK, jax.random.key(1)

    def learned(marks):
        model = make_safety("hazard", 1, 1, 3, key=jax.random.key(0), units=12)
        return fit(model, trajectory, categories, config, key, marks=marks)

    (plain, without), (marked, report) = learned(None), learned(marks)
    assert (without.marks, report.marks) == (0, (marks >= 0).sum())
    assert accuracy(marked, fresh_walks) > accuracy(plain, fresh_walks) + 0.02
    nothing, _ = learned(np.full_like(marks, -1))
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(nothing), strict=True):
        np.testing.assert_array_equal(a, b)


def test_every_member_of_an_ensemble_learns_from_marks():
    trajectory, categories, marks = walks(40, 0)
    model = make_safety("hazard", 1, 1, 3, key=jax.random.key(0), units=4, members=2)
    config, key = FitConfig(steps=20, batch=16, check_every=10), jax.random.key(1)
    plain, _ = fit(model, trajectory, categories, config, key)
    marked, report = fit(model, trajectory, categories, config, key, marks=marks)
    assert report.marks == (marks >= 0).sum()
    assert np.isfinite(report.held_out_loss).all()
    for member in range(2):
        weights = [np.asarray(fitted.member(member).head_weight) for fitted in (plain, marked)]
        assert np.abs(weights[0] - weights[1]).max() > 1e-4


def test_marks_that_cannot_be_are_refused():
    trajectory, categories, marks = walks(6, 3)
    model = make_safety("hazard", 1, 1, 3, key=jax.random.key(0), units=4)
    with pytest.raises(InputError, match="one for each trajectory and severity: shape \\(6, 2\\), not int64 of shape"):
        fit(model, trajectory, categories, QUICK, jax.random.key(0), marks=marks[:, :1])
    with pytest.raises(InputError, match="a mark lies after the end of its trajectory"):
        fit(model, trajectory, categories, QUICK, jax.random.key(0), marks=marks + 10)
