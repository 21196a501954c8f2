"""`sidestep reproduce all --quick`: every experiment runs, and what it writes says what its jobs found."""

import csv
import json
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import numpy as np
import pytest
from grid_helpers import AROUND, PUDDLES, safe_optimum

from sidestep.cli.main import main
from sidestep.cluster.jobs import Jobs
from sidestep.models.domains.boxpushing.model import Boxpushing
from sidestep.models.domains.driving.model import Driving
from sidestep.reproduce.experiments import QUICK, find_maps
from sidestep.reproduce.figures import grid_curve

MAPS = {"around.bp": AROUND, "puddles.nav": PUDDLES}
METHODS = ["Markov-HA-S", "Markov-HA-S, slack in total", "MBGE", "MBGE", "MF-Lagrange", "MF-Lagrange"]
COLUMNS = [
    "domain",
    "method",
    "actions",
    "reward (discounted)",
    "deviation (discounted)",
    "paper's reward",
    "limit without side effects (discounted)",
    "limit (discounted)",
    "reward",
    "deviation",
    "limit without side effects",
    "limit",
    "penalty",
    "penalty's deviation",
    "paper's penalty",
    "reached the end",
    "runs",
]


# Quicker than quick: programs that are compiled without optimisation learn slowly.
SIZE = replace(
    QUICK,
    trajectories={"continuous": 800, "grid": 200},
    trajectory_steps={"continuous": 120, "grid": 60},
    pair_steps=500,
    rollouts=200,
)


@pytest.fixture(scope="module", autouse=True)
def small():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sidestep.cli.reproduce.QUICK", SIZE)
        yield


@pytest.fixture(scope="module")
def out(tmp_path_factory, small):
    folder = tmp_path_factory.mktemp("all")
    (folder / "maps").mkdir()
    for name, text in MAPS.items():
        (folder / "maps" / name).write_text(text)
    assert main(arguments(folder)) == 0
    return folder / "out"


def arguments(folder, workers=1):
    given = ["--maps", str(folder / "maps"), "--seeds", "1", "--epochs", "25", "--workers", str(workers)]
    return ["reproduce", "all", "--quick", *given, "--out", str(folder / "out"), "--quiet"]


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
        assert name == "curves" or "quick version" in (out / f"{name}.md").read_text()


def test_table_1_is_written_in_three_forms_that_agree(out):
    document = read(out, "table1")
    with (out / "table1.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["domain"], row["method"]) for row in rows] == [
        (d, m) for d in ("boxpushing", "driving") for m in METHODS
    ]
    assert list(rows[0]) == list(document["rows"][0]) == COLUMNS
    numbers = [name for name in COLUMNS if name not in ("domain", "method", "actions") and "paper" not in name]
    for written, exact in zip(rows, document["rows"], strict=True):
        assert all(float(written[name]) == exact[name] for name in numbers)
    assert rows[6]["paper's reward"] == "-26.59 ± 0.46"
    assert rows[7]["paper's reward"] == ""
    assert rows[8]["paper's penalty"] == "2.97 ± 6.61"
    lines = [line for line in (out / "table1.md").read_text().splitlines() if line.startswith("|")]
    assert [cell.strip() for cell in lines[0].strip("|").split("|")] == COLUMNS
    assert all(line.count("|") == len(COLUMNS) + 1 for line in lines)
    assert f"{document['rows'][0]['penalty']:.3f}" in lines[2]


def test_the_limits_of_table_1_are_those_of_the_linear_program_and_nobody_beats_them(out):
    models = {"boxpushing": Boxpushing(MAPS["around.bp"]), "driving": Driving(MAPS["puddles.nav"])}
    best = {
        domain: [safe_optimum(model, discount).value for discount in (1.0, 0.99)] for domain, model in models.items()
    }
    for row in read(out, "table1")["rows"]:
        plain, discounted = best[row["domain"]]
        assert row["limit without side effects"] == pytest.approx(plain, abs=1e-6)
        assert row["limit without side effects (discounted)"] == pytest.approx(discounted, abs=1e-6)
        assert row["reward"] <= row["limit"] + 1e-6
        assert row["penalty"] > 0 or row["reward"] <= row["limit without side effects"] + 1e-4


def test_markov_ha_s_in_table_1_is_safe_and_optimal_where_all_pairs_are_known(out):
    row = next(row for row in read(out, "table1")["rows"] if (row["domain"], row["method"]) == ("driving", METHODS[1]))
    assert row["penalty"] == pytest.approx(0.0, abs=1e-4)
    assert row["reward"] == pytest.approx(row["limit without side effects"], abs=1e-4)
    assert row["runs"] == 3


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
        assert counts.sum() == found["labels"] == SIZE.trajectories["continuous"]
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
        assert all((out / f"{name}.{form}").stat().st_size > 5000 for form in ("svg", "png"))


def test_the_curve_of_a_grid_is_drawn_from_its_job(out):
    maps, size = find_maps(out.parent / "maps", QUICK), replace(SIZE, grid_epochs=25)
    figure = grid_curve(Jobs(out), maps[0], 0, size)
    lines = [axis.lines[0].get_xydata() for axis in figure.axes]
    assert [line.shape for line in lines] == [(1, 2)] * 3
    assert lines[0][0, 0] == 25
    row = next(row for row in read(out, "table1")["rows"] if row["method"] == "MBGE")
    assert lines[0][0, 1] == pytest.approx(row["reward"])


def test_a_second_call_does_only_what_is_missing_and_writes_the_same(out, capsys):
    before = {path.name: path.stat().st_mtime_ns for path in (out / "jobs").iterdir()}
    rows = read(out, "table1")["rows"]
    (out / "jobs" / "driving-puddles-markov-ha-s-seed0.json").unlink()
    assert main([*arguments(out.parent, workers=2), "--json"]) == 0
    after = {path.name: path.stat().st_mtime_ns for path in (out / "jobs").iterdir()}
    assert {name for name in after if after[name] != before[name]} == {"driving-puddles-markov-ha-s-seed0.json"}
    assert json.loads(capsys.readouterr().out)["table1"]["rows"] == rows
