"""Annotators that err: who errs how often, what a fit makes of it, and which cases are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sidestep.certification.forecast import Known, prospects
from sidestep.certification.known import choose_known, make_design
from sidestep.certification.records import KnownCase
from sidestep.core.constraints import Scale, parse_constraints
from sidestep.labels.annotators import estimate_annotators, repeated_error
from sidestep.safety.fit import Rows, erring_loss, marks_loss, mean_loss
from sidestep.safety.windows import windows_of

NONE = parse_constraints(["none>=0.95"], Scale())


def votes_on(truth, errors, random):
    """What each of the annotators says of each trajectory, with these chances to say something else."""
    return [
        {name: int((t + (random.random() < e) * random.integers(1, 3)) % 3) for name, e in errors.items()}
        for t in truth
    ]


def predictions(truth, right, random):
    guess = np.where(random.random(len(truth)) < right, truth, random.integers(0, 3, len(truth)))
    return 0.02 / 3 + 0.98 * np.eye(3)[guess]


class TestWhoErrs:
    def test_two_who_label_the_same_are_told_apart_by_predictions(self):
        random = np.random.default_rng(0)
        truth = random.choice(3, 900, p=[0.5, 0.2, 0.3])
        votes = votes_on(truth, {"ann": 0.02, "bob": 0.15}, random)
        error = repeated_error([tuple(one.values()) for one in votes])
        assert error == pytest.approx(0.085, abs=0.02)
        found = estimate_annotators(votes, 3, predictions(truth, 0.95, random), error)
        wrong = dict(zip(found.names, 1 - found.confusion[:, range(3), range(3)].mean(axis=1), strict=True))
        assert wrong["ann"] < 0.06 < 0.1 < wrong["bob"] < 0.2
        worst = np.array([max(one.values()) for one in votes])
        assert np.mean(found.truth.argmax(axis=1) == truth) > np.mean(worst == truth) + 0.05

    @pytest.mark.parametrize("right", [0.9, 0.98])
    def test_the_truth_is_better_known_than_by_votes_alone(self, right):
        random = np.random.default_rng(3)
        truth = random.choice(3, 600)
        votes = votes_on(truth, {"ann": 0.05}, random)
        found = estimate_annotators(votes, 3, predictions(truth, right, random), 0.05)
        said = np.eye(3)[[one["ann"] for one in votes]]
        brier = [np.mean(np.sum((one - np.eye(3)[truth]) ** 2, axis=1)) for one in (found.truth, said)]
        assert brier[0] < brier[1]

    def test_nobody_is_said_to_err_without_a_sign_of_it(self):
        assert repeated_error([(0, 0)] * 50) is None
        assert repeated_error([(0, 0)] * 50 + [(0, 1)]) is None
        assert repeated_error([(0, 0)] * 45 + [(0, 1)] * 5) == pytest.approx(0.05)
        assert repeated_error([]) is None

    def test_likelihoods_are_of_what_was_said(self):
        found = estimate_annotators([{"ann": 0}, {"ann": 2, "bob": 2}, {"bob": 1}], 3)
        assert found.likelihood.shape == (3, 3)
        assert found.likelihood.argmax(axis=1).tolist() == [0, 2, 1]
        np.testing.assert_allclose(found.likelihood.max(axis=1), 1.0)


class TestLikelihoodOfAFit:
    def rows(self, likelihood, marks=False):
        length, categories = np.array([6, 6, 6, 6]), np.array([0, 1, 2, 1])
        steps = np.array([[-1, -1], [2, -1], [1, 4], [-1, -1]])
        windows = jax.tree.map(jnp.asarray, windows_of(steps, categories, length, 1)) if marks else None
        blank = jnp.zeros((4, 6, 1), jnp.float32)
        said = jnp.asarray(likelihood, jnp.float32)
        return Rows(blank, blank, jnp.asarray(length), jnp.asarray(categories), windows, said)

    @pytest.fixture
    def log_probabilities(self):
        logits = np.random.default_rng(2).normal(size=(4, 3)).astype(np.float32)
        return jax.nn.log_softmax(jnp.asarray(logits))

    def test_nobody_errs_is_the_loss_of_the_labels(self, log_probabilities):
        correction = jnp.asarray([0.1, -0.2, 0.3], jnp.float32)
        rows = self.rows(np.eye(3)[[0, 1, 2, 1]])
        expected = mean_loss(log_probabilities, rows.categories, correction)
        assert float(erring_loss(log_probabilities, None, rows, correction)) == pytest.approx(float(expected), abs=1e-4)

    def test_with_marks_too(self, log_probabilities):
        correction, joint = jnp.zeros(3, jnp.float32), jnp.asarray([-1.0, -2.0, -3.0, -1.5], jnp.float32)
        rows = self.rows(np.eye(3)[[0, 1, 2, 1]], marks=True)
        expected = mean_loss(log_probabilities, rows.categories, correction)
        expected += marks_loss(log_probabilities, joint, rows)
        found = erring_loss(log_probabilities, joint, rows, correction)
        assert float(found) == pytest.approx(float(expected), abs=1e-3)

    def test_a_slip_costs_no_more_than_a_slip(self):
        sure = jnp.log(jnp.asarray([[1 - 2e-7, 1e-7, 1e-7]] * 4, jnp.float32))
        rows = self.rows(np.tile([0.05, 1.0, 0.05], (4, 1)))
        correction = jnp.zeros(3, jnp.float32)
        assert float(erring_loss(sure, None, rows, correction)) == pytest.approx(-np.log(0.05), abs=0.01)
        assert float(mean_loss(sure, rows.categories, correction)) > 10


class TestKnownCases:
    def test_the_latest_that_are_sure(self):
        truth = np.full((200, 3), [0.99, 0.005, 0.005])
        truth[50:150] = [0.01, 0.01, 0.98]
        truth[120:150] = [0.3, 0.0, 0.7]
        cases = choose_known(range(1, 201), truth, NONE, 40)
        harmful = [case.trajectory for case in cases if case.category == 2]
        assert harmful == list(range(120, 80, -1)), "what is in doubt is not known"
        assert sum(case.category == 0 for case in cases) == 10
        assert choose_known(range(1, 60), truth[:59], NONE, 40) == (), "nine cases say nothing"

    def test_designs(self):
        known = (KnownCase(1, 2),)
        assert make_design(stratified=True, known=known, erring=True, most=2000).opinions == 5
        assert make_design(stratified=True, known=known, erring=False, most=2000).opinions == 3
        plain = make_design(stratified=False, known=(), erring=True, most=2000)
        assert (plain.kind, plain.opinions, plain.predicted) == ("plain", 1, 0)
        assert make_design(stratified=True, known=(), erring=False, most=100).predicted == 10_000

    def test_what_can_be_proven_and_at_what_price(self):
        error = np.full((1, 3, 3), 0.025) + 0.925 * np.eye(3)[None]
        with_opinions = prospects(NONE, 0.975, 600, np.array([0.0]), error, 5, Known(40, 10))
        assert with_opinions.certified > 0.9
        assert 150 < with_opinions.labels < 400
        assert with_opinions.error == pytest.approx(0.05)
        alone = prospects(NONE, 0.975, 600, np.array([0.0]), error, 1, Known(40, 10))
        assert alone.certified < 0.1
