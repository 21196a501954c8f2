"""Exports come back the same to the last bit; a bad file is refused with its lines, and the store stays as it was."""

import csv
import io
import resource
import sys
import tempfile
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_helpers import SPEC, files, random_trajectories, steps, trajectories

from sidestep.core.constraints import Scale
from sidestep.core.errors import InputError
from sidestep.core.model import Space, Variable
from sidestep.labels.store import Store
from sidestep.labels.transfer import BadRows, export_labels, export_trajectories, import_file
from sidestep.runtime.files import atomic_file, atomic_write

FORMATS = ["csv", "npz", "parquet"]
NAMES = st.text(min_size=1, max_size=6).filter(lambda name: name.isprintable() and name.strip())
NUMBERS = st.none() | st.integers(-(2**63), 2**63 - 1)


@pytest.fixture
def store(tmp_path):
    with Store.create(tmp_path / "labels.store", SPEC) as store:
        yield store


def content(store):
    """What a transfer keeps: each trajectory, where it came from, and the label that counts."""
    ids, batch = store.everything()
    label_of = {label.trajectory: label._replace(trajectory=0, time="") for label in store.log()}
    sources = [source[:3] for source in store.sources(ids.tolist())]
    return list(zip(steps(batch), sources, [label_of.get(i) for i in ids.tolist()], strict=True))


@pytest.mark.parametrize("ending", FORMATS)
@settings(max_examples=25)
@given(batch=trajectories(), data=st.data())
def test_round_trip(ending, batch, data):
    n = len(batch)
    with tempfile.TemporaryDirectory() as name, Store.create(folder := Path(name) / "a", SPEC) as store:
        for_each = [data.draw(st.lists(part, min_size=n, max_size=n)) for part in (NAMES, NUMBERS, NUMBERS)]
        ids, _ = store.add(batch, policy=for_each[0], round=for_each[1], seed=for_each[2])
        for i in sorted(set(ids))[: data.draw(st.integers(0, n))]:  # trajectories that are the same have one id
            category = data.draw(st.integers(0, 2))
            last = int(store.get([i]).length[0]) - 1
            drawn = sorted(data.draw(st.lists(st.integers(0, last), min_size=category, max_size=category)))
            marks = {
                name: step for name, step in zip(("mild", "severe"), drawn, strict=False) if data.draw(st.booleans())
            }
            comment = data.draw(
                st.none() | st.sampled_from(["=too", "two\nlines", "'", 'so "close"', "-1", "\u00e4, b"])
            )
            store.label([i], [category], data.draw(NAMES), marks=[marks], comment=comment)
        path = folder.with_suffix(f".{ending}")
        assert export_trajectories(store, path) == len(store)
        with Store.create(folder.with_name("b"), SPEC) as other:
            imported = import_file(other, path)
            assert content(other) == content(store)
            assert imported.new_trajectories == len(other)
            assert imported.new_labels == len(store.labelled()[0])
            before = files(other.path)
            assert import_file(other, path)[1:] == (0, 0)
            assert files(other.path) == before


@pytest.mark.parametrize("ending", FORMATS)
def test_empty_round_trip(store, tmp_path, ending):
    assert export_trajectories(store, tmp_path / f"out.{ending}") == 0
    assert import_file(store, tmp_path / f"out.{ending}")[1:] == (0, 0)


def test_columns_of_csv(store, tmp_path):
    ids, _ = store.add(random_trajectories(2), policy='the "best", so far', seed=4)
    store.label(ids[:1], ["mild"], "alice")
    export_trajectories(store, tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert list(rows[0]) == [
        *("trajectory", "step", "place[x]", "place[y]", "state:step", "move", "reward"),  # the model has a `step` too
        *("policy", "round", "seed", "label", "annotator", "mark_mild", "mark_severe", "comment"),
    ]
    assert len(rows) == store.get(ids).length.sum()
    assert rows[0]["policy"] == 'the "best", so far'
    assert (rows[0]["label"], rows[0]["annotator"], rows[-1]["label"]) == ("mild", "alice", "")


@pytest.mark.parametrize("ending", FORMATS)
def test_majority_can_be_exported(store, tmp_path, ending):
    ids, _ = store.add(random_trajectories(1), policy="random")
    for annotator, category in {"a": 1, "b": 1, "c": 2}.items():
        store.label(ids, [category], annotator)
    export_trajectories(store, tmp_path / f"out.{ending}", resolve="majority")
    with Store.create(tmp_path / "other", SPEC) as other:
        import_file(other, tmp_path / f"out.{ending}")
        assert [label[:3] for label in other.log()] == [(1, 1, "majority")]


def test_the_log_travels_whole(store, tmp_path):
    ids, _ = store.add(random_trajectories(4), policy="random")
    store.label(ids, [0, 1, 2, 0], "alice")
    store.label(ids[:2], [1, 1], "bob", marks=[{"mild": 0}, None], comment=["=1+1", None])
    store.label(ids[:1], [None], "alice", comment="too dark")
    assert export_labels(store, tmp_path / "log.csv") == 7
    export_trajectories(store, tmp_path / "all.npz")
    with Store.create(tmp_path / "other", SPEC) as other:
        other.add(store.everything()[1], policy="random")
        assert import_file(other, tmp_path / "log.csv").new_labels == 7
        assert other.log() == store.log()
        assert import_file(other, tmp_path / "log.csv").new_labels == 0


def test_labels_alone(store, tmp_path):
    store.add(random_trajectories(3), policy="random")
    (tmp_path / "labels.csv").write_text("\ufefflabel,trajectory,annotator\nmild,2,alice\n\n severe , 3 ,\n", "utf-8")
    imported = import_file(store, tmp_path / "labels.csv", annotator="bob")
    assert imported.ids.tolist() == [2, 3]
    assert [label[:3] for label in store.log()] == [(2, 1, "alice"), (3, 2, "bob")]
    store.label([2], ["none"], "carol")
    assert import_file(store, tmp_path / "labels.csv", annotator="bob").new_labels == 0
    assert store.labelled("newest")[2].tolist() == [0, 2]


def test_labels_do_not_mind_their_case_and_a_blank_one_is_not_answered_yet(store, tmp_path):
    store.add(replace(random_trajectories(5), length=np.full(5, 5, np.int32)), policy="random")
    (tmp_path / "labels.csv").write_text(
        "trajectory,label,annotator,mark_mild,mark_severe,comment\n"
        "1,MILD,ann,3,,\n2,,ann,,,\n3, Severe ,ann,1.0,4,close\n4,Cannot tell,ann,,,dark\n5,none,ann,-1,,\n"
    )
    assert import_file(store, tmp_path / "labels.csv").new_labels == 4
    assert [(label.trajectory, label.category) for label in store.log()] == [(1, 1), (3, 2), (4, None), (5, 0)]
    assert store.marks([1, 2, 3, 4, 5]).tolist() == [[3, -1], [-1, -1], [1, 4], [-1, -1], [-1, -1]]
    assert [label.comment for label in store.log()] == [None, "close", "dark", None]
    assert import_file(store, tmp_path / "labels.csv").new_labels == 0


@pytest.mark.parametrize("ending", FORMATS)
def test_what_needs_labels_travels_alone(store, tmp_path, ending):
    ids, _ = store.add(random_trajectories(4), policy="random")
    store.label(ids[:3], ["none", "mild", None], "ann")
    assert export_trajectories(store, tmp_path / f"out.{ending}", every=False) == 2
    with Store.create(tmp_path / "other", SPEC) as other:
        import_file(other, tmp_path / f"out.{ending}")
        assert steps(other.everything()[1]) == steps(store.get([3, 4]))
        sources = {source.policy for source in other.sources([1, 2])}
        assert sources == {f"import of out.{ending}"}, "who labels is not to know whose trajectories these are"


def test_marks_of_an_npz_may_be_numbers(store, tmp_path):
    named = arrays(label=np.array(["mild", "severe", ""]), length=np.array([4, 4, 4]))
    np.savez(tmp_path / "in.npz", **named, mark_mild=np.array([3, 0, -1]), mark_severe=np.array([-1, 2, -1]))
    ids = import_file(store, tmp_path / "in.npz").ids
    assert store.marks(ids).tolist() == [[3, -1], [0, 2], [-1, -1]]


def test_pairs_need_neither_trajectory_nor_step(store, tmp_path):
    (tmp_path / "pairs.csv").write_text(
        "label,place[x],place[y],state:step,move,reward\nnone,0.1,2,3,-1,0\nsevere,1,2,3,0.5,0\n"
    )
    import_file(store, tmp_path / "pairs.csv", annotator="alice")
    _, batch, categories = store.labelled()
    assert batch.states.tolist() == [[[np.float32(0.1), 2, 3]], [[1, 2, 3]]]
    assert batch.length.tolist() == [1, 1]
    assert categories.tolist() == [0, 2]
    assert store.sources([1])[0].policy == "import of pairs.csv"


HEADER = "trajectory,step,place[x],place[y],state:step,move,reward,policy,round,seed,label,annotator"
GOOD = ["a,0,1,2,3,4,5,p,1,2,mild,eve", "a,1,1,2,3,4,5,p,1,2,mild,eve", "b,0,1,2,3,4,6,,,,,"]


def with_line(number, line):
    lines = [HEADER, *GOOD]
    lines[number - 1 : number] = [line]
    return "\n".join(lines)


BAD_TABLES = {
    "word for number": (with_line(2, "a,0,1,two,3,4,5,p,1,2,mild,eve"), 2, r"place\[y\] is 'two', not a number"),
    "empty number": (with_line(3, "a,1,1,2,3,,5,p,1,2,mild,eve"), 3, "move is empty"),
    "not a number": (with_line(4, "b,0,1,2,3,4,nan,,,,,"), 4, "reward is nan, not a finite"),
    "infinite": (with_line(4, "b,0,-inf,2,3,4,1,,,,,"), 4, r"place\[x\] is -inf, not a finite"),
    "too large": (with_line(4, "b,0,1,2,3,4,1e39,,,,,"), 4, r"reward is 1e\+39, not a finite float32"),
    "too few cells": (with_line(3, "a,1,1,2"), 3, "4 cells where the header has 12"),
    "too many cells": (with_line(3, GOOD[1] + ",1"), 3, "13 cells where the header has 12"),
    "step left out": (with_line(3, "a,2,1,2,3,4,5,p,1,2,mild,eve"), 3, "step is 2 where 1 comes next"),
    "step twice": (with_line(3, "a,0,1,2,3,4,5,p,1,2,mild,eve"), 3, "step is 0 where 1 comes next"),
    "first step": (with_line(4, "b,1,1,2,3,4,5,,,,,"), 4, "step is 1 where 0 comes next"),
    "half a step": (with_line(3, "a,1.5,1,2,3,4,5,p,1,2,mild,eve"), 3, "step is '1.5', which is not a whole"),
    "no step": (with_line(3, "a,,1,2,3,4,5,p,1,2,mild,eve"), 3, "step is empty"),
    "no trajectory": (with_line(4, ",0,1,2,3,4,5,,,,,"), 4, "trajectory is empty"),
    "scattered": (with_line(4, "b,0,1,2,3,4,6,,,,,\na,2,1,2,3,4,5,p,1,2,mild,eve"), 5, "rows must be together"),
    "unknown label": (with_line(4, "b,0,1,2,3,4,5,,,,awful,eve"), 4, "'awful' is not on the scale none < mild"),
    "two labels": (with_line(3, "a,1,1,2,3,4,5,p,1,2,none,eve"), 3, "label is 'none', and 'mild' earlier"),
    "two annotators": (with_line(3, "a,1,1,2,3,4,5,p,1,2,mild,bob"), 3, "annotator is 'bob', and 'eve' earlier"),
    "bad round": (with_line(4, "b,0,1,2,3,4,5,,first,,,"), 4, "round is 'first', which is not a whole number"),
    "huge seed": (with_line(4, f"b,0,1,2,3,4,5,,,{2**63},,"), 4, "seed is '9223372036854775808'"),
    "column missing": (with_line(1, HEADER.replace("move,", "")), 1, "no column 'move'"),
    "column unknown": (with_line(1, HEADER + ",remark"), 1, "column 'remark' is not one of"),
    "column twice": (with_line(1, HEADER.replace("policy", "label")), 1, "column 'label' appears twice"),
    "step alone": (with_line(1, HEADER.replace("trajectory,", "")), 1, "'trajectory' and 'step' go together"),
    "semicolons": (with_line(1, HEADER.replace(",", ";")), 1, "no column 'trajectory'"),
    "nothing": ("", 1, "the file is empty"),
    "open quote": (with_line(4, 'b,0,1,2,3,4,5,"p,,,,'), 4, "not CSV"),
    "not UTF-8": (with_line(4, "b,0,1,2,3,4,5,\udce4,,,,"), 1, "not text in UTF-8"),
}
BAD_LABELS = {
    "unknown id": ("trajectory,label\n1,none\n9,none\n", 3, "no trajectory 9; the store holds 4"),
    "id zero": ("trajectory,label\n0,none\n", 2, "no trajectory 0"),
    "word for id": ("trajectory,label\none,none\n", 2, "trajectory is 'one', which is not a whole number"),
    "no id": ("trajectory,label\n,none\n", 2, "trajectory is empty"),
    "label not on the scale": ("trajectory,label\n1,Nonne\n", 2, "'Nonne' is not on the scale"),
    "mark and no label": (
        "trajectory,label,mark_mild\n1,,0\n",
        2,
        "there is a mark and no label; give one, or 'cannot",
    ),
    "comment and no label": ("trajectory,label,comment\n1,,hm\n", 2, "there is a comment and no label"),
    "mark after the end": ("trajectory,label,mark_mild\n1,mild,9\n", 2, "'mild' is marked at step 9, and the traj"),
    "mark beyond the label": ("trajectory,label,mark_severe\n1,mild,0\n", 2, "'severe' is marked where the label is"),
    "half a mark": ("trajectory,label,mark_mild\n1,mild,0.5\n", 2, "mark_mild is '0.5', which is not a whole number"),
    "long comment": (f"trajectory,label,comment\n1,none,{'x' * 2001}\n", 2, "at most 2000 characters"),
    "bad time": ("trajectory,label,time\n1,none,yesterday\n", 2, "time is 'yesterday'"),
    "cells": ("trajectory,label\n1,none,eve\n", 2, "3 cells where the header has 2"),
    "unknown column of labels": ("trajectory,label,remark\n1,none,ok\n", 1, "column 'remark' is not one of"),
    "no column of labels": ("trajectory,annotator\n1,eve\n", 1, "no column 'label'"),
}


def refused(store, path, reason):
    """Import `path` into a store with some content; it must be refused and the store's bytes stay as they are."""
    ids, _ = store.add(random_trajectories(4), policy="random")
    store.label(ids[:2], [0, 1], "alice")
    before, folder_before = files(store.path), sorted(path.parent.iterdir())
    with pytest.raises(InputError, match=reason) as error:
        import_file(store, path)
    assert files(store.path) == before
    assert sorted(path.parent.iterdir()) == folder_before
    assert "\n" not in str(error.value)
    return error.value


@pytest.mark.parametrize("kind", [*BAD_TABLES, *BAD_LABELS])
def test_bad_csv_is_refused_with_its_line(store, tmp_path, kind):
    text, line, reason = (BAD_TABLES | BAD_LABELS)[kind]
    path = tmp_path / "bad.csv"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert str(refused(store, path, reason)).startswith(f"{path}:{line}: ")


def test_the_good_table_is_good(store, tmp_path):
    (tmp_path / "good.csv").write_text("\n".join([HEADER, *GOOD]))
    assert import_file(store, tmp_path / "good.csv")[1:] == (2, 1)


def test_all_problems_are_listed_up_to_twenty(store, tmp_path):
    path = tmp_path / "bad.csv"
    rows = [f"{i},0,1,2,3,4,{'bad' if i % 2 else 'nan'},,,,{'awful' if i == 3 else ''}," for i in range(50)]
    path.write_text("\n".join([HEADER, *rows]))
    error = refused(store, path, "reward is nan.*; 50 more in line 3, 4, 5, 5, 6,.*, ...; nothing was imported")
    assert isinstance(error, BadRows)
    assert error.total == 51
    assert len(error.problems) == 20
    assert [problem.split(": ")[0] for problem in error.problems[:5]] == [f"{path}:{n}" for n in (2, 3, 4, 5, 5)]
    assert error.problems[1] == f"{path}:3: reward is 'bad', not a number"


def arrays(**changes):
    batch = random_trajectories(3, seed=5, time=4)
    whole = {name: np.array(getattr(batch, name)) for name in ("states", "actions", "rewards", "length")}
    return {name: value for name, value in (whole | changes).items() if value is not None}


BAD_ARRAYS = {
    "array missing": (arrays(rewards=None), "no array 'rewards'"),
    "array unknown": (arrays(extra=np.zeros(3)), "array 'extra' is not one of"),
    "state size": (arrays(states=np.zeros((3, 4, 2))), r"'states' has shape \(3, 4, 2\).*\(3, 4, 3\)"),
    "batch size": (arrays(actions=np.zeros((2, 4, 1))), r"'actions' has shape \(2, 4, 1\).*\(3, 4, 1\)"),
    "flat rewards": (arrays(rewards=np.zeros(3)), "has shape"),
    "text for numbers": (arrays(rewards=np.full((3, 4), "1")), "type <U1"),
    "length not whole": (arrays(length=np.ones(3)), "'length' has shape"),
    "length zero": (arrays(length=np.array([1, 0, 1])), "trajectory 1: length is 0, and the arrays have 4 steps"),
    "length too large": (arrays(length=np.array([1, 1, 5])), "trajectory 2: length is 5"),
    "length of no batch": (arrays(length=np.array(4)), "has shape"),
    "number not finite": (arrays(rewards=np.full((3, 4), 1e300)), "trajectory 0: reward is not a finite .* in step 0"),
    "other names": (arrays(state_names=np.array(["a", "b", "c"])), r"the state names are a, b, c, and the store's"),
    "label unknown": (arrays(label=np.array(["none", "", "bad"])), "trajectory 2: label 'bad' is not on the scale"),
    "labels missing": (arrays(label=np.array(["none"])), "one text for each trajectory"),
    "objects": (arrays(label=np.array(["none", None, None], object)), "not an NPZ file of plain arrays"),
}


@pytest.mark.parametrize("kind", BAD_ARRAYS)
def test_bad_npz_is_refused(store, tmp_path, kind):
    values, reason = BAD_ARRAYS[kind]
    np.savez(tmp_path / "bad.npz", **values)
    refused(store, tmp_path / "bad.npz", reason)


def test_padding_of_npz_may_hold_anything(store, tmp_path):
    batch = random_trajectories(3, time=4)
    rewards = np.where(np.asarray(batch.mask), batch.rewards, np.nan)
    np.savez(
        tmp_path / "good.npz",
        **arrays(**{k: getattr(batch, k) for k in ("states", "actions", "length")}, rewards=rewards),
    )
    assert import_file(store, tmp_path / "good.npz").new_trajectories == 3
    assert steps(store.everything()[1]) == steps(replace(batch, rewards=rewards))


def table(**changes):
    columns = {"trajectory": [1, 1], "step": [0, 1], "place[x]": [0.0, 1.0], "place[y]": [0.0, 1.0]}
    columns |= {"state:step": [1, 2], "move": [0.0, 0.5], "reward": [0.0, -1.0], "label": ["mild", None]}
    return {name: value for name, value in (columns | changes).items() if value is not None}


BAD_COLUMNS = {
    "column missing": (table(move=None), "no column 'move'"),
    "column unknown": (table(extra=[1, 2]), "column 'extra' is not one of"),
    "null": (table(reward=[None, 1.0]), "row 1: reward is empty"),
    "text": (table(reward=["one", "two"]), "cannot be read"),
    "step not whole": (table(step=[0.0, 0.5]), "cannot be read"),
    "step missing": (table(step=[0, 2]), "row 2: step is 2 where 1 comes next"),
    "not finite": (table(move=[0.0, float("inf")]), "row 2: move is inf"),
    "label unknown": (table(label=["awful", "awful"]), "row 1: label 'awful' is not on the scale"),
}


@pytest.mark.parametrize("kind", BAD_COLUMNS)
def test_bad_parquet_is_refused(store, tmp_path, kind):
    values, reason = BAD_COLUMNS[kind]
    pq.write_table(pa.table(values), tmp_path / "bad.parquet")
    refused(store, tmp_path / "bad.parquet", reason)


def test_the_good_parquet_table_is_good(store, tmp_path):
    pq.write_table(pa.table(table()), tmp_path / "good.parquet")
    assert import_file(store, tmp_path / "good.parquet")[1:] == (1, 1)


@pytest.mark.parametrize("ending", ["npz", "parquet"])
def test_rubbish_is_refused(store, tmp_path, ending):
    (tmp_path / f"bad.{ending}").write_bytes(b"PK\x03\x04 rubbish")
    refused(store, tmp_path / f"bad.{ending}", "not an NPZ file|cannot be read")


def test_other_files_are_refused(store, tmp_path):
    (tmp_path / "labels.xls").touch()
    refused(store, tmp_path / "labels.xls", r"one of \.csv, \.npz, \.parquet, \.store, not '\.xls'")
    with pytest.raises(InputError, match="no such file"):
        import_file(store, tmp_path / "none.csv")
    with pytest.raises(InputError, match=r"one of \.csv, \.npz, \.parquet, \.store, not '\.xls'"):
        export_trajectories(store, tmp_path / "out.xls")
    with pytest.raises(InputError, match="cannot write here: No such file or directory"):
        export_trajectories(store, tmp_path / "nowhere" / "out.csv")


def test_parquet_says_how_to_get_it(store, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"pip install 'sidestep\[parquet\]'"):
        export_trajectories(store, tmp_path / "out.parquet")
    assert not list(tmp_path.glob("*out*"))


def test_files_are_whole_or_not_there(tmp_path):
    path = tmp_path / "file.txt"
    atomic_write(path, "first")

    def write_and_fail():
        with atomic_file(path) as handle:
            handle.write(b"second")
            handle.flush()
            assert path.read_text() == "first"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_and_fail()
    assert path.read_text() == "first"
    atomic_write(path, b"third")
    assert path.read_text() == "third"
    (tmp_path / "link").symlink_to(path)
    atomic_write(tmp_path / "link", "fourth")
    assert path.read_text() == "fourth"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["file.txt", "link"]
    with pytest.raises(InputError, match="cannot write here"):
        atomic_write(tmp_path, "a folder")


FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", "'quoted", "''", "'=x", '=HYPERLINK("http://x", "y")', "plain", "5", "a=b"]


def test_no_cell_is_a_formula_and_every_text_comes_back(tmp_path):
    """Texts that a spreadsheet would run get an apostrophe; numbers stay numbers; reading restores the very text."""
    spec = replace(SPEC, state=Space((Variable("=x", size=2, labels=("-a", "b")), Variable("step"))))
    scale = Scale(("-none", "@bad"))
    with Store.create(tmp_path / "a", spec, scale) as store:
        ids, _ = store.add(random_trajectories(len(FORMULAS)), policy=FORMULAS, seed=-5)
        store.label(ids, [0, 1] * 5 + [0], FORMULAS)
        export_trajectories(store, tmp_path / "all.csv")
        export_labels(store, tmp_path / "all.labels.csv")
        with Store.create(tmp_path / "b", spec, scale) as other:
            import_file(other, tmp_path / "all.csv")
            assert [source.policy for source in other.sources(ids)] == FORMULAS
            assert [source.seed for source in other.sources(ids)] == [-5] * len(FORMULAS)
            assert [label[:3] for label in other.log()] == [label[:3] for label in store.log()]
            assert steps(other.everything()[1]) == steps(store.everything()[1])
        with Store.create(tmp_path / "c", spec, scale) as third:
            third.add(store.everything()[1], policy="p")
            import_file(third, tmp_path / "all.labels.csv")
            assert third.log() == store.log()
    for name, numbers in (("all.csv", {*range(2, 7), 8, 9}), ("all.labels.csv", set())):
        with (tmp_path / name).open(newline="") as file:
            for row in csv.reader(file):
                texts = [cell for column, cell in enumerate(row) if column not in numbers or not number_like(cell)]
                assert not [cell for cell in texts if cell.startswith(("=", "+", "-", "@"))]


def number_like(cell):
    try:
        return bool(float(cell) or True)
    except ValueError:
        return False


def archive(path, **sizes):
    """An NPZ file whose arrays claim these shapes; `length` bytes of zeros stand behind the first header."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, (shape, dtype, content) in sizes.items():
            head = io.BytesIO()
            np.lib.format.write_array_header_1_0(
                head, {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
            )
            with file.open(f"{name}.npy", "w", force_zip64=True) as stream:
                stream.write(head.getvalue())
                for _ in range(content // 2**20):
                    stream.write(bytes(2**20))


def test_arrays_are_refused_by_the_size_that_they_claim(store, tmp_path):
    """Nothing is unpacked: neither a header that claims terabytes, nor zeros that were packed a thousandfold."""
    small = {"actions": ((1, 1, 1), "f4", 0), "rewards": ((1, 1), "f4", 0), "length": ((1,), "i4", 0)}
    archive(tmp_path / "claims.npz", states=((10**12, 1, 1), "f4", 0), **small)
    refused(store, tmp_path / "claims.npz", r"array 'states' of shape .* takes 4,000.0 GB, and an import at most 1.1")
    gigabytes = 2 * 2**30
    archive(tmp_path / "packed.npz", states=((gigabytes // 4, 1, 1), "f4", gigabytes), **small)
    assert (tmp_path / "packed.npz").stat().st_size < 10 * 2**20
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused(store, tmp_path / "packed.npz", "takes 2.1 GB")
    assert time.perf_counter() - began < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kilobytes
    archive(tmp_path / "lies.npz", states=((1000, 1, 3), "f4", 0), **small)
    refused(store, tmp_path / "lies.npz", r"'states.npy' has 128 bytes where its header asks for 12128")


def test_a_parquet_file_is_refused_by_its_rows(store, tmp_path):
    rows = 2**25
    columns = {
        name: pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int8)), pa.array([0.0])) for name in table()
    }
    pq.write_table(pa.table(columns), tmp_path / "long.parquet")
    assert (tmp_path / "long.parquet").stat().st_size < 2**21
    refused(store, tmp_path / "long.parquet", "this Parquet file takes 2.1 GB")
