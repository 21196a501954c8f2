"""`sidestep reproduce all --quick`: every experiment runs, and what it writes says what its jobs found."""

import json
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from sidestep.cli import main

MAPS = {"around.bp": "SB.F..G\n..x.x..\n.......\n", "puddles.nav": "S.@@.G\n.X..X.\n......\n"}


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("all")
    (folder / "maps").mkdir()
    for name, text in MAPS.items():
        (folder / "maps" / name).write_text(text)
    arguments = ["reproduce", "all", "--quick", "--maps", str(folder / "maps"), "--seeds", "1", "--epochs", "25"]
    assert main([*arguments, "--out", str(folder / "out"), "--quiet"]) == 0
    return folder / "out"


def read(out, name):
    return json.loads((out / f"{name}.json").read_text())


def job(out, name):
    return read(out / "jobs", name)["result"]


def test_every_table_says_that_it_is_quick_and_which_command_made_it(out):
    for name in ("table1", "table1-by-map", "continuous", "nonmarkov-grid", "curves"):
        document = read(out, name)
        assert document["note"].startswith("quick version")
        assert document["command"].startswith("sidestep reproduce all --quick --maps")
        assert document["seconds of all jobs, added up"] > 0


def test_table_1_holds_both_grids_and_no_method_beats_the_limit(out):
    rows = read(out, "table1")["rows"]
    assert {(row["domain"], row["method"]) for row in rows} >= {
        (domain, method)
        for domain in ("boxpushing", "driving")
        for method in ("Markov-HA-S", "MBGE", "MF-Lagrange", "Sidestep")
    }
    for row in rows:
        assert row["reward"] <= row["limit"] + 1e-4
        assert row["penalty"] >= 0
        assert row["penalty"] > 0 or row["reward"] <= row["limit without side effects"] + 1e-4


def test_the_continuous_table_is_the_mean_of_the_tests_of_its_runs(out):
    rows = {(row["domain"], row["method"]): row for row in read(out, "continuous")["rows"]}
    assert set(rows) == {("navigation", m) for m in ("PPO", "MFGE", "MBGE")} | {("hvac", m) for m in ("PPO", "MBGE")}
    for (domain, method), row in rows.items():
        (run,) = job(out, f"{domain}-{method.lower()}-seeds0-0")["runs"]
        assert [test["epoch"] for test in run] == [25]
        assert row["reward"] == pytest.approx(np.mean([test["sampled_return"] for test in run]))
        assert row["free of side effects"] == pytest.approx(np.mean([test["sampled_free"] for test in run]))
        assert row["reward"] <= row["best known"] + 0.02 * abs(row["best known"]) or row["free of side effects"] < 0.95
        assert all(test["lowest_return"] <= test["highest_return"] for test in run)
        assert all((test["multiplier"] is None) == (method == "PPO") for test in run)


def test_the_classifiers_have_learned_more_than_the_most_frequent_category(out):
    for domain in ("navigation", "hvac"):
        found = job(out, f"{domain}-classifier-seed0")
        counts = np.array(list(found["categories"].values()))
        assert counts.sum() == found["labels"] == 8000
        assert (counts > 0).sum() >= 2
        assert found["accuracy"] > counts.max() / counts.sum()


def test_trajectories_on_grids_are_judged_by_shares(out):
    rows = read(out, "nonmarkov-grid")["rows"]
    assert {row["method"] for row in rows} == {"MBGE", "MF-Lagrange", "MBGE, Markov classifier", "Markov-HA-S"}
    assert {row["domain"] for row in rows} == {"boxpushing", "driving"}
    for row in rows:
        assert 0 <= row["lowest safe"] <= row["safe"] <= 1
        assert (row["lowest safe"] >= 0.95) <= (row["runs that meet safe>=0.95"] == row["runs"])


def test_the_figures_are_pictures_that_say_that_they_are_quick(out):
    for name in ("continuous", "curve-boxpushing", "curve-navigation", "curve-hvac"):
        drawing = ElementTree.parse(out / f"{name}.svg").getroot()
        assert drawing.tag.endswith("svg")
        assert len(list(drawing.iter("{http://www.w3.org/2000/svg}path"))) > 10
        assert "quick version" in (out / f"{name}.svg").read_text()
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
