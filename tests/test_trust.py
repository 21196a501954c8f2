"""Runs that travel, and what is run of a folder that came from somebody else."""

import json
import os
import shutil
import stat
import subprocess
import sys

import jax
import numpy as np
import pytest
from run_helpers import LINE, SMALL, write_run

from sidestep.cli.main import main
from sidestep.core.errors import InputError
from sidestep.deploy.answers import load
from sidestep.labels.store import Store
from sidestep.models.trust import memory
from sidestep.runs.folder import LABELS, Run

STATE = np.array([1, 0, 0, 1, 0, 0, 0, 0, 1, 0], float)  # the start of the yard
KEY = jax.random.key(1)  # the best policy of a finite model may have to draw
TRACE = "with open({trace!r}, 'a') as file: file.write('ran ')\n"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A model and a rule of the user's own, which leave a trace when they run, and a finished run of them."""
    folder = tmp_path_factory.mktemp("home")
    write_run(folder, TRACE.format(trace=str(folder / "trace")))
    return folder


@pytest.fixture
def stranger(home, tmp_path, monkeypatch):
    """The same run with somebody else, who never saw its code: in another folder, without the originals."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    shutil.copytree(home / "run", tmp_path / "got")
    (home / "mine").rename(tmp_path / "hidden")
    (home / "trace").unlink(missing_ok=True)
    yield tmp_path / "got"
    (tmp_path / "hidden").rename(home / "mine")


def ran(home):
    return (home / "trace").exists()


def sentence(arguments, capsys, status=2):
    capsys.readouterr()
    assert main([str(argument) for argument in arguments]) == status
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


def test_a_run_holds_what_it_was_made_of(home):
    config = Run.open(home / "run").config
    assert config.inputs is not None
    assert config.inputs["mine/yard.py"].file == "inputs/yard.py"
    assert (home / "run/inputs/yard.py").read_bytes() == (home / "mine/yard.py").read_bytes()
    with Store.open(home / "run" / LABELS) as store:
        assert {label.annotator for label in store.log()} == {"mine/yard.py:slow"}, (
            "a rule's name is what the user wrote"
        )


def test_ones_own_run_moves_without_a_question(home, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(home / "run", tmp_path / "moved: here?")  # a name that would make a bad reference
    (home / "mine").rename(tmp_path / "hidden")
    try:
        run = load("moved: here?")
        there, here = (load(path).policy.act(STATE, KEY) for path in (home / "run", "moved: here?"))
        assert np.array_equal(there, here)
        assert run.model.spec.name == "yard"
        assert main(["certify", "moved: here?", "--rollouts", "100"]) == 0
        assert main(["report", "moved: here?"]) == 0
        assert main(["export", "moved: here?", str(tmp_path / "policy.py")]) == 0
        assert main(["collect", "moved: here?/inputs/yard.py:yard", "--store", "s.store", "--count", "3"]) in (0, 2)
        assert main(["resume", "moved: here?", "--quiet"]) == 0
    finally:
        (tmp_path / "hidden").rename(home / "mine")


def test_what_the_records_tell_runs_no_code(home, stranger, capsys):
    answer = load(stranger)
    assert answer.result["labels_used"] <= 40
    assert answer.categories == ("none", "mild", "severe")
    assert set(answer.monitor().step(STATE, np.eye(8)[0])) == {"mild", "severe"}
    os.remove(stranger / "report.html")
    assert main(["report", str(stranger)]) == 0
    page = (stranger / "report.html").read_text()
    assert "Left out" not in page
    assert "--trust" not in page
    assert page.count("<svg") == (home / "run/report.html").read_text().count("<svg")
    assert not ran(home)


def test_a_stranger_s_code_is_run_when_it_is_trusted(home, stranger, capsys):
    for command in (["resume"], ["certify"], ["export"]):
        arguments = [*command, stranger, *([stranger.parent / "out.py"] if command == ["export"] else [])]
        said = sentence(arguments, capsys)
        assert f"{stranger / 'inputs/yard.py'}: this code came with the run's folder and would be run" in said
        assert "--trust" in said
        assert "trust=True" in said
    with pytest.raises(InputError, match="trust=True"):
        load(stranger).policy  # noqa: B018
    assert not ran(home)
    assert load(stranger, trust=True).policy.act(STATE, KEY).shape == (8,)
    assert ran(home)
    load(stranger).policy.act(STATE, KEY)  # what was trusted once is remembered
    assert main(["resume", str(stranger), "--quiet"]) == 2, "but its rule was not asked about yet"
    assert main(["resume", str(stranger), "--quiet", "--trust"]) == 0


def test_a_report_without_records_says_what_it_needs(home, stranger, capsys):
    (stranger / "scenes.safetensors").unlink()
    assert main(["report", str(stranger)]) == 0
    page = (stranger / "report.html").read_text()
    assert "Left out:" in page
    assert "if you trust it give --trust" in page
    assert not ran(home)
    assert main(["report", str(stranger), "--trust"]) == 0
    assert "Left out" not in (stranger / "report.html").read_text()
    assert ran(home)


def test_records_of_another_policy_do_not_count(home, stranger):
    first = next(stranger.glob("polished-*"))
    shutil.copyfile(first, stranger / "policy.safetensors")
    changed = (stranger / "policy.safetensors").read_bytes() != (home / "run/policy.safetensors").read_bytes()
    assert main(["report", str(stranger)]) == 0
    assert ("--trust" in (stranger / "report.html").read_text()) == changed


def test_changed_copies_are_told(home, stranger, capsys):
    copy = stranger / "inputs/yard.py"
    copy.write_text(copy.read_text() + "\n# harmless?\n")
    for command in (["resume", "--trust"], ["certify", "--trust"]):
        said = sentence([command[0], stranger, *command[1:]], capsys)
        assert f"{copy}: was changed since the run began" in said
    assert not ran(home)


def test_python_s_own_copies_beside_the_code_are_not_run(home, stranger):
    """A compiled file in __pycache__ that claims to be of this very source, and is not."""
    import importlib.util
    import py_compile

    copy = stranger / "inputs/yard.py"
    evil = stranger.parent / "evil.py"
    evil.write_text("raise SystemError('ran what nobody looked at')")
    cached = importlib.util.cache_from_source(str(copy))
    py_compile.compile(str(evil), cached, str(copy), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    assert load(stranger, trust=True).model.spec.name == "yard"


@pytest.mark.parametrize("file", ["../../evil.py", "/etc/passwd", "inputs/../../evil.py", "result.json", 7, None, ""])
def test_copies_lie_inside(file, stranger, capsys):
    config = json.loads((stranger / "config.json").read_text())
    config["inputs"]["mine/yard.py"]["file"] = file
    (stranger / "config.json").write_text(json.dumps(config))
    assert str(stranger / "config.json") in sentence(["resume", stranger, "--trust"], capsys)


def test_old_runs_load_their_originals_and_ask_too(home, tmp_path, monkeypatch, capsys):
    shutil.copytree(home / "run", tmp_path / "old")
    config = json.loads((tmp_path / "old/config.json").read_text())
    del config["inputs"]
    (tmp_path / "old/config.json").write_text(json.dumps(config | {"format": 1}))
    monkeypatch.chdir(home)
    assert load(tmp_path / "old").model.spec.name == "yard", "the user has given this code before"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert sentence(["certify", tmp_path / "old"], capsys).startswith("sidestep: mine/yard.py: this code came with")
    assert load(tmp_path / "old", trust=True).model.spec.name == "yard"
    monkeypatch.chdir(tmp_path)
    assert "mine/yard.py: there is no such file" in sentence(["certify", tmp_path / "old", "--trust"], capsys)


def test_what_is_remembered_is_private_and_by_object(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    file = tmp_path / "line.py"
    file.write_text(LINE + "def danger(): raise SystemError('called')\n")
    assert main(["check", f"{file}:Line"]) == 0
    entries = list(memory().iterdir())
    assert len(entries) == 1
    assert str(file) in entries[0].read_text()
    assert stat.S_IMODE(entries[0].stat().st_mode) == 0o600
    assert stat.S_IMODE(memory().stat().st_mode) == 0o700
    begun = ["plan", f"{file}:Line", "--categories", "fine<bad", "--out", str(tmp_path / "run"), *SMALL.split()]
    assert main(begun) in (0, 3)
    config = json.loads((tmp_path / "run/config.json").read_text())
    (tmp_path / "run/config.json").write_text(json.dumps(config | {"model": f"{file}:danger"}))
    assert "--trust" in sentence(["resume", tmp_path / "run"], capsys)


def test_without_a_home_nothing_is_remembered_and_it_says_so(tmp_path):
    file = tmp_path / "line.py"
    file.write_text(LINE)
    bare = {name: value for name, value in os.environ.items() if name not in ("HOME", "XDG_STATE_HOME")}
    bare |= {"XDG_CACHE_HOME": str(tmp_path / "cache"), "MPLCONFIGDIR": str(tmp_path / "mpl")}

    def sidestep(*arguments):
        command = [sys.executable, "-m", "sidestep", *map(str, arguments)]
        done = subprocess.run(command, env=bare, capture_output=True, text=True)
        assert "Traceback" not in done.stderr
        return done

    run = tmp_path / "run"
    done = sidestep("plan", f"{file}:Line", "--categories", "fine<bad", "--out", run, *SMALL.split())
    assert done.returncode in (0, 3), done.stderr
    done = sidestep("resume", run, "--quiet")
    assert done.returncode == 2
    assert "nothing is remembered here, since neither HOME nor XDG_STATE_HOME is set" in done.stderr
    assert sidestep("resume", run, "--quiet", "--trust").returncode in (0, 3)


def test_data_files_travel_too(tmp_path, monkeypatch, capsys):
    grid = tmp_path / "yards/yard.bp"
    grid.parent.mkdir()
    grid.write_text("S.....\n.FF...\n.@@...\n....BG\n")
    monkeypatch.chdir(tmp_path)
    assert main(["plan", "yards/yard.bp?horizon=40", "--out", "run", "--rollouts", "100", "--quiet"]) == 0
    shutil.move("run", "elsewhere")
    shutil.rmtree("yards")
    monkeypatch.chdir("/")
    run = load(tmp_path / "elsewhere")
    assert run.model.spec.name == "yard"
    assert run.model.spec.horizon == 40
    assert main(["resume", str(tmp_path / "elsewhere"), "--quiet"]) == 0
    copy = tmp_path / "elsewhere/inputs/yard.bp"
    copy.write_text(copy.read_text().replace("@@", ".."))
    assert f"{copy}: was changed since the run began" in sentence(["certify", tmp_path / "elsewhere"], capsys)


def test_two_files_of_one_name_are_kept_apart(tmp_path, monkeypatch):
    from sidestep.runs.inputs import copied

    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "tank.rddl").write_text(folder)
    monkeypatch.chdir(tmp_path)
    listed, copies = copied("a/tank.rddl:b/tank.rddl?horizon=3", "a/tank.rddl")
    assert [copy.file for copy in listed.values()] == ["inputs/tank.rddl", "inputs/2/tank.rddl"]
    assert copies == {"inputs/tank.rddl": b"a", "inputs/2/tank.rddl": b"b"}


@pytest.mark.parametrize(
    "name",
    [
        "report.html",
        "result.json",
        "metrics.jsonl",
        "state.safetensors",
        "labels.store",
        "labels.store-wal",
        "policy.safetensors",
        "scenes.safetensors",
    ],
)
def test_nothing_is_written_through_a_link(name, home, tmp_path, capsys):
    run, precious = tmp_path / "run", tmp_path / "precious"
    shutil.copytree(home / "run", run)
    precious.write_text("keep me")
    if name == "labels.store":
        shutil.copyfile(run / name, precious)
    before = precious.read_bytes()
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(precious)
    command = "report" if name == "report.html" else "resume"
    assert main([command, str(run)]) == 2
    capsys.readouterr()
    assert precious.read_bytes() == before
    assert {one.name for one in tmp_path.iterdir()} == {"run", "precious"}


def test_a_run_goes_on_beside_an_audit_that_people_have_not_finished(home, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(home / "run", run)
    before = json.loads((run / "result.json").read_text())
    assert main(["certify", str(run), "--people"]) == 3
    assert json.loads((run / "audits.json").read_text())[-1]["status"] == "open"
    assert main(["resume", str(run), "--quiet"]) == 0
    audits = json.loads((run / "audits.json").read_text())
    assert [audit["status"] for audit in audits][-1] == "abandoned", "begun and given up, and counted"
    after = json.loads((run / "result.json").read_text())
    assert after["constraints"] == before["constraints"]
    assert after["audits"] == len(audits) == before["audits"] + 1
