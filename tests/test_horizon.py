"""The exact optimum over runs of T steps, held against the linear program over all steps, rollouts and enumeration."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, sparse

from sidestep.certification.bounds import CERTIFYING, certifiable_chance, upper_bound
from sidestep.core.errors import Infeasible
from sidestep.core.model import FinitePart, rollout
from sidestep.finite.horizon import Limit, horizon_optimum
from sidestep.finite.runs import fresh_runs, prospect, visited_pairs
from sidestep.finite.tabular import draws, horizon_policy
from sidestep.labels.packing import category_table
from sidestep.models.domains.boxpushing.model import Boxpushing

LEDGE = "S....\n...B.\nxx.Fx\nxx.Fx\nxx.Fx\nxx.Fx\nxx.Fx\nG....\n"
WORSE = (0.0, 1.0, 1.0)


@pytest.fixture(scope="module")
def ledge():
    return Boxpushing(LEDGE, name="ledge", horizon=60)


def random_model(seed, states=5, actions=3, outcomes=2):
    """A random table with an end, and random categories of its pairs."""
    random = np.random.default_rng(seed)
    successor = random.integers(0, states, (states, actions, outcomes))
    probability = random.dirichlet(np.ones(outcomes), (states, actions))
    absorbing = np.arange(states) == states - 1
    reward = np.where(absorbing[:, None], 0.0, random.normal(size=(states, actions)))
    start = np.eye(states)[0]
    category = random.choice(3, (states, actions), p=(0.6, 0.25, 0.15))
    return FinitePart(successor, probability, reward, start, absorbing, np.eye(states)), category


def program_over_all_steps(finite, horizon, category, limits):
    """maximise sum mu_t r over mu_t(s, m, a), the flow from step to step being kept: one large program."""
    states, actions, outcomes = finite.successor.shape
    memories = 3
    index = np.arange(horizon * states * memories * actions).reshape(horizon, states, memories, actions)
    nodes = np.arange((horizon + 1) * states * memories).reshape(horizon + 1, states, memories)
    rows, columns, values = [], [], []

    def put(row, column, value):
        rows.append(row), columns.append(column), values.append(value)

    for t, s, m, a in np.ndindex(index.shape):
        if finite.absorbing[s]:
            continue
        put(nodes[t, s, m], index[t, s, m, a], 1.0)
        after = max(m, category[s, a])
        for k in range(outcomes):
            target = nodes[t + 1, finite.successor[s, a, k], after]
            put(target, index[t, s, m, a], -finite.probability[s, a, k])
    final = index.size + np.arange(nodes.size).reshape(nodes.shape)
    for t, s, m in np.ndindex(nodes.shape):
        if finite.absorbing[s] or t == horizon:
            put(nodes[t, s, m], final[t, s, m], 1.0)
    size = index.size + nodes.size
    balance = sparse.csr_array((values, (rows, columns)), shape=(nodes.size, size))
    source = np.zeros(nodes.size)
    source[nodes[0, :, 0]] = finite.start
    reward = np.concatenate([np.broadcast_to(finite.reward[None, :, None], index.shape).ravel(), np.zeros(nodes.size)])
    costs = []
    for limit in limits:
        cost = np.array(limit.cost)
        steps = np.broadcast_to(cost[category][None, :, None], index.shape).ravel() * limit.counts
        runs = np.broadcast_to(cost[None, None], nodes.shape).ravel() * (not limit.counts)
        costs.append(np.concatenate([steps, runs]))
    found = optimize.linprog(
        -reward, np.array(costs), [limit.limit for limit in limits], balance, source, method="highs"
    )
    return -found.fun if found.status == 0 else None


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    chance=st.sampled_from([0.0, 0.05, 0.3, 0.7]),
    severe=st.sampled_from([0.0, 0.02, 0.2]),
    counts=st.booleans(),
)
def test_the_optimum_is_that_of_the_program_over_all_steps(seed, chance, severe, counts):
    finite, category = random_model(seed)
    limits = [Limit(WORSE, chance, "mild+", counts), Limit((0.0, 0.0, 1.0), severe, "severe")]
    exact = program_over_all_steps(finite, 6, category, limits)
    if exact is None:
        with pytest.raises(Infeasible, match="in runs of 6 steps"):
            horizon_optimum(finite, 6, category, limits)
        return
    found = horizon_optimum(finite, 6, category, limits)
    assert found.value == pytest.approx(exact, abs=1e-5)
    assert found.bound >= found.value - 1e-9
    assert len(found.members) <= len(limits) + 1
    for value, limit in zip(found.limit_values, limits, strict=True):
        assert value <= limit.limit + 1e-8


def test_a_cost_that_does_not_grow_with_the_severity_needs_the_memory():
    """ "mild<=0" alone: a run may be severe, and then a mild step changes nothing."""
    for seed in range(8):
        finite, category = random_model(seed)
        limits = [Limit((0.0, 1.0, 0.0), 0.0, "mild")]
        exact = program_over_all_steps(finite, 6, category, limits)
        if exact is not None:
            assert horizon_optimum(finite, 6, category, limits).value == pytest.approx(exact, abs=1e-6)


def test_each_price_is_the_slope_of_the_return(ledge):
    def optimum(chance):
        return horizon_optimum(ledge.finite, 60, ledge.side_effect, [Limit(WORSE, chance)])

    here, step = optimum(0.05), 1e-5
    slope = (optimum(0.05 + step).value - optimum(0.05 - step).value) / (2 * step)
    assert here.prices[0] == pytest.approx(slope, rel=0.02)
    assert optimum(0.04).value >= here.value - optimum(0.04).prices[0] * 0.01 - 1e-6, "the return is concave"


def test_what_is_computed_is_what_rollouts_show(ledge):
    """The exact chances and return against rollouts of the table, and of the policy as it is deployed."""
    optimum = horizon_optimum(ledge.finite, 60, ledge.side_effect, [Limit(WORSE, 0.1)])
    policy = horizon_policy(optimum, ledge)
    assert draws(policy)
    found = prospect(ledge, policy, ledge.side_effect, 3)
    assert found.value == pytest.approx(optimum.value, abs=1e-5)
    assert found.chances == pytest.approx([0.9, 0.1, 0.0], abs=1e-6)
    assert found.never.tolist() == [False, False, True]
    penalty = 5.0 * ledge.side_effect
    runs = fresh_runs(ledge, policy, ledge.side_effect, penalty, np.random.default_rng(3), 40_000)
    assert abs(runs.returns.mean() - found.value) < 4 * runs.returns.std() / 200
    assert abs((runs.worst > 0).mean() - 0.1) < 4 * 0.3 / 200
    assert runs.penalties.mean() == pytest.approx(5.0 * found.numbers[1], rel=0.1)
    deployed = rollout(ledge, policy, jax.random.key(5), 2000)
    assert abs(float(deployed.returns().mean()) - found.value) < 4 * runs.returns.std() / np.sqrt(2000)
    worst = np.asarray(ledge.side_effect)[ledge.indices(deployed.states), ledge.action_indices(deployed.actions)]
    assert abs(np.where(deployed.mask, worst, 0).max(axis=1).mean() - 0.1) < 4 * 0.3 / np.sqrt(2000)
    seen = visited_pairs(ledge, policy)
    assert np.array_equal(seen, optimum.possible)
    assert not (optimum.visits > 0)[~seen].any()


def test_a_limit_of_zero_is_kept_by_logic(ledge):
    never = horizon_optimum(ledge.finite, 60, ledge.side_effect, [Limit(WORSE, 0.0)])
    policy = horizon_policy(never, ledge)
    assert not draws(policy)
    found = prospect(ledge, policy, ledge.side_effect, 3)
    assert found.never.tolist() == [False, True, True]
    assert not (never.possible & (ledge.side_effect > 0)).any()
    assert policy.tables.shape[1] == 1, "a policy that may not do it need not remember that it did"


def test_a_policy_that_draws_nothing_is_preferred_where_it_costs_little(ledge):
    limits = [Limit(WORSE, 0.1)]
    mixed, single = (horizon_optimum(ledge.finite, 60, ledge.side_effect, limits, loss=loss) for loss in (0.0, 1.0))
    assert len(mixed.members) == 2
    assert len(single.members) == 1
    assert single.limit_values[0] <= 0.1
    assert single.value < mixed.value


@pytest.mark.parametrize("tolerance", [0.02, 0.2])
def test_the_certifiable_chance_passes_as_often_as_promised(tolerance):
    rollouts, alpha = 5000, CERTIFYING * 0.025
    chance = certifiable_chance(tolerance, rollouts, alpha, 0.9)
    counts, often = np.unique(np.random.default_rng(1).binomial(rollouts, chance, 4000), return_counts=True)
    passed = [upper_bound(int(count), rollouts, alpha) <= tolerance for count in counts]
    assert often[passed].sum() / 4000 == pytest.approx(0.9, abs=0.02)
    assert certifiable_chance(tolerance, 10, alpha, 0.9) is None


def test_pairs_labelled_in_blocks_are_those_labelled_at_once(monkeypatch):
    finite, _ = random_model(3)

    def label(steps):
        return 10 * steps.states[:, 0].argmax(axis=1) + steps.actions[:, 0].argmax(axis=1)

    whole = category_table(finite, label)
    monkeypatch.setattr("sidestep.labels.packing.BLOCK", 2)
    assert np.array_equal(category_table(finite, label), whole)
    assert whole[3, 2] == 32
