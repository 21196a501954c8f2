"""The price of safety: runs at several tolerances that share their labels, the same wherever they are made."""

import json
import multiprocessing
from dataclasses import replace

import pytest
from run_helpers import YARD

import sidestep
from sidestep.cli.main import main
from sidestep.core.errors import InputError
from sidestep.core.records import from_json
from sidestep.frontier.records import Frontier, levels, ordered_tolerances
from sidestep.frontier.sweep import Sweep

TOLERANCES = "none>=0.6,0.3"
SMALL = {"labels": 60, "rollouts": 300, "step_tolerance": "chance"}
OF_RUNS = {"labels": 60, "rounds": 1, "members": 1, "first_fit": 20, "later_fit": 10, "rollouts": 200, "audits": 1}


def small_sweep(folder, out, **more):
    """Of a map whose steps are labelled, so that nothing is trained."""
    yard = f"{folder / 'yard.py'}:yard"
    return sidestep.sweep(yard, TOLERANCES, out=folder / out, **{"say": lambda text: None, **SMALL, **more})


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "yard.py").write_text(YARD)
    return folder, small_sweep(folder, "here")


def test_every_tolerance_has_a_run_with_a_report_and_labels_are_paid_for_once(made):
    folder, frontier = made
    assert [point.tolerance for point in frontier.points] == ["none>=0.3", "none>=0.6"]
    loose, strict = frontier.points  # the strict one was first
    assert loose.labels == strict.labels + loose.new_labels
    assert frontier.labels == loose.labels
    for point in frontier.points:
        answer = sidestep.load(folder / "here" / point.run)
        assert answer.config.constraints == (point.tolerance,)
        assert answer.certificate.certified == point.certified
        assert answer.certificate.returns.mean == point.mean
        assert (folder / "here" / point.run / "report.html").is_file()
    assert frontier.used_labels == loose.labels + strict.labels > frontier.labels


def test_the_frontier_is_that_of_the_linear_program(made):
    _, frontier = made
    assert [one.tolerance for one in frontier.exact] == ["none>=0.3", "none>=0.6"]
    for point, optimum in zip(frontier.points, frontier.exact, strict=True):
        assert point.expected == pytest.approx(optimum.value, abs=0.1)
    assert frontier.exact[0].value > frontier.exact[1].value  # safety has a price


@pytest.mark.slow
def test_where_whole_runs_are_labelled_the_rounds_are_shared(tmp_path):
    yard = tmp_path / "yard.py"
    yard.write_text(YARD)
    place = {"expert": f"{yard}:slow", "out": tmp_path / "out", "say": lambda text: None}
    frontier = sidestep.sweep(f"{yard}:yard", TOLERANCES, **place, **OF_RUNS)
    shared = frontier.labels - sum(point.new_labels for point in frontier.points)
    assert 0 < shared <= 48  # all but those kept for checking
    for point in frontier.points:
        assert point.labels == shared + point.new_labels
        assert (tmp_path / "out" / point.run / "report.html").is_file()
    assert not frontier.exact


def test_what_is_written_is_what_was_found_and_points_open_their_runs(made):
    folder, frontier = made
    read = from_json(Frontier, json.loads((folder / "here/frontier.json").read_text()), "frontier.json")
    assert read == frontier
    page = (folder / "here/frontier.html").read_text()
    for point in frontier.points:
        assert page.count(f'href="{point.run}/report.html"') == 2  # in the figure and in the table
    assert (folder / "here/frontier.svg").read_text().lstrip().startswith("<?xml")


@pytest.mark.filterwarnings("default")  # Dask warns of what happens here on purpose
def test_a_worker_that_is_killed_changes_nothing(made):
    folder, frontier = made
    killed = []

    def kill_one(text):
        if "round 0" in text and not killed:
            killed.append(multiprocessing.active_children()[0])
            killed[0].kill()

    again = small_sweep(folder, "there", cluster="local", workers=2, say=kill_one)
    assert killed
    assert [replace(point, seconds=0) for point in again.points] == [replace(p, seconds=0) for p in frontier.points]
    for point in frontier.points:
        here, there = (folder / place / point.run / "policy.safetensors" for place in ("here", "there"))
        assert here.read_bytes() == there.read_bytes()


def test_a_sweep_goes_on_where_it_was_stopped_and_takes_more_seeds(made):
    folder, frontier = made
    said = []
    assert small_sweep(folder, "here", say=said.append) == frontier
    assert said == ["0 jobs to do, 4 found done"]
    with pytest.raises(InputError, match="holds another sweep"):
        small_sweep(folder, "here", labels=80)


def test_several_models_are_swept_together_and_each_is_as_if_alone(made, tmp_path):
    folder, frontier = made
    (tmp_path / "other.py").write_text(YARD)
    models = [f"{folder / 'yard.py'}:yard", f"{tmp_path / 'other.py'}:yard"]
    said = []
    found = sidestep.sweep(models, TOLERANCES, out=tmp_path / "out", say=said.append, **SMALL)
    assert said[0] == "8 jobs to do, 0 found done"
    for one, name in zip(found, ("yard.py-yard", "other.py-yard"), strict=True):
        assert [replace(point, seconds=0) for point in one.points] == [replace(p, seconds=0) for p in frontier.points]
        assert one.exact == frontier.exact
        for point in one.points:
            assert (tmp_path / "out" / name / point.run / "report.html").is_file()
        assert (tmp_path / "out" / name / "frontier.html").is_file()
    with pytest.raises(InputError, match="names differ"):
        sidestep.sweep([models[0]] * 2, TOLERANCES, out=tmp_path / "twice", **SMALL)


def test_the_command_line_says_the_same(made, capsys):
    folder, frontier = made
    yard = folder / "yard.py"
    command = ["sweep", f"{yard}:yard", "--tolerances", TOLERANCES, "--out"]
    options = [word for name, value in SMALL.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    assert main([*command, str(folder / "here"), *options, "--json"]) == (0 if frontier.certified else 1)
    printed = json.loads(capsys.readouterr().out)
    assert [point["mean"] for point in printed["points"]] == [point.mean for point in frontier.points]
    (folder / "other.py").write_text(YARD)
    more = ["--models", f"{folder / 'other.py'}:yard", "--json"]
    assert main([*command, str(folder / "both"), *options, *more]) == (0 if frontier.certified else 1)
    for one in json.loads(capsys.readouterr().out):
        assert [point["mean"] for point in one["points"]] == [point.mean for point in frontier.points]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("none>=0.9", "at least two bounds"),
        ("none 0.9,0.95", "needs '<=' or '>='"),
        ("none>=0.9,0.90", "stands twice"),
        ("none>=0.9,often", "'often' is not a number"),
        ("none>=0.9,", "'' is not a number"),
    ],
)
def test_tolerances_that_make_no_sense_are_told_in_a_sentence(text, sentence):
    with pytest.raises(InputError, match=sentence):
        ordered_tolerances(text)


def test_tolerances_are_ordered_from_the_loosest_on():
    assert ordered_tolerances("none>=0.99, 90%,0.95") == ("none>=90%", "none>=0.95", "none>=0.99")
    assert ordered_tolerances("severe<=0.01,0.1") == ("severe<=0.1", "severe<=0.01")


def test_a_sweep_where_people_label_is_refused(tmp_path, capsys):
    (tmp_path / "yard.py").write_text(YARD)
    command = ["sweep", f"{tmp_path / 'yard.py'}:yard", "--rule", "people", "--tolerances", TOLERANCES]
    assert main([*command, "--out", str(tmp_path / "out")]) == 2
    assert "a sweep needs a rule to label by" in capsys.readouterr().err


PLAIN = {"labels": 60, "rollouts": 300}
CHANGES = {
    "tolerances": {"tolerances": ("none>=0.2", "none>=0.9")},
    "constraints": {"constraints": ("severe<=0.5",)},
    "rule": {"rule": "share", "campaign": PLAIN, "tolerances": ("safe>=0.3", "safe>=0.6")},
    "methods": {"methods": ("default", "gradient"), "campaign": PLAIN},
    "seed": {"seed": 1},
    "seeds": {"seeds": 2},
    "campaign": {"campaign": PLAIN},
}


@pytest.mark.parametrize("part", CHANGES)
def test_whatever_is_asked_for_changes_the_jobs(made, tmp_path, part):
    folder, frontier = made
    plain, other = Sweep(frontier.request, folder / "here"), Sweep(replace(frontier.request, **CHANGES[part]), tmp_path)
    assert other.jobs.addresses(other.begin()) != plain.jobs.addresses(plain.begin())


def test_options_without_effect_are_refused(made, tmp_path):
    _, frontier = made
    with pytest.raises(InputError, match="--batch: has no effect here"):
        Sweep(replace(frontier.request, planning={"batch": 7}), tmp_path).begin()
    assert not list(tmp_path.iterdir())


def test_levels_have_an_interval_over_seeds(made):
    _, frontier = made
    points = [replace(frontier.points[0], seed=seed, mean=mean) for seed, mean in enumerate((1.0, 2.0, 3.0))]
    (level,) = [one for one in levels(replace(frontier, points=tuple(points))) if one.tolerance == "none>=0.3"]
    assert level.mean == 2.0
    assert level.interval == pytest.approx((2.0 - 4.303 / 3**0.5, 2.0 + 4.303 / 3**0.5))
