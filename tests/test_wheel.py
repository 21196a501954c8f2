"""The wheel, installed into a fresh virtual environment and used outside of the repository.

The environment sees the installed dependencies through a .pth file, which makes it cheap; Sidestep is the wheel's.
"""

import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = """
import sidestep
from sidestep.models.domains.driving.model import Driving

def slow(run):
    return (run.length > 12).astype(int) * 2

yard = Driving("S.@..\\n.....\\n..@.G", name="yard", horizon=20)
answer = sidestep.solve(
    yard, expert=slow, constraints=["none>=0.5"], labels=40, rounds=1, members=1, first_fit=20, later_fit=10,
    rollouts=100, audits=1, out="solved", verbose=False,
)
print(sidestep.__file__)
print(answer)
"""
OPTIONS = """
model = "yard.nav"
rollouts = 100
out = "planned"
quiet = true
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip("build", reason="`pip install build` builds the wheel")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (file,) = folder.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def outside(wheel, tmp_path_factory):
    """A folder outside of the repository, and a function that runs a program of the environment in it."""
    folder = tmp_path_factory.mktemp("outside")
    venv.create(folder / "env", with_pip=False)
    (site,) = (folder / "env/lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    python = folder / "env/bin/python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)]
    done = subprocess.run([*install, "--disable-pip-version-check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

    def run(program, *arguments):
        variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [str(folder / "env/bin" / program), *arguments]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=variables, timeout=1800)

    return folder, run


def test_the_wheel_holds_what_is_needed_and_its_version(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (about,) = (name for name in names if name.endswith("METADATA"))
        text = archive.read(about).decode()
    source = {str(path.relative_to(ROOT)) for path in (ROOT / "sidestep").rglob("*") if path.is_file()}
    missing = {name for name in source if "__pycache__" not in name} - set(names)
    assert not missing
    version = (ROOT / "sidestep/__init__.py").read_text().partition('__version__ = "')[2].partition('"')[0]
    assert f"\nVersion: {version}\n" in text
    needed = [line for line in text.splitlines() if line.startswith("Requires-Dist") and "extra ==" not in line]
    assert not any("scikit-learn" in line for line in needed)
    assert "## From Python" in text, "the package index shows the README"
    assert not re.search(r"\]\((?!https://)", text), "a link into the repository leads nowhere there"


def test_solve_plan_and_demo_work_outside_of_the_repository(outside):
    folder, run = outside
    (folder / "script.py").write_text(SCRIPT)
    solved = run("python", "script.py")
    assert solved.returncode == 0, solved.stderr
    place, *told = solved.stdout.splitlines()
    assert Path(place).is_relative_to(folder)
    assert told[0].startswith("yard: ")
    (folder / "yard.nav").write_text("S.@..\n.....\n..@.G\n")
    (folder / "options.toml").write_text(OPTIONS)
    assert run("sidestep", "plan", "--config", "options.toml").returncode in (0, 1)
    assert json.loads((folder / "planned/result.json").read_text())["rollouts"] == 100
    demo = run("sidestep", "demo", "--quick", "--out", "demo")
    assert demo.returncode in (0, 1), demo.stderr
    assert (folder / "demo/report.html").is_file()
