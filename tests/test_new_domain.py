"""A domain is added by a folder, tests/domains/orchard: every command knows it, and no other file names it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sidestep.cli.main import main
from sidestep.core.errors import InputError
from sidestep.deploy.answers import load
from sidestep.labels.rules import load_rule
from sidestep.models import load_model
from sidestep.models.domains import add_folder, all_domains, find_domain
from sidestep.planning.presets import preset_for

ORCHARD = Path(__file__).parent / "domains" / "orchard"
PACKAGE = Path(__file__).parents[1] / "sidestep"
DOMAINS = ("navigation", "hvac", "reservoir", "boxpushing", "driving")


@pytest.fixture(autouse=True)
def no_added_folders(monkeypatch):
    monkeypatch.setattr("sidestep.models.domains._folders", {})


def in_a_process(*arguments, path=None):
    places = os.pathsep.join(map(str, [PACKAGE.parent, *([path] if path else [])]))
    environment = os.environ | {"PYTHONPATH": places}
    command = [sys.executable, "-m", "sidestep", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_an_added_domain_is_listed_checked_planned_and_drawn(tmp_path, capsys):
    add_folder(ORCHARD)
    assert list(all_domains()) == [*sorted(DOMAINS), "orchard"]
    assert main(["models"]) == 0
    assert re.search(r"\norchard +a robot walks through an orchard to +map, horizon", capsys.readouterr().out)
    assert main(["check", "orchard"]) == 0
    assert "Walk to the gate" in capsys.readouterr().out

    assert main(["plan", "orchard", "--out", str(tmp_path / "run"), "--quiet"]) == 0
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["model"] == "orchard"
    assert [one["text"] for one in result["constraints"]] == ["trodden<=0.05"], "the rule's own default"
    assert set(result["side_effects"]) == {"clean", "muddy", "trodden"}
    assert result["constraints"][0]["upper"] <= 0.05
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Left out" not in page
    assert "After: the final policy (the walk on the map)." in page
    assert "After: the final policy (steps to the gate, as the crow walks, over time)." in page
    assert load(tmp_path / "run").model.spec.family == "orchard"


def test_a_file_with_the_domains_ending_is_a_model_and_a_run_keeps_a_copy(tmp_path):
    add_folder(ORCHARD)
    file = tmp_path / "small.orchard"
    file.write_text("S~G\n...\n")
    model = load_model(str(file))
    assert (model.spec.name, model.spec.family, model.spec.horizon) == ("small", "orchard", 500)
    assert model.side_effect[2:4].tolist() == [[1] * 4, [0] * 4], "mud, and nothing after the end"
    assert load_rule(None, model).name == "gardener"
    assert main(["plan", str(file), "--constraint", "muddy+<=0.05", "--out", str(tmp_path / "run"), "--quiet"]) == 0
    assert (tmp_path / "run/inputs/small.orchard").read_text() == "S~G\n...\n"


def test_a_report_needs_no_domain(tmp_path):
    """The run kept its views and where each step is in them: a process that does not know the domain draws the same."""
    add_folder(ORCHARD)
    assert main(["plan", "orchard", "--out", str(tmp_path / "run"), "--quiet"]) == 0
    page = (tmp_path / "run/report.html").read_text()
    (tmp_path / "run/report.html").unlink()
    finished = in_a_process("report", tmp_path / "run")
    assert finished.returncode == 0, finished.stderr
    again = (tmp_path / "run/report.html").read_text()
    pictures = [re.findall("<svg.*?</svg>", one, re.DOTALL) for one in (page, again)]
    assert pictures[0] == pictures[1]
    assert "After: the final policy (steps to the gate, as the crow walks, over time)." in again
    assert in_a_process("certify", tmp_path / "run").returncode == 2, "to roll out again the domain is needed"


def test_an_installed_package_offers_a_domain(tmp_path):
    (tmp_path / "orchard_package").symlink_to(ORCHARD)
    about = tmp_path / "orchard-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: orchard\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[sidestep.domains]\norchard = orchard_package:DOMAIN\n")
    listed = in_a_process("models", path=tmp_path)
    assert listed.returncode == 0, listed.stderr
    assert "a robot walks through an orchard" in listed.stdout
    finished = in_a_process("limits", "orchard?horizon=60", "--json", path=tmp_path)
    assert finished.returncode == 0, finished.stderr
    found = json.loads(finished.stdout)
    assert found["rule"] == "gardener"
    free, safe = (one for one in found["limits"] if one["discount"] == 1.0)
    assert safe["return"] < -8 < free["return"] < -4, "the way around the seedlings is longer"
    assert safe["side_effects"]["penalty"] == pytest.approx(0.0, abs=1e-6)

    (about / "entry_points.txt").write_text("[sidestep.domains]\norchard = orchard_missing:DOMAIN\n")
    broken = in_a_process("check", "orchard", path=tmp_path)
    assert broken.returncode == 2
    assert "domain 'orchard' of the installed orchard_missing:DOMAIN: cannot be imported" in broken.stderr
    assert in_a_process("limits", "driving", path=tmp_path).returncode == 0, "others do not suffer"


IMPORT = "from sidestep.models.domain import Domain"
BROKEN = {
    "": "its DOMAIN must be a Domain, not a NoneType",
    "DOMAIN = 3": "its DOMAIN must be a Domain, not a int",
    "import nothing_of_this_name": "cannot be imported: ModuleNotFoundError",
    "DOMAIN = (": "__init__.py:1: cannot be imported: SyntaxError",
    f"{IMPORT}\nDOMAIN = Domain('driving', 'mine', __name__)": "there is another domain 'driving'",
    f"{IMPORT}\nDOMAIN = Domain('mine', 'mine', 'elsewhere')": "write package=__name__",
}


@pytest.mark.parametrize("text", BROKEN)
def test_a_folder_that_is_no_domain(text, tmp_path):
    (tmp_path / "__init__.py").write_text(text)
    with pytest.raises(InputError) as caught:
        add_folder(tmp_path)
    assert BROKEN[text] in str(caught.value)
    (tmp_path / "__init__.py").unlink()
    with pytest.raises(InputError, match=r"has an __init__\.py with a DOMAIN"):
        add_folder(tmp_path)


def test_what_a_domain_raises_is_said_with_its_line(tmp_path, capsys):
    (tmp_path / "__init__.py").write_text((ORCHARD / "__init__.py").read_text())
    (tmp_path / "model.py").write_text("def build(options, double):\n    return 1 / 0\n")
    add_folder(tmp_path)
    assert main(["check", "orchard"]) == 2
    assert f"{tmp_path}/model.py:2: this line failed: ZeroDivisionError" in capsys.readouterr().err


def test_parts_that_a_domain_leaves_out(tmp_path):
    """Only a model is needed: then people label, and the first entries of the state are drawn."""
    (tmp_path / "__init__.py").write_text((ORCHARD / "__init__.py").read_text())
    domain = add_folder(tmp_path)
    assert dict(domain.rules) == {}
    assert domain.views(None) == []
    assert domain.paper.planner == {}
    assert add_folder(tmp_path) is domain is find_domain("orchard")
    with pytest.raises(InputError, match="there is another domain 'orchard'"):
        add_folder(ORCHARD)


def test_every_built_in_domain_is_complete():
    for name in DOMAINS:
        domain = find_domain(name)
        assert domain is not None
        files = {path.name for path in (PACKAGE / "models" / "domains" / name).iterdir()}
        assert {"__init__.py", "model.py", "rule.py", "drawing.py"} <= files
        assert next(iter(domain.rules)) == "paper"


def test_the_papers_presets_take_a_domains_settings():
    add_folder(ORCHARD)
    assert preset_for(load_model("orchard"), "paper").multiplier.start == 3.0
    assert preset_for(load_model("boxpushing"), "paper").multiplier.start == 20.0
