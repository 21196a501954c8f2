"""The dynamic program that planners are compared with: its tables and its policy agree with the model's rollouts."""

import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sidestep.core.model import Policy, rollout


class Held(Policy):
    """One action all the time."""

    action: jax.Array

    def act(self, state, clock, memory, key):
        return self.action, memory


BENCHMARKS = str(Path(__file__).parents[1] / "benchmarks")


@pytest.fixture(scope="module")
def problems():
    """The benchmark's own module; its neighbours are imported by name, as when it runs."""
    sys.path.insert(0, BENCHMARKS)
    import dynamic_program  # here, since it is no package
    import reference_problems

    yield reference_problems, dynamic_program
    sys.path.remove(BENCHMARKS)


@pytest.mark.mixes_types  # the benchmark is not strict
@pytest.mark.parametrize(("price", "least"), [(0.0, 0.0), (25.0, 0.9)])
def test_its_policy_earns_what_its_tables_say(problems, price, least):
    reference, program = problems
    plane, counted = reference._made("integrator, counted")
    total, share, expected = program.solve(plane, price, 0.1, 0.025)
    model = reference.PlaneModel("integrator", plane)
    trajectory = rollout(model, program.Greedy(expected, plane), jax.random.key(0), 400)
    free = reference._safe(counted)(trajectory.states).mean()
    assert float(trajectory.returns().mean()) == pytest.approx(float(total), rel=0.05)
    assert free == pytest.approx(1.0 - float(share), abs=0.08)
    assert 1.0 - float(share) >= least, "a high price keeps side effects away"


@pytest.mark.mixes_types
def test_no_policy_passes_the_limit(problems):
    reference, program = problems
    plane, _ = reference._made("gate")
    total, _, _ = program.solve(plane, 0.0, 0.15, 0.05)
    model = reference.PlaneModel("gate", plane)
    for push in (0.0, 0.5, 1.0):
        held = rollout(model, Held(jnp.array([push])), jax.random.key(1), 200)
        assert float(held.returns().mean()) < float(total), "it is best to wait, and then to go"


@pytest.mark.mixes_types
def test_an_automaton_of_actions_forbids_what_it_counts(problems):
    """More than two hard pushes running are the side effect: at a high price every third push is a gentle one."""
    reference, program = problems
    plane, _ = reference._made("river")
    hard = lambda n, action: jnp.where(n == 3, 3, jnp.where(jnp.sum(action**2) > 0.5, n + 1, 0))  # noqa: E731
    seen = lambda n, x, y: jnp.broadcast_to(jnp.asarray(n), jnp.shape(x))  # noqa: E731
    watched = replace(plane, automaton=program.Automaton(4, seen, hard))
    free_total, _, _ = program.solve(plane, 0.0, 0.2, 0.1)
    total, share, expected = program.solve(watched, 100.0, 0.2, 0.1)
    assert float(share) < 1e-3
    assert float(total) < float(free_total)
    model = reference.PlaneModel("river", watched)
    actions = rollout(model, program.Greedy(expected, watched), jax.random.key(0), 50).actions
    pushes = np.asarray(jnp.sum(actions**2, axis=-1)) > 0.5
    assert not np.any(pushes[:, :-2] & pushes[:, 1:-1] & pushes[:, 2:])
    assert np.mean(pushes[:, :2]) == 1.0


def test_the_limit_is_the_least_bound_over_the_prices(problems):
    _, program = problems
    rows = [
        {"price": 0.0, "return": 0.0, "free": 0.5},
        {"price": 10.0, "return": -3.0, "free": 0.9},
        {"price": 50.0, "return": -6.0, "free": 0.98},
    ]
    assert program.limit(rows, 0.5) == 0.0
    assert program.limit(rows, 0.95) == pytest.approx(min(-3.0 - 10.0 * 0.05, -6.0 + 50.0 * 0.03))
    assert np.all(np.diff([program.limit(rows, free) for free in (0.5, 0.7, 0.9, 0.99)]) <= 0)
