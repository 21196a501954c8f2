"""Improvement by lookahead: it finds what a gradient cannot, and takes up nothing that is not a proven gain."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sidestep.core.constraints import Scale, parse_constraints
from sidestep.core.errors import InputError
from sidestep.core.model import Space, Spec, Variable, rollout
from sidestep.models.domains.driving.model import Driving
from sidestep.planning import lookahead, plan
from sidestep.planning.config import PlanConfig
from sidestep.planning.learner import Learner
from sidestep.planning.methods import Lookahead, Pathwise
from sidestep.planning.plan import Planner
from sidestep.planning.problem import Problem
from sidestep.policies.networks import make_policy
from sidestep.safety.hazard import HazardModel

SMALL = {"STATES": 64, "VISITORS": 16, "DRAWS": 4, "FRESH_DRAWS": 8, "TESTS": 256, "LEARNING_STEPS": 150}
EVERYWHERE = jnp.full(6, 1 / 6)
CONFIG = PlanConfig(
    reward=Pathwise(batch=16, noise_start=0.1),
    search=None,
    lookahead=Lookahead(rounds=3),
    epochs=8,
    test_every=2,
    test_batch=32,
    widths=(16,),
)


class Hills:
    """A small hill at the start and a higher plateau two steps away, with a plain between them that has no slope."""

    def __init__(self):
        move = Variable("move", low=-1.0, high=1.0)
        self.spec = Spec("hills", Space((Variable("x"),)), Space((move,)), horizon=6, ends=False)

    def reset(self, key):
        return 0.02 * jax.random.normal(key, (1,))

    def step(self, state, action, key):
        state = state + action + 0.02 * jax.random.normal(key, (1,))
        hill, plateau = jnp.exp(-(state[0] ** 2) / 0.05), jax.nn.sigmoid((state[0] - 1.5) / 0.05)
        return state, hill + 3.0 * plateau, jnp.zeros((), bool)

    def action_bounds(self, state):
        return -jnp.ones(1), jnp.ones(1)


class Wager(Hills):
    """Every action is a fair bet: no policy is better than another."""

    def step(self, state, action, key):
        return state + action, action[0] * jax.random.normal(key), jnp.zeros((), bool)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(plan, "LEAST_PART", 1)
    for name, value in SMALL.items():
        monkeypatch.setattr(lookahead, name, value)


def started(model, config=CONFIG, safety=None, constraints=()):
    problem = Problem(model, safety, constraints)
    return problem, Learner.start(problem, config, jax.random.key(1), None)


def mean_return(model, policy):
    return float(rollout(model, policy.mean(), jax.random.key(9), 200).returns().mean())


def same(one, other):
    return all(
        np.array_equal(a, b)
        for a, b in zip(*(jax.tree.leaves(eqx.filter(t, eqx.is_inexact_array)) for t in (one, other)), strict=True)
    )


@pytest.fixture(scope="module")
def plan_without():
    planner = Planner(Hills(), None, (), replace(CONFIG, lookahead=None))
    return list(planner.run(planner.start(jax.random.split(jax.random.key(0), 1))))


def test_it_leaves_a_basin_that_the_gradient_stays_in(plan_without):
    model = Hills()
    _, rows = plan_without[-1]
    assert rows[0].mean_return < 7.0, "the small hill: one per step"
    planner = Planner(model, None, (), CONFIG)
    steps = list(planner.run(planner.start(jax.random.split(jax.random.key(0), 1))))
    assert steps[-1][1][0].mean_return > 9.0, "most steps on the plateau"
    gains = [row.train_lookahead_gain for _, rows in steps for row in rows]
    assert max(gains[:3]) > 2.0
    assert np.isnan(gains[3]), "the last word is the gradient's"


def test_nothing_changes_before_the_first_time(plan_without):
    planner = Planner(Hills(), None, (), replace(CONFIG, epochs=16))
    state, _ = planner.advance(planner.start(jax.random.split(jax.random.key(0), 1)))
    other = Planner(Hills(), None, (), replace(CONFIG, epochs=16, lookahead=None))
    without, _ = other.advance(other.start(jax.random.split(jax.random.key(0), 1)))
    assert same(state.learners, without.learners)


def test_a_run_goes_on_bit_for_bit():
    planner = Planner(Hills(), None, (), CONFIG)
    steps = list(planner.run(planner.start(jax.random.split(jax.random.key(3), 1))))
    kept = jax.tree.map(lambda leaf: leaf, steps[1][0])
    again = list(Planner(Hills(), None, (), CONFIG).run(kept))
    assert same(again[-1][0].learners, steps[-1][0].learners)
    assert [rows[0].train_lookahead_gain for _, rows in again[:1]] == [steps[2][1][0].train_lookahead_gain]


def test_a_gain_that_is_not_proven_is_not_taken_up(monkeypatch):
    monkeypatch.setattr(lookahead, "PROVEN", 1e9)
    problem, learner = started(Hills())
    improved, gained = eqx.filter_jit(lambda one: lookahead.improve(problem, CONFIG, Lookahead(), one, one.key))(
        learner
    )
    assert gained == 0.0
    assert same(improved, learner)


def test_bets_are_not_taken_for_gains():
    """Where all policies are worth the same, a gain is "proven" by chance alone: in some 2 % of the rounds."""
    problem, learner = started(Wager())
    once = eqx.filter_jit(
        lambda one, key: lookahead.improve_once(problem, CONFIG, one, one.policy, EVERYWHERE, key)[1:3]
    )
    found = [once(learner, key) for key in jax.random.split(jax.random.key(5), 40)]
    assert sum(bool(proven) for _, proven in found) <= 3
    assert np.std([float(gain) for gain, _ in found]) > 0.0


def test_costs_are_weighed_by_the_multipliers(key):
    """With a high price a safer policy is a gain; without one the same policy is none."""
    safety = HazardModel(1, 1, 3, key=key, units=4, encoder=())
    constraints = parse_constraints(["none>=0.9"], Scale())
    problem, learner = started(Hills(), safety=safety, constraints=tuple(constraints))
    learner = eqx.tree_at(lambda one: one.log_norms, learner, jnp.array([0.0, jnp.log(0.5)]))
    assert lookahead.prices(CONFIG, learner) == pytest.approx(2.0 * learner.multipliers.value)
    once = eqx.filter_jit(
        lambda one: lookahead.improve_once(problem, CONFIG, one, one.policy, EVERYWHERE, jax.random.key(2))
    )
    _, gain, _, costs, where = once(learner)
    trajectory = rollout(problem.model, learner.policy.mean(), jax.random.key(4), 500)
    assert float(costs[0]) == pytest.approx(float(problem.costs(trajectory).mean()), abs=0.05)
    assert np.isfinite(float(gain))
    assert float(jnp.sum(where)) == pytest.approx(1.0)


def test_the_memory_at_the_end_tells_the_cost_of_the_trajectory(key):
    safety = HazardModel(1, 1, 3, key=key, units=4, encoder=())
    problem, _ = started(Hills(), safety=safety, constraints=tuple(parse_constraints(["none>=0.9"], Scale())))
    policy = make_policy(problem.model, key, widths=(8,), safety=safety)
    looker = lookahead._Looker(problem, policy)
    costs = looker.outcomes(policy, jax.random.key(7), 2000)[:, 1]
    trajectory = rollout(problem.model, policy.mean(), jax.random.key(8), 2000)
    assert float(costs.mean()) == pytest.approx(float(problem.costs(trajectory).mean()), abs=0.01)


def test_finite_models_are_refused():
    grid = Driving("S.@..\n.....\n..@.G\n", name="yard", horizon=5)
    with pytest.raises(InputError, match="lookahead is not for finite models, and 'yard' is one; set it to 0"):
        Planner(grid, None, (), CONFIG)
