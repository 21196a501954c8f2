"""Who marks: rules by labelling prefixes, people through the store, and a noisy expert who is off by a step or two."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from expert_helpers import NoisyExpert

from sidestep.cli.main import main
from sidestep.core.constraints import Scale
from sidestep.core.errors import LabelsNeeded
from sidestep.core.rules import Rule
from sidestep.labels.collect import explore
from sidestep.labels.experts import PeopleExpert, RuleExpert, rule_marks, why_no_marks
from sidestep.labels.prefixes import marks_from_prefixes, prefix_categories
from sidestep.labels.rules import load_rule
from sidestep.labels.store import Store
from sidestep.models import load_model
from sidestep.safety.io import make_safety, save_safety


@pytest.fixture(scope="module")
def navigation():
    return load_model("navigation")


@pytest.fixture(scope="module")
def walks(navigation):
    found = jax.tree.map(np.asarray, explore(navigation, jax.random.key(1), 40))
    return replace(found, length=np.random.default_rng(0).integers(3, found.length.max() + 1, 40).astype(np.int32))


def test_a_rules_marks_are_the_first_prefixes_of_each_severity(navigation, walks):
    rule = load_rule(None, navigation)
    marks = rule_marks(RuleExpert(rule), walks)
    categories = np.asarray(rule.label(walks))
    assert set(categories) == {0, 1, 2}
    for row in range(40):
        for severity in (1, 2):
            mark = marks[row, severity - 1]
            assert (mark >= 0) == (categories[row] >= severity)
            if mark >= 0:
                one = walks[row : row + 1]
                before, at = (replace(one, length=np.array([n], np.int32)) for n in (mark, mark + 1))
                assert int(rule.label(at)[0]) >= severity
                assert mark == 0 or int(rule.label(before)[0]) < severity


def test_a_rule_in_plain_python_marks_as_a_compiled_one(navigation, walks):
    rule = load_rule(None, navigation)
    compiled, seen = prefix_categories(rule.label, True, walks), []

    def plain(trajectory):
        seen.append(trajectory.states.shape[1])
        return np.asarray(rule.label(trajectory))

    np.testing.assert_array_equal(prefix_categories(plain, False, walks), compiled)
    assert seen == list(range(1, walks.length.max() + 1)), "a rule in Python sees no step after the prefix"
    assert prefix_categories(rule.label, True, walks[:0]).shape[0] == 0


def test_where_a_category_is_taken_back_there_are_no_marks():
    categories = np.array([[0, 1, 2, 2], [0, 1, 0, 1], [0, 0, 0, 0], [2, 2, 2, 2]])
    assert marks_from_prefixes(categories, 2).tolist() == [[1, 2], [-1, -1], [-1, -1], [0, 0]]


def test_a_share_is_not_marked_and_the_reason_is_said(navigation):
    def share(trajectory):
        fast = (abs(trajectory.actions).sum(axis=-1) > 0.8) & trajectory.mask
        return (2 * fast.sum(axis=1) > trajectory.length).astype(int)

    rule = RuleExpert(Rule("share", Scale(("fine", "fast")), share))
    said = why_no_marks(rule, navigation)
    assert "a trajectory that is 'fast' after" in said
    assert "no marks are asked for" in said
    assert why_no_marks(RuleExpert(load_rule(None, navigation)), navigation) is None
    assert why_no_marks(PeopleExpert(Scale()), navigation) is None


def test_experts_put_their_marks_into_the_store(navigation, walks, tmp_path):
    rule = RuleExpert(load_rule(None, navigation))
    with Store.create(tmp_path / "s", navigation.spec) as store:
        ids, _ = store.add(walks, policy="explore")
        rule.answer(store, ids[:10].tolist())
        assert (store.marks(ids) == -1).all()
        answers = rule.answer(store, ids.tolist(), marks=True)
        truth = rule_marks(rule, walks)
        np.testing.assert_array_equal(store.marks(ids)[10:], truth[10:])
        assert PeopleExpert(Scale()).answer(store, ids.tolist(), marks=True) == answers
        more, _ = store.add(explore(navigation, jax.random.key(2), 40), policy="explore")
        with pytest.raises(LabelsNeeded):
            PeopleExpert(Scale()).answer(store, more.tolist(), marks=True)
        NoisyExpert(load_rule(None, navigation), seed=3).answer(store, more.tolist(), marks=True)
        truth, noisy = rule_marks(rule, store.get(more)), store.marks(more)
        marked = noisy >= 0
        assert (truth[marked] >= 0).all()
        assert 0.5 < marked.sum() / (truth >= 0).sum() < 1.0
        off = abs(truth - noisy)[marked]
        assert off.max() == 2
        assert 0.2 < np.mean(off > 0) < 0.95


def test_explain_shows_marks_beside_the_models_own_blame(navigation, walks, tmp_path, capsys):
    rule = RuleExpert(load_rule(None, navigation))
    with Store.create(tmp_path / "s.store", navigation.spec) as store:
        store.add(walks, policy="explore")
        rule.answer(store, range(1, 41), marks=True)
        worst = next(i for i, category in store.categories().items() if category == 2)
        (mild, severe) = store.marks([worst])[0].tolist()
        store.label([worst], ["severe"], "ann", marks=[{"mild": mild, "severe": severe}], comment="all wet")
    safety = make_safety("hazard", 2, 2, 3, key=jax.random.key(0), units=4)
    save_safety(tmp_path / "m.safetensors", safety, Scale())
    assert main(["explain", str(tmp_path / "s.store"), str(worst), "--safety", str(tmp_path / "m.safetensors")]) == 0
    said = capsys.readouterr().out
    assert f"ann says severe (mild from step {mild}, severe from step {severe}): all wet" in said
    assert f"'mild' or worse: marked at step {mild}" in said
    assert (tmp_path / f"s-{worst}.png").stat().st_size > 1000
