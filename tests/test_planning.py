"""The planner: multipliers, learning by outcome on small problems, seeds, resume, refusals."""

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sidestep
from sidestep.campaign.schedule import SLOTS
from sidestep.cli.main import main
from sidestep.core.constraints import Scale, parse_constraints
from sidestep.core.errors import InputError
from sidestep.core.model import Space, Spec, Variable
from sidestep.labels.store import single_steps
from sidestep.models.domains.driving.model import Driving
from sidestep.planning.bank import BankSchedule, GradientBank, mendable
from sidestep.planning.config import PlanConfig
from sidestep.planning.learner import Learner, balanced, split
from sidestep.planning.methods import PID, PPO, Exact, LogAdam, Pathwise, Projected, Relative, Search
from sidestep.planning.multipliers import Multipliers, update
from sidestep.planning.options import with_options
from sidestep.planning.plan import LEEWAY, Planner, plan
from sidestep.planning.presets import PRESETS, preset, preset_for
from sidestep.planning.problem import Problem
from sidestep.planning.zero_gradient import has_zero_gradient
from sidestep.runtime.parallel import map_stack
from sidestep.safety.config import FitConfig
from sidestep.safety.fit import fit
from sidestep.safety.hazard import HazardModel
from sidestep.safety.io import make_safety, save_safety

SMALL = PlanConfig(
    reward=Pathwise(batch=32),
    search=Search(rounds=4, population=256),
    widths=(16,),
    epochs=40,
    test_every=20,
    test_batch=64,
)


class Walk:
    """Walk to x = 3; the reward knows nothing of a puddle beyond y = 1."""

    spec = Spec(
        "walk",
        Space((Variable("x"), Variable("y"))),
        Space((Variable("step", size=2, low=-1.0, high=1.0),)),
        horizon=8,
        ends=False,
    )

    def reset(self, key):
        return jnp.zeros(2)

    def step(self, state, action, key):
        noise = 0.1 * jax.random.normal(key, (2,))
        return state + 0.7 * action + noise, -jnp.sum((state - jnp.array([3.0, 2.0])) ** 2), jnp.asarray(False)

    def action_bounds(self, state):
        return -jnp.ones(2), jnp.ones(2)


def walk_rule(trajectory):
    return np.asarray((np.asarray(trajectory.states)[..., 1] > 1.0).sum(axis=1) >= 2).astype(int)


@pytest.fixture(scope="module")
def walk_safety():
    """A small hazard model fitted to labelled walks: the real thing, made quickly."""
    from sidestep.labels.collect import explore

    walks = explore(Walk(), jax.random.key(0), 1500)
    model = HazardModel(2, 2, 2, key=jax.random.key(1), units=16, encoder=())
    return fit(model, walks, walk_rule(walks), FitConfig(steps=800, batch=64), jax.random.key(2))[0]


SCALE = Scale(("dry", "wet"))


@pytest.mark.parametrize("kind", [Relative, Projected, LogAdam, PID])
def test_multipliers_rise_when_violated_fall_when_met_and_stay_in_their_bounds(kind):
    rule = kind(max=5.0, rate=0.1)
    rising = falling = Multipliers.start(1, rule)
    tolerance = jnp.array([0.05])
    for _ in range(400):
        rising = update(rule, rising, jnp.array([1.0]), tolerance)
        falling = update(rule, falling, jnp.array([0.0]), tolerance)
    assert float(rising.value[0]) == pytest.approx(5.0, rel=1e-3)
    assert 0.0 <= float(falling.value[0]) < rule.start


def test_relative_rule_is_as_fast_down_as_up():
    rule = Relative(max=1e9, min=1e-9)
    up = down = Multipliers.start(1, rule)
    for _ in range(50):
        up = update(rule, up, jnp.array([0.5]), jnp.array([0.05]))
        down = update(rule, down, jnp.array([0.005]), jnp.array([0.05]))
    assert float(up.value[0] * down.value[0]) == pytest.approx(rule.start**2, rel=1e-3)


def test_a_saturated_safety_model_does_not_steer(walk_safety):
    learner = Learner.start(
        Problem(Walk(), walk_safety, parse_constraints(["dry>=0.9"], SCALE)), SMALL, jax.random.key(0)
    )
    learned, _ = split(learner.policy, learner.value, SMALL)
    along, across = (jax.tree.map(lambda leaf, s=s: s * jnp.ones_like(leaf), learned) for s in (1.0, 1e-7))
    opposed = jax.tree.map(lambda a, b: jnp.stack([a, b]), along, across)
    ascent, _ = balanced(learner, opposed, SMALL)
    assert all(bool(jnp.all(leaf > 0)) for leaf in jax.tree.leaves(ascent)), "the reward's direction"
    loud = jax.tree.map(lambda a: jnp.stack([a, 2.0 * a]), along)
    strong = replace(learner, multipliers=replace(learner.multipliers, value=jnp.array([10.0])))
    ascent, _ = balanced(strong, loud, SMALL)
    assert all(bool(jnp.all(leaf < 0)) for leaf in jax.tree.leaves(ascent)), "the constraint's direction"


def test_the_projected_rule_counts_a_violation_up_to_its_largest():
    rule = Projected(rate=8.0, violation_max=0.05)
    start = Multipliers.start(2, rule)
    after = update(rule, start, jnp.array([3.0, 0.02]), jnp.zeros(2))
    np.testing.assert_allclose(after.value - start.value, [8.0 * 0.05, 8.0 * 0.02], rtol=1e-6)


def test_the_plan_is_feasible_by_the_safety_model_and_goes_up_to_the_wall(walk_safety):
    constraints = parse_constraints(["dry>=0.9"], SCALE)
    config = replace(SMALL, reward=Pathwise(batch=64), epochs=600, test_every=100, learning_rate=0.01, margin=0.3)
    found = plan(Walk(), walk_safety, constraints, config, jax.random.key(3), rule=walk_rule)
    assert found.feasible, found.diagnosis
    best = max((row for row in found.history if row.feasible), key=lambda row: row.mean_return)
    assert best.mean_predicted[0] >= 1 - (0.07 + LEEWAY * 0.03), "a tolerance of 0.1 with a margin of 0.03"
    assert best.mean_return > -60, "safe, but not by staying at home, which earns -104"


def test_ppo_with_the_score_function_learns(walk_safety):
    small = {"epochs": 80, "test_every": 40, "batch": 32, "test_batch": 64, "widths": (16,), "learning_rate": 3e-3}
    config = with_options(preset("paper-mfge"), small)
    found = plan(Walk(), walk_safety, parse_constraints(["dry>=0.9"], SCALE), config, jax.random.key(4))
    assert found.history[-1].mean_return > -90, "a policy that stays at the start earns -104"
    assert found.history[-1].train_multipliers[0] > 0


def test_the_default_for_models_without_derivatives_begins_safe_and_stays_so(walk_safety):
    small = {"epochs": 80, "test_every": 40, "batch": 32, "test_batch": 64, "widths": (16,), "search_population": 256}
    config = with_options(preset("default", gradient="none"), small)
    found = plan(Walk(), walk_safety, parse_constraints(["dry>=0.9"], SCALE), config, jax.random.key(4))
    assert found.feasible, found.diagnosis
    assert found.history[-1].mean_costs[0] < 0.1
    assert found.history[-1].mean_return > -90, "staying at the start, which is safe, earns -104"


class Stairs(Walk):
    """The same walk, paid by the number of stairs that it has climbed."""

    def step(self, state, action, key):
        following, reward, done = super().step(state, action, key)
        return following, jnp.floor(reward), done


def test_a_piecewise_constant_reward_is_planned_without_derivatives():
    assert not has_zero_gradient(Walk())
    assert has_zero_gradient(Stairs())
    assert isinstance(preset_for(Walk(), "default").reward, Pathwise)
    assert isinstance(preset_for(Stairs(), "default").reward, PPO)


def test_a_bank_that_is_lost_searches_again(walk_safety):
    constraints = parse_constraints(["dry>=0.9"], SCALE)
    schedule = BankSchedule(
        SLOTS, rounds=4, searching_rounds=1, round_epochs=20, polish_epochs=100, polish_test=100, least_rate=0.1
    )
    bank = GradientBank(Walk(), constraints, SMALL, schedule, walk_safety, jax.random.key(6), None)
    free = np.ones((SLOTS, 1))
    wet = [row.mean_costs[0] for row in bank.advance(0, walk_safety, free, lost=False)]
    assert min(wet) > 0.5, "nothing holds these policies back"
    tolerances = np.full((SLOTS, 1), 0.05)
    costs = {
        lost: np.asarray(bank.planner.test(bank._select_starts(3, tolerances, lost))["mean"]["costs"])
        for lost in (False, True)
    }
    assert costs[False].min() > 0.5, "without a search they go on from where they are"
    assert costs[True].max() <= mendable(tolerances).max(), "with one, from where planning can mend"


def test_same_seed_twice_is_identical_and_alone_equals_among_others(walk_safety):
    constraints = parse_constraints(["dry>=0.9"], SCALE)
    planner = Planner(Walk(), walk_safety, constraints, replace(SMALL, search=None))
    keys = jax.random.split(jax.random.key(5), 3)
    twice = [planner.advance(planner.start(keys))[0] for _ in range(2)]
    for a, b in zip(*(jax.tree.leaves(state.learners.policy.net) for state in twice), strict=True):
        np.testing.assert_array_equal(a, b)
    alone, _ = planner.advance(planner.start(keys[1:2]))
    for a, b in zip(*(jax.tree.leaves(s.learners.policy.net) for s in (twice[0], alone)), strict=True):
        np.testing.assert_array_equal(a[1], b[0])


def test_a_prepared_program_gives_the_same(walk_safety):
    constraints = parse_constraints(["dry>=0.9"], SCALE)
    config = replace(SMALL, search=None, epochs=2, test_every=2)
    keys = jax.random.split(jax.random.key(5), 3)
    planner, prepared = (Planner(Walk(), walk_safety, constraints, config) for _ in range(2))
    start = planner.start(keys)
    prepared.prepare(lambda: start.learners)
    found = [one.advance(start)[0] for one in (planner, prepared)]
    for a, b in zip(*(jax.tree.leaves(state.learners.policy.net) for state in found), strict=True):
        assert a.shape[0] == len(keys)
        np.testing.assert_array_equal(a, b)


def test_every_part_of_a_stack_is_run_and_stacked_again():
    run = jax.jit(lambda row: {"double": 2 * row, "sum": jnp.sum(row)})
    for rows in (1, 3, 4):
        stack = jnp.arange(2.0 * rows).reshape(rows, 2)
        for compiled in (False, True):
            done = map_stack(run, stack, compiled=compiled)
            np.testing.assert_array_equal(done["double"], 2 * stack)
            np.testing.assert_array_equal(done["sum"], jnp.sum(stack, axis=1))


def test_several_constraints_and_four_categories():
    scale = Scale(("safe", "safe-incomplete", "unsafe", "unsafe-incomplete"))
    safety = HazardModel(2, 2, 4, key=jax.random.key(1), units=8, encoder=())
    constraints = parse_constraints(["safe>=0.5", "unsafe-incomplete<=0.1"], scale)
    planner = Planner(Walk(), safety, constraints, replace(SMALL, search=None))
    _, rows = planner.advance(planner.start(jax.random.split(jax.random.key(0), 1)))
    assert len(rows[0].mean_predicted) == 4
    assert len(rows[0].train_multipliers) == len(rows[0].mean_costs) == 2
    assert np.isfinite(rows[0].train_gradient_norms).all()


MAP = "S.@.\n..@.\n....\n...G\n"


@pytest.fixture(scope="module")
def driving():
    return Driving(MAP, name="driving", place="test", horizon=60)


def test_exact_planning_reaches_the_optimum_of_the_linear_program(driving):
    from sidestep.finite.occupancy import Bound, occupancy_lp
    from sidestep.finite.values import evaluate

    finite = driving.finite
    states = np.repeat(finite.encoding, 8, axis=0).astype(np.float32)
    actions = np.tile(np.eye(8, dtype=np.float32), (len(finite.start), 1))
    pairs = single_steps(states, actions, np.zeros(len(states), np.float32))
    labels = driving.side_effect.reshape(-1)
    markov = make_safety("markov", states.shape[1], 8, 3, key=jax.random.key(0), dropout=0.0)
    markov, _ = fit(markov, pairs, labels, FitConfig(steps=1500, held_out=0.0, balance=0.5), jax.random.key(1))
    config = replace(preset("default", finite=True), epochs=300, test_every=100, test_batch=64, widths=(32,))
    found = plan(driving, markov, parse_constraints(["none>=1"], Scale()), config, jax.random.key(2))
    encoded = jnp.asarray(finite.encoding, jnp.float32)
    logits = jax.vmap(lambda s: found.policy.net(found.policy.observer(s, jnp.zeros(()), None)))(encoded)
    table = np.asarray(jax.nn.one_hot(logits.argmax(axis=1), 8))
    penalty = np.array([0.0, 5.0, 10.0])[driving.side_effect]
    best = occupancy_lp(finite, [Bound(penalty, 0.0, "side effects")]).value
    start = finite.start > 0
    assert evaluate(finite, table)[start][0] == pytest.approx(best, abs=0.05)
    assert evaluate(finite, table, penalty)[start][0] <= 0.05


def test_methods_that_a_model_cannot_serve_are_refused_by_name(walk_safety, driving):
    blind = Walk()
    blind.spec = replace(Walk.spec, gradient="none", notes=("the state-fluent 'x' is not real",))
    constraints = parse_constraints(["dry>=0.9"], SCALE)
    with pytest.raises(InputError, match="--reward-gradient ppo with --constraint-gradient score"):
        Planner(blind, walk_safety, constraints, SMALL)
    with pytest.raises(InputError, match="finite"):
        Planner(Walk(), walk_safety, constraints, replace(SMALL, reward=Exact(), constraint=None))
    with pytest.raises(InputError, match="markov"):
        Planner(driving, walk_safety, constraints, preset("default", finite=True))


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("finite", [False, True])
def test_every_preset_is_a_valid_configuration(name, finite):
    assert preset(name, finite=finite).epochs > 0


def test_surrogate_of_a_saturated_cost_still_has_a_gradient(walk_safety):
    from sidestep.core.model import Trajectory

    problem = Problem(Walk(), walk_safety, parse_constraints(["dry>=0.9"], SCALE))

    def surrogate(shift, form):
        states = jnp.full((1, 8, 2), 3.0) + shift
        one = Trajectory(states, jnp.zeros((1, 8, 2)), jnp.zeros((1, 8)), jnp.array([8]))
        return problem.surrogate(one, form, 5.0)[0, 0]

    flat, steep = (abs(float(jax.grad(surrogate)(0.0, form))) for form in ("probability", "log"))
    assert steep > 10 * flat


@pytest.fixture
def safety_file(tmp_path, walk_safety):
    model = HazardModel(2, 2, 3, key=jax.random.key(1), units=8, encoder=())
    save_safety(tmp_path / "safety.safetensors", model, Scale(), ("x", "y", "a", "b"))
    return tmp_path / "safety.safetensors"


OPTIONS = ["--epochs", "40", "--test-every", "10", "--batch", "16", "--test-batch", "32", "--widths", "8"]
OPTIONS += ["--search-rounds", "0"]


def plan_arguments(safety_file, out):
    return [
        "plan",
        "navigation",
        "--safety",
        str(safety_file),
        "--constraint",
        "none>=0.95",
        "--out",
        str(out),
        "--quiet",
        *OPTIONS,
    ]


def strip(rows):
    return [replace(row, seconds=0.0) for row in rows]


def test_a_killed_run_resumes_bit_for_bit_and_is_used_by_its_path_alone(safety_file, tmp_path, capsys):
    from sidestep.runs.folder import Run

    assert main(plan_arguments(safety_file, tmp_path / "whole")) == 1, "a few epochs earn no certificate"
    broken = tmp_path / "broken"
    command = [sys.executable, "-m", "sidestep"]
    child = subprocess.Popen([*command, *plan_arguments(safety_file, broken)], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while not (broken / "state.safetensors").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert not (broken / "result.json").exists(), "it was to be killed before its end"
    assert main(["resume", str(broken), "--quiet"]) == 1
    whole, resumed = Run(tmp_path / "whole"), Run(broken)
    assert strip(whole.metrics()) == strip(resumed.metrics())
    assert (whole.path / "policy.safetensors").read_bytes() == (resumed.path / "policy.safetensors").read_bytes()
    results = [json.loads((run.path / "result.json").read_text()) for run in (whole, resumed)]
    for result in results:
        del result["seconds"]
    assert results[0] == results[1]
    assert main(["plan", *plan_arguments(safety_file, broken)[1:]]) == 2, "a run is not overwritten"
    capsys.readouterr()
    assert main(["certify", str(broken), "--rollouts", "100", "--json"]) == 1
    certified = json.loads(capsys.readouterr().out)
    assert (certified["rollouts"], certified["audits"]) == (100, 2)

    answer = sidestep.load(broken)
    actor = answer.policy
    assert answer.policy is actor, "with its clock and memory, however it is spelled"
    one = actor.act(np.array([1.0, 1.0]))
    actor.restart()
    np.testing.assert_allclose(actor.act(np.ones((5, 2))), np.broadcast_to(one, (5, 2)), rtol=1e-6)
    monitor = answer.monitor(threshold=0.0)
    assert set(monitor.step(np.array([3.0, 3.0]), one)) == {"mild", "severe"}
    assert monitor.alarm
