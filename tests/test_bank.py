"""A bank of policies: the last planning restarts what lost its way, and ends when nothing gets better."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_lookahead import CONFIG, SMALL, Hills, mean_return, same

from sidestep.core.constraints import Scale, parse_constraints
from sidestep.planning import bank, lookahead, plan
from sidestep.planning.bank import BankSchedule, GradientBank
from sidestep.planning.methods import Search
from sidestep.safety.counted import CountedEvents
from sidestep.safety.hazard import HazardModel

HIGHEST = 1e9  # return: safety costs a lot
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
    polished.begin_polish(safety, TOLERANCES, lost=False)
    first = polished.polish(safety, HIGHEST)
    assert not first.finished
    assert polished.polish(safety, HIGHEST).finished, "the second test of four"
    assert polished.polishing is None


def test_without_a_search_the_first_round_goes_on_from_random_policies(made):
    bank_without, safety = made
    before = bank_without.learners
    rows = bank_without.advance(0, safety, TOLERANCES, lost=False)
    assert len(rows) == SCHEDULE.slots
    assert np.array_equal(np.asarray(bank_without.learners.tolerances), TOLERANCES.astype(np.float32))
    assert not same(bank_without.policies, before.policy), "it was trained"
    assert np.all(np.asarray(bank_without.learners.epoch) == SCHEDULE.round_epochs)


def test_the_second_round_begins_also_from_what_lookahead_finds_without_a_constraint(made, monkeypatch):
    for name, value in SMALL.items():
        monkeypatch.setattr(lookahead, name, value)
    monkeypatch.setattr(plan, "LEAST_PART", 1)
    monkeypatch.setattr(bank, "FREE_EPOCHS", 8)
    constraints = tuple(parse_constraints(["none>=0.9"], Scale()))
    planning = replace(CONFIG, search=Search(rounds=1, population=256))
    schedule = replace(SCHEDULE, rounds=2, searching_rounds=2)
    searching = GradientBank(Hills(), constraints, planning, schedule, made[1], jax.random.key(0), None)
    begun = searching.learners
    free = searching._without_constraint(searching.free)
    assert mean_return(Hills(), slot_of(begun.policy, 3)) < 7.0
    found = mean_return(Hills(), slot_of(free.policy, 0))
    assert found > 9.0, "the plateau, which the gradient does not find from there"
    monkeypatch.setattr(searching, "_without_constraint", lambda planner: free)
    searching.advance(0, made[1], TOLERANCES, lost=False)
    rows = searching.advance(1, made[1], np.full((4, 1), 0.99), lost=False)
    assert max(row.mean_return for row in rows) > found - 1.0, (
        "the best start counts, whatever its cost, if all is allowed"
    )
    assert np.all(np.asarray(searching.learners.epoch) == 2 * SCHEDULE.round_epochs)


def test_the_last_planning_anneals_the_loosest_slots_in_the_end():
    safety = CountedEvents(1, 1, 3, key=jax.random.key(1))
    constraints = tuple(parse_constraints(["none>=0.9"], Scale()))
    schedule = replace(SCHEDULE, polish_epochs=1)
    annealing = GradientBank(Hills(), constraints, CONFIG, schedule, safety, jax.random.key(0), None)
    annealing.prepare(safety)
    annealing.begin_polish(safety, TOLERANCES, lost=False)
    assert annealing.phase == "gradient"
    begun = annealing.state
    cheap = annealing.polish(safety, -1e9)
    assert (cheap.phase, cheap.finished, annealing.phase) == ("gradient", True, ""), "safety costs nothing"
    annealing.state = begun
    first = annealing.polish(safety, HIGHEST)
    assert (first.phase, len(first.rows), annealing.phase) == ("gradient", 4, "annealing")
    cut = annealing.polishing.learners
    assert {head.squash for head in cut.policy.heads} == {"clip"}
    assert np.array_equal(cut.tolerances, TOLERANCES[-bank.ANNEALED :].astype(np.float32))
    second = annealing.polish(safety, HIGHEST)
    assert (second.phase, list(second.slots), second.finished) == ("annealing", [2, 3], False)
    assert [row.seed_index for row in second.rows] == [2, 3]
    saved = annealing.state
    annealing.expect(safety, "annealing")
    shapes = [[leaf.shape for leaf in jax.tree.leaves(tree)] for tree in (annealing.state, saved)]
    assert shapes[0] == shapes[1], "a checkpoint of this phase can be loaded"
    annealing.state = saved
    tests = [second]
    while not tests[-1].finished:
        tests.append(annealing.polish(safety, HIGHEST))
    assert [test.rows[0].epoch for test in tests] == [2, 4, 6, 8, 10, 12]
    noise = [np.exp(np.asarray(test.policies.log_std)).max() for test in tests]
    assert noise == sorted(noise, reverse=True), "it falls from test to test"
    assert noise[-1] == pytest.approx(bank.ANNEAL_NOISE_END, rel=0.01)
    assert annealing.polishing is None


def test_a_pattern_that_turns_out_to_be_of_actions_gets_programs_of_its_own():
    """What was compiled ahead is for policies that see the present; these must not."""
    of_states, of_actions = (looking_at(entry) for entry in (0, 1))
    assert jax.tree.structure(of_states) == jax.tree.structure(of_actions)
    assert (of_states.heeds_actions, of_actions.heeds_actions) == (False, True)
    constraints = tuple(parse_constraints(["none>=0.9"], Scale()))
    planned = GradientBank(Hills(), constraints, CONFIG, SCHEDULE, of_states, jax.random.key(0), None)
    planned.prepare(of_states)
    planned.begin_polish(of_actions, TOLERANCES, lost=False)
    assert len(planned.polish(of_actions, -1e9).rows) == SCHEDULE.slots
    assert planned.polishing.learners.policy.observer.idle is None


def looking_at(entry):
    """Counted events all of whose sides look at this entry: 0 is the state, 1 the action."""
    model = CountedEvents(1, 1, 3, key=jax.random.key(1))
    directions = jnp.zeros_like(model.directions).at[..., entry].set(1.0)
    return eqx.tree_at(lambda m: m.directions, model, directions)
