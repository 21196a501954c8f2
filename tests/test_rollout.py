"""Rollouts: keys, batches, ends at random times, gradients with the noise held fixed, bounds."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sidestep.core.errors import InputError
from sidestep.core.model import (
    FunctionPolicy,
    OpenLoopPolicy,
    Policy,
    Space,
    Spec,
    Trajectory,
    UniformPolicy,
    Variable,
    rollout,
    sample_uniform_action,
)


class Drifting:
    """A point that drifts with its action and noise, pays its square, and ends with probability `risk` a step.

    Its first state is random; |action| is at most half of |x| + 1, a bound that depends on the state.
    """

    def __init__(self, risk=0.1, horizon=60, ends=True):
        self.risk = risk
        self.spec = Spec("drifting", Space((Variable("x"),)), Space((Variable("push", "real", 1),)), horizon, ends=ends)

    def reset(self, key):
        return jax.random.normal(key, (1,), float)

    def step(self, state, action, key):
        noise_key, end_key = jax.random.split(key)
        after = 0.9 * state + action + 0.1 * jax.random.normal(noise_key, (1,), float)
        return after, -jnp.sum(state**2) - 0.1 * jnp.sum(action**2), jax.random.uniform(end_key) < self.risk

    def action_bounds(self, state):
        reach = 0.5 * (jnp.abs(state) + 1.0)
        return -reach, reach


class Linear(Policy):
    gain: jax.Array
    offset: jax.Array
    noise: float = 0.05

    def act(self, state, clock, memory, key):
        mean = self.gain * state + self.offset * jnp.sin(0.1 * clock.astype(state.dtype))
        return mean + self.noise * jax.random.normal(key, state.shape, state.dtype), memory


class Counting(Policy):
    """Acts by a memory: a running sum of the states it has seen."""

    def start(self):
        return jnp.zeros(1), jnp.asarray(0)

    def act(self, state, clock, memory, key):
        total, seen = memory
        return -0.05 * (total + state), (total + state, seen + 1)


def linear(gain=-0.4, offset=0.1):
    return Linear(jnp.asarray(gain, float), jnp.asarray(offset, float))


@pytest.fixture(scope="module")
def model():
    return Drifting()


@pytest.fixture(scope="module")
def trajectory(model):
    return rollout(model, linear(), jax.random.key(3), 200)


def test_same_key_same_trajectory_and_another_key_another(model, trajectory):
    again = rollout(model, linear(), jax.random.key(3), 200)
    assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(trajectory), jax.tree.leaves(again), strict=True))
    other = rollout(model, linear(), jax.random.key(4), 200)
    assert not np.array_equal(trajectory.states, other.states)


def test_trajectory_does_not_depend_on_the_size_of_its_batch(model, trajectory):
    few = rollout(model, linear(), jax.random.key(3), 7)
    real = np.asarray(few.mask)
    for ours, theirs in ((few.states, trajectory.states), (few.actions, trajectory.actions)):
        np.testing.assert_allclose(ours[real], theirs[:7][real], rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(few.length, trajectory.length[:7])


def test_trajectory_does_not_depend_on_whether_the_ends_are_looked_for():
    """A model that never ends is run without looks at `done`; the numbers are the same."""
    looking, not_looking = Drifting(risk=0.0), Drifting(risk=0.0, ends=False)
    a, b = (rollout(m, linear(), jax.random.key(0), 5) for m in (looking, not_looking))
    np.testing.assert_allclose(a.states, b.states, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(a.length, np.full(5, 60))
    np.testing.assert_array_equal(b.length, np.full(5, 60))


def test_trajectory_follows_the_model_step_by_step(model, trajectory):
    """What is recorded is a walk of the model: rewards fit states and actions, the next state lies within the noise."""
    states, actions = np.asarray(trajectory.states)[..., 0], np.asarray(trajectory.actions)[..., 0]
    real = np.asarray(trajectory.mask)
    paid = np.where(real, -(states**2) - 0.1 * actions**2, 0.0)
    np.testing.assert_allclose(trajectory.rewards, paid, rtol=1e-5, atol=1e-6)
    residual = (states[:, 1:] - 0.9 * states[:, :-1] - actions[:, :-1])[real[:, 1:]]
    assert abs(residual.mean()) < 0.01
    assert residual.std() == pytest.approx(0.1, rel=0.1)


def test_lengths_rewards_and_returns_after_random_ends(trajectory):
    length, mask, rewards = (np.asarray(x) for x in (trajectory.length, trajectory.mask, trajectory.rewards))
    assert length.min() == 1
    assert length.max() > 20
    assert 7.0 < length.mean() < 13.0  # about 1 / risk
    np.testing.assert_array_equal(mask, np.arange(60)[None, :] < length[:, None])
    assert np.all(rewards[~mask] == 0.0)
    assert np.all(rewards[mask] < 0.0)
    for discount in (1.0, 0.9):
        expected = [sum(discount**t * rewards[b, t] for t in range(length[b])) for b in range(len(length))]
        np.testing.assert_allclose(trajectory.returns(discount), expected, rtol=1e-5)


def test_returns_ignore_what_stands_in_the_padding(trajectory):
    noisy = eqx.tree_at(
        lambda t: t.rewards, trajectory, jnp.where(trajectory.mask, trajectory.rewards, jnp.asarray(1e6))
    )
    np.testing.assert_array_equal(noisy.returns(), trajectory.returns())


def test_all_steps_are_real_when_nothing_ends():
    assert np.all(np.asarray(rollout(Drifting(risk=0.0), linear(), jax.random.key(0), 3, 11).length) == 11)


def test_a_sure_end_leaves_one_step():
    certain = rollout(Drifting(risk=1.1), linear(), jax.random.key(0), 3)
    np.testing.assert_array_equal(certain.length, [1, 1, 1])
    assert np.all(np.asarray(certain.rewards)[:, 1:] == 0.0)


def test_horizon_of_the_call_wins(model):
    assert rollout(model, linear(), jax.random.key(0), 2, 13).states.shape == (2, 13, 1)


def test_rows_of_a_trajectory_are_trajectories(trajectory):
    assert len(trajectory) == 200
    some = trajectory[jnp.asarray([5, 3])]
    assert isinstance(some, Trajectory)
    for ours, theirs in zip(jax.tree.leaves(some), jax.tree.leaves(trajectory), strict=True):
        np.testing.assert_array_equal(ours, np.asarray(theirs)[[5, 3]])
    assert len(trajectory[10:14]) == 4


def test_gradient_in_the_policy_agrees_with_differences_at_fixed_noise():
    """Ends are random too, but they do not depend on the policy, so the return is smooth at fixed noise."""

    @jax.jit
    def mean_return(parameters, key):
        return jnp.mean(rollout(Drifting(), linear(*parameters), key, 32).returns(0.95))

    with jax.enable_x64(True):
        key = jax.random.key(8)
        at = jnp.asarray([-0.3, 0.2])
        gradient = np.asarray(jax.jit(jax.grad(mean_return))(at, key))
        step = 1e-6
        for i, direction in enumerate(jnp.eye(2)):
            ahead, behind = (mean_return(at + sign * step * direction, key) for sign in (1, -1))
            assert gradient[i] == pytest.approx(float(ahead - behind) / (2 * step), rel=1e-6)
    assert np.abs(gradient).min() > 1e-3


def test_actions_are_clipped_to_the_bounds_of_their_state(model):
    pushing = rollout(model, FunctionPolicy(lambda state, clock, key: jnp.full(1, 1e6)), jax.random.key(0), 20)
    reach = 0.5 * (np.abs(pushing.states) + 1.0)
    assert reach.max() < 1e6
    np.testing.assert_allclose(pushing.actions[pushing.mask], reach[pushing.mask], rtol=1e-6)


def test_open_loop_actions_are_taken_in_order():
    actions = jnp.linspace(-0.4, 0.4, 12)[:, None]
    taken = rollout(Drifting(risk=0.0), OpenLoopPolicy(actions), jax.random.key(0), 2, 12).actions
    np.testing.assert_array_equal(taken, np.broadcast_to(actions, (2, 12, 1)))


def test_memory_is_handed_from_step_to_step():
    trajectory = rollout(Drifting(risk=0.0), Counting(), jax.random.key(1), 4, 15)
    seen = np.cumsum(np.asarray(trajectory.states), axis=1)
    reach = 0.5 * (np.abs(trajectory.states) + 1.0)
    np.testing.assert_allclose(trajectory.actions, np.clip(-0.05 * seen, -reach, reach), rtol=1e-4, atol=1e-5)


class Mixed:
    """Actions of every kind at once, one of them with a bound that depends on the state."""

    spec = Spec(
        "mixed",
        Space((Variable("x"),)),
        Space(
            (
                Variable("gear", "int", 2, np.array([-1.0, 2.0]), np.array([1.0, 5.0])),
                Variable("lamp", "bool", 1, 0.0, 1.0),
                Variable("way", "one-hot", 3, 0.0, 1.0, labels=("left", "right", "stay")),
                Variable("throttle", "real", 1, 0.0, 4.0),
                Variable("free", "real", 1),
                Variable("above", "real", 1, 0.5, np.inf),
            )
        ),
        horizon=5,
    )

    def reset(self, key):
        return jnp.ones(1)

    def step(self, state, action, key):
        return state, jnp.sum(action), jnp.asarray(False)

    def action_bounds(self, state):
        action = self.spec.action
        return jnp.asarray(action.low, float), jnp.asarray(action.high, float).at[6].set(state[0])


def test_uniform_actions_respect_bounds_and_kinds():
    keys = jax.random.split(jax.random.key(2), 6000)
    model = Mixed()
    actions = np.asarray(jax.jit(jax.vmap(lambda key: sample_uniform_action(model, jnp.full(1, 2.5), key)))(keys))
    take = model.spec.action.take
    for gear, allowed in ((take(actions, "gear[0]"), [-1, 0, 1]), (take(actions, "gear[1]"), [2, 3, 4, 5])):
        values, counts = np.unique(gear, return_counts=True)
        np.testing.assert_array_equal(values, allowed)
        np.testing.assert_allclose(counts / len(gear), 1 / len(allowed), atol=0.03)
    assert set(np.unique(take(actions, "lamp"))) == {0.0, 1.0}
    assert np.all(np.sort(take(actions, "way"), axis=1) == [0.0, 0.0, 1.0])
    np.testing.assert_allclose(take(actions, "way").mean(axis=0), 1 / 3, atol=0.03)
    throttle = take(actions, "throttle")
    assert throttle.min() >= 0.0
    assert throttle.max() <= 2.5
    np.testing.assert_allclose(np.quantile(throttle, [0.25, 0.5, 0.75]), [0.625, 1.25, 1.875], atol=0.08)
    free = take(actions, "free")
    assert abs(free.mean()) < 0.06
    assert free.std() == pytest.approx(1.0, abs=0.05)
    assert take(actions, "above").min() >= 0.5


def test_uniform_policy_in_a_rollout_stays_within_the_bounds():
    actions = np.asarray(rollout(Mixed(), UniformPolicy(Mixed()), jax.random.key(0), 50).actions)
    assert actions[..., 6].max() <= 1.0


# Specs, spaces and variables that make no sense.

SPACE = Space((Variable("x"),))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Variable("temp", size=2, labels=("r1",)), "'temp' has 2 entries but 1 labels"),
        (lambda: Variable("temp", size=2, low=np.zeros(3)), "'temp' has 2 entries but a bound of shape (3,)"),
        (lambda: Spec("m", SPACE, SPACE, 0), "the horizon is a whole number from 1 to 1,000,000, not 0"),
        (lambda: Spec("m", SPACE, SPACE, 5, discount=1.5), "discount must lie in (0, 1], not 1.5"),
        (lambda: Spec("m", SPACE, SPACE, 5, gradient="some"), "gradient is 'exact'"),
        (lambda: Spec("", SPACE, SPACE, 5), "a model's name must be printable text"),
        (lambda: Spec("m", None, SPACE, 5), "state and action are each a Space, not a NoneType"),
        (lambda: Spec("m", SPACE, SPACE, 2.5), "not 2.5"),
        (lambda: Variable(3), "a variable's name must be printable text"),
        (lambda: Variable("x", "whole"), "has the kind 'whole'; there are real, int, bool, one-hot"),
        (lambda: Variable("x", size=0), "must have 1 to 1,000,000 entries, not 0"),
        (lambda: Variable("x", low=float("nan")), "which is not a number"),
        (lambda: Space(()), "one Variable or more"),
        (lambda: Space((Variable("x"), Variable("x"))), "must differ, and these are x, x"),
        (lambda: SPACE.take(np.zeros(1), "y"), "no variable 'y' here; there are x"),
    ],
)
def test_nonsense_is_refused_by_name(make, words):
    with pytest.raises(InputError) as caught:
        make()
    assert words in str(caught.value)


def test_names_and_entries_of_a_space():
    space = Space((Variable("a"), Variable("temp", size=2, labels=("r1", "r2")), Variable("v", size=2)))
    assert space.names == ("a", "temp[r1]", "temp[r2]", "v[0]", "v[1]")
    vectors = np.arange(10.0).reshape(2, 5)
    np.testing.assert_array_equal(space.take(vectors, "temp"), vectors[:, 1:3])
    np.testing.assert_array_equal(space.take(vectors, "temp[r2]"), vectors[:, 2])
    assert space.size == 5
