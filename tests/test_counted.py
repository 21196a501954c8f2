"""Counted events: the counter is exact, the search finds the rule, families are weighed by what the labels say."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sidestep.core.model import Trajectory
from sidestep.policies.networks import sees_present
from sidestep.safety.base import predict
from sidestep.safety.boxes import running
from sidestep.safety.config import FitConfig
from sidestep.safety.counted import SIDES, CountedEvents, idle_sides, pruned
from sidestep.safety.families import normalised
from sidestep.safety.fit_counted import (
    LAPSE,
    SLACK,
    Ascent,
    ascend,
    counted_rows,
    free_starts,
    from_box,
    log_likelihood,
    mark_slack,
    search_box,
    told_by,
    with_features_seen,
)
from sidestep.safety.io import make_safety
from sidestep.safety.learn import FROM_BEST, FROM_STARTS, learn
from sidestep.safety.pattern import learned_pattern

STEPS = 12


@pytest.mark.parametrize("statistic", ["count", "run"])
def test_the_counter_is_the_sum_over_all_outcomes(statistic):
    """P(statistic >= 2) and P(statistic >= 3), from a model whose events have given chances."""
    chances, limit = np.array([0.3, 0.9, 0.5, 0.7, 0.2]), 4
    expected = np.zeros(limit + 2)
    for outcome in itertools.product([False, True], repeat=len(chances)):
        value = running(np.array(outcome), statistic)[-1]
        expected[value] += np.prod(np.where(outcome, chances, 1 - chances))
    model = CountedEvents(1, 0, 3, key=jax.random.key(0), statistic=statistic, limit=limit)
    gap = jnp.log(jnp.ones(1))
    model = eqx.tree_at(lambda m: (m.first_threshold, m.gaps), model, (jnp.asarray(1.5), gap))
    counter = model.start().state
    for chance in chances:
        counter = model.advanced(counter, jnp.log(chance), jnp.log1p(-chance))
    found = np.exp(model.categories_of(counter, jnp.asarray(5)))
    np.testing.assert_allclose(found, [expected[:2].sum(), expected[2], expected[3:].sum()], atol=1e-5)


def walks(count, seed, actions=2):
    """Random walks through the plane."""
    random = np.random.default_rng(seed)
    moves = random.uniform(-1, 1, (count, STEPS, actions)) + random.uniform(-0.6, 0.6, (count, 1, actions))
    states = np.cumsum(moves, axis=1)[..., :2] + random.uniform(-1, 1, (count, 1, 2))
    parts = (states, moves, np.zeros((count, STEPS)))
    return Trajectory(*(part.astype(np.float32) for part in parts), np.full(count, STEPS, np.int32))


def categories_and_marks(events, statistic):
    """2 for mild and 4 for severe, and when each was reached."""
    so_far = running(events, statistic).T
    levels = so_far[:, -1, None] >= np.array([2, 4])[None]
    marks = np.stack([np.where(levels[:, j], np.argmax(so_far >= c, axis=1), -1) for j, c in enumerate((2, 4))], axis=1)
    return levels.sum(axis=1).astype(np.int32), marks.astype(np.int32)


def in_a_box(trajectory):
    x, y = trajectory.states[..., 0], trajectory.states[..., 1]
    return (x > 0.5) & (x < 2.0) & (y > -1.0)


def test_the_search_finds_a_box_and_its_thresholds():
    walked = walks(300, 1)
    categories, marks = categories_and_marks(in_a_box(walked), "count")
    model = CountedEvents(2, 2, 3, key=jax.random.key(0), alike=(0, 2, 2, 2))
    found = search_box(model, told_by(model, walked, categories, marks))
    assert found.thresholds == (2, 4)
    sides = {interval.feature: (interval.low, interval.high) for interval in found.boxes[0]}
    np.testing.assert_allclose(sides[0], (0.5, 2.0), atol=0.1)
    np.testing.assert_allclose(sides[1][0], -1.0, atol=0.15)


def test_the_search_finds_the_length_of_an_action_and_its_longest_run():
    walked = walks(250, 2)
    categories, marks = categories_and_marks(np.hypot(walked.actions[..., 0], walked.actions[..., 1]) > 0.8, "run")
    model = CountedEvents(2, 2, 3, key=jax.random.key(0), alike=(0, 2, 2, 2), statistic="run")
    found = search_box(model, told_by(model, walked, categories, np.full_like(marks, -1)))
    (interval,) = found.boxes[0]
    assert found.thresholds == (2, 4)
    assert interval.low == pytest.approx(0.8, abs=0.03)


@pytest.fixture(scope="module")
def boxed():
    """A model from the search, with its labels."""
    walked = walks(150, 3)
    categories, marks = categories_and_marks(in_a_box(walked), "count")
    model = CountedEvents(2, 2, 3, key=jax.random.key(0), alike=(0, 2, 2, 2))
    told = told_by(model, walked, categories, marks)
    model = with_features_seen(model, told)
    return from_box(model, search_box(model, told), told), walked, categories, marks


def test_ascent_raises_the_likelihood_and_predicts(boxed):
    model, walked, categories, marks = boxed
    rows = counted_rows(walked, categories, marks, 150)
    astray = eqx.tree_at(lambda m: m.offsets, model, model.offsets + 0.03)
    told = lambda model: float(jnp.sum(log_likelihood(model, rows)[:150]))  # noqa: E731
    [(fitted, _)] = ascend([astray], rows, Ascent(40, rate=0.003))
    assert told(fitted) > told(astray)
    fresh = walks(400, 4)
    truth, _ = categories_and_marks(in_a_box(fresh), "count")
    assert np.mean((predict(fitted, fresh)[:, 0] > 0.5) == (truth == 0)) > 0.97


def test_a_pruned_detector_is_smaller_and_answers_the_same(boxed):
    model, walked, _, _ = boxed
    smaller = pruned(model)
    assert np.all(np.array(smaller.directions.shape) < model.directions.shape)
    np.testing.assert_allclose(predict(smaller, walked), predict(model, walked), atol=1e-5)
    always = pruned(idle_sides(model))
    assert always.directions.shape[:2] == (1, 1), "every side holds; the other region is never there"
    np.testing.assert_allclose(predict(always, walked), predict(idle_sides(model), walked), atol=1e-5)
    dense = pruned(CountedEvents(2, 2, 3, key=jax.random.key(0)))
    assert dense.directions.shape[1] == SIDES, "sides that look at something stay"


def test_a_policy_sees_runs_of_actions_before_it_acts(boxed):
    """With the present state in it, and nothing done, the memory would show that every run is broken off."""
    in_states = boxed[0]
    assert not in_states.heeds_actions
    assert sees_present(in_states)
    walked = walks(150, 3)
    long = np.sqrt((np.asarray(walked.actions) ** 2).sum(axis=2)) > 0.5
    categories, marks = categories_and_marks(long, "run")
    model = CountedEvents(2, 2, 3, key=jax.random.key(0), alike=(0, 2, 2, 2), statistic="run")
    told = told_by(model, walked, categories, marks)
    in_actions = from_box(with_features_seen(model, told), search_box(model, told), told)
    assert in_actions.heeds_actions
    assert pruned(in_actions).heeds_actions
    assert not sees_present(in_actions)


def test_a_mark_that_is_off_by_a_step_or_two_costs_little(boxed):
    model, walked, categories, marks = boxed
    likely = [log_likelihood(model, counted_rows(walked, categories, _later(marks, s), 150))[:150] for s in (0, 2, 6)]
    right, near, far = (float(jnp.mean(one)) for one in likely)
    assert right > near > far
    assert np.isfinite(far)


def _later(marks, steps):
    return np.where(marks >= 0, np.minimum(marks + steps, STEPS - 1), -1).astype(np.int32)


def test_hopeless_trajectories_have_a_gradient_that_leads_out(boxed):
    """Deep in the box at every step, the probability is nothing and its logarithm still falls."""
    model = eqx.tree_at(lambda m: m.log_sharpness, boxed[0], jnp.full_like(boxed[0].log_sharpness, np.log(20.0)))
    states = jnp.broadcast_to(jnp.array([1.2, 1.0]), (STEPS, 2))
    actions = jnp.zeros((STEPS, 2))

    def log_harmless(states):
        return model.log_probabilities(states, actions, jnp.asarray(STEPS))[0]

    assert np.exp(log_harmless(states)) < 1e-6
    gradient = jax.grad(log_harmless)(states)
    assert np.isfinite(gradient).all()
    assert np.abs(gradient[:, 0]).min() > 0


def in_a_disc(walked):
    return (walked.states[..., 0] - 1.0) ** 2 + walked.states[..., 1] ** 2 < 1.5


def across(walked):
    oblique = walked.states[..., 0] + 0.7 * walked.states[..., 1]
    return (oblique > 0.4) & (oblique < 2.2)


@pytest.mark.parametrize("event", [in_a_disc, across])
def test_free_sides_find_what_no_box_explains(event):
    walked, later = walks(250, 5), walks(400, 6)
    categories, marks = categories_and_marks(event(walked), "count")
    model = CountedEvents(2, 2, 3, key=jax.random.key(0), alike=(0, 2, 2, 2))
    told = told_by(model, walked, categories, marks)
    model = with_features_seen(model, told)
    box = from_box(model, search_box(model, told), told)
    rows = counted_rows(walked, categories, marks, 250)
    found = ascend(free_starts(box, told, jax.random.key(1)), rows, FROM_STARTS)
    [(fitted, _)] = ascend([max(found, key=lambda one: one[1])[0]], rows, FROM_BEST)
    truth, _ = categories_and_marks(event(later), "count")
    right = lambda model: np.mean(predict(model, later).argmax(axis=1) == truth)  # noqa: E731
    assert right(fitted) > 0.975
    assert right(fitted) > right(box)


def test_families_trust_counted_events_where_they_explain_and_hazards_where_not():
    walked = walks(250, 5)
    categories, marks = categories_and_marks(in_a_box(walked), "count")
    config = FitConfig(steps=60, check_every=30, held_out=0.2)
    fresh = make_safety("families", 2, 2, 3, key=jax.random.key(1), units=4, alike=(0, 2, 2, 2))
    fitted, report = learn(fresh, walked, categories, config, jax.random.key(2), marks=marks, room=250)
    weight, member = fitted.members_by_weight()[0]
    assert isinstance(member, CountedEvents)
    assert weight > 0.9
    assert report.scores.best_or_not_accuracy > 0.9


def test_the_pattern_is_found_although_answers_are_wrong_and_marks_are_off():
    """One answer in ten is wrong; marks are uniformly up to two steps off, and anywhere where the answer is wrong."""
    walked, random = walks(250, 6), np.random.default_rng(6)
    truth, marks = categories_and_marks(in_a_box(walked), "count")
    said = np.where(random.random(250) < 0.1, (truth + random.integers(1, 3, 250)) % 3, truth).astype(np.int32)
    anywhere = random.integers(0, STEPS, marks.shape)
    moved = np.where(marks >= 0, marks + random.integers(-2, 3, marks.shape), anywhere)
    moved = np.maximum.accumulate(np.clip(moved, 0, STEPS - 1), axis=1)
    moved = np.where(np.arange(1, 3)[None] <= said[:, None], moved, -1).astype(np.int32)
    likelihood = np.where(np.eye(3, dtype=bool)[said], 0.9, 0.05)
    config = FitConfig(steps=60, check_every=30, held_out=0.2)
    fresh = make_safety("families", 2, 2, 3, key=jax.random.key(1), units=4, alike=(0, 2, 2, 2))
    told = {"marks": moved, "likelihood": likelihood, "room": 250}
    fitted, _ = learn(fresh, walked, said, config, jax.random.key(2), **told)
    weight, member = fitted.members_by_weight()[0]
    assert isinstance(member, CountedEvents)
    assert weight > 0.9
    later = walks(400, 7)
    truth, _ = categories_and_marks(in_a_box(later), "count")
    assert np.mean(predict(fitted, later).argmax(axis=1) == truth) > 0.95


def test_how_far_marks_are_off_is_read_from_them(boxed):
    model, walked, categories, marks = boxed
    told = told_by(model, walked, categories, marks)
    found = search_box(model, told)
    np.testing.assert_allclose(mark_slack(told, found), SLACK, atol=0.06)
    random = np.random.default_rng(0)
    moved = np.where(marks >= 0, np.clip(marks + random.integers(-2, 3, marks.shape), 0, STEPS - 1), -1)
    chances = mark_slack(told_by(model, walked, categories, moved.astype(np.int32)), found)
    assert sum(chances) == pytest.approx(1.0)
    assert chances[2] > 0.4


def test_a_wrong_answer_weighs_as_much_as_its_annotator_errs(boxed):
    """Where the model is sure of another category, log P(said) is that of the annotator's slip, its marks anywhere."""
    model, walked, categories, _ = boxed
    marks = np.full((150, 2), -1, np.int32)
    wrong = np.where(categories == 0, 2, 0).astype(np.int32)
    likelihood = np.where(np.eye(3, dtype=bool)[wrong], 1.0, 0.08)
    sure = predict(model, walked)
    rows = np.flatnonzero(sure[np.arange(150), categories] > 0.999)
    assert len(rows) > 20
    found = np.asarray(log_likelihood(model, counted_rows(walked, wrong, marks, 150, likelihood)))[:150]
    np.testing.assert_allclose(found[rows], np.log((1 - LAPSE) * 0.08 + LAPSE / 3), atol=0.05)


def test_a_member_that_the_labels_refute_has_no_weight():
    log_likelihoods = np.log(np.array([[0.9] * 20, [0.5] * 20, [0.9] * 18 + [0.01] * 2]))
    weights = np.exp(normalised(log_likelihoods.sum(axis=1)))
    assert weights.sum() == pytest.approx(1.0)
    assert weights[0] > 0.99


def test_the_pattern_in_words_says_what_the_model_answers(boxed):
    model, walked, _, _ = boxed
    pattern = learned_pattern(model, walked)
    words = pattern.words(["x", "y", "dx", "dy"], 2, ("none", "mild", "severe"))
    assert words.startswith("mild from 2 steps, severe from 4 steps with ")
    assert "< x <" in words
    assert "y > -1." in words or "y > -0.9" in words
    fresh = walks(500, 9)
    assert np.mean(pattern.categories(fresh) == predict(model, fresh).argmax(axis=1)) > 0.98


def test_a_pattern_that_is_not_sharp_is_not_said(boxed):
    model, walked, _, _ = boxed
    blurred = eqx.tree_at(lambda m: m.log_sharpness, model, jnp.full_like(model.log_sharpness, np.log(2.0)))
    assert learned_pattern(blurred, walked) is None
    oblique = eqx.tree_at(lambda m: m.movable.directions, model, jnp.ones_like(model.movable.directions))
    assert learned_pattern(oblique, walked) is None
