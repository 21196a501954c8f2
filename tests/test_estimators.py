"""Gradient estimators: against finite differences with common random numbers, each other, and the exact one."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sidestep.core.constraints import Scale, parse_constraints
from sidestep.core.model import FinitePart, Space, Spec, Variable
from sidestep.models.domains.driving.model import Driving
from sidestep.models.finite_model import FiniteModel
from sidestep.planning.config import PlanConfig
from sidestep.planning.exact import all_pairs, cost_tables, evaluate, exact_gradients
from sidestep.planning.learner import Learner, split
from sidestep.planning.linearised_costs import linearised_costs, trajectories
from sidestep.planning.methods import PPO, Exact, Pathwise, PathwiseCost, Score
from sidestep.planning.pathwise import pathwise
from sidestep.planning.ppo import real_first
from sidestep.planning.problem import Problem
from sidestep.planning.score import score_function
from sidestep.planning.tabular import table_batch
from sidestep.planning.tabular_rollouts import TabularRollouts, log_policy, rollout_table, through_model
from sidestep.safety.hazard import HazardModel
from sidestep.safety.markov import MarkovClassifier

BATCHES, BATCH = 48, 128
SMALL = PlanConfig(
    reward=Pathwise(batch=BATCH, noise_start=0.7),
    constraint=PathwiseCost(form="probability"),
    widths=(8,),
    balance=False,
)


class Drift:
    """x' = 0.9 x + 0.5 a + noise, reward -x^2: smooth, short, with nothing to hide behind."""

    spec = Spec(
        "drift",
        Space((Variable("x"), Variable("y"))),
        Space((Variable("a", low=-1.0, high=1.0),)),
        horizon=4,
        ends=False,
    )

    def reset(self, key):
        return jax.random.normal(key, (2,))

    def step(self, state, action, key):
        noise = 0.2 * jax.random.normal(key, (2,))
        push = jnp.concatenate([action, -action])
        return 0.9 * state + 0.5 * push + noise, -jnp.sum(state**2), jnp.asarray(False)

    def action_bounds(self, state):
        return -jnp.ones(1), jnp.ones(1)


def learner_and_problem(texts=("none>=0.9",), config=SMALL):
    model = Drift()
    safety = HazardModel(2, 1, 3, key=jax.random.key(7), units=8, encoder=())
    problem = Problem(model, safety, parse_constraints(texts, Scale()))
    return Learner.start(problem, config, jax.random.key(1)), problem


def flat(tree):
    return jnp.concatenate([leaf.reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(tree)], axis=1)


def test_pathwise_gradient_is_the_derivative_with_the_noise_held_fixed():
    with jax.enable_x64(True):
        learner, problem = learner_and_problem()
        keys = jax.random.split(jax.random.key(3), 16)
        double = jax.tree.map(lambda leaf: leaf.astype(jnp.float64) if eqx.is_inexact_array(leaf) else leaf, learner)
        problem = replace(problem, safety=_double(problem.safety))
        gradients, _, _, _ = eqx.filter_jit(lambda learner: pathwise(problem, SMALL, learner, keys))(double)
        learned, rest = split(double.policy, double.value, SMALL)
        direction = jax.tree.map(
            lambda leaf: jax.random.normal(jax.random.key(leaf.size), leaf.shape, leaf.dtype), learned
        )

        @jax.jit
        def objectives(step):
            moved = jax.tree.map(lambda p, d: p + step * d, learned, direction)
            policy, _ = eqx.combine(moved, rest)
            _, trajectory, _, _ = pathwise(problem, SMALL, replace(double, policy=policy), keys)
            return jnp.stack([jnp.mean(trajectory.returns()), jnp.mean(problem.costs(trajectory))])

        numeric = (objectives(1e-5) - objectives(-1e-5)) / 2e-5
        analytic = [
            sum(float(jnp.sum(g[row] * d)) for g, d in zip(*map(jax.tree.leaves, (gradients, direction)), strict=True))
            for row in range(2)
        ]
        np.testing.assert_allclose(analytic, numeric, rtol=1e-5)


def _double(tree):
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float64) if eqx.is_inexact_array(leaf) else leaf, tree)


@pytest.fixture(scope="module", params=["probability", "log"])
def estimates(request):
    """Gradients of the cost of one constraint, many batches each: (batch, parameter) by pathwise and by score."""
    learner, problem = learner_and_problem()
    form = request.param
    config = replace(SMALL, constraint=PathwiseCost(form=form))

    @jax.jit
    def both(key):
        sample = pathwise(problem, config, learner, jax.random.split(key, BATCH))
        scores = score_function(problem, config, Score(form=form), learner, sample)
        return flat(sample.gradients)[1], flat(scores)[0]

    return jax.lax.map(both, jax.random.split(jax.random.key(5), BATCHES))


def test_pathwise_and_score_function_agree_in_expectation(estimates):
    path, score = (np.asarray(e) for e in estimates)
    directions = np.random.default_rng(0).normal(size=(path.shape[1], 20)) / np.sqrt(path.shape[1])
    path, score = path @ directions, score @ directions
    error = np.sqrt((path.var(axis=0, ddof=1) + score.var(axis=0, ddof=1)) / BATCHES)
    assert np.all(np.abs(path.mean(axis=0) - score.mean(axis=0)) < 4.5 * error)
    assert np.any(np.abs(path.mean(axis=0)) > 3 * error), "the test has no power: the gradient drowns in its error"


def test_pathwise_has_the_smaller_variance(estimates):
    path, score = (np.asarray(e) for e in estimates)
    assert path.var(axis=0).sum() < 0.2 * score.var(axis=0).sum()


def test_several_constraints_have_their_own_gradients():
    learner, problem = learner_and_problem(("none>=0.9", "severe<=0.02"))
    gradients, _, _, _ = pathwise(problem, SMALL, learner, jax.random.split(jax.random.key(2), BATCH))
    rows = np.asarray(flat(gradients))
    assert rows.shape[0] == 3
    assert not np.allclose(rows[1], rows[2])


def chain_model() -> FiniteModel:
    """Three cells in a row and an end: walk right (may slip) or wait; every waiting step costs more."""
    successor = np.array([[[1, 0], [0, 0]], [[2, 1], [1, 1]], [[3, 2], [2, 2]], [[3, 3], [3, 3]]])
    probability = np.array([[[0.8, 0.2], [1.0, 0.0]]] * 3 + [[[1.0, 0.0], [1.0, 0.0]]])
    reward = np.array([[-1.0, -1.5], [-1.0, -0.5], [-2.0, -1.0], [0.0, 0.0]])
    finite = FinitePart(
        successor, probability, reward, np.array([1.0, 0, 0, 0]), np.array([False, False, False, True]), np.eye(4)
    )
    spec = Spec(
        "chain",
        Space((Variable("cell", "one-hot", 4, 0.0, 1.0),)),
        Space((Variable("move", "one-hot", 2, 0.0, 1.0),)),
        horizon=40,
        gradient="straight-through",
    )
    return FiniteModel(finite, spec)


PLAIN = Exact(entropy=0.0, start_share=0.0, least_chance=0.0)
EXACT = PlanConfig(reward=PLAIN, constraint=None, widths=(8,), observe="state", balance=False)


def exact_setup():
    model = chain_model()
    safety = MarkovClassifier(4, 2, 2, key=jax.random.key(0))
    problem = Problem(model, safety, parse_constraints(["good>=0.5"], Scale(("good", "bad"))))
    return Learner.start(problem, EXACT, jax.random.key(4)), problem


def test_exact_gradient_is_the_derivative_of_the_exact_value():
    learner, problem = exact_setup()
    tables = cost_tables(problem)
    gradients, _, _ = exact_gradients(problem, EXACT, replace(PLAIN, start_share=0.4), learner, tables)
    learned, rest = split(learner.policy, learner.value, EXACT)
    finite = problem.model.finite
    start = 0.6 * jnp.asarray(finite.start) + 0.4 * jnp.array([1 / 3, 1 / 3, 1 / 3, 0.0])

    def total(learned, row):
        policy, _ = eqx.combine(learned, rest)
        encoding = jnp.asarray(finite.encoding, jnp.float32)
        logits = jax.vmap(lambda s: policy.net(policy.observer(s, jnp.zeros(()), None)))(encoding)
        stacked = jnp.concatenate([jnp.asarray(finite.reward, jnp.float32)[None], tables])
        return (evaluate(finite, jax.nn.softmax(logits), stacked, start).values @ start)[row]

    for row in range(2):
        wanted = jax.grad(total)(learned, row)
        for a, b in zip(jax.tree.leaves(gradients), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(a[row], b, rtol=1e-3, atol=1e-5)


def sure_policy(learner, logits):
    """The learner with a policy that has these logits in every state."""
    head = learner.policy.net.head
    sure = eqx.tree_at(
        lambda head: (head.weight, head.bias), head, (jnp.zeros_like(head.weight), jnp.asarray(logits, jnp.float32))
    )
    return replace(learner, policy=eqx.tree_at(lambda policy: policy.net.head, learner.policy, sure))


@pytest.mark.parametrize(("wrong", "listens"), [((-30.0, 0.0), True), ((0.0, -30.0), False)])
def test_an_action_whose_chance_has_vanished_is_heard_where_it_would_do_better(wrong, listens):
    """Whoever waits for ever on the chain pays for ever: walking is better, and waiting is not."""
    learner, problem = exact_setup()
    learner = sure_policy(learner, wrong)
    tables = jnp.zeros_like(cost_tables(problem))
    plain, heard = (
        np.linalg.norm(flat(exact_gradients(problem, EXACT, replace(PLAIN, least_chance=least), learner, tables)[0])[0])
        for least in (0.0, 0.3)
    )
    assert plain < 1e-6
    assert (heard > 0.1) == listens


def test_iteration_and_direct_solution_agree(monkeypatch):
    from sidestep.planning import exact

    _, problem = exact_setup()
    finite = problem.model.finite
    policy = jnp.full((4, 2), 0.5)
    tables = jnp.asarray(finite.reward, jnp.float32)[None]
    start = jnp.asarray(finite.start, jnp.float32)
    direct = exact.evaluate(finite, policy, tables, start)
    monkeypatch.setattr(exact, "DIRECT", 0)
    iterated = exact.evaluate(finite, policy, tables, start)
    np.testing.assert_allclose(direct.values, iterated.values, rtol=1e-3)
    np.testing.assert_allclose(direct.occupancy, iterated.occupancy, rtol=1e-3)


def test_score_function_converges_to_the_exact_gradient():
    """Costs of single steps on a finite model: the sampled estimator and the linear solve tell the same."""
    learner, problem = exact_setup()
    exact, _, _ = exact_gradients(problem, EXACT, PLAIN, learner, cost_tables(problem))
    score = Score(form="probability")
    sampled = replace(EXACT, reward=PPO(), constraint=score)

    @jax.jit
    def one(key):
        sample = pathwise(problem, sampled, learner, jax.random.split(key, 256), reward=False)
        return flat(score_function(problem, sampled, score, learner, sample))[0]

    rows = np.asarray(jax.lax.map(one, jax.random.split(jax.random.key(9), 64)))
    wanted = np.asarray(flat(exact))[1]
    directions = np.random.default_rng(1).normal(size=(rows.shape[1], 10)) / np.sqrt(rows.shape[1])
    # log_std of the choices is empty, so both trees have the same leaves
    found, error = (rows @ directions).mean(axis=0), (rows @ directions).std(axis=0, ddof=1) / 8
    np.testing.assert_array_less(
        np.abs(found - wanted @ directions), 4.5 * error + 0.03 * np.abs(wanted @ directions).max()
    )


def table_gradients(problem, ppo, method, learner, keys):
    """Gradients of the first constraint over tables, one row per key."""
    config = replace(EXACT, reward=ppo, constraint=method)
    one = jax.jit(lambda key: flat(table_batch(problem, config, ppo, learner, key)[2])[0])
    return jax.lax.map(one, keys)


@pytest.mark.parametrize("method", [PathwiseCost(), Score(form="probability")])
def test_gradients_over_tables_converge_to_the_exact_one(method):
    """Both estimators are unbiased."""
    learner, problem = exact_setup()
    exact, _, _ = exact_gradients(problem, EXACT, PLAIN, learner, cost_tables(problem))
    ppo = PPO(batch=256)
    rows = np.asarray(table_gradients(problem, ppo, method, learner, jax.random.split(jax.random.key(9), 64)))
    wanted = np.asarray(flat(exact))[1]
    directions = np.random.default_rng(1).normal(size=(rows.shape[1], 10)) / np.sqrt(rows.shape[1])
    found, error = (rows @ directions).mean(axis=0), (rows @ directions).std(axis=0, ddof=1) / 8
    assert np.linalg.norm(wanted) > 10 * np.linalg.norm(error) / np.sqrt(10), "the test could not fail"
    np.testing.assert_array_less(
        np.abs(found - wanted @ directions), 4.5 * error + 0.03 * np.abs(wanted @ directions).max()
    )


def test_the_linearised_cost_of_a_pair_is_what_it_would_add_to_a_trajectory():
    """Costs of single steps add up in -log(1 - C), so there it is known: the pair's own cost minus that of a step."""
    _, problem = exact_setup()
    pairs = all_pairs(problem.model.finite)
    costs = -problem.safety.log_probabilities(pairs.states, pairs.actions, pairs.length)[:, 0].reshape(4, 2)
    state, action = 1, 1
    again = TabularRollouts(jnp.full((9, 6), state), jnp.full((9, 6), action), jnp.ones((9, 6), bool), jnp.asarray(9))
    method = PathwiseCost(form="log", cap=1e4)
    found = linearised_costs(problem, method, trajectories(problem, again), jax.random.key(0))[0]
    np.testing.assert_allclose(found[:3], np.maximum(costs - costs[state, action], 0.0)[:3], rtol=1e-2, atol=1e-4)
    np.testing.assert_array_equal(found[3], 0.0)  # the end, where no step is taken
    assert 0 < np.sum(found > 0.01) < 8


def test_the_gradient_by_linearised_costs_lowers_the_cost_of_whole_trajectories():
    """Against the score function's, whose mean is the gradient, with the cost of a recurrent model."""
    learner, problem = exact_setup()
    safety = HazardModel(4, 2, 2, key=jax.random.key(3), units=8, encoder=())
    problem = Problem(problem.model, safety, problem.constraints)
    keys = jax.random.split(jax.random.key(2), 32)
    pathwise_mean, score_mean = (
        np.mean(table_gradients(problem, PPO(batch=512), method, learner, keys), axis=0)
        for method in (PathwiseCost(), Score(form="probability"))
    )
    cosine = pathwise_mean @ score_mean / np.linalg.norm(pathwise_mean) / np.linalg.norm(score_mean)
    assert cosine > 0.7


def test_on_a_grid_the_gradient_through_the_model_points_where_the_exact_one_does():
    """Costs of 0 and 1, on which a classifier is saturated; the policy leans towards the goal."""
    model = Driving("S.@..\n..@..\n..H..\n.....\n....G\n", name="driving", place="test", horizon=100)
    costs = jnp.asarray(model.side_effect > 0, jnp.float32)
    towards = jnp.array([2.0 * ("right" in move or "down" in move) + ("fast" in move) for move in model.moves])
    logits = 0.3 * jax.random.normal(jax.random.key(0), costs.shape) + towards[None, :]
    policy = jax.nn.softmax(logits)
    start = jnp.asarray(model.finite.start, jnp.float32)

    def estimate(key):
        rollouts = rollout_table(model.finite, model.spec.horizon, jnp.log(policy), key, 2000)
        return through_model(model.finite, jnp.log(policy), costs, rollouts)

    wanted = evaluate(model.finite, policy, costs[None], start)
    tables = jnp.stack([jax.jit(estimate)(jax.random.key(1)), wanted.occupancy[:, None] * wanted.quality[0]])
    by_logit = policy[None] * (tables - jnp.sum(policy[None] * tables, axis=2, keepdims=True))
    found, exact = by_logit.reshape(2, -1)
    cosine = found @ exact / jnp.linalg.norm(found) / jnp.linalg.norm(exact)
    assert cosine > 0.99
    assert 0.95 < jnp.linalg.norm(found) / jnp.linalg.norm(exact) < 1.05


def test_rollouts_over_tables_visit_states_as_often_as_the_exact_occupancy_says():
    learner, problem = exact_setup()
    finite, table = problem.model.finite, log_policy(problem, learner.policy)
    horizon = problem.model.spec.horizon
    rollouts = jax.jit(lambda table, key: rollout_table(finite, horizon, table, key, 20_000))(table, jax.random.key(3))
    visits = np.zeros(len(finite.start))
    np.add.at(visits, np.asarray(rollouts.states)[np.asarray(rollouts.real)], 1 / 20_000)
    start = jnp.asarray(finite.start, jnp.float32)
    exact = evaluate(finite, jnp.exp(table), jnp.zeros((1, *finite.reward.shape)), start).occupancy
    np.testing.assert_allclose(visits[~finite.absorbing], np.asarray(exact)[~finite.absorbing], rtol=0.05)
    assert visits[finite.absorbing].sum() == 0
    assert int(rollouts.longest) == int(rollouts.real.any(axis=1).sum())


def test_a_shuffle_puts_the_real_steps_first_each_once():
    real = jax.random.uniform(jax.random.key(0), (1000,)) < 0.3
    one, other = (np.asarray(real_first(jax.random.key(seed), real)) for seed in (1, 2))
    count = int(real.sum())
    np.testing.assert_array_equal(np.sort(one), np.arange(1000))
    assert np.asarray(real)[one[:count]].all()
    assert (one[:count] != other[:count]).mean() > 0.9
    assert abs(np.corrcoef(np.arange(count), one[:count])[0, 1]) < 0.2
