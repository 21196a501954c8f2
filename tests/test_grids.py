"""The grid domains: their tables against a slow transcription of the rules, their samples against the tables, their
straight-through gradients against brute force, and maps that are wrong."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sidestep.core.errors import InputError
from sidestep.core.model import FinitePart, FunctionPolicy, Model, Space, Spec, UniformPolicy, Variable, rollout
from sidestep.models import load_model
from sidestep.models.domains.boxpushing.model import Boxpushing
from sidestep.models.domains.driving.model import Driving
from sidestep.models.finite_model import FiniteModel, _step, product_encoding
from sidestep.models.grids import PENALTIES, built_in_maps
from sidestep.models.map_text import parse_map

GRIDS = {"boxpushing": Boxpushing, "driving": Driving}
WAYS = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
SMALL_BOXPUSHING = "S.x.\n.B@F\nxF..\n...G\n.x.."
SMALL_DRIVING = "S.X@.\n.H..@\nXX.HG"


def moved(rows, cell, way, wall):
    row, column = cell[0] + WAYS[way][0], cell[1] + WAYS[way][1]
    inside = 0 <= row < len(rows) and 0 <= column < len(rows[0])
    return (row, column) if inside and rows[row][column] != wall else cell


def boxpushing_pair(rows, cell, status, action):
    """(outcomes as [(cell, status, probability)], reward, category) of one pair, straight from the rules."""
    here = rows[cell[0]][cell[1]]
    if status == "end" or (here == "G" and status == "loaded"):
        return [(cell, "end", 1.0)], 0.0, 0
    category = {"F": 1, "@": 2}.get(here, 0) if status == "loaded" else 0
    if action == "pick":
        return [(cell, "loaded" if here == "B" else status, 1.0)], -1.0, category
    sides = ("left", "right") if action in ("up", "down") else ("up", "down")
    chances = [(action, 0.95), (sides[0], 0.025), (sides[1], 0.025)]
    return [(moved(rows, cell, way, "x"), status, p) for way, p in chances], -1.0, category


def driving_pair(rows, cell, status, action):
    here, (way, speed) = rows[cell[0]][cell[1]], action.split("-")
    if status == "end" or here == "G":
        return [(cell, "end", 1.0)], 0.0, 0
    slide = "down" if way in ("left", "right") else "right"
    outcomes = [(moved(rows, cell, way, "X"), status, 0.9), (moved(rows, cell, slide, "X"), status, 0.1)]
    category = {"@": 1, "H": 2}.get(here, 0) if speed == "fast" else 0
    return outcomes, -1.0 if speed == "fast" else -2.0, category


def vector(model, cell, status):
    parts = [np.eye(len(model.map))[cell[0]], np.eye(len(model.map[0]))[cell[1]]]
    return np.concatenate([*parts, np.eye(len(model.statuses))[model.statuses.index(status)]])


def all_maps():
    for domain, grid in GRIDS.items():
        for name, file in built_in_maps(grid).items():
            yield pytest.param(file.read_text(), domain, id=f"{domain}-{name}")
    yield pytest.param(SMALL_BOXPUSHING, "boxpushing", id="boxpushing-small")
    yield pytest.param("SBG", "boxpushing", id="boxpushing-row")
    yield pytest.param("S\nG", "driving", id="driving-column")
    yield pytest.param(SMALL_DRIVING, "driving", id="driving-small")


@pytest.mark.parametrize(("text", "domain"), list(all_maps()))
def test_table_equals_the_rules(text, domain):
    model = GRIDS[domain](text)
    pair = {"boxpushing": boxpushing_pair, "driving": driving_pair}[domain]
    wall = {"boxpushing": "x", "driving": "X"}[domain]
    finite = model.finite
    index = {tuple(row.nonzero()[0].tolist()): i for i, row in enumerate(finite.encoding)}
    assert len(index) == len(finite.encoding)

    def state(cell, status):
        height, width = len(model.map), len(model.map[0])
        return index[cell[0], height + cell[1], height + width + model.statuses.index(status)]

    for row, column in np.ndindex(len(model.map), len(model.map[0])):
        if model.map[row][column] == wall:
            continue
        for status in model.statuses:
            s = state((row, column), status)
            assert finite.absorbing[s] == (status == "end")
            assert finite.start[s] == (model.map[row][column] == "S" and status == model.statuses[0])
            for a, action in enumerate(model.moves):
                outcomes, reward, category = pair(model.map, (row, column), status, action)
                expected, found = Counter(), Counter()
                for cell, after, probability in outcomes:
                    expected[state(cell, after)] += probability
                for target, probability in zip(finite.successor[s, a], finite.probability[s, a], strict=True):
                    found[int(target)] += float(probability)
                assert {n: p for n, p in found.items() if p} == pytest.approx(dict(expected), abs=1e-12)
                assert (finite.reward[s, a], model.side_effect[s, a]) == (reward, category)
    np.testing.assert_allclose(finite.probability.sum(2), 1.0, atol=1e-12)


@pytest.mark.parametrize("model", [Boxpushing(SMALL_BOXPUSHING), Driving(SMALL_DRIVING)], ids=["boxpushing", "driving"])
def test_samples_agree_with_the_table(model, key):
    """Every transition of uniformly random rollouts is possible, pays what the table says, and is as frequent."""
    trajectory = rollout(model, UniformPolicy(model), key, 4000, 60)
    states, actions = np.asarray(model.indices(trajectory.states)), np.asarray(model.action_indices(trajectory.actions))
    mask = np.asarray(trajectory.mask)
    np.testing.assert_array_equal(np.asarray(trajectory.rewards)[mask], model.finite.reward[states, actions][mask])
    follows = mask[:, :-1] & mask[:, 1:]
    s, a, after = states[:, :-1][follows], actions[:, :-1][follows], states[:, 1:][follows]
    counts = np.zeros((*model.finite.reward.shape, len(model.finite.start)))
    np.add.at(counts, (s, a, after), 1)
    expected = np.zeros_like(counts)
    for pair in np.ndindex(model.finite.reward.shape):
        np.add.at(expected[pair], model.finite.successor[pair], model.finite.probability[pair])
    assert not counts[expected == 0].any()
    expected *= counts.sum(2, keepdims=True)
    often = (expected > 5) & (expected < counts.sum(2, keepdims=True))
    assert often.sum() > 100
    deviations = (counts - expected)[often] / np.sqrt(
        expected * (1 - expected / np.maximum(counts.sum(2, keepdims=True), 1))
    )[often]
    assert np.abs(deviations).max() < 5
    assert stats.kstest(deviations[::2], "norm").pvalue > 1e-4


def test_outcomes_of_probability_zero_are_never_drawn():
    """Ten outcomes of 0.1 each, whose sum in floating point is less than 1, between two of 0."""
    chances = np.array([0.0, *[0.1] * 10, 0.0])
    successor, probability = (row[None, None].repeat(12, 0) for row in (np.arange(12), chances))
    table = FinitePart(successor, probability, np.zeros((12, 1)), chances, np.zeros(12, bool), product_encoding((12,)))
    spaces = Space((Variable("place", "one-hot", 12),)), Space((Variable("go", "one-hot", 1),))
    model = FiniteModel(table, Spec("dice", *spaces, horizon=1, gradient="straight-through"))
    with jax.enable_x64(True):
        draw = jax.jit(jax.vmap(lambda uniform: _step(model, jnp.eye(12)[0], jnp.ones(1), uniform)[0]))
        drawn = np.asarray(model.indices(draw(jnp.array([0.0, 0.0999, 0.1001, 0.9001, 1.0 - 2.0**-53]))))
    np.testing.assert_array_equal(drawn, [1, 1, 2, 10, 10])
    firsts = jax.jit(jax.vmap(model.reset))(jax.random.split(jax.random.key(1), 500))
    assert set(np.asarray(model.indices(firsts)).tolist()) == set(range(1, 11))


def test_contract_and_spec():
    model = load_model("boxpushing")
    assert isinstance(model, Model)
    assert (model.spec.name, model.spec.family, model.spec.horizon) == ("boxpushing", "boxpushing", 500)
    assert model.spec.state.size == 15 + 15 + 3
    assert model.spec.action.names == ("move[up]", "move[down]", "move[left]", "move[right]", "move[pick]")
    state = model.reset(jax.random.key(0))
    assert model.map[1][1] == "S"
    np.testing.assert_array_equal(state, vector(model, (1, 1), "empty"))
    low, high = model.action_bounds(state)
    assert not low.any()
    assert high.all()
    everything = model.finite.encoding.reshape(5, -1, model.spec.state.size)
    np.testing.assert_array_equal(model.indices(everything).ravel(), np.arange(len(model.finite.encoding)))
    np.testing.assert_array_equal(model.action_indices(np.eye(5)), np.arange(5))
    assert PENALTIES == (0, 5, 10)
    assert load_model("driving?map=2&horizon=7").spec.horizon == 7


def test_trajectories_end_at_the_goal(key):
    """In a corridor slides are blocked, so a move succeeds or stays: right to the box, pick, right to the goal."""
    model = Boxpushing("SBG")
    right, pick = model.moves.index("right"), model.moves.index("pick")

    def act(state, clock, key):
        at_box, empty = state[model.spec.state.slices["column"]][1], state[model.spec.state.slices["status"]][0]
        return jnp.where(at_box * empty > 0, jnp.eye(5)[pick], jnp.eye(5)[right])

    trajectory = rollout(model, FunctionPolicy(act), key, 3000, 5)
    length, rewards = np.asarray(trajectory.length), np.asarray(trajectory.rewards)
    last = np.asarray(model.indices(trajectory.states))[np.arange(3000), length - 1]
    ended = model.completed[last]
    assert set(length[ended].tolist()) == {4, 5}  # three steps to the goal, and the free one from there to the end
    assert set(length[~ended].tolist()) == {5}  # too many slides: cut off by the horizon
    np.testing.assert_array_equal(rewards.sum(1), -np.where(ended, length - 1.0, 5.0))
    assert not model.finite.absorbing[last].any()
    assert not rewards[~np.asarray(trajectory.mask)].any()


def brute_force(model, state, action, gradient, reward_gradient):
    """The gradient of the multilinear extension by summing over the whole table with autodiff, taken relative to the
    entry that is 1 in each factor and in the action, and 0 where a changed factor means standing in a wall."""
    sizes = [variable.size for variable in model.spec.state.variables]
    finite = model.finite
    expected = np.einsum("sak,sakd->sad", finite.probability, finite.encoding.astype(float)[finite.successor])
    expected, reward = (jnp.asarray(t.reshape(*sizes, *t.shape[1:])) for t in (expected, finite.reward))

    def extension(state, action):
        row, column, status = (state[where] for where in model.spec.state.slices.values())
        return (
            jnp.einsum("i,j,k,a,ijkad->d", row, column, status, action, expected),
            jnp.einsum("i,j,k,a,ijka->", row, column, status, action, reward),
        )

    for_state, for_action = jax.vjp(extension, state, action)[1]((gradient, reward_gradient))
    relative = [for_state[w] - for_state[w][jnp.argmax(state[w])] for w in model.spec.state.slices.values()]
    floor = jnp.asarray([[cell not in "xX" for cell in row] for row in model.map])
    row, column, _ = (jnp.argmax(state[where]) for where in model.spec.state.slices.values())
    real = jnp.concatenate([floor[:, column], floor[row], jnp.ones(sizes[2], bool)])
    return jnp.where(real, jnp.concatenate(relative), 0.0), for_action - for_action[jnp.argmax(action)]


@pytest.mark.parametrize("text", [SMALL_BOXPUSHING, SMALL_DRIVING], ids=["boxpushing", "driving"])
def test_gradient_equals_brute_force(text):
    with jax.enable_x64(True):
        model = (Boxpushing if "B" in text else Driving)(text)
        rng = np.random.default_rng(0)
        step = jax.jit(lambda s, a, key, g, g_r: jax.vjp(lambda s, a: model.step(s, a, key)[:2], s, a)[1]((g, g_r)))
        exact = jax.jit(lambda *arguments: brute_force(model, *arguments))
        floor = [i for i in range(len(model.on)) if model.on[i] not in "xX"]
        for index in rng.permutation(floor)[:40]:
            state = jnp.asarray(model.finite.encoding[index], dtype=float)
            for choice in np.eye(model.spec.action.size):
                g, g_r = jnp.asarray(rng.normal(size=state.shape)), jnp.asarray(rng.normal())
                found = step(state, jnp.asarray(choice), jax.random.key(int(index)), g, g_r)
                assert found[0].dtype == jnp.float64
                for mine, true in zip(found, exact(state, jnp.asarray(choice), g, g_r), strict=True):
                    np.testing.assert_allclose(mine, true, atol=1e-12)


def softmax_return(model, horizon):
    """The mean return of straight-through Gumbel-softmax actions, as a function of logits linear in the state."""

    def objective(weights, key):
        def act(state, clock, key):
            logits = state @ weights + jax.random.gumbel(key, weights.shape[1:])
            soft = jax.nn.softmax(logits)
            hard = jax.nn.one_hot(jnp.argmax(logits), soft.shape[0])
            return hard + soft - jax.lax.stop_gradient(soft)

        trajectory = rollout(model, FunctionPolicy(act), key, 64, horizon)
        return jnp.mean(trajectory.returns()), trajectory

    return objective


def test_values_do_not_depend_on_the_gradient_mode(key):
    found = {}
    for mode in ("straight-through", "none"):
        model = Boxpushing(SMALL_BOXPUSHING, gradient=mode)
        assert model.spec.gradient == mode
        weights = 0.3 * jax.random.normal(key, (model.spec.state.size, model.spec.action.size))
        found[mode] = jax.jit(jax.value_and_grad(softmax_return(model, 40), has_aux=True))(weights, key)
    (through, trajectory), gradient = found["straight-through"]
    (plain, same), no_gradient = found["none"]
    assert through == plain
    assert all(jax.tree.leaves(jax.tree.map(lambda x, y: bool(jnp.array_equal(x, y)), trajectory, same)))
    assert jnp.all(jnp.isfinite(gradient))
    assert jnp.abs(gradient).max() > 1e-3
    assert not no_gradient.any()
    assert set(np.unique(trajectory.states).tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("domain", ["boxpushing", "driving"])
def test_gradients_stay_finite_over_the_whole_horizon(domain, key):
    """500 steps, and an objective that every later state enters, as a safety model's would."""
    model = load_model(domain)
    goal = jnp.asarray(model.finite.encoding[model.completed][0])

    def visits(weights, key):
        trajectory = softmax_return(model, 500)(weights, key)[1]
        return jnp.mean(trajectory.states @ goal)

    gradient = jax.jit(jax.grad(visits))(jnp.zeros((model.spec.state.size, model.spec.action.size)), key)
    assert jnp.all(jnp.isfinite(gradient))
    assert 0 < jnp.abs(gradient).max() < 1000


def test_following_the_gradient_finds_the_goal(key):
    """Ascent along straight-through gradients, from a policy that mostly fails to one that drives straight there."""
    model = Driving("S....\n.....\n....G", horizon=20)
    objective = jax.jit(jax.value_and_grad(lambda w, key: softmax_return(model, 20)(w, key)[0]))
    weights = jnp.zeros((model.spec.state.size, model.spec.action.size))
    first, _ = objective(weights, key)
    for step in range(150):
        _, gradient = objective(weights, jax.random.fold_in(key, step))
        weights += 0.3 * gradient / (1e-6 + jnp.linalg.norm(gradient))
    last, _ = objective(weights, key)
    assert first < -20
    assert last > -10


MALFORMED = [
    ("boxpushing", "", "1:1", "found nothing"),
    ("driving", "\n\n", "1:1", "found nothing"),
    ("boxpushing", "SBG\n..q", "2:3", "unknown character 'q'"),
    ("boxpushing", "SBG\n.X.", "2:2", "did you mean 'x'"),
    ("driving", "S.x\n..G", "1:3", "did you mean 'X'"),
    ("driving", "S.F\n..G", "1:3", "unknown character 'F'"),
    ("driving", "S. \n..G", "1:3", "unknown character ' '"),
    ("boxpushing", "SB\t\n..G", "1:3", "unknown character"),
    ("driving", "S..\r.G", "1:4", "unknown character '\\r'"),
    ("driving", "S.☃\n..G", "1:3", "unknown character '☃'"),
    ("driving", "S..\n..\n..G", "2:3", "this row has 2 cells and the first has 3"),
    ("driving", "S..\n....\n..G", "2:4", "this row has 4 cells and the first has 3"),
    ("driving", "S..\n\n..G", "2:1", "this row has 0 cells"),
    ("driving", "\nS..\n..G", "1:1", "this row has 0 cells"),
    ("driving", "...\n..G", "1:1", "expected one start 'S' but found none"),
    ("driving", "S..\n...", "1:1", "expected one goal 'G' but found none"),
    ("boxpushing", "S..\n..G", "1:1", "expected one box 'B' but found none"),
    ("driving", "S..\nS.G", "2:1", "expected one start 'S' but this is a second one, after that at line 1, column 1"),
    ("driving", "SGG", "1:3", "expected one goal 'G' but this is a second one"),
    ("boxpushing", "SBB\n..G", "1:3", "expected one box 'B' but this is a second one"),
    ("driving", "SX.\nX.G", "2:3", "the goal 'G' cannot be reached from the start at line 1, column 1"),
    ("boxpushing", "SxB\n.xG", "1:3", "the box 'B' cannot be reached"),
    ("boxpushing", "SBx\n.xG", "2:3", "the goal 'G' cannot be reached"),
]


@pytest.mark.parametrize(("kind", "text", "place", "message"), MALFORMED)
def test_malformed_maps(kind, text, place, message, tmp_path):
    with pytest.raises(InputError) as caught:
        parse_map(text, kind=GRIDS[kind].kind, place="town")
    assert caught.value.place == f"town:{place}"
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)

    path = tmp_path / ("town.bp" if kind == "boxpushing" else "town.nav")
    path.write_bytes(text.encode())
    with pytest.raises(InputError, match="town") as caught:
        load_model(str(path))
    assert caught.value.place == f"{path}:{place}"


def test_malformed_files(tmp_path):
    def message(path):
        with pytest.raises(InputError) as caught:
            load_model(str(path))
        return str(caught.value)

    (tmp_path / "latin.nav").write_bytes(b"S..\n.\xe4G\n")
    assert f"{tmp_path}/latin.nav:2:2: expected UTF-8 text but found the byte 0xe4" in message(tmp_path / "latin.nav")
    assert "cannot be read (No such file" in message(str(tmp_path / "missing.bp"))
    (tmp_path / "folder.bp").mkdir()
    assert "cannot be read (Is a directory)" in message(tmp_path / "folder.bp")
    assert "expected a built-in name, a path to an .rddl, .bp or .nav file" in message(tmp_path / "map.txt")
    assert "cannot be read" in message("a\0b.bp")


@pytest.mark.parametrize("text", ["S.\n.G", "S.\n.G\n", "S.\r\n.G\r\n", "S.\n.G\n\n\n", "\ufeffS.\n.G\n"])
def test_line_ends_do_not_matter(text, tmp_path):
    path = tmp_path / "small.NAV"
    path.write_bytes(text.encode())
    assert load_model(str(path)).map == ("S.", ".G")


def test_unknown_built_in_maps():
    assert list(built_in_maps(Boxpushing)) == list(built_in_maps(Driving)) == ["1", "2", "3", "4", "5", "40"]
    with pytest.raises(InputError, match="no map '9': driving has the maps 1, 2, 3, 4, 5, 40"):
        load_model("driving?map=9")


@pytest.mark.parametrize("domain", ["boxpushing", "driving"])
def test_built_in_maps_have_the_promised_size(domain):
    for name in built_in_maps(GRIDS[domain]):
        rows = load_model(f"{domain}?map={name}").map
        assert (len(rows), len(rows[0])) == (15, 15) or name == "40"


MAP_TEXT = st.one_of(
    st.text(max_size=60),
    st.text(alphabet="SGB.x@FXH\n\r q", max_size=40),
    st.lists(st.text(alphabet=".@FBSGxXH", min_size=3, max_size=3), max_size=5).map("\n".join),
    st.permutations(list("SGB...x@F")).map(lambda cells: "\n".join("".join(cells[i : i + 3]) for i in (0, 3, 6))),
)


@settings(max_examples=300)
@given(MAP_TEXT, st.sampled_from(["boxpushing", "driving"]))
def test_the_parser_raises_nothing_but_our_error(text, kind):
    try:
        rows = parse_map(text, kind=GRIDS[kind].kind)
    except InputError as error:
        place, line, column = error.place.split(":")
        assert place == "map"
        assert int(line) >= 1
        assert int(column) >= 1
        return
    model = GRIDS[kind](text)
    assert model.map == rows
    assert len(model.finite.start) == len(rows) * len(rows[0]) * len(model.statuses)


@settings(max_examples=100)
@given(st.binary(max_size=40), st.sampled_from([".bp", ".nav"]))
def test_files_of_any_bytes(tmp_path_factory, content, suffix):
    path = tmp_path_factory.getbasetemp() / f"fuzz{suffix}"
    path.write_bytes(content)
    try:
        load_model(str(path))
    except InputError as error:
        if str(path) not in str(error):
            raise


def coin(**changes):
    table = FinitePart(
        successor=np.array([[[0, 1]], [[1, 1]]]),
        probability=np.array([[[0.5, 0.5]], [[1.0, 0.0]]]),
        reward=np.array([[-1.0], [0.0]]),
        start=np.array([1.0, 0.0]),
        absorbing=np.array([False, True]),
        encoding=product_encoding((2,)),
    )
    return table._replace(**changes)


def coin_spec(gradient="straight-through", kind="one-hot"):
    spaces = Space((Variable("side", kind, 2),)), Space((Variable("flip", "one-hot", 1),))
    return Spec("coin", *spaces, horizon=5, gradient=gradient)


@pytest.mark.parametrize(
    ("table", "spec", "message"),
    [
        (coin(reward=np.zeros((3, 1))), coin_spec(), "reward must have the shape"),
        (coin(probability=np.array([[[0.5, 0.4]], [[1.0, 0.0]]])), coin_spec(), "sum to 1"),
        (coin(probability=np.array([[[1.5, -0.5]], [[1.0, 0.0]]])), coin_spec(), "at least 0"),
        (coin(successor=np.array([[[0, 2]], [[1, 1]]])), coin_spec(), "outside 0 .. 1"),
        (coin(start=np.zeros(2)), coin_spec(), "start probabilities"),
        (coin(encoding=np.eye(2)[::-1]), coin_spec(), "product_encoding"),
        (coin(reward=np.array([[-1.0], [1.0]])), coin_spec(), "reward 0"),
        (coin(), coin_spec("exact"), "'straight-through' or 'none'"),
        (coin(), coin_spec(kind="real"), "one-hot state variables"),
    ],
)
def test_malformed_tables(table, spec, message):
    with pytest.raises(InputError, match=message):
        FiniteModel(table, spec)


def test_a_table_of_ones_own(key):
    flip = FunctionPolicy(lambda state, clock, key: jnp.ones(1))
    trajectory = rollout(FiniteModel(coin(), coin_spec()), flip, key, 200)
    assert set(np.asarray(trajectory.length).tolist()) == {1, 2, 3, 4, 5}
    np.testing.assert_array_equal(trajectory.returns(), -np.asarray(trajectory.length))
