"""The store gives back what was put in, never forgets a label, and survives many writers and sudden death."""

import re
import secrets
import sqlite3
import tempfile
from dataclasses import replace
from pathlib import Path
from subprocess import TimeoutExpired

import equinox as eqx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_helpers import SPEC, files, from_numbers, integrity, random_trajectories, start_python, steps, trajectories

from sidestep.cli.main import main
from sidestep.core.constraints import Scale
from sidestep.core.errors import InputError
from sidestep.core.model import Space, Trajectory, Variable
from sidestep.labels import schema
from sidestep.labels.marks import marks_of
from sidestep.labels.store import Store, single_steps, spec_hash
from sidestep.labels.votes import Label
from sidestep.labels.votes import agreement as agreement_of


@pytest.fixture(params=["file", "server"])
def store(request, tmp_path):
    """An empty store, in a file and on a server: whatever is promised holds for both."""
    place = tmp_path / "labels.store"
    if request.param == "server":
        place = f"{request.getfixturevalue('postgres').url}#store_{secrets.token_hex(8)}"
    with Store.create(place, SPEC) as store:
        yield store


IN_A_FILE = pytest.mark.parametrize("store", ["file"], indirect=True)


@settings(max_examples=50)
@given(trajectories())
def test_what_goes_in_comes_out(batch):
    with tempfile.TemporaryDirectory() as folder, Store.create(Path(folder) / "s", SPEC) as store:
        ids, new = store.add(batch, policy="random", round=3, seed=7)
        assert steps(store.get(ids)) == steps(batch)
        assert new == len(set(steps(batch))) == len(store)
        assert store.add(batch, policy="other")[1] == 0
        everything = store.everything()[1]
        beyond = ~np.asarray(everything.mask)
        assert not everything.states[beyond].any()
        assert {source[:3] for source in store.sources(ids)} == {("random", 3, 7)}


def test_arrays_of_jax_are_taken(store, key):
    import jax

    numbers = jax.random.normal(key, (6, 5, 5))
    batch = from_numbers(numbers, jax.numpy.full(6, 5))
    ids, new = store.add(batch, policy="random", seed=np.int64(3), round=np.arange(6))
    assert new == 6
    assert steps(store.get(ids)) == steps(batch)
    assert [source.round for source in store.sources(ids)] == list(range(6))


def test_duplicates_are_known_by_content(store):
    batch = random_trajectories(10)
    first = store.add(batch, policy="random", seed=1)
    padding = Trajectory(*(np.concatenate([part, part + 9], axis=1) for part in (batch.states, batch.actions)),
                         np.concatenate([batch.rewards, batch.rewards], axis=1), batch.length)  # fmt: skip
    again = store.add(padding[[3, 3, 9]], policy="other", seed=2)
    assert again.new == 0
    assert again.ids.tolist() == first.ids[[3, 3, 9]].tolist()
    twice = random_trajectories(4, seed=1)[[0, 1, 0, 2]]
    ids, new = store.add(twice, policy="random")
    assert new == 3
    assert ids[0] == ids[2]
    assert len(store) == 13


def test_a_state_action_pair_is_a_trajectory_of_one_step(store):
    batch = random_trajectories(20)
    pairs = single_steps(batch.states[:, 0], batch.actions[:, 0], batch.rewards[:, 0])
    ids, new = store.add(pairs, policy="pairs")
    store.label(ids, ["none", "mild"] * 10, "alice")
    _, loaded, categories = store.labelled()
    assert loaded.states.shape == (20, 1, 3)
    assert new == 20
    assert steps(loaded) == steps(pairs)
    assert categories.tolist() == [0, 1] * 10


def test_labels_are_a_log(store):
    ids, _ = store.add(random_trajectories(5), policy="random")
    store.label(ids[:3], ["none", "mild", "severe"], "alice")
    store.label(ids[:1], [2], "bob")
    store.label(ids[:1], np.array([1]), "bob")
    assert [(label.category, label.annotator) for label in store.history(1)] == [(0, "alice"), (2, "bob"), (1, "bob")]
    labelled, batch, categories = store.labelled()
    assert labelled.tolist() == [1, 2, 3]
    assert categories.tolist() == [1, 1, 2]
    assert steps(batch) == steps(store.get([1, 2, 3]))
    assert store.counts() == {"none": 0, "mild": 2, "severe": 1}
    assert store.unlabelled()[0].tolist() == [4, 5]
    assert store.unlabelled(limit=1)[0].tolist() == [4]
    assert [label.trajectory for label in store.log()] == [1, 2, 3, 1, 1]


def test_majority_and_its_ties(store):
    ids, _ = store.add(random_trajectories(4), policy="random")
    for annotator, categories in {"a": [0, 0, 2, 1], "b": [0, 1, 1, 0], "c": [2, 2, 1, 1]}.items():
        store.label(ids, categories, annotator)
    store.label(ids[3:], [0], "a")
    assert store.labelled("majority")[2].tolist() == [0, 2, 1, 0]  # the tie 0, 1, 2 goes to the worst
    assert store.labelled("newest")[2].tolist() == [2, 2, 1, 0]
    assert store.categories("newest") == {1: 2, 2: 2, 3: 1, 4: 0}
    assert store.categories() == {1: 0, 2: 2, 3: 1, 4: 0}
    with pytest.raises(InputError, match="'newest' or 'majority'"):
        store.labelled("oldest")


@IN_A_FILE
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE labels SET category = 0",
        "DELETE FROM labels",
        "INSERT OR REPLACE INTO labels VALUES (1, 1, 0, 'eve', 'now', NULL, NULL)",
        "UPDATE trajectories SET seed = 1",
        "DELETE FROM trajectories",
        "INSERT OR REPLACE INTO trajectories SELECT id, length, steps, content, 'eve', 0, 0, time FROM trajectories",
        "INSERT OR REPLACE INTO trajectories SELECT 99, length, steps, content, 'eve', 0, 0, time FROM trajectories",
        "UPDATE about SET value = ''",
        "DELETE FROM about",
        "INSERT OR REPLACE INTO about VALUES ('scale', '[]')",
        "INSERT INTO labels VALUES (9, 1, 3, 'eve', 'now', NULL, NULL)",
        "INSERT INTO labels VALUES (9, 1, 0, '', 'now', NULL, NULL)",
    ],
)
def test_nothing_is_overwritten_whoever_asks(store, statement):
    ids, _ = store.add(random_trajectories(1), policy="random")
    store.label(ids, [2], "alice")
    outsider = sqlite3.connect(store.path)
    with pytest.raises(sqlite3.IntegrityError):
        outsider.execute(statement)
    outsider.close()
    assert store.labelled()[2].tolist() == [2]
    assert store.sources(ids)[0].policy == "random"


def test_a_transaction_is_all_or_nothing(store):
    def add_and_fail():
        with store.transaction():
            ids, _ = store.add(random_trajectories(5), policy="random")
            store.label(ids, [0] * 5, "alice")
            store.label([77], [0], "alice")

    with pytest.raises(InputError, match="no trajectory 77; the store holds 5"):
        add_and_fail()
    assert len(store) == 0
    assert store.log() == []
    assert store.add(random_trajectories(2), policy="random").ids.tolist() == [1, 2]


def test_empty_store(store):
    ids, batch, categories = store.labelled()
    assert len(ids) == len(batch) == len(categories) == len(store) == 0
    assert batch.states.shape == (0, 0, 3)
    assert store.counts() == {"none": 0, "mild": 0, "severe": 0}
    assert store.agreement().trajectories == 0


def test_agreement_by_hand(store):
    ids, _ = store.add(random_trajectories(6), policy="random")
    store.label(ids[:4], [0, 0, 1, 2], "alice")
    store.label(ids[:4], [0, 1, 1, 1], "bob")
    store.label(ids[3:4], [2], "bob")  # bob thinks again
    store.label(ids[4:5], [2], "carol")
    found = store.agreement()
    assert found.trajectories == 4
    assert found.unanimous == 0.75
    # kappa: p_e = 1/2 * 1/4 + 1/4 * 1/2 + 1/4 * 1/4 = 5/16, so (3/4 - 5/16) / (1 - 5/16) = 7/11
    assert found.pairs["alice", "bob"] == (4, 0.75, pytest.approx(7 / 11))
    # alpha: D_o = 2 of 8 votes' pairs, D_e = (64 - 9 - 9 - 4) / (8 * 7); 1 - (2 / 8) / (42 / 56) = 2/3
    assert found.alpha == pytest.approx(2 / 3)


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(0, 2), st.sampled_from("abc")), max_size=40))
def test_agreement_is_bounded_and_complete_only_when_unanimous(entries):
    log = [Label(trajectory, category, annotator, "") for trajectory, category, annotator in entries]
    found = agreement_of(log, 3)
    if found.trajectories:
        assert 0 <= found.unanimous <= 1
        assert (found.unanimous == 1) == all(pair.agreement == 1 for pair in found.pairs.values())
        assert np.isnan(found.alpha) or found.alpha <= 1
        assert np.isnan(found.alpha) or (found.unanimous == 1) == (found.alpha == 1)
    else:
        assert np.isnan(found.unanimous)
        assert found.pairs == {}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"name": "runner"}, "its name is 'runner' where the store has 'walker'"),
        ({"horizon": 6}, "its horizon is 6 where the store has 5"),
        ({"action": Space((Variable("move", low=-1.0, high=2.0),))}, r"move \(real in \[-1.0, 2.0\]\) where the store"),
        ({"state": Space(SPEC.state.variables[:1])}, "its state is no further variable where the store has step"),
        ({"state": Space(SPEC.state.variables[::-1])}, r"its state is step \(int"),
    ],
)
def test_one_store_has_one_model(store, change, reason):
    other = replace(SPEC, **change)
    assert spec_hash(other) != spec_hash(SPEC) == store.model_hash
    with pytest.raises(InputError, match=reason):
        Store.open(store.path, spec=other)
    Store.open(store.path, spec=replace(SPEC, description="in other words")).close()


def test_one_store_has_one_scale(store):
    with pytest.raises(InputError, match="scale none < mild < severe, not safe < unsafe"):
        Store.open(store.path, scale=Scale(("safe", "unsafe")))
    with Store.open(store.path, scale=Scale()) as again:
        assert again.state_names == ("place[x]", "place[y]", "step")
        assert again.action_names == ("move",)
        assert (again.model_name, again.model.horizon) == ("walker", 5)


def test_spec_hash_is_the_same_in_another_process():
    code = "from store_helpers import SPEC; from sidestep.labels.store import spec_hash; print(spec_hash(SPEC))"
    child = start_python(f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); {code}")
    assert child.communicate()[0].strip() == spec_hash(SPEC)


def _text(path):
    path.write_text("trajectory,step\n1,0\n" * 100)


def _other_database(path):
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE notes (text)")
    connection.close()


def _newer(path):
    Store.create(path, SPEC).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 3")
    connection.close()


def _truncated(path):
    with Store.create(path, SPEC) as store:
        store.add(random_trajectories(300), policy="random")
    path.write_bytes(path.read_bytes()[:9000])


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: None, "there is no label store here"),
        (Path.mkdir, "there is no label store here"),
        (Path.touch, "not a label store"),
        (_text, "not a label store"),
        (_other_database, "not a label store"),
        (_newer, "has format 3, and this version of sidestep reads formats 1 to 2; upgrade sidestep"),
        (_truncated, "not a label store that can be read"),
    ],
)
def test_other_files_are_refused_and_left_alone(tmp_path, make, reason):
    path = tmp_path / "some.file"
    make(path)
    before = files(path) if path.is_file() else None
    with pytest.raises(InputError, match=reason) as error:
        Store.open(path)
    assert str(error.value).startswith(str(path))
    if before is not None and make is not Path.touch:
        with pytest.raises(InputError):
            Store.create(path, SPEC)
        assert files(path) == before


def test_create_refuses_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="no folder"):
        Store.create(tmp_path / "nowhere" / "labels.store", SPEC)


BATCH = random_trajectories(3)


def content(store):
    """The bytes of a file, or what a server has."""
    return (store.verify(), store.log()) if isinstance(store.path, str) else files(store.path)


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (lambda s: s.add(eqx.tree_at(lambda b: b.states, BATCH, BATCH.states[:2, 0]), policy="p"), r"not \(2, 3\)"),
        (lambda s: s.add(replace(BATCH, actions=BATCH.states), policy="p"), r"actions \(batch, time, 1\)"),
        (lambda s: s.add(eqx.tree_at(lambda b: b.length, BATCH, BATCH.length[:2]), policy="p"), r"and \(2,\)"),
        (lambda s: s.add(from_numbers(np.zeros((2, 4, 5), np.float32), np.array([1, 5])), policy="p"), "1 to 4"),
        (lambda s: s.add(from_numbers(np.zeros((2, 4, 5), np.float32), np.array([0, 1])), policy="p"), "1 to 4"),
        (lambda s: s.add(from_numbers(np.full((2, 4, 5), np.nan, "f4"), np.ones(2, int)), policy="p"), "nan"),
        (lambda s: s.add(BATCH, policy=["p"]), "3 trajectories were given 1 values"),
        (lambda s: s.add(BATCH, policy=" "), "printable name"),
        (lambda s: s.label([1], [3], "a"), "0 to 2, not 3"),
        (lambda s: s.label([1], [-1], "a"), "0 to 2, not -1"),
        (lambda s: s.label([1], [0.5], "a"), "0 to 2, not 0.5"),
        (lambda s: s.label([1], ["awful"], "a"), "no category 'awful'"),
        (lambda s: s.label([1, 2], [0], "a"), "2 trajectories were given 1 labels"),
        (lambda s: s.label([0], [0], "a"), "no trajectory 0"),
        (lambda s: s.label([4], [0], "a"), "no trajectory 4"),
        (lambda s: s.label([1], [0], ""), "printable name"),
        (lambda s: s.label([1], [0], "a\ud800"), "printable name"),
        (lambda s: s.get(9), "no trajectory 9"),
        (lambda s: s.history(9), "no trajectory 9"),
    ],
)
def test_bad_calls_change_nothing(store, act, reason):
    store.add(BATCH, policy="random")
    before = content(store)
    with pytest.raises(InputError, match=reason):
        act(store)
    assert content(store) == before


WRITER = """
import sys
from sidestep.labels.store import Store
assert "jax" not in sys.modules, "a writer of labels must start fast"
path, annotator, size, calls = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
with Store.open(path) as store:
    trajectories = len(store)
    print("ready", flush=True)
    for call in range(calls):
        store.label([(call * size + i) % trajectories + 1 for i in range(size)], [call % 3] * size, annotator)
        print(call, flush=True)
"""


@IN_A_FILE
def test_eight_processes_lose_no_label(store):
    store.add(random_trajectories(500), policy="random")
    writers = [start_python(WRITER, store.path, f"annotator {i}", 1, 1000) for i in range(8)]
    for writer in writers:
        said, complaints = writer.communicate(timeout=300)
        assert writer.returncode == 0, complaints
        assert said.split() == ["ready", *map(str, range(1000))]
    log = store.log()
    assert len(log) == 8000
    for i in range(8):
        mine = [label for label in log if label.annotator == f"annotator {i}"]
        assert [label.trajectory for label in mine] == [call % 500 + 1 for call in range(1000)]
        assert [label.category for label in mine] == [call % 3 for call in range(1000)]
    assert integrity(store.path) == ([("ok",)], [])


def test_fifty_killed_writers_lose_no_acknowledged_label(tmp_path):
    """Ten rounds of five writers, each killed with SIGKILL at a random moment of its work."""
    path, size = tmp_path / "labels.store", 7
    with Store.create(path, SPEC) as store:
        store.add(random_trajectories(100), policy="random")
    rng, calls_in_all, earlier = np.random.default_rng(0), 0, []
    for round_ in range(10):
        writers = [start_python(WRITER, path, f"annotator {round_} {i}", size, 10**9) for i in range(5)]
        for writer in writers:
            assert writer.stdout.readline() == "ready\n", writer.communicate()[1]
        acknowledged = []
        for writer in writers:
            with pytest.raises(TimeoutExpired):
                writer.wait(rng.exponential(0.03))
            writer.kill()
            with writer:
                acknowledged.append([line for line in writer.stdout if line.endswith("\n")])
        assert integrity(path) == ([("ok",)], [])
        with Store.open(path) as store:
            log = store.log()
        assert log[: len(earlier)] == earlier
        earlier = log
        for i, lines in enumerate(acknowledged):
            mine = [label for label in log if label.annotator == f"annotator {round_} {i}"]
            calls = len(mine) / size
            assert calls in (len(lines), len(lines) + 1)  # the last call may have been written and not yet said
            expected = [(n % 100 + 1, n // size % 3) for n in range(len(mine))]
            assert [(label.trajectory, label.category) for label in mine] == expected
            calls_in_all += len(lines)
    assert calls_in_all > 50  # they were killed at work


def edit(path, *statements):
    """Change a store behind its back, as no program of ours can."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA ignore_check_constraints = ON")
    for (trigger,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        connection.execute(f"DROP TRIGGER {trigger}")
    for statement in statements:
        connection.execute(statement)
    connection.close()


def read_whole_store(path):
    with Store.open(path) as store:
        return store.log(), store.get(range(1, 9))


NAN = np.full(25, np.nan, np.float32).tobytes()
NAN_HASH = schema.content_hash(NAN)
DAMAGE = {
    "about is no JSON": ("UPDATE about SET value = '{' WHERE key = 'model'", "in what it says of itself"),
    "about lacks a key": ("DELETE FROM about WHERE key = 'scale'", "there is no 'scale'"),
    "about is a list": ("UPDATE about SET value = '[]' WHERE key = 'model'", "the fields of a signature"),
    "about lacks a part": (
        """UPDATE about SET value = '{"name": "x", "horizon": 3}' WHERE key = 'model'""",
        "the signature has no 'state'",
    ),
    "another model": (
        "UPDATE about SET value = replace(value, 'walker', 'runner') WHERE key = 'model'",
        "its hash was made of",
    ),
    "scale of one": ("UPDATE about SET value = '[\"none\"]' WHERE key = 'scale'", "at least two categories"),
    "no table": ("DROP TABLE trajectories", "no such table"),
    "length is text": (
        "UPDATE trajectories SET length = 'x' WHERE id = 2",
        "trajectory 2: its row does not hold what it must",
    ),
    "bytes are missing": ("UPDATE trajectories SET steps = x'00' WHERE id = 3", "trajectory 3: it has 1 bytes, and"),
    "a bit is flipped": (
        "UPDATE trajectories SET steps = zeroblob(length(steps)) WHERE id = 4",
        "trajectory 4: its numbers are not those that were put in",
    ),
    "a number is NaN": (
        f"UPDATE trajectories SET length = 5, steps = x'{NAN.hex()}', content = x'{NAN_HASH.hex()}' WHERE id = 5",
        "trajectory 5: it holds a number that is not finite",
    ),
    "a trajectory is missing": ("DELETE FROM trajectories WHERE id = 6", "trajectory 6 is missing"),
    "category beyond the scale": (
        "UPDATE labels SET category = 7 WHERE id = 1",
        "its category is 7, and the scale has 3",
    ),
    "category is text": ("UPDATE labels SET category = 'mild' WHERE id = 1", "its category is 'mild'"),
    "label of nothing": (
        "UPDATE labels SET trajectory = 99 WHERE id = 1",
        "it is of trajectory 99, and the store holds 8",
    ),
    "nobody's label": ("UPDATE labels SET annotator = x'00' WHERE id = 1", "it does not say in text who gave it"),
    "marks are no JSON": ("UPDATE labels SET marks = '{' WHERE id = 2", "its marks are '{', not severities with"),
    "a mark after the end": (
        """UPDATE labels SET marks = '{"mild": 77}' WHERE id = 2""",
        "'mild' is marked at step 77, and the trajectory has steps 0 to",
    ),
    "a mark of nothing": ("""UPDATE labels SET marks = '{"none": 0}' WHERE id = 2""", "'none' cannot be marked"),
    "a comment that hides something": ("UPDATE labels SET comment = char(7) WHERE id = 1", "this one holds '\\x07'"),
    "text that is none": ("UPDATE labels SET annotator = CAST(x'ff' AS TEXT) WHERE id = 1", "cannot be read"),
}


@IN_A_FILE
@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_found_when_it_is_read_and_named_by_verify(store, name, capsys):
    statement, words = DAMAGE[name]
    ids, _ = store.add(random_trajectories(8), policy="random")
    store.label(ids[:4], [0, 1, 2, 0], "alice")
    assert main(["label", str(store.path), "--verify"]) == 0
    assert "8 trajectories and 4 labels checked: all are as they were put in\n" in capsys.readouterr().out
    edit(store.path, "PRAGMA foreign_keys = OFF", statement)
    with pytest.raises(InputError, match=re.escape(words)):
        read_whole_store(store.path)
    assert main(["label", str(store.path), "--verify"]) == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"sidestep: {store.path}: ")
    assert said.err.count("\n") == 1
    assert words in said.err or words in said.out


@IN_A_FILE
def test_verify_counts_every_fault(store, capsys):
    ids, _ = store.add(random_trajectories(40), policy="random")
    store.label(ids, [0] * 40, "alice")
    edit(
        store.path,
        "UPDATE trajectories SET steps = zeroblob(length(steps)) WHERE id % 2",
        "UPDATE labels SET category = 9",
    )
    found = store.verify()
    ours = [fault for fault in found.faults if not fault.startswith("SQLite: ")]
    assert (found.trajectories, found.labels, len(ours)) == (40, 40, 60)
    assert main(["label", str(store.path), "--verify"]) == 2
    said = capsys.readouterr()
    assert "trajectory 1: its numbers are not those that were put in" in said.err
    assert f"({len(found.faults)} faults in all); 40 trajectories and 40 labels checked" in said.err
    assert said.out.count("\n") == 19


@IN_A_FILE
def test_a_file_that_is_cut_short(store, capsys):
    store.add(random_trajectories(200), policy="random")
    store.close()
    data = store.path.read_bytes()
    for size in (0, 10, 100, 5000, len(data) // 2, len(data) - 8192):
        store.path.write_bytes(data[:size])
        with pytest.raises(InputError), Store.open(store.path) as opened:
            opened.everything()
        assert main(["label", str(store.path), "--verify"]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_marks_comments_and_labels_that_cannot_tell(store):
    ids, _ = store.add(replace_lengths(random_trajectories(4), 5), policy="random")
    marks = [None, {"mild": 3}, {"severe": 4, "mild": np.int64(2)}, None]
    store.label(ids, ["none", "mild", "severe", None], "alice", marks=marks, comment=[None, " look ", "", None])
    assert [label.category for label in store.log()] == [0, 1, 2, None]
    assert store.log()[2].marks == (("mild", 2), ("severe", 4))
    assert [label.comment for label in store.log()] == [None, "look", None, None]
    assert store.log()[1].words(store.scale) == "mild (mild from step 3): look"
    assert store.log()[3].words(store.scale) == "cannot tell"
    assert store.labelled()[0].tolist() == [1, 2, 3]
    assert store.unlabelled()[0].tolist() == [4]
    assert store.counts() == {"none": 1, "mild": 1, "severe": 1}
    assert store.marks(ids).tolist() == [[-1, -1], [3, -1], [2, 4], [-1, -1]]
    assert store.marks([]).shape == (0, 2)
    store.label([4], [2], "bob", marks=np.array([[-1, 1]]), comment="all of it")
    assert store.marks(ids).tolist()[3] == [-1, 1]
    assert store.verify().faults == ()


@pytest.mark.parametrize(
    ("category", "marks", "words"),
    [
        ("mild", {"mild": 5}, "trajectory 1: 'mild' is marked at step 5, and the trajectory has steps 0 to 4"),
        ("mild", {"mild": -2}, "marked at step -2"),
        ("severe", {"mild": 3, "severe": 2}, "'severe' is marked at step 2, before 'mild' at step 3"),
        ("mild", {"severe": 2}, "'severe' is marked where the label is 'mild'; mark severities up to the label's"),
        (None, {"mild": 2}, "'mild' is marked where the label is cannot tell"),
        ("severe", {"none": 0}, "'none' cannot be marked; severities of this scale: mild, severe"),
    ],
)
def test_marks_that_cannot_be_are_refused(store, category, marks, words):
    store.add(replace_lengths(random_trajectories(1), 5), policy="random")
    with pytest.raises(InputError, match=re.escape(words)):
        store.label([1], [category], "alice", marks=[marks])
    assert store.log() == []


def test_marks_are_whole_steps_of_every_severity():
    with pytest.raises(InputError, match=re.escape("'mild' is marked at 1.5, which is not a step")):
        marks_of({"mild": 1.5}, Scale())
    with pytest.raises(InputError, match="marks are one step for each of mild, severe, not 1"):
        marks_of([1], Scale())


@pytest.mark.parametrize(
    ("comment", "words"), [("x" * 2001, "at most 2000 characters, not 2001"), ("a\x00b", "holds '\\x00'")]
)
def test_comments_that_cannot_be_are_refused(store, comment, words):
    store.add(random_trajectories(1), policy="random")
    with pytest.raises(InputError, match=re.escape(words)):
        store.label([1], ["none"], "alice", comment=comment)
    store.label([1], ["none"], "alice", comment="two lines\n" + "x" * 1990)
    assert len(store.log()[0].comment) == 2000


def test_who_cannot_tell_takes_back_an_own_vote_and_no_other(store):
    ids, _ = store.add(random_trajectories(2), policy="random")
    store.label(ids, [1, 1], "alice")
    store.label(ids[:1], [None], "alice")
    store.label(ids[1:], [None], "bob")
    for resolve in ("newest", "majority"):
        assert store.categories(resolve) == {2: 1}
        assert store.labelled(resolve)[0].tolist() == [2]
    assert store.unlabelled()[0].tolist() == [1]
    assert store.agreement().trajectories == 0


def test_marks_of_several_annotators_are_the_median_of_those_who_agree(store):
    store.add(replace_lengths(random_trajectories(1, time=9), 9), policy="random")
    for name, category, marks in [
        ("a", 2, {"mild": 1, "severe": 5}),
        ("b", 2, {"mild": 3, "severe": 8}),
        ("c", 2, {"mild": 7}),
        ("d", 2, {"mild": 4}),
        ("e", 1, {"mild": 8}),
    ]:
        store.label([1], [category], name, marks=[marks])
    assert store.marks([1], "majority").tolist() == [[3, 5]]
    assert store.marks([1], "newest").tolist() == [[8, -1]]
    store.label([1], [2], "b", marks=[{"severe": 8}])
    store.label([1], [2], "a", marks=[{"severe": 0}])
    assert store.marks([1], "majority").tolist() == [[4, 4]]  # not severe before it is mild


def replace_lengths(batch, length):
    return replace(batch, length=np.full(len(batch), length, np.int32))


def test_an_older_store_opens_with_all_its_labels(tmp_path):
    """tests/format_1.store was written by the version before marks."""
    path = tmp_path / "old.store"
    path.write_bytes((Path(__file__).parent / "format_1.store").read_bytes())
    connection = sqlite3.connect(path)
    old = connection.execute("SELECT id, trajectory, category, annotator, time FROM labels ORDER BY id").fetchall()
    connection.close()
    with Store.open(path, SPEC) as store:
        assert [(i + 1, *label[:4]) for i, label in enumerate(store.log())] == old
        assert steps(store.everything()[1]) == steps(random_trajectories(6))
        assert store.verify().faults == ()
        store.label([3], [2], "carol", marks=[{"mild": 0}], comment="new")
        assert store.marks([3]).tolist() == [[0, -1]]
    assert integrity(path) == ([("ok",)], [])
    with Store.create(tmp_path / "new.store", SPEC):
        pass
    assert objects(path) == objects(tmp_path / "new.store")


def objects(path):
    """All that an SQLite file declares: tables, triggers, indices."""
    connection = sqlite3.connect(path)
    found = connection.execute("SELECT type, name, sql FROM sqlite_master ORDER BY name").fetchall()
    connection.close()
    return found


def test_a_damaged_older_store_is_left_as_it_was(tmp_path):
    path = tmp_path / "old.store"
    path.write_bytes((Path(__file__).parent / "format_1.store").read_bytes())
    edit(path, "PRAGMA ignore_check_constraints = ON", "UPDATE labels SET category = 7 WHERE id = 2")
    for _ in range(2):
        with pytest.raises(InputError, match="has format 1 and cannot be brought to 2"):
            Store.open(path)
        connection = sqlite3.connect(path)
        assert connection.execute("SELECT count(*) FROM labels").fetchone() == (7,)
        connection.close()


def test_an_older_store_is_migrated_by_one_of_many(tmp_path):
    path = tmp_path / "old.store"
    path.write_bytes((Path(__file__).parent / "format_1.store").read_bytes())
    code = "import sys; from sidestep.labels.store import Store; print(len(Store.open(sys.argv[1]).log()))"
    children = [start_python(code, path) for _ in range(3)]
    assert [child.communicate(timeout=60)[0] for child in children] == ["7\n"] * 3
