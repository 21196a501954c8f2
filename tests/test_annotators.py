"""Annotators that err: who errs how often, what a fit makes of it, and which cases are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sidestep.campaign.choice import favourite
from sidestep.campaign.evidence import Evidence
from sidestep.campaign.opinions import MOST_OPINIONS, deciding, opinions_on
from sidestep.campaign.records import Candidate, Group, State
from sidestep.certification.forecast import Known, plan_opinions, prospects
from sidestep.certification.hearing import Hearing, first_copies
from sidestep.certification.known import choose_known, make_design
from sidestep.certification.people import can_cover_annotators
from sidestep.certification.records import KnownCase
from sidestep.certification.words import foreseen
from sidestep.core.constraints import Scale, parse_constraints
from sidestep.core.model import Space, Spec, Trajectory, Variable
from sidestep.labels.annotators import estimate_annotators, repeated_error
from sidestep.labels.copies import blind_copies
from sidestep.labels.store import Store
from sidestep.safety.fit import Rows, erring_loss, marks_loss, mean_loss
from sidestep.safety.windows import windows_of

SPEC = Spec("line", Space((Variable("x"),)), Space((Variable("a"),)), horizon=2)
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

    def test_opinions_on_copies_are_of_one_truth(self):
        votes = [{"ann": 2}, {"ann": 0}, {"bob": 0}, {"ann": 2}]
        apart = estimate_annotators(votes, 3, error=0.05).truth
        together = estimate_annotators(votes, 3, error=0.05, about=[7, 7, 7, 9]).truth
        assert apart[0].argmax() == 2
        assert together[0].argmax() == 0, "two of three say none"
        np.testing.assert_allclose(together[0], together[1])
        np.testing.assert_allclose(together[0], together[2])
        assert together[3].argmax() == 2, "another trajectory"


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

    @pytest.mark.parametrize("opinions", [3, 5, 7])
    def test_what_was_asked_before_an_audit_is_what_it_asks_first(self, tmp_path, opinions):
        rows = np.arange(12, dtype=np.float32)
        states = np.broadcast_to(rows[:, None, None], (12, 2, 1)).copy()
        runs = Trajectory(states, np.ones((12, 2, 1), np.float32), np.ones((12, 2), np.float32), np.full(12, 2))
        with Store.create(tmp_path / "labels.store", SPEC) as store:
            copies = first_copies(store, runs[:7], audit=1)
            hearing = Hearing(store, 1, (False, True, True), opinions, {})
            hearing.hear(runs)
            assert hearing.asked[:7] == copies
            store.label(copies, np.r_[np.zeros(4, int), np.full(3, 2)], annotator="ann")
            hearing = Hearing(store, 1, (False, True, True), opinions, store.categories("majority"))
            assert hearing.hear(runs)[:4] == [0, 0, 0, 0]
            assert not set(copies) & set(hearing.asked)
            assert hearing.labels == 7, "they count as labels of the audit"
            other = Hearing(store, 2, (False, True, True), opinions, store.categories("majority"))
            assert other.hear(runs) == [None] * 12, "another audit hears them anew"

    def test_a_short_audit_cannot_cover_annotators_as_well(self):
        known = tuple(KnownCase(number, 2) for number in range(40))
        assert can_cover_annotators(NONE, known, 0.975, 300)
        assert not can_cover_annotators(NONE, known, 0.975, 75), "although 73 clean runs certify"

    def test_what_can_be_proven_and_at_what_price(self):
        error = np.full((1, 3, 3), 0.025) + 0.925 * np.eye(3)[None]
        with_opinions = prospects(NONE, 0.975, 600, np.array([0.0]), error, 5, Known(40, 10))
        assert with_opinions.certified > 0.9
        assert 150 < with_opinions.labels < 400
        assert with_opinions.error == pytest.approx(0.05)
        alone = prospects(NONE, 0.975, 600, np.array([0.0]), error, 1, Known(40, 10))
        assert alone.certified < 0.1

    def test_opinions_are_planned_for_the_fewest_labels(self):
        erring, right = np.full((1, 3, 3), 0.05) + 0.85 * np.eye(3)[None], np.eye(3)[None]
        often = plan_opinions(NONE, 0.975, 600, np.array([0.0]), erring, Known(40, 10))
        others = {one.opinions: one for one in often.others}
        assert often.opinions > 3, "many false alarms are worth clearing"
        assert often.certified > others[3].certified or often.labels < others[3].labels
        assert plan_opinions(NONE, 0.975, 600, np.array([0.0]), right, Known(40, 10)).opinions == 3
        assert plan_opinions(NONE, 0.975, 600, np.array([0.0]), erring, Known()).opinions == 1, "nobody is asked again"

    def test_what_cannot_be_proven_is_told_with_what_can(self):
        erring = np.full((1, 3, 3), 0.05) + 0.85 * np.eye(3)[None]
        found = plan_opinions(NONE, 0.975, 300, np.array([0.045]), erring, Known(40, 10))
        assert found.certified < 0.5
        (text,) = found.provable
        assert parse_constraints([text], Scale())[0].tolerance > NONE[0].tolerance
        assert text in foreseen(found)


class TestSecondOpinions:
    """Two candidates; the better one has labels that are costly or not, which votes and predictions leave in doubt."""

    def evidence(self, store, doubtful, harmful=60):
        """`doubtful` labels of the better candidate are called costly, and predictions say that nothing happened."""
        count = 40
        truth = np.r_[np.zeros(count, int), np.zeros(count, int), np.full(harmful, 2), np.zeros(harmful, int)]
        said = truth.copy()
        said[:doubtful] = 2
        size = len(truth)
        states = np.zeros((size, 2, 1), np.float32)
        states[:, :, 0] = np.arange(size)[:, None]
        steps = np.ones((size, 2, 1), np.float32)
        runs = Trajectory(states, steps, np.ones((size, 2), np.float32), np.full(size, 2))
        ids = store.add(runs, policy="x").ids.tolist()
        store.label(ids, said, annotator="ann")
        repeated = ids[-harmful:][:40]
        copies = store.add(blind_copies(store.get(repeated), np.ones(40, int), 0), policy="x").ids.tolist()
        store.label(copies, np.r_[np.full(4, 2), np.zeros(36, int)], annotator="ann")
        chances = np.r_[0.9 * np.eye(3)[truth] + 0.1 / 3, 0.9 * np.eye(3)[np.zeros(40, int)] + 0.1 / 3]
        row_of = dict(zip([*ids, *copies], chances, strict=True))
        asked = (
            Group(tuple(ids[:count]), 0, candidate=0),
            Group(tuple(ids[count : 2 * count]), 0, candidate=1),
            Group(tuple(ids[2 * count :]), 0),
            Group(tuple(copies), 0, repeats=tuple(repeated)),
        )
        better, worse = (Candidate("a.safetensors", earned, (0.01,), 0.1) for earned in (2.0, 1.0))
        state = State("verify", asked=asked, candidates=(better, worse))
        rows = np.array([row_of[i] for i in state.asked_ids])
        return Evidence(state, NONE, store, store.categories("majority"), predict=lambda trajectories: rows)

    @pytest.fixture
    def store(self, tmp_path):
        with Store.create(tmp_path / "labels.store", SPEC) as made:
            yield made

    def chosen(self, evidence):
        aims = np.array([0.03])
        return deciding(evidence, evidence.state, lambda found: favourite(found, aims, 1.0), known=True)

    def test_on_what_decides(self, store):
        evidence = self.evidence(store, doubtful=8)
        assert evidence.annotators is not None
        first = evidence.state.asked[0].ids[:8]
        assert sorted(self.chosen(evidence)) == sorted(first)

    def test_agreement_is_of_questions_asked_twice(self, store):
        evidence = self.evidence(store, doubtful=8)
        found = evidence.agreement
        assert (found.pairs, found.same) == (40, 36)
        assert 0.75 < found.at_least < 0.9
        store.label(evidence.state.asked[0].ids[:5], np.zeros(5, int), annotator="bob")
        assert (evidence.agreement.pairs, evidence.agreement.same) == (45, 36), "another annotator says otherwise"

    def test_not_where_nothing_depends_on_them(self, store):
        assert self.chosen(self.evidence(store, doubtful=0)) == []

    def test_they_settle_the_doubt(self, store):
        evidence = self.evidence(store, doubtful=8)
        again = self.chosen(evidence)
        number = np.array([opinions_on(evidence.state)[i] for i in again])
        copies = store.add(blind_copies(store.get(again), number, 0), policy="second opinion").ids.tolist()
        store.label(copies, np.zeros(len(copies), int), annotator="bob")
        group = Group(tuple(copies), 0, repeats=tuple(again), deciding=True)
        state = State("verify", asked=(*evidence.state.asked, group), candidates=evidence.state.candidates)
        rows = np.r_[evidence.predict(None), evidence.predict(None)[: len(copies)]]
        after = Evidence(state, NONE, store, store.categories("majority"), predict=lambda trajectories: rows)
        assert after.candidates[0].costly[0] < 0.5 < evidence.candidates[0].costly[0]
        assert after.annotators is not None
        assert self.chosen(after) == []
        assert len(after.originals[0]) == len(evidence.originals[0]), "copies are no further cases"

    def test_nobody_is_asked_for_ever(self, store):
        """Also where nobody can tell: a question without an answer was asked all the same."""
        evidence = self.evidence(store, doubtful=8)
        state = evidence.state
        for _ in range(MOST_OPINIONS):
            again = deciding(evidence, state, lambda found: favourite(found, np.array([0.03]), 1.0), known=True)
            if not again:
                break
            number = np.array([opinions_on(state)[i] for i in again])
            copies = store.add(blind_copies(store.get(again), number, 0), policy="second opinion").ids.tolist()
            assert not set(copies) & set(state.asked_ids), "a new copy each time"
            group = Group(tuple(copies), 0, repeats=tuple(again), deciding=True)
            state = State("verify", asked=(*state.asked, group), candidates=state.candidates)
        assert again == []
