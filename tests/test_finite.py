"""Exact methods: value iteration, evaluation, the occupancy LP and lexicographic planning against one another,
against problems solved by hand, and against simulation."""

from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from sidestep.core.errors import InputError
from sidestep.core.model import FinitePart, FunctionPolicy, rollout
from sidestep.finite.lexicographic import lexicographic, lexicographic_lp
from sidestep.finite.occupancy import Bound, Infeasible, occupancy_lp
from sidestep.finite.values import evaluate, from_start, value_iteration
from sidestep.models import load_model
from sidestep.models.domains.boxpushing.model import Boxpushing
from sidestep.models.domains.driving.model import Driving
from sidestep.models.grids import PENALTIES

NAMES = ("1", "2", "3", "4", "5", "40")
MAPS = [(domain, name) for domain in ("boxpushing", "driving") for name in NAMES]
SMALL_MAPS = [(domain, name) for domain, name in MAPS if int(name) <= 5]


def penalty_of(model):
    return np.array(PENALTIES, float)[model.side_effect]


def process(transitions, start=0, absorbing=(), states=None):
    """A table from {(s, a): (reward, {successor: probability})}; pairs left out cost 1 and stay where they are."""
    states = 1 + max(s for s, _ in transitions) if states is None else states
    actions = 1 + max(a for _, a in transitions)
    outcomes = max(len(to) for _, to in transitions.values())
    successor = np.arange(states)[:, None, None].repeat(actions, 1).repeat(outcomes, 2)
    probability = np.zeros(successor.shape)
    probability[..., 0] = 1.0
    reward = np.full((states, actions), -1.0)
    for (s, a), (paid, to) in transitions.items():
        reward[s, a], probability[s, a] = paid, 0.0
        for k, (target, share) in enumerate(to.items()):
            successor[s, a, k], probability[s, a, k] = target, share
    ends = np.isin(np.arange(states), absorbing)
    reward[ends] = 0.0
    return FinitePart(
        successor, probability, reward, (np.arange(states) == start).astype(float), ends, np.eye(states, dtype="f")
    )


def two_roads():
    """From 0 to the end 2 by a short road (1 step, cost 4) or a long one (over 1, 3 steps' worth, cost 0)."""
    return process(
        {(0, 0): (-1.0, {2: 1.0}), (0, 1): (-1.0, {1: 1.0}), (1, 0): (-2.0, {2: 1.0}), (2, 0): (0.0, {2: 1.0})},
        absorbing=(2,),
    )


SHORT_ROAD_COST = np.array([[4.0, 0.0], [0.0, 0.0], [0.0, 0.0]])


@pytest.mark.parametrize("discount", [1.0, 0.99])
@pytest.mark.parametrize(("domain", "name"), SMALL_MAPS)
def test_lp_and_value_iteration_agree_and_side_effects_are_avoidable(domain, name, discount):
    model = load_model(f"{domain}?map={name}")
    finite, penalty = model.finite, penalty_of(model)
    best, program = value_iteration(finite, discount=discount), occupancy_lp(finite, discount=discount)
    assert program.value == pytest.approx(from_start(finite, best.values), abs=1e-6)

    safe = occupancy_lp(finite, [Bound(penalty, 0.0, "penalty")], discount=discount)
    safe_best = value_iteration(finite, discount=discount, allowed=penalty == 0)
    assert safe.value == pytest.approx(from_start(finite, safe_best.values), abs=1e-6)
    for policy in (safe.policy, safe_best.policy):
        assert from_start(finite, evaluate(finite, policy, discount=discount)) == pytest.approx(safe.value, abs=1e-6)
        assert from_start(finite, evaluate(finite, policy, penalty, discount=discount)) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("domain", ["boxpushing", "driving"])
def test_large_map(domain):
    model = load_model(f"{domain}?map=40")
    penalty = penalty_of(model)
    assert min(len(model.map), len(model.map[0])) >= 40
    safe = occupancy_lp(model.finite, [Bound(penalty, 0.0, "penalty")])
    best = value_iteration(model.finite, allowed=penalty == 0)
    assert safe.value == pytest.approx(from_start(model.finite, best.values), abs=1e-6)
    assert safe.value < from_start(model.finite, value_iteration(model.finite).values) - 1.0


@pytest.mark.parametrize("domain", ["boxpushing", "driving"])
def test_safety_has_a_price_on_our_maps(domain):
    def price(name):
        model = load_model(f"{domain}?map={name}")
        free, safe = (value_iteration(model.finite, allowed=allowed) for allowed in (None, penalty_of(model) == 0))
        return from_start(model.finite, free.values) - from_start(model.finite, safe.values)

    assert min(price(name) for name in NAMES) > 0.1


# (undiscounted, discounted) best return with no side effects, and the undiscounted one without that constraint.
KNOWN = {
    "boxpushing/grid-3-t1.bp": (-30.670, -26.514, -30.411),
    "boxpushing/grid-3-t2.bp": (-30.361, -26.288, -30.317),
    "boxpushing/grid-3-t3.bp": (-30.410, -26.325, -30.365),
    "driving/grid-3-t3.nav": (-28.830, -25.192, -28.125),
    "driving/grid-3-t5.nav": (-28.377, -24.839, -28.125),
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_optima(name):
    path = Path(__file__).parents[2] / "shared" / "maps" / name
    if not path.exists():
        pytest.skip(f"the map {path} is not on this machine")
    model = load_model(str(path))
    bound = Bound(penalty_of(model), 0.0, "penalty")
    safe, safe_discounted, free = KNOWN[name]
    assert occupancy_lp(model.finite, [bound]).value == pytest.approx(safe, abs=1e-3)
    assert occupancy_lp(model.finite, [bound], discount=0.99).value == pytest.approx(safe_discounted, abs=1e-3)
    assert occupancy_lp(model.finite).value == pytest.approx(free, abs=1e-3)
    assert from_start(model.finite, value_iteration(model.finite).values) == pytest.approx(free, abs=1e-3)


def test_rollouts_of_the_optimal_policy_earn_its_value(key):
    model = load_model("boxpushing?map=3")
    optimum = occupancy_lp(model.finite, [Bound(penalty_of(model), 0.0, "penalty")])
    actions = jnp.asarray(optimum.policy.argmax(1))
    assert optimum.policy.max(1) == pytest.approx(1.0)

    def act(state, clock, key):
        return jax.nn.one_hot(actions[model.indices(state)], model.spec.action.size)

    trajectory = rollout(model, FunctionPolicy(act), key, 4000, 120)
    returns = np.asarray(trajectory.returns())
    assert returns.mean() == pytest.approx(optimum.value, abs=5 * returns.std() / np.sqrt(len(returns)))
    effects = jnp.asarray(model.side_effect)[model.indices(trajectory.states), model.action_indices(trajectory.actions)]
    assert not jnp.any(effects[trajectory.mask])


def test_geometric_waiting_by_hand():
    finite = process({(0, 0): (-1.0, {1: 0.2, 0: 0.8}), (1, 0): (0.0, {1: 1.0})}, absorbing=(1,))
    assert value_iteration(finite).values == pytest.approx([-5.0, 0.0])
    assert evaluate(finite, np.ones((2, 1))) == pytest.approx([-5.0, 0.0])
    discounted = -1.0 / (1.0 - 0.9 * 0.8)
    assert value_iteration(finite, discount=0.9).values == pytest.approx([discounted, 0.0])
    assert occupancy_lp(finite, discount=0.9).value == pytest.approx(discounted)


def test_evaluate_agrees_with_adding_up_steps():
    model = Driving("S.@\n.X.\n@.G")
    finite, rng = model.finite, np.random.default_rng(0)
    policy = rng.dirichlet(np.ones(8), size=len(finite.reward))
    transition = np.zeros((len(policy), len(policy)))
    for s, a, k in np.ndindex(finite.successor.shape):
        transition[s, finite.successor[s, a, k]] += policy[s, a] * finite.probability[s, a, k]
    for discount in (1.0, 0.9):
        paid, total = finite.start.copy(), 0.0
        for _ in range(3000):
            total += paid @ np.sum(policy * finite.reward, axis=1)
            paid = discount * paid @ transition
        assert from_start(finite, evaluate(finite, policy, discount=discount)) == pytest.approx(total, rel=1e-9)


def test_policies_that_never_end():
    stay, leave = np.eye(2)
    finite = process({(0, 0): (-1.0, {0: 1.0}), (0, 1): (-1.0, {1: 1.0}), (1, 0): (0.0, {1: 1.0})}, absorbing=(1,))
    policy = np.stack([stay, stay])
    assert evaluate(finite, policy)[0] == -np.inf
    assert evaluate(finite, policy, -finite.reward)[0] == np.inf
    assert evaluate(finite, policy, np.zeros((2, 2)))[0] == 0.0
    assert evaluate(finite, policy, discount=0.5)[0] == pytest.approx(-2.0)
    assert evaluate(finite, np.stack([leave, stay]))[0] == -1.0

    swap = process({(0, 0): (1.0, {1: 1.0}), (1, 0): (-1.0, {0: 1.0}), (2, 0): (0.0, {2: 1.0})}, absorbing=(2,))
    assert np.isnan(evaluate(swap, np.ones((3, 1)))[0])
    assert value_iteration(swap).values[:2] == pytest.approx([-np.inf, -np.inf])


def test_a_risk_of_a_trap_is_minus_infinity():
    risky, slow = (-1.0, {2: 0.5, 1: 0.5}), (-9.0, {2: 1.0})
    finite = process({(0, 0): risky, (0, 1): slow, (2, 0): (0.0, {2: 1.0})}, absorbing=(2,))  # state 1 is the trap
    best = value_iteration(finite)
    assert best.values == pytest.approx([-9.0, -np.inf, 0.0])
    assert best.policy[0] == pytest.approx([0.0, 1.0])
    assert evaluate(finite, np.eye(2)[[0, 0, 0]])[0] == -np.inf
    assert occupancy_lp(finite).value == pytest.approx(-9.0)
    assert value_iteration(finite, discount=0.5).policy[0] == pytest.approx([1.0, 0.0])


def test_idle_circles_do_not_keep_a_policy_from_ending():
    """Reward 0 for waiting, -3 for leaving: the best policy that ends leaves."""
    finite = process({(0, 0): (0.0, {0: 1.0}), (0, 1): (-3.0, {1: 1.0}), (1, 0): (0.0, {1: 1.0})}, absorbing=(1,))
    best = value_iteration(finite)
    assert best.values[0] == pytest.approx(-3.0)
    assert evaluate(finite, best.policy)[0] == pytest.approx(-3.0)


def test_value_iteration_against_recursion():
    finite = Boxpushing("S.B\n@.G").finite

    @cache
    def best(state, steps):
        if steps == 0 or finite.absorbing[state]:
            return 0.0
        successors = (zip(finite.successor[state, a], finite.probability[state, a], strict=True) for a in range(5))
        after = [sum(p * best(int(n), steps - 1) for n, p in outcomes if p) for outcomes in successors]
        return max(reward + 0.9 * value for reward, value in zip(finite.reward[state], after, strict=True))

    for steps in range(250):  # shorter ones first, which keeps the recursion shallow
        longest = [best(state, steps) for state in range(len(finite.start))]
    assert value_iteration(finite, discount=0.9).values == pytest.approx(longest, abs=1e-9)


def test_mixing_two_roads_meets_a_limit_exactly():
    """Cost 4 p <= 1 lets the short road be taken with p = 1/4: value -1 p - 3 (1 - p) = -2.5."""
    optimum = occupancy_lp(two_roads(), [Bound(SHORT_ROAD_COST, 1.0)])
    assert optimum.value == pytest.approx(-2.5)
    assert optimum.policy[0] == pytest.approx([0.25, 0.75])
    assert optimum.constraint_values == pytest.approx((1.0,))


def test_several_constraints():
    long_road_cost = np.array([[0.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
    optimum = occupancy_lp(two_roads(), [Bound(SHORT_ROAD_COST, 3.0), Bound(long_road_cost, 0.5)])
    assert optimum.constraint_values == pytest.approx((3.0, 0.25))
    with pytest.raises(Infeasible, match=r"no policy meets all of short <= 1 .*, long <= 0.5 .* at once"):
        occupancy_lp(two_roads(), [Bound(SHORT_ROAD_COST, 1.0, "short"), Bound(long_road_cost, 0.5, "long")])
    with pytest.raises(Infeasible, match="no policy meets"):
        occupancy_lp(two_roads(), [Bound(SHORT_ROAD_COST, 0.0, "short"), Bound(long_road_cost, 0.0, "long")])


def test_infeasible_says_what_can_be_reached():
    model = Boxpushing("SB\nxF\n.G")
    with pytest.raises(Infeasible, match=r"penalty <= 0 \(the least that can be reached is 5\.263\)"):
        occupancy_lp(model.finite, [Bound(penalty_of(model), 0.0, "penalty")])
    with pytest.raises(Infeasible, match=r"penalty <= 5 \(the least"):
        occupancy_lp(model.finite, [Bound(penalty_of(model), 5.0, "penalty")])
    assert occupancy_lp(model.finite, [Bound(penalty_of(model), 5.27)]).value < 0


def test_a_solver_in_trouble_is_not_the_last_word(monkeypatch):
    """Where no accuracy helps, the exact least of each constraint tells an infeasible program from a hard one."""
    tried = []

    def troubled(*_, method, **__):
        tried.append(method)
        return scipy.optimize.OptimizeResult(status=4, message="in trouble")

    monkeypatch.setattr(scipy.optimize, "linprog", troubled)
    finite = two_roads()
    with pytest.raises(Infeasible, match="the least that can be reached is"):
        occupancy_lp(finite, [Bound(np.ones(finite.reward.shape), 0.5, "steps")])
    with pytest.raises(InputError, match="could not be solved"):
        occupancy_lp(finite, [Bound(np.ones(finite.reward.shape), 100.0, "steps")])
    assert set(tried) == {"highs", "highs-ipm"}


def test_no_end_and_no_upper_bound_are_said():
    endless = process({(0, 0): (-1.0, {0: 1.0}), (1, 0): (0.0, {1: 1.0})}, absorbing=(1,))
    with pytest.raises(Infeasible, match="sure to reach an end"):
        occupancy_lp(endless)
    assert occupancy_lp(endless, discount=0.5).value == pytest.approx(-2.0)
    paying = process({(0, 0): (1.0, {0: 1.0}), (0, 1): (0.0, {1: 1.0}), (1, 0): (0.0, {1: 1.0})}, absorbing=(1,))
    with pytest.raises(InputError, match="no upper bound"):
        occupancy_lp(paying)
    with pytest.raises(InputError, match="cycle with positive reward"):
        value_iteration(paying)


def test_a_limit_of_zero_is_exact_where_safety_is_nearly_unreachable():
    """Next to a corner between holes no move is safe, and next to such a cell neither: only the border is, where one
    waits for slides along it. A little penalty saves most of that."""
    model = Boxpushing("....G\n.@...\n..@..\n...@.\nSB...")
    penalty = penalty_of(model)
    safe = occupancy_lp(model.finite, [Bound(penalty, 0.0)]).value
    exact = from_start(model.finite, value_iteration(model.finite, allowed=penalty == 0).values)
    assert safe == pytest.approx(exact, abs=1e-5)
    assert safe < 10 * occupancy_lp(model.finite, [Bound(penalty, 0.5)]).value


@pytest.mark.parametrize("discount", [1.0, 0.99])
def test_lexicographic_by_choice(discount):
    model = load_model("boxpushing?map=4")
    finite, penalty = model.finite, penalty_of(model)
    best = from_start(finite, value_iteration(finite, discount=discount).values)
    returns, penalties = [], []
    for slack in (0.0, 0.01, 0.1):
        policy = lexicographic(finite, penalty, slack=slack, discount=discount).policy
        returns.append(from_start(finite, evaluate(finite, policy, discount=discount)))
        penalties.append(from_start(finite, evaluate(finite, policy, penalty, discount=discount)))
        if discount < 1:
            assert returns[-1] >= best - slack / (1 - discount) - 1e-6
    assert returns[0] == pytest.approx(best, abs=1e-6)
    assert penalties[0] > penalties[1] > penalties[2]
    assert best > returns[1] > returns[2] > best - 1


@pytest.mark.parametrize("discount", [1.0, 0.99])
def test_lexicographic_in_total(discount):
    model = load_model("driving?map=2")
    finite, penalty = model.finite, penalty_of(model)
    best, safe = (occupancy_lp(finite, bounds, discount=discount).value for bounds in ([], [Bound(penalty, 0.0)]))
    whole = lexicographic_lp(finite, penalty, slack=best - safe, discount=discount)
    assert whole.value == pytest.approx(safe, abs=1e-5)
    assert whole.constraint_values[1] == pytest.approx(0.0, abs=1e-5)
    half = lexicographic_lp(finite, penalty, slack=(best - safe) / 2, discount=discount)
    assert half.value == pytest.approx((best + safe) / 2, abs=1e-5)
    assert half.constraint_values[1] > 0.1
