"""A team's store on a PostgreSQL server: what is particular to it. For all else see test_store.py."""

import secrets
from dataclasses import replace

import numpy as np
import pytest
from serve_helpers import QUESTIONS, make_store, page
from store_helpers import SPEC, random_trajectories, start_python, steps

from sidestep.cli.main import main
from sidestep.core.constraints import Scale
from sidestep.core.errors import InputError
from sidestep.labels import postgres as server_stores
from sidestep.labels.schema import Lost, Signature
from sidestep.labels.store import Store
from sidestep.labels.transfer import import_file


@pytest.fixture
def url(postgres):
    return f"{postgres.url}#store_{secrets.token_hex(8)}"


@pytest.fixture
def store(url):
    with Store.create(url, SPEC) as store:
        yield store


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE labels SET category = 0",
        "DELETE FROM labels",
        "TRUNCATE labels",
        "UPDATE trajectories SET seed = 1",
        "TRUNCATE trajectories CASCADE",
        "UPDATE about SET value = ''",
        "INSERT INTO about VALUES ('scale', '[]') ON CONFLICT (key) DO UPDATE SET value = '[]'",
        "INSERT INTO labels VALUES (9, 1, 3, 'eve', 'now', NULL, NULL)",
        "INSERT INTO labels VALUES (9, 1, 0, '', 'now', NULL, NULL)",
        "INSERT INTO labels VALUES (9, 7, 0, 'eve', 'now', NULL, NULL)",
    ],
)
def test_nothing_is_overwritten_whoever_asks(store, statement):
    import psycopg

    ids, _ = store.add(random_trajectories(1), policy="random")
    store.label(ids, [2], "alice")
    before = store.log()
    address, schema = server_stores._parted(store.path)
    with psycopg.connect(address, options=f"-c search_path={schema}") as outsider, pytest.raises(psycopg.Error):
        outsider.execute(statement)
    assert store.log() == before
    assert store.scale == Scale()


def test_an_older_store_is_brought_to_the_present_format(url):
    server_stores.make(url, Signature.of(SPEC), Scale(), formats=1)
    with Store.open(url, SPEC) as store:
        ids, _ = store.add(random_trajectories(2), policy="random")
        store.label(ids, [None, "severe"], "alice", marks=[None, {"severe": 0}], comment="so it is")
        assert [label.comment for label in store.log()] == ["so it is"] * 2
    with Store.open(url) as again:
        assert again.categories() == {2: 2}


WRITER = """
import sys
from sidestep.labels.store import Store
url, annotator, calls = sys.argv[1], sys.argv[2], int(sys.argv[3])
with Store.open(url) as store:
    print("ready", flush=True)
    for call in range(calls):
        store.label([call % len(store) + 1], [call % 3], annotator)
        print(call, flush=True)
"""


def test_writers_lose_and_double_nothing_while_the_server_is_restarted(store, postgres):
    store.add(random_trajectories(50), policy="random")
    calls, writers = 150, 4
    children = [start_python(WRITER, store.path, f"annotator {i}", calls) for i in range(writers)]
    for child in children:
        assert child.stdout.readline() == "ready\n"
    for _ in range(2):
        for _ in range(25):
            assert children[0].stdout.readline()
        postgres.restart()
    for child in children:
        said, complaints = child.communicate(timeout=300)
        assert child.returncode == 0, complaints
        assert said.split()[-1] == str(calls - 1)
    log = store.log()  # by a connection that was broken twice
    assert len(log) == writers * calls
    for i in range(writers):
        mine = [label for label in log if label.annotator == f"annotator {i}"]
        assert [label.trajectory for label in mine] == [call % 50 + 1 for call in range(calls)]
    assert store.verify().faults == ()


def test_what_was_committed_although_nobody_heard_of_it_is_not_written_again(store, monkeypatch):
    ids, _ = store.add(random_trajectories(1), policy="random")
    database, commit = store._database, store._database._connection.execute

    def cut(query, values=None):
        """The server commits, and the connection breaks before it says so."""
        done = commit(query, values)
        if query == b"COMMIT":
            database._connection.close()
            raise Lost("cut")
        return done

    monkeypatch.setattr(database._connection, "execute", cut)
    store.label(ids, ["mild"], "alice")
    assert [label.category for label in store.log()] == [1]


def test_what_was_not_committed_is_written_again(store, monkeypatch):
    ids, _ = store.add(random_trajectories(1), policy="random")
    database, execute = store._database, store._database._connection.execute

    def cut(query, values=None):
        if query == b"COMMIT":
            database._connection.close()
            raise Lost("cut")
        return execute(query, values)

    monkeypatch.setattr(database._connection, "execute", cut)
    store.label(ids, ["mild"], "alice")
    assert [label.category for label in store.log()] == [1]


def test_stores_are_copied_between_files_and_servers(store, tmp_path, capsys):
    batch = random_trajectories(6)
    ids, _ = store.add(batch, policy=["a", "b"] * 3, round=2, seed=7)
    store.label(ids, ["none", "mild", "severe"] * 2, "alice", comment="look")
    store.label(ids[:1], [None], "bob")
    file, back = str(tmp_path / "copy.store"), f"{store.path}_back"
    assert main(["label", store.path, "--export", file]) == 0
    assert main(["label", file, "--export", back]) == 0
    assert main(["label", back, "--import", file]) == 0
    assert "0 new trajectories and 0 labels from" in capsys.readouterr().out
    with Store.open(back) as copy:
        assert copy.log() == store.log()
        assert steps(copy.everything()[1]) == steps(batch)
        kept = [source[:3] for source in copy.sources(ids.tolist())]
    assert kept == [source[:3] for source in store.sources(ids.tolist())]


def test_a_store_of_another_model_is_not_mixed_in(store, tmp_path):
    with Store.create(tmp_path / "other.store", replace(SPEC, name="runner")):
        pass
    with pytest.raises(InputError, match="keep one store for each"):
        import_file(store, tmp_path / "other.store")


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("postgresql://ann:secret@127.0.0.1/labels", "keep the password out of the URL"),
        ("postgresql://ann@127.0.0.1/labels#No Name", "behind the # is made of small letters"),
        ("postgresql://ann@127.0.0.1:9/labels", "no PostgreSQL server can be reached"),
    ],
)
def test_urls_that_lead_nowhere_are_told_in_a_sentence(url, reason, capsys):
    pytest.importorskip("psycopg")
    assert main(["label", url, "--verify"]) == 2
    said = capsys.readouterr().err
    assert reason in said
    assert "secret" not in said


def test_reading_gives_one_moment(store, url):
    ids, _ = store.add(random_trajectories(3), policy="random")
    with store.transaction(write=False):
        assert len(store) == 3
        with Store.open(url) as other:
            other.add(random_trajectories(2, seed=5), policy="random")
        assert len(store) == 3
    assert len(store) == 5
    assert np.array_equal(store.unlabelled(limit=2)[0], ids[:2])


def test_the_page_serves_from_the_server_also_after_its_restart(url, postgres, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where the page keeps its own notes
    with page(make_store(url)) as (_, _, owner, _):
        for category in range(2):
            answered = owner.label(owner.next()["scene"]["trajectory"], category)
            assert answered.status_code == 200, answered.text
            postgres.restart()
        assert owner.get("/api/about").status_code == 200
    with Store.open(url) as store:
        assert len(store) == QUESTIONS
        assert [label.category for label in store.log()] == [0, 1]
