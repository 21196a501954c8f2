"""Rules against slow loops in plain Python, on random trajectories and on the boundaries of their definitions."""

import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sidestep.core.constraints import Scale
from sidestep.core.errors import InputError
from sidestep.core.model import Trajectory, UniformPolicy, rollout
from sidestep.core.rules import longest_run
from sidestep.labels.rules import load_rule
from sidestep.models import load_model
from sidestep.models.domains.boxpushing.model import Boxpushing
from sidestep.models.domains.driving.model import Driving
from sidestep.models.domains.reservoir.model import RESERVOIRS

BATCH, TIME = 6, 12

# Definitions, one trajectory at a time: `states` and `actions` are lists of the real steps only.


def category_of_count(count):
    if count <= 1:
        return 0
    return 1 if count <= 3 else 2


def longest(flags):
    best = run = 0
    for flag in flags:
        run = run + 1 if flag else 0
        best = max(best, run)
    return best


def slow_navigation(states, actions):
    return category_of_count(sum(1 for x, y in states if 2.0 <= x <= 4.5 and 0.0 <= y <= 10.0))


def slow_hvac(states, actions):
    return category_of_count(longest([temps[1] >= 21.0 for temps in states]))


def slow_reservoir(states, actions):
    dangerous = []
    for levels in states:
        shares = [np.float32(level) / np.float32(RESERVOIRS[i][3]) for i, level in enumerate(levels)]
        dangerous.append(max(shares) - min(shares) >= 0.5)
    return category_of_count(longest(dangerous))


def slow_labels(rule, trajectory):
    labels = []
    for b, length in enumerate(np.asarray(trajectory.length)):
        labels.append(rule(np.asarray(trajectory.states)[b, :length], np.asarray(trajectory.actions)[b, :length]))
    return labels


def near(*values):
    """Values on a boundary, and just beside it on both sides in float32 (subnormal numbers count as 0 in XLA)."""
    found = set()
    for value in np.array(values, np.float32):
        gap = max(abs(np.spacing(value)), np.finfo(np.float32).tiny)
        found |= {float(value), float(value - gap), float(value + gap)}
    return sorted(found)


def trajectories(entries, size):
    """Batches whose state entries are drawn from `entries[i]`; also the padding holds such values."""
    columns = [hnp.arrays(np.float32, (BATCH, TIME), elements=st.sampled_from(values)) for values in entries]
    lengths = hnp.arrays(np.int32, (BATCH,), elements=st.sampled_from([1, 2, 3, 4, 5, 11, TIME]))
    return st.tuples(*columns, lengths).map(
        lambda parts: Trajectory(
            states=jnp.asarray(np.stack(parts[:-1], axis=-1)),
            actions=jnp.zeros((BATCH, TIME, size)),
            rewards=jnp.zeros((BATCH, TIME)),
            length=jnp.asarray(parts[-1]),
        )
    )


@pytest.fixture(scope="module")
def navigation():
    return load_model("navigation")


@pytest.fixture(scope="module")
def continuous(navigation):
    return {
        "navigation": load_rule(None, navigation),
        "hvac": load_rule(None, load_model("hvac")),
        "reservoir": load_rule("paper", load_model("reservoir?reservoirs=3")),
    }


TEMPERATURES = [10.0, 20.5, *near(21.0), 30.0]
SHARES = [0.0, 0.25, 0.5, 1.0, 1.25]  # times a capacity, these come back exactly: gaps of exactly one half occur
CASES = {
    "navigation": (slow_navigation, trajectories([[1.0, 3.0, *near(2.0, 4.5)], [-1.0, 5.0, *near(0.0, 10.0)]], 2)),
    "hvac": (slow_hvac, trajectories([TEMPERATURES] * 6, 6)),
    "reservoir": (
        slow_reservoir,
        trajectories([[float(np.float32(row[3]) * np.float32(s)) for s in SHARES] for row in RESERVOIRS[:3]], 3),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_rule_agrees_with_the_slow_loop(name, continuous):
    slow, batches = CASES[name]
    rule = continuous[name]
    label, seen = jax.jit(rule.label), set()

    @settings(max_examples=60)
    @given(batches)
    def check(trajectory):
        found = np.asarray(label(trajectory)).tolist()
        assert found == slow_labels(slow, trajectory)
        seen.update(found)

    check()
    assert seen == {0, 1, 2}
    assert rule.scale == Scale(("none", "mild", "severe"))


@settings(max_examples=100)
@given(hnp.arrays(bool, (BATCH, TIME)))
def test_longest_run(flags):
    assert np.asarray(longest_run(jnp.asarray(flags))).tolist() == [longest(row) for row in flags]


def repeat(states, times, other, length=10):
    """`times` steps in `states`, the rest in `other`, as a batch of one."""
    rows = [states] * times + [other] * (length - times)
    return Trajectory(
        jnp.asarray([rows], jnp.float32),
        jnp.zeros((1, length, len(other))),
        jnp.zeros((1, length)),
        jnp.asarray([length]),
    )


@pytest.mark.parametrize(("steps", "category"), [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (9, 2)])
@pytest.mark.parametrize(
    ("name", "inside", "outside"),
    [
        ("navigation", [2.0, 0.0], [1.99, 5.0]),
        ("navigation", [4.5, 10.0], [4.51, 5.0]),
        ("navigation", [3.0, 5.0], [3.0, 10.01]),
        ("hvac", [10.0, 21.0, *[10.0] * 4], [30.0, 20.99, *[30.0] * 4]),
        ("reservoir", [606.444, 632.914, 368.057 / 2], [606.444, 632.914, 368.057]),
    ],
)
def test_thresholds_on_the_number_of_steps(continuous, name, inside, outside, steps, category):
    assert int(continuous[name].label(repeat(inside, steps, outside))[0]) == category


def test_runs_must_be_consecutive_where_the_rule_says_so(continuous):
    hot, cold = [10.0, 25.0, *[10.0] * 4], [10.0] * 6
    alternating = jnp.asarray([[hot, cold] * 5], jnp.float32)
    trajectory = Trajectory(alternating, jnp.zeros((1, 10, 6)), jnp.zeros((1, 10)), jnp.asarray([10]))
    assert int(continuous["hvac"].label(trajectory)[0]) == 0
    inside, outside = [3.0, 5.0], [9.0, 5.0]
    crossing = jnp.asarray([[inside, outside] * 5], jnp.float32)
    trajectory = Trajectory(crossing, jnp.zeros((1, 10, 2)), jnp.zeros((1, 10)), jnp.asarray([10]))
    assert int(continuous["navigation"].label(trajectory)[0]) == 2


@pytest.mark.parametrize("length", [1, 2, 9])
def test_padding_has_no_influence(continuous, length):
    """All padding in the dirty zone, all of it hot, all of it unbalanced: the label is that of the real steps."""
    for name, inside, outside in (
        ("navigation", [3.0, 5.0], [9.0, 5.0]),
        ("hvac", [30.0] * 6, [10.0] * 6),
        ("reservoir", [600.0, 0.0, 0.0], [0.0] * 3),
    ):
        padded = repeat(outside, length, inside, length=40)
        padded = Trajectory(padded.states, padded.actions, padded.rewards, jnp.asarray([length]))
        assert int(continuous[name].label(padded)[0]) == 0


# Grids.

BOX_MAP = """\
S.FFF.
.B@@.x
..F.G."""
DRIVE_MAP = """\
S@@HH.
.XH@..
....G."""
MODELS = {"boxpushing": Boxpushing(BOX_MAP, horizon=40), "driving": Driving(DRIVE_MAP, horizon=40)}


def surface_category(model, state, action):
    """What one step does, from the characters of the map."""
    row, column, status = (int(np.argmax(model.spec.state.take(state, name))) for name in ("row", "column", "status"))
    surface = model.map[row][column]
    if model.spec.family == "boxpushing":
        return {"F": 1, "@": 2}.get(surface, 0) if status == 1 else 0
    fast = model.moves[int(np.argmax(action))].endswith("fast")
    return {"@": 1, "H": 2}.get(surface, 0) if fast and status == 0 else 0


def slow_markov(model):
    return lambda states, actions: max(surface_category(model, s, a) for s, a in zip(states, actions, strict=True))


def slow_penalty(model):
    return lambda states, actions: sum(
        {0: 0, 1: 5, 2: 10}[surface_category(model, s, a)] for s, a in zip(states, actions, strict=True)
    )


def slow_share(model):
    def label(states, actions):
        dangerous = sum(surface_category(model, s, a) > 0 for s, a in zip(states, actions, strict=True))
        unsafe = dangerous / len(states) >= 0.1
        if model.spec.family == "driving":
            return int(unsafe)
        complete = False
        for state in states:
            row, column, status = (int(np.argmax(model.spec.state.take(state, n))) for n in ("row", "column", "status"))
            complete = complete or (model.map[row][column] == "G" and status == 1)
        return {(False, True): 0, (False, False): 1, (True, True): 2, (True, False): 3}[unsafe, complete]

    return label


def random_walks(model, seed, batch=24, time=40):
    """States anywhere, also where no policy would lead, with lengths from 1 to all."""
    rng = np.random.default_rng(seed)
    real = np.flatnonzero(~model.finite.absorbing)
    states = model.finite.encoding[rng.choice(real, (batch, time))]
    quiet = model.side_effect.max(axis=1) == 0
    calm = rng.random((batch, 1)) < 0.5  # half of the batch meets danger seldom
    states = np.where(
        (calm & (rng.random((batch, time)) < 0.95))[..., None],
        model.finite.encoding[rng.choice(real[quiet[real]], (batch, time))],
        states,
    )
    actions = np.eye(model.spec.action.size)[rng.integers(model.spec.action.size, size=(batch, time))]
    length = rng.choice([1, 2, 9, 10, 11, 20, 39, 40], batch)
    return Trajectory(
        jnp.asarray(states, jnp.float32),
        jnp.asarray(actions, jnp.float32),
        jnp.zeros((batch, time)),
        jnp.asarray(length),
    )


@pytest.mark.parametrize("family", MODELS)
def test_grid_rules_agree_with_the_slow_loop(family):
    model = MODELS[family]
    markov, share = load_rule(None, model), load_rule("share", model)
    seen = {"markov": set(), "share": set()}
    for seed in range(12):
        trajectory = random_walks(model, seed)
        worst, shares = np.asarray(markov.label(trajectory)), np.asarray(share.label(trajectory))
        assert worst.tolist() == slow_labels(slow_markov(model), trajectory)
        assert shares.tolist() == slow_labels(slow_share(model), trajectory)
        np.testing.assert_array_equal(markov.penalty(trajectory), slow_labels(slow_penalty(model), trajectory))
        seen["markov"].update(worst.tolist())
        seen["share"].update(shares.tolist())
    assert seen["markov"] == {0, 1, 2}
    assert seen["share"] == set(range(len(share.scale)))


@pytest.mark.parametrize("family", MODELS)
def test_grid_rules_on_trajectories_of_the_model(family):
    model = MODELS[family]
    trajectory = rollout(model, UniformPolicy(model), jax.random.key(0), 60)
    assert len(set(np.asarray(trajectory.length).tolist())) > 1
    for reference, slow in ((None, slow_markov), ("share", slow_share)):
        rule = load_rule(reference, model)
        assert np.asarray(rule.label(trajectory)).tolist() == slow_labels(slow(model), trajectory)


def encode(model, row, column, status):
    index = (row * len(model.map[0]) + column) * len(model.statuses) + model.statuses.index(status)
    return model.finite.encoding[index]


@pytest.mark.parametrize(
    ("dangerous", "length", "unsafe"),
    [(0, 1, 0), (1, 1, 1), (1, 10, 1), (1, 11, 0), (1, 9, 1), (2, 20, 1), (1, 20, 0), (3, 30, 1), (2, 30, 0)],
)
def test_a_tenth_of_the_steps_is_unsafe(dangerous, length, unsafe):
    """At least 10 %: exactly a tenth counts; dangerous steps in the padding do not."""
    driving = MODELS["driving"]
    puddle, road = encode(driving, 0, 1, "driving"), encode(driving, 2, 0, "driving")
    fast = np.eye(8)[driving.moves.index("right-fast")]
    states = np.stack([puddle] * dangerous + [road] * (length - dangerous) + [puddle] * (40 - length))
    trajectory = Trajectory(
        jnp.asarray(states[None]), jnp.asarray([[fast] * 40], jnp.float32), jnp.zeros((1, 40)), jnp.asarray([length])
    )
    rule = load_rule("share", driving)
    assert rule.scale.categories == ("safe", "unsafe")
    assert int(rule.label(trajectory)[0]) == unsafe


def test_boxpushing_tells_incomplete_trajectories():
    model = MODELS["boxpushing"]
    rule = load_rule("share", model)
    assert rule.scale.categories == ("safe", "safe-incomplete", "unsafe", "unsafe-incomplete")
    floor, goal = encode(model, 2, 3, "loaded"), encode(model, 2, 4, "loaded")
    hole, empty_goal = encode(model, 1, 2, "loaded"), encode(model, 2, 4, "empty")
    for states, category in (
        ([floor, floor, goal], 0),
        ([floor, floor, floor], 1),
        ([floor, floor, empty_goal], 1),
        ([floor, hole, goal], 2),
        ([floor, hole, floor], 3),
    ):
        trajectory = Trajectory(
            jnp.asarray(np.stack(states)[None]), jnp.zeros((1, 3, 5)), jnp.zeros((1, 3)), jnp.asarray([3])
        )
        assert int(rule.label(trajectory)[0]) == category


# Rules of the user's.

RULES = """
import numpy as np

def by_number(trajectory):
    return (trajectory.length > 3).astype(int)

def by_name(trajectory):
    return np.where(trajectory.length > 3, "long", "short")

by_name.categories = ("short", "long")

def with_model(trajectory, model):
    assert model.spec.name == "navigation"
    return ["severe"] * len(trajectory.length)

def with_default(trajectory, limit=3):
    return [int(length > limit) for length in trajectory.length]

def in_words(trajectory):
    return np.zeros(len(trajectory.length))

in_words.categories = "fine < poor < bad"

def fails(trajectory):
    return 1 / 0

def wrong_shape(trajectory):
    return trajectory.states[..., 0]

def unknown_name(trajectory):
    return ["terrible"] * len(trajectory.length)

def out_of_range(trajectory):
    return np.full(len(trajectory.length), 3)

def halves(trajectory):
    return np.full(len(trajectory.length), 0.5)

def missing(trajectory):
    return np.full(len(trajectory.length), np.nan)

def nothing(trajectory):
    return [None] * len(trajectory.length)

def three(trajectory, model, more):
    return 0

def one_category(trajectory):
    return trajectory.length * 0

one_category.categories = ("only",)
number = 7
"""


@pytest.fixture(scope="module")
def rules_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("rules") / "mine.py"
    path.write_text(textwrap.dedent(RULES))
    return path


@pytest.fixture
def batch():
    length = jnp.asarray([1, 3, 4, 5])
    return Trajectory(jnp.zeros((4, 5, 2)), jnp.zeros((4, 5, 2)), jnp.zeros((4, 5)), length)


@pytest.mark.parametrize(
    ("function", "labels", "categories"),
    [
        ("by_number", [0, 0, 1, 1], ("none", "mild", "severe")),
        ("by_name", [0, 0, 1, 1], ("short", "long")),
        ("with_model", [2, 2, 2, 2], ("none", "mild", "severe")),
        ("with_default", [0, 0, 1, 1], ("none", "mild", "severe")),
        ("in_words", [0, 0, 0, 0], ("fine", "poor", "bad")),
    ],
)
def test_rule_of_the_user(rules_file, navigation, batch, function, labels, categories):
    rule = load_rule(f"{rules_file}:{function}", navigation)
    assert np.asarray(rule.label(batch)).tolist() == labels
    assert rule.scale.categories == categories
    assert not rule.jittable


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("fails", "the rule failed: ZeroDivisionError"),
        ("wrong_shape", "one category for each trajectory, shape (4,), not (4, 5)"),
        ("unknown_name", "gave 'terrible'; its categories are none < mild < severe"),
        ("out_of_range", "whole numbers from 0 to 2"),
        ("halves", "whole numbers from 0 to 2"),
        ("missing", "whole numbers from 0 to 2"),
        ("nothing", "whole numbers from 0 to 2"),
        ("three", "not 3 arguments"),
        ("one_category", "at least two categories"),
        ("number", "a rule is a function, and this is a int"),
        ("absent", "there is no 'absent' in this file"),
    ],
)
def test_rule_of_the_user_that_is_wrong(rules_file, navigation, batch, function, words):
    reference = f"{rules_file}:{function}"
    with pytest.raises(InputError) as caught:
        load_rule(reference, navigation).label(batch)
    assert words in str(caught.value)
    assert str(rules_file) in str(caught.value)


def test_rule_names(navigation):
    with pytest.raises(InputError, match=r"expected paper or file\.py:function"):
        load_rule("share", navigation)
    with pytest.raises(InputError, match=r"expected file\.py:name"):
        load_rule("mine.py", navigation)
    with pytest.raises(InputError, match="no such file"):
        load_rule("nowhere/mine.py:rule", navigation)
