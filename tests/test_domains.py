"""Navigation, HVAC and Reservoir against their equations in plain NumPy, with the very noise that a step drew."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from sidestep.core.model import OpenLoopPolicy, rollout
from sidestep.models import load_model
from sidestep.models.check import directional_derivatives
from sidestep.models.domains.reservoir.model import RESERVOIRS
from sidestep.models.gamma_noise import gamma_from_normal

REFERENCES = ("navigation", "hvac", "hvac?rooms=8", "reservoir", "reservoir?reservoirs=5")
STEPS = 2000

_loaded: dict = {}


def model_of(reference, double=False):
    """Compiling takes seconds, so every model is built once."""
    if (reference, double) not in _loaded:
        _loaded[reference, double] = load_model(reference, double=double)
    return _loaded[reference, double]


def noise_keys(key, draws):
    """The compiler splits the key once a draw, in the order of evaluation, and keeps the first half."""
    keys = []
    for _ in range(draws):
        key, drawn = jax.random.split(key)
        keys.append(drawn)
    return keys


def normal_noise(keys, draws, size):
    """Standard normal numbers of shape (draws, len(keys), size): those of each draw of each step."""

    def one(key):
        return jnp.stack([jax.random.normal(drawn, (size,)) for drawn in noise_keys(key, draws)])

    return np.asarray(jax.jit(jax.vmap(one))(keys), float).swapaxes(0, 1)


# The equations, in float64; each function takes the step's standard normal noise and says nothing of keys.


def navigation_step(location, move, noise):
    zones = ((np.array([5.0, 4.5]), 1.15), (np.array([1.5, 3.0]), 1.2))
    traction = 1.0
    for centre, decay in zones:
        distance = np.sqrt(np.sum((location - centre) ** 2, axis=-1))
        traction = traction * (2.0 / (1.0 + np.exp(-decay * distance)) - 1.0)
    reward = -np.sqrt(np.sum((location - np.array([8.0, 9.0])) ** 2, axis=-1))
    return location + traction[..., None] * move + np.sqrt(0.05) * noise[0], reward


def hvac_walls(rooms):
    columns = rooms // 2
    walls = [(r, r + 1) for r in range(rooms) if (r + 1) % columns]
    return walls + [(r, r + columns) for r in range(columns)]


def hvac_step(temp, air, noise):
    rooms = temp.shape[-1]
    hall, outside = 10.0 + np.sqrt(3.0) * noise[0], 6.0 + noise[1]
    heat = air * 1.006 * (40.0 - temp) + (hall - temp) / 2.0
    for a, b in hvac_walls(rooms):
        flow = (temp[..., b] - temp[..., a]) / 1.5
        heat[..., a] += flow
        heat[..., b] -= flow
    columns = rooms // 2
    for r in (0, columns - 1, columns, rooms - 1):
        heat[..., r] += (outside[..., r] - temp[..., r]) / 4.0
    cost = air + 20000.0 * ((temp < 20.0) | (temp > 23.5)) + 10.0 * np.abs(21.75 - temp)
    return temp + heat / 80.0, -np.sum(cost, axis=-1)


def reservoir_step(level, outflow, noise):
    _, shape, scale, capacity, lower, upper = np.array(RESERVOIRS).T[:, : level.shape[-1]]
    rain = stats.gamma.ppf(stats.norm.cdf(noise[0]), shape, scale=scale)
    evaporated = 0.05 * (level / capacity) ** 2 * level
    overflow = np.maximum(0.0, level - outflow - capacity)
    inflow = np.zeros_like(level)
    inflow[..., 1:] = outflow[..., :-1] + overflow[..., :-1]
    reward = -np.sum(5.0 * np.maximum(0.0, lower - level) + 10.0 * np.maximum(0.0, level - upper), axis=-1)
    return np.maximum(0.0, level + rain - evaporated - outflow - overflow + inflow), reward


EQUATIONS = {"navigation": (navigation_step, 1), "hvac": (hvac_step, 2), "reservoir": (reservoir_step, 1)}


def random_states(family, size, rng, number):
    if family == "navigation":
        return rng.uniform(-3.0, 12.0, (number, size))
    if family == "hvac":
        return rng.uniform(0.0, 45.0, (number, size))
    return rng.uniform(0.0, 1100.0, (number, size))


def random_steps(model, number=STEPS):
    rng = np.random.default_rng(7)
    family = model.spec.family
    states = random_states(family, model.spec.state.size, rng, number).astype(np.float32)
    low, high = model.spec.action.low, model.spec.action.high
    high = states if family == "reservoir" else np.broadcast_to(high, (number, high.size))
    low = np.zeros_like(high) if family == "reservoir" else np.broadcast_to(low, high.shape)
    actions = (low + rng.random(high.shape) * (high - low)).astype(np.float32)
    return states, actions, jax.random.split(jax.random.key(11), number)


@pytest.mark.parametrize("reference", REFERENCES)
def test_step_equals_the_equations(reference):
    model = model_of(reference)
    states, actions, keys = random_steps(model)
    next_states, rewards, done = jax.jit(jax.vmap(model.step))(states, actions, keys)
    equations, draws = EQUATIONS[model.spec.family]
    noise = normal_noise(keys, draws, model.spec.state.size)
    expected_states, expected_rewards = equations(states.astype(float), actions.astype(float), noise)
    scale = np.abs(states).max()
    np.testing.assert_allclose(next_states, expected_states, rtol=1e-5, atol=1e-6 * scale)
    np.testing.assert_allclose(rewards, expected_rewards, rtol=1e-5)
    assert not np.any(done)


def test_spec_and_first_states():
    navigation, hvac, reservoir = (model_of(name).spec for name in ("navigation", "hvac", "reservoir"))
    assert (navigation.horizon, hvac.horizon, reservoir.horizon) == (20, 40, 40)
    assert navigation.state.names == ("location[x]", "location[y]")
    assert hvac.state.names == tuple(f"temp[r{i}]" for i in range(1, 7))
    assert model_of("hvac?rooms=8").spec.state.size == 8
    assert {spec.discount for spec in (navigation, hvac, reservoir)} == {0.99}
    assert {spec.gradient for spec in (navigation, hvac, reservoir)} == {"exact"}
    np.testing.assert_array_equal(model_of("navigation").reset(None), [1.0, 1.0])
    np.testing.assert_array_equal(model_of("hvac").reset(None), np.full(6, 10.0))
    np.testing.assert_array_equal(model_of("reservoir").reset(None), [75.0] + 19 * [50.0])
    np.testing.assert_array_equal((navigation.action.low, navigation.action.high), ([-1, -1], [1, 1]))
    np.testing.assert_array_equal((hvac.action.low, hvac.action.high), (np.zeros(6), np.full(6, 10.0)))


def test_hvac_walls_are_those_of_the_two_by_three_block():
    assert sorted(hvac_walls(6)) == [(0, 1), (0, 3), (1, 2), (1, 4), (2, 5), (3, 4), (4, 5)]


def test_reservoir_constants_are_those_of_the_benchmark():
    path = Path(__file__).parents[2] / "shared/data/reservoir20.json"
    if not path.exists():
        pytest.skip("the benchmark's table of constants is not at hand")
    table = json.loads(path.read_text())
    columns = ("initial_level", "rain_shape", "rain_scale", "capacity", "lower_bound", "upper_bound")
    np.testing.assert_array_equal(RESERVOIRS, np.array([table[column] for column in columns]).T)


def test_horizon_is_an_option():
    assert load_model("navigation?horizon=7").spec.horizon == 7


# Noise: its law, and not only that a step uses the numbers of its key.


def noise_of_many_steps(reference, state, action, number=20000):
    model = model_of(reference)
    keys = jax.random.split(jax.random.key(5), number)
    state, action = jnp.asarray(state, jnp.float32), jnp.asarray(action, jnp.float32)
    return np.asarray(jax.jit(jax.vmap(lambda key: model.step(state, action, key)[0]))(keys), float)


def test_navigation_noise_has_variance_one_twentieth():
    landed = noise_of_many_steps("navigation", [3.0, 7.0], [0.0, 0.0]) - np.array([3.0, 7.0])
    assert np.abs(landed.mean(axis=0)).max() < 5 * np.sqrt(0.05 / len(landed))
    np.testing.assert_allclose(landed.var(axis=0), 0.05, rtol=0.05)
    assert abs(np.corrcoef(landed.T)[0, 1]) < 0.04
    assert stats.kstest(landed[:, 0] / np.sqrt(0.05), "norm").pvalue > 1e-3


def test_hvac_noise_has_the_variances_of_weather_and_hall():
    temp = noise_of_many_steps("hvac", np.full(6, 20.0), np.zeros(6))
    inner = np.sqrt(3.0) / 2.0 / 80.0  # r2 and r5 touch the hall only
    outer = np.sqrt(3.0 / 4.0 + 1.0 / 16.0) / 80.0  # the others the outside too
    np.testing.assert_allclose(temp.std(axis=0), [outer, inner, outer, outer, inner, outer], rtol=0.03)
    assert np.abs(np.corrcoef(temp.T) - np.eye(6)).max() < 0.04


def test_rain_follows_its_gamma_law():
    """Dry reservoirs gain the rain and nothing else."""
    rain = noise_of_many_steps("reservoir", np.zeros(20), np.zeros(20))
    for basin in range(20):
        _, shape, scale, *_ = RESERVOIRS[basin]
        assert stats.kstest(rain[:, basin], stats.gamma(shape, scale=scale).cdf).pvalue > 1e-4, basin
    assert np.abs(np.corrcoef(rain.T) - np.eye(20)).max() < 0.04


@pytest.mark.parametrize("shape", [0.05, 0.3, 1.0, 1.15, 2.9, 40.0, 1e4])
def test_gamma_from_normal_is_the_quantile_function(shape):
    z = np.linspace(-6.0, 6.0, 4001)
    tail = np.where(z < 0, stats.norm.cdf(z), stats.norm.sf(z))
    with jax.enable_x64(True):
        x = np.asarray(jax.vmap(gamma_from_normal(np.array(shape)))(jnp.asarray(z)))
    law = stats.gamma(shape)
    np.testing.assert_allclose(np.where(z < 0, law.cdf(x), law.sf(x)), tail, rtol=1e-6)
    assert np.all(np.diff(x) > 0)


def test_gamma_from_normal_leaves_vanishing_shapes_to_others():
    assert gamma_from_normal(np.array([1.0, 1e-3])) is None


# Bounds and gradients.


def test_outflow_is_bounded_by_the_level():
    model = model_of("reservoir?reservoirs=5")
    level = jnp.asarray([0.0, 3.5, 1000.0, 75.0, 1e-3])
    low, high = model.action_bounds(level)
    np.testing.assert_array_equal(low, np.zeros(5))
    np.testing.assert_array_equal(high, level)
    greedy = rollout(model, OpenLoopPolicy(jnp.full((40, 5), 1e4)), jax.random.key(0), 8)
    np.testing.assert_array_equal(greedy.actions, greedy.states)


@pytest.mark.parametrize("reference", ["navigation", "hvac", "reservoir"])
def test_gradient_of_return_agrees_with_central_differences(reference):
    with jax.enable_x64(True):
        analytic, numeric = directional_derivatives(model_of(reference, double=True), jax.random.key(1))
    assert np.all(np.isfinite(analytic))
    assert np.abs(analytic).min() > 0
    numeric = numeric[:, 0]
    error = np.abs(analytic - numeric) / np.maximum(np.abs(numeric), 1e-3 * np.abs(numeric).max())
    assert error.max() < 1e-4
    assert np.median(error) < 1e-6


@pytest.mark.parametrize(
    ("reference", "state"),
    [
        ("navigation", [8.0, 9.0]),  # the goal
        ("navigation", [5.0, 4.5]),  # the centres of the zones
        ("navigation", [1.5, 3.0]),
        ("hvac", [21.75] * 6),
        ("hvac", [20.0, 23.5] * 3),
        ("reservoir?reservoirs=5", [0.0] * 5),
        ("reservoir?reservoirs=5", [row[3] for row in RESERVOIRS[:5]]),
    ],
)
def test_gradients_are_finite_where_formulas_have_corners(reference, state):
    model = model_of(reference)

    def outcome(state, action):
        next_state, reward, _ = model.step(state, action, jax.random.key(0))
        return jnp.append(next_state, reward)

    action = jnp.zeros(model.spec.action.size)
    for jacobian in jax.jit(jax.jacrev(outcome, argnums=(0, 1)))(jnp.asarray(state), action):
        assert np.all(np.isfinite(jacobian))
    reward = outcome(jnp.asarray(state), action)[-1]
    assert np.isfinite(reward)


def test_reward_at_the_goal_is_zero():
    reward = model_of("navigation").step(jnp.asarray([8.0, 9.0]), jnp.zeros(2), jax.random.key(0))[1]
    assert abs(float(reward)) <= 1e-6


# Options.


@pytest.mark.parametrize("context", [False, True])
def test_loading_leaves_the_width_of_floats_alone(context):
    before = jax.enable_x64.get_global()
    for double in (False, True):
        with jax.enable_x64(context):
            model = load_model("navigation", double=double)
            assert jax.config.jax_enable_x64 == context
        assert jax.enable_x64.get_global() == before
        with jax.enable_x64(double):
            assert model.reset(None).dtype == (np.float64 if double else np.float32)


def test_relaxed_sees_steps_that_the_exact_gradient_does_not():
    """The penalty of HVAC outside of the comfortable range is a step: a cliff to the relaxed model only."""
    exact, relaxed = model_of("hvac"), load_model("hvac?relaxed")
    assert exact.spec.gradient == "exact"
    assert relaxed.spec.gradient == "straight-through"
    assert any("relaxed" in note for note in relaxed.spec.notes)
    state, action = jnp.full(6, 20.05), jnp.ones(6)

    def slope(model):
        return np.asarray(jax.grad(lambda s: model.step(s, action, jax.random.key(0))[1])(state))

    np.testing.assert_allclose(slope(exact), 10.0, rtol=1e-5)
    assert np.all(slope(relaxed) > 1000.0)
