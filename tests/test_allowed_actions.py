"""What a model forbids is not done: bounds, masks, counts, linear preconditions and those that can only be tried."""

import itertools
import json
import warnings
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidestep.certification.evaluation import evaluate
from sidestep.cli.main import main
from sidestep.core.errors import InputError
from sidestep.core.model import FunctionPolicy, Trajectory, UniformPolicy, forbidden, rollout, within_rules
from sidestep.deploy.answers import PolicyRunner
from sidestep.deploy.export import export_numpy
from sidestep.labels.collect import explore
from sidestep.labels.experts import RuleExpert
from sidestep.labels.rules import load_rule
from sidestep.models import checked_model, load_model
from sidestep.models.allowed_actions import Entries, Rows, allowed_action
from sidestep.models.check import check_model
from sidestep.policies.networks import make_policy

SHOP = """
domain shop {
    types { job : object; };
    pvariables {
        COST(job)   : { non-fluent, real, default = 1.0 };
        BUDGET      : { non-fluent, real, default = 2.0 };
        ready(job)  : { state-fluent, bool, default = true };
        stock       : { state-fluent, int, default = 6 };
        heat        : { state-fluent, real, default = 1.0 };
        start(job)  : { action-fluent, bool, default = false };
        ship(job)   : { action-fluent, int, default = 0 };
        power(job)  : { action-fluent, real, default = 0.0 };
        vent        : { action-fluent, bool, default = false };
    };
    cpfs {
        ready'(?j) = Bernoulli(0.7);
        stock' = max[0, stock + 2 - (sum_{?j : job} [ship(?j)])];
        heat' = max[0.0, 0.9 * heat + (sum_{?j : job} [start(?j)]) - 2.0 * vent + Normal(0.0, 0.1)];
    };
    reward = (sum_{?j : job} [power(?j) + ship(?j)]) - heat;
    action-preconditions {
        forall_{?j : job} [start(?j) => ready(?j)];
        (sum_{?j : job} [start(?j)]) <= 2;
        forall_{?j : job} [ship(?j) >= 0 ^ ship(?j) < 5];
        (sum_{?j : job} [ship(?j)]) <= stock;
        forall_{?j : job} [power(?j) >= 0.0 ^ power(?j) <= 1.5];
        (sum_{?j : job} [COST(?j) * power(?j)]) <= BUDGET - 0.1 * heat;
        (heat > 1.5) => vent;
        vent | (exists_{?j : job} [start(?j)]);
        forall_{?j : job} [(ship(?j) > 2) => ~start(?j)];
    };
}
non-fluents jobs { domain = shop; objects { job : { a, b, c }; }; non-fluents { COST(b) = 2.0; }; }
instance i { domain = shop; non-fluents = jobs; max-nondef-actions = 7; horizon = 12; discount = 1.0; }
"""

FLOW = """
domain flow {{
    types {{ pipe : {{ @p, @q, @r }}; }};
    pvariables {{
        water(pipe) : {{ state-fluent, real, default = 1.0 }};
        open(pipe)  : {{ action-fluent, real, default = 0.0 }};
    }};
    cpfs {{ water'(?p) = water(?p) + 0.1 * open(?p); }};
    reward = sum_{{?p : pipe}} [water(?p) * open(?p) - pow[open(?p), 2]];
    action-preconditions {{ {preconditions} }};
}}
instance i {{ domain = flow; horizon = 6; discount = 1.0; }}
"""
BOX = "forall_{?p : pipe} [open(?p) >= 0.0]; forall_{?p : pipe} [open(?p) <= 1.0];"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("allowed")


def model_of(folder, text, name="model", options="", **keywords):
    (folder / f"{name}.rddl").write_text(text)
    return load_model(f"{folder / name}.rddl{options}", **keywords)


@pytest.fixture(scope="module")
def shop(folder):
    return model_of(folder, SHOP, "shop")


def simulator_of(path):
    from pyRDDLGym.core.compiler.model import RDDLLiftedModel
    from pyRDDLGym.core.parser.parser import RDDLParser
    from pyRDDLGym.core.simulator import RDDLSimulator

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parser = RDDLParser(lexer=None, verbose=False)
        parser.build()
        return RDDLSimulator(RDDLLiftedModel(parser.parse(path.read_text())), keep_tensors=True)


def as_fluents(space, vector, like):
    kinds = {"real": float, "int": int, "bool": bool}
    return {
        v.name: np.asarray(vector[space.slices[v.name]]).astype(kinds[v.kind]).reshape(np.shape(like[v.name]))
        for v in space.variables
    }


def allowed_by_pyrddlgym(simulator, model, state, action):
    """pyRDDLGym's own word, both on preconditions and on the number of actions."""
    from pyRDDLGym.core.debug.exception import RDDLInvalidActionError

    actions = as_fluents(model.spec.action, action, simulator.noop_actions)
    simulator.subs.update(as_fluents(model.spec.state, state, simulator.init_values))
    try:
        simulator.check_default_action_count(actions)
    except RDDLInvalidActionError:
        return False
    return simulator.check_action_preconditions(actions, silent=True)


def test_what_is_broken_is_what_pyrddlgym_says(shop, folder):
    simulator = simulator_of(folder / "shop.rddl")
    rng, broken = np.random.default_rng(0), jax.jit(shop.broken)
    found = []
    for _ in range(400):
        state = np.array([*(rng.random(3) < 0.7), rng.integers(8), 3 * rng.random()], np.float32)
        quiet = rng.random(10) < 0.5
        action = np.array([*(rng.random(3) < 0.4), *rng.integers(0, 5, 3), *(1.2 * rng.random(3)), 1], np.float32)
        action = np.where(quiet, 0, action).astype(np.float32)
        truth = allowed_by_pyrddlgym(simulator, shop, state, action)
        assert bool(np.any(broken(state, action))) == (not truth)
        found.append(truth)
    assert 40 < sum(found) < 360


@pytest.mark.parametrize("how", ["uniform", "everything", "exploring"])
def test_no_rollout_does_what_pyrddlgym_forbids(shop, folder, how):
    simulator = simulator_of(folder / "shop.rddl")
    if how == "exploring":
        trajectory = explore(shop, jax.random.key(1), 40)
    else:
        everything = FunctionPolicy(lambda state, clock, key: jnp.full(10, 9.0))
        policy = UniformPolicy(shop) if how == "uniform" else everything
        trajectory = rollout(shop, policy, jax.random.key(0), 40)
    assert forbidden(shop, trajectory) is None
    states, actions = np.asarray(trajectory.states), np.asarray(trajectory.actions)
    for state, action in zip(states.reshape(-1, 5), actions.reshape(-1, 10), strict=True):
        assert allowed_by_pyrddlgym(simulator, shop, state, action)
    assert np.array_equal(actions[..., :6], np.round(actions[..., :6]))
    if how == "everything":  # as much as fits
        assert np.all(actions[..., :3].sum(-1) + actions[..., 9] >= 1)
        cost = actions[..., 6:9] @ [1.0, 2.0, 1.0]
        assert np.median((2.0 - 0.1 * states[..., 4]) - cost) < 1e-4


def test_forbidden_names_step_and_precondition(shop):
    good = rollout(shop, UniformPolicy(shop), jax.random.key(0), 3)
    actions = np.array(good.actions)
    actions[2, 5, :3] = 1.0
    states = np.array(good.states)
    states[..., :3] = 1.0
    bad = Trajectory(states, actions, np.asarray(good.rewards), np.asarray(good.length))
    sentence = forbidden(shop, bad)
    assert "step 5 of trajectory 2" in sentence
    assert "sum_{?j: job}" in sentence
    short = Trajectory(states, actions, np.asarray(good.rewards), np.array([12, 12, 5]))
    assert forbidden(shop, short) is None


def test_allowed_actions_stay_as_they_are(shop):
    trajectory = rollout(shop, UniformPolicy(shop), jax.random.key(3), 50)
    states, actions = trajectory.states.reshape(-1, 5), trajectory.actions.reshape(-1, 10)
    again = jax.jit(jax.vmap(lambda s, a: within_rules(shop, s, a)))(states, actions)
    np.testing.assert_allclose(again, actions, atol=1e-5)


def test_every_choice_gets_its_turn(folder):
    """One of twenty may act, and a policy that asks for many at random favours none."""
    text = SHOP.replace("a, b, c", ", ".join(f"j{i}" for i in range(20))).replace("actions = 7", "actions = 1")
    lines = ["(sum_{?j : job} [start(?j)]) <= 2;", "vent | (exists_{?j : job} [start(?j)]);", "(heat > 1.5) => vent;"]
    for line in lines:
        text = text.replace(line, "")
    text = text.replace("forall_{?j : job} [start(?j) => ready(?j)];", "").replace("COST(b) = 2.0;", "COST(j1) = 2.0;")
    model = model_of(folder, text, "twenty")
    half = FunctionPolicy(
        lambda state, clock, key: jnp.concatenate([jax.random.bernoulli(key, 0.5, (20,)).astype(float), jnp.zeros(41)])
    )
    counts = np.asarray(rollout(model, half, jax.random.key(0), 400, 5).actions)[..., :20].sum(axis=(0, 1))
    assert counts.sum() == 2000
    assert counts.min() > 50
    assert counts.max() < 160


# Of the algorithm alone, against enumeration.

CODE = np.array([64, 16, 4, 1])
small_rows = st.lists(
    st.tuples(st.lists(st.integers(-2, 3), min_size=4, max_size=4), st.integers(-1, 5)), min_size=1, max_size=3
)


def fine(action, matrix, limits, table, most):
    """Is this action of four choices allowed: by rows, by a table of what is refused, by number?"""
    refused = table[jnp.sum(action.astype(int) * CODE)]
    return (
        jnp.all(matrix @ action <= limits + 1e-4) & ~refused & (jnp.sum(action != 0) <= (4 if most is None else most))
    )


@partial(jax.jit, static_argnames="most")
def repaired(asked, tops, matrix, limits, table, most):
    entries = Entries(np.zeros(4), np.zeros(4, bool), np.eye(4, dtype=bool), most)
    rows = Rows(matrix, limits, np.zeros(3, bool))
    test = partial(fine, matrix=matrix, limits=limits, table=table, most=most)
    return allowed_action(entries, asked, jnp.zeros(4), tops, rows, test)


every_fine = jax.jit(jax.vmap(fine, in_axes=(0, None, None, None, None)), static_argnums=4)
EVERY = np.array(list(itertools.product(range(4), repeat=4)), np.float32)


@settings(max_examples=300)
@given(
    rows=small_rows,
    tops=st.lists(st.integers(1, 3), min_size=4, max_size=4),
    most=st.sampled_from([None, 1, 2]),
    asked=st.lists(st.integers(-1, 4), min_size=4, max_size=4),
    refused=st.sets(st.integers(0, 255), max_size=60),
)
def test_repair_against_enumeration(rows, tops, most, asked, refused):
    matrix = np.array([row for row, _ in rows] + [[0] * 4] * (3 - len(rows)), np.float32)
    limits = np.array([limit for _, limit in rows] + [np.inf] * (3 - len(rows)), np.float32)
    table, tops = np.isin(np.arange(256), list(refused)), np.array(tops, np.float32)
    found = np.asarray(repaired(np.array(asked, np.float32), tops, matrix, limits, table, most))
    within = np.all(tops >= EVERY, axis=1)
    allowed = {tuple(action) for action in EVERY[within & np.asarray(every_fine(EVERY, matrix, limits, table, most))]}
    wanted = np.clip(asked, 0, tops)
    assert tuple(found) in {tuple(action) for action in EVERY[within]}
    if tuple(wanted) in allowed:
        np.testing.assert_array_equal(found, wanted)
    starts = [np.zeros(4), *(top * np.eye(4)[i] for i, top in enumerate(tops) if wanted[i] == 0), tops]
    if any(tuple(start) in allowed for start in starts):
        assert tuple(found) in allowed, "there was an action to start from"
    if not refused and np.all(matrix >= 0) and np.all(limits >= 0):  # room only: as much as fits is taken
        assert tuple(found) in allowed
        for entry in np.flatnonzero(found < wanted):
            assert tuple(found + np.eye(4)[entry]) not in allowed


@jax.jit
def projected(asked, matrix, limits):
    entries = Entries(np.zeros(3), np.ones(3, bool), np.eye(3, dtype=bool))
    rows = Rows(matrix, limits, np.zeros(3, bool))
    return allowed_action(
        entries, asked, jnp.zeros(3), jnp.ones(3), rows, lambda action: jnp.all(matrix @ action <= limits + 1e-6)
    )


@settings(max_examples=150)
@given(
    weights=st.lists(st.lists(st.floats(0.1, 2.0), min_size=3, max_size=3), min_size=3, max_size=3),
    limits=st.lists(st.floats(0.05, 2.0), min_size=3, max_size=3),
    asked=st.lists(st.floats(-0.5, 1.5), min_size=3, max_size=3),
)
def test_projection_of_real_actions_ends_in_every_half_space(weights, limits, asked):
    matrix, limits, asked = (np.array(values, np.float32) for values in (weights, limits, asked))
    found = np.asarray(projected(asked, matrix, limits))
    assert np.all(matrix @ found <= limits + 1e-6)
    assert np.all((found >= 0) & (found <= 1))
    inside = np.clip(asked, 0, 1)
    if np.all(matrix @ inside <= limits - 1e-4):
        np.testing.assert_array_equal(found, inside)
    else:  # nothing allowed is much nearer
        draws = np.random.default_rng(0).random((4000, 3)).astype(np.float32)
        near = draws[np.all(draws @ matrix.T <= limits, axis=1)]
        best = min(np.linalg.norm(near - inside, axis=1), default=np.inf)
        assert np.linalg.norm(found - inside) <= 1.6 * best + 0.05


# Real actions in RDDL.

LINEAR = BOX + " (sum_{?p : pipe} [water(?p) * open(?p)]) <= 1.2;"


@pytest.mark.parametrize(
    ("preconditions", "holds"),
    [
        (LINEAR, lambda s, a: (s * a).sum(-1) <= 1.2 + 1e-5),
        (BOX + " (sum_{?p : pipe} [open(?p)]) == 1.0;", lambda s, a: abs(a.sum(-1) - 1.0) <= 1e-5),
        (BOX + " (sum_{?p : pipe} [open(?p)]) >= 1.0 + 0.3 * water(@p);", lambda s, a: a.sum(-1) >= 1.3 - 1e-5),
        (BOX + " sqrt[sum_{?p : pipe} [pow[open(?p), 2]]] <= 0.7;", lambda s, a: (a**2).sum(-1) <= 0.4901),
        (BOX + " open(@p) >= 2.0 * open(@q);", lambda s, a: a[..., 0] >= 2 * a[..., 1] - 1e-5),
    ],
    ids=["budget", "simplex", "demand", "ball", "ratio"],
)
def test_real_actions_are_projected(folder, preconditions, holds, key):
    model = model_of(folder, FLOW.format(preconditions=preconditions), "flow")
    asks_all = FunctionPolicy(lambda state, clock, key: jax.random.uniform(key, (3,), minval=-0.5, maxval=1.5))
    trajectory = rollout(model, asks_all, key, 100)
    assert forbidden(model, trajectory) is None
    actions = np.asarray(trajectory.actions)
    assert np.all(holds(np.asarray(trajectory.states), actions))
    assert actions.std(axis=(0, 1)).min() > 0.05  # not all the same point


@pytest.mark.parametrize("name", ["budget", "simplex"])
def test_gradient_through_the_projection(folder, name):
    text = {"budget": LINEAR, "simplex": BOX + " (sum_{?p : pipe} [open(?p)]) == 1.0;"}[name]
    with jax.enable_x64(True):
        model = model_of(folder, FLOW.format(preconditions=text), "double", double=True)
        state = jnp.array([1.0, 1.3, 0.7])

        @jax.jit
        def score(asked):
            taken = within_rules(model, state, asked)
            return taken @ jnp.array([1.0, -2.0, 0.5]) + jnp.sum(taken**2)

        slope = jax.jit(jax.grad(score))
        for asked in ([0.9, 0.5, 0.6], [0.95, 0.9, 0.2], [0.1, 0.2, 0.1]):
            gradient = slope(jnp.array(asked))
            step = 1e-6 * np.eye(3)
            differences = [(score(jnp.array(asked) + d) - score(jnp.array(asked) - d)) / 2e-6 for d in step]
            np.testing.assert_allclose(gradient, differences, atol=1e-5)
            assert np.abs(gradient).max() > 0.1


@pytest.mark.mixes_types("pow[x, 2] of its text: JAX differentiates it by promoting the exponent")
def test_a_linear_precondition_leaves_the_model_differentiable(folder, key):
    model = model_of(folder, FLOW.format(preconditions=LINEAR), "exact")
    said = {f.what: f for f in check_model(model, key, lambda: load_model(f"{folder / 'exact'}.rddl", double=True))}
    assert said["gradient"].verdict == "good"
    assert said["rules"].verdict == "good"


# Policies and what leaves the house.


def test_a_policy_in_use_keeps_the_rules(shop):
    policy = make_policy(shop, jax.random.key(0))
    head = policy.net.head
    policy = eqx.tree_at(lambda p: p.net.head.bias, policy, head.bias + 5.0 * jnp.sin(jnp.arange(head.bias.size)))
    states = rollout(shop, UniformPolicy(shop), jax.random.key(5), 20).states.reshape(-1, 5)
    actions = PolicyRunner(policy.mean()).act(states)
    assert not np.any(jax.vmap(shop.broken)(states, jnp.asarray(actions)))


def test_a_policy_that_needs_more_than_bounds_is_not_exported(shop, tmp_path):
    with pytest.raises(InputError, match=r"forbids actions by more than bounds.*sidestep\.load"):
        export_numpy(make_policy(shop, jax.random.key(0)), tmp_path / "policy.py")
    assert not list(tmp_path.iterdir())


# What cannot be kept is said.


def test_a_state_in_which_nothing_is_allowed_is_found(folder, key):
    """With three units in stock nobody may ship, and nobody may leave it."""
    forced = "(stock == 3) => (sum_{?j : job} [ship(?j)]) == 0; (stock == 3) => (exists_{?j : job} [ship(?j) > 0]);"
    model = model_of(folder, SHOP.replace("vent | (exists", f"{forced} vent | (exists"), "dead")
    findings = [finding for finding in check_model(model, key) if finding.what == "rules"]
    assert [finding.verdict for finding in findings] == ["note"], check_model(model, key)
    assert "stock == 3" in findings[0].found
    assert "nothing can be certified" in findings[0].found


PUSHED = '''
import jax
import jax.numpy as jnp
from sidestep.core.model import Space, Spec, Variable

class Pushed:
    """A number that one pushes; to push hard is forbidden at some steps, and nothing keeps one from it."""
    spec = Spec("pushed", Space((Variable("x"), Variable("clock"))), Space((Variable("push", low=-1.0, high=1.0),)),
                horizon=4, discount=1.0, ends=False)
    rules = ("'no hard push'",)
    def reset(self, key):
        return jnp.zeros(2)
    def step(self, state, action, key):
        return state + jnp.stack([action[0], 1.0]), action[0], jnp.asarray(False)
    def broken(self, state, action):
        return action > LIMIT

def rule(trajectory):
    return (trajectory.states[:, 0, 0] < -1.0).astype(int)

rule.categories = ("none", "severe")
'''
SMALL = ["--labels", "40", "--learner", "hazard", "--rounds", "1", "--members", "1", "--units", "4"]
SMALL += ["--first-fit", "40", "--later-fit", "40"]
SMALL += ["--round-epochs", "2", "--searching-rounds", "1", "--polish-epochs", "50", "--widths", "4", "--batch", "8"]
SMALL += ["--test-batch", "16", "--search-rounds", "0", "--audits", "1", "--rollouts", "150", "--quiet"]


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "status"), [(0.5, 1), (2.0, 0)])
def test_plan_certifies_no_policy_that_does_what_is_forbidden(tmp_path, limit, status, capsys):
    (tmp_path / "pushed.py").write_text(PUSHED.replace("LIMIT", str(limit)))
    file, run = tmp_path / "pushed.py", tmp_path / "run"
    command = ["plan", f"{file}:Pushed", "--rule", f"{file}:rule", "--constraint", "none>=0.9", *SMALL]
    assert main([*command, "--out", str(run), "--json"]) == status
    result = json.loads(capsys.readouterr().out)
    assert [constraint["certified"] for constraint in result["constraints"]] == [status == 0]
    assert ("forbids: 'no hard push' does not hold" in (run / "result.json").read_text()) == (status == 1)


def test_an_audit_tells_of_what_random_actions_never_did(tmp_path):
    """Only a policy that pushes with all its might is seen to break this rule."""
    (tmp_path / "pushed.py").write_text(PUSHED.replace("LIMIT", "0.999999"))
    model = checked_model(f"{tmp_path / 'pushed.py'}:Pushed")
    assert model.spec.unenforced == ()
    rule = RuleExpert(load_rule(f"{tmp_path / 'pushed.py'}:rule", model))
    hard = FunctionPolicy(lambda state, clock, key: jnp.ones(1))
    found = evaluate(model, hard, rule, jax.random.key(0), 10)
    assert found.forbidden.startswith("step 0 of trajectory 0 takes an action that the model 'pushed' forbids")
    soft = FunctionPolicy(lambda state, clock, key: jnp.zeros(1))
    assert evaluate(model, soft, rule, jax.random.key(0), 10).forbidden is None


def test_constraints_of_the_old_section_are_kept(folder, key):
    old = SHOP.replace("(sum_{?j : job} [start(?j)]) <= 2;", "").replace(
        "action-preconditions {",
        "state-action-constraints { (sum_{?j : job} [start(?j)]) <= 1; stock >= 0; };\n    action-preconditions {",
    )
    model = model_of(folder, old, "old")
    trajectory = rollout(model, FunctionPolicy(lambda state, clock, key: jnp.ones(10)), key, 20)
    assert np.asarray(trajectory.actions)[..., :3].sum(-1).max() == 1
    assert forbidden(model, trajectory) is None


# Whole numbers.


def test_integers_get_the_bounds_that_follow(folder):
    text = SHOP.replace("forall_{?j : job} [ship(?j) >= 0 ^ ship(?j) < 5];", "forall_{?j : job} [ship(?j) >= 0];")
    text = text.replace("[ship(?j)]) <= stock;", "[2 * ship(?j)]) <= 9;")
    model = model_of(folder, text, "follows")
    np.testing.assert_array_equal(model.spec.action.variables[1].high, [4, 4, 4])
    np.testing.assert_array_equal(model.spec.action.variables[1].low, [0, 0, 0])


def test_integers_without_bounds_ask_for_a_range(folder):
    text = SHOP.replace("forall_{?j : job} [ship(?j) >= 0 ^ ship(?j) < 5];", "forall_{?j : job} [ship(?j) >= 0];")
    with pytest.raises(
        InputError, match=r"unbounded\.rddl:11: .*'ship' is an integer without bounds.*\?integers=0\.\.20"
    ):
        model_of(folder, text, "unbounded")
    model = model_of(folder, text, "unbounded", "?integers=-3..3")
    np.testing.assert_array_equal(model.spec.action.variables[1].low, [0, 0, 0])
    np.testing.assert_array_equal(model.spec.action.variables[1].high, [3, 3, 3])
    for wrong in ("5", "3..1", "a..b", "1.."):
        with pytest.raises(InputError, match=r"option 'integers' is a range of whole numbers like 0\.\.20"):
            load_model(f"{folder / 'unbounded'}.rddl?integers={wrong}")
