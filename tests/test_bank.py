"""A bank of policies: the last planning restarts what lost its way, and ends when nothing gets better."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from test_lookahead import CONFIG, Hills, same

from sidestep.core.constraints import Scale, parse_constraints
from sidestep.planning import bank
from sidestep.planning.bank import BankSchedule, GradientBank
from sidestep.planning.methods import Lookahead
from sidestep.safety.counted import CountedEvents
from sidestep.safety.hazard import HazardModel

TOLERANCES = np.array([[0.05], [0.2], [0.5], [0.9]])
SCHEDULE = BankSchedule(
    slots=4, rounds=1, searching_rounds=0, round_epochs=1, polish_epochs=4, polish_test=1, least_rate=0.1
)


@pytest.fixture(scope="module")
def made():
    safety = HazardModel(1, 1, 3, key=jax.random.key(1), units=4, encoder=())
    constraints = tuple(parse_constraints(["none>=0.9"], Scale()))
    planning = replace(CONFIG, lookahead=None)
    return GradientBank(Hills(), constraints, planning, SCHEDULE, safety, jax.random.key(0), None), safety


def slot_of(stack, slot):
    return jax.tree.map(lambda leaf: leaf[slot], stack)


def test_a_policy_that_lost_its_way_goes_on_from_a_good_one(made):
    learners = replace(made[0].learners, tolerances=TOLERANCES)
    returns, costs = np.array([1.0, 5.0, 7.0, 9.0]), np.array([[0.05], [1.0], [0.55], [0.9]])
    restarted = bank._restarted(learners, returns, costs)
    assert same(slot_of(restarted.policy, 1), slot_of(learners.policy, 2)), "the highest return that can be mended"
    for slot in (0, 2, 3):
        assert same(slot_of(restarted.policy, slot), slot_of(learners.policy, slot))
    assert np.array_equal(restarted.tolerances, TOLERANCES)
    assert np.array_equal(jax.random.key_data(restarted.key), jax.random.key_data(learners.key))


def test_the_last_planning_ends_when_nothing_gets_better(made, monkeypatch):
    polished, safety = made
    monkeypatch.setattr(bank, "PATIENCE", 1)
    monkeypatch.setattr(bank, "CLEARLY", 1e9)
    polished.begin_polish(safety, TOLERANCES, lost=False, ceiling=0.0)
    first = polished.polish(safety)
    assert not first.finished
    assert polished.polish(safety).finished, "the second test of four"
    assert polished.polishing is None


def test_without_a_search_the_first_round_goes_on_from_random_policies(made):
    bank_without, safety = made
    before = bank_without.learners
    rows = bank_without.advance(0, safety, TOLERANCES, lost=False)
    assert len(rows) == SCHEDULE.slots
    assert np.array_equal(np.asarray(bank_without.learners.tolerances), TOLERANCES.astype(np.float32))
    assert not same(bank_without.policies, before.policy), "it was trained"
    assert np.all(np.asarray(bank_without.learners.epoch) == SCHEDULE.round_epochs)


def test_the_last_planning_ends_with_lookahead_for_the_loosest_slots():
    safety = CountedEvents(1, 1, 3, key=jax.random.key(1))
    constraints = tuple(parse_constraints(["none>=0.9"], Scale()))
    planning = replace(CONFIG, lookahead=Lookahead(rounds=1))
    schedule = replace(SCHEDULE, polish_epochs=1)
    looking = GradientBank(Hills(), constraints, planning, schedule, safety, jax.random.key(0), None)
    looking.begin_polish(safety, TOLERANCES, lost=False, ceiling=5.0)
    assert looking.phase == "gradient"
    first = looking.polish(safety)
    assert (first.phase, len(first.rows), looking.phase) == ("gradient", 4, "lookahead")
    cut = looking.polishing.learners
    assert {head.squash for head in cut.policy.heads} == {"clip"}
    assert np.array_equal(cut.tolerances, TOLERANCES[-bank.LOOKING :].astype(np.float32))
    for epoch in range(1, bank.FINE_EPOCHS + 1):
        second = looking.polish(safety)
        assert (second.phase, list(second.slots), second.finished) == ("lookahead", [2, 3], False)
        assert (second.rows[0].epoch, int(looking.polishing.looks)) == (epoch, 0)
    prices = np.asarray(looking._with_prices(looking.polishing).multipliers.value)
    assert (prices >= bank.LOOK_PRICE * np.asarray(looking.polishing.learners.multipliers.value)).all()
    saved = looking.state
    looking.expect(safety, "lookahead")
    shapes = [[leaf.shape for leaf in jax.tree.leaves(tree)] for tree in (looking.state, saved)]
    assert shapes[0] == shapes[1], "a checkpoint of this phase can be loaded"
    looking.state = saved
    looks = [looking.polish(safety)]
    while not looks[-1].finished:
        looks.append(looking.polish(safety))
    assert [row.seed_index for row in looks[0].rows] == [2, 3]
    assert len(looks) == bank.LOOKS or looks[-1].rows[0].train_lookahead_gain <= 0.0
    assert looking.polishing is None
