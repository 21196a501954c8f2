"""`sidestep limits`: the known figures, bounds between the extremes, and what it says when there is no answer."""

import json
from importlib.resources import files
from pathlib import Path

import pytest

from sidestep.cli.main import main
from sidestep.models.domains import find_domain

SHARED = Path(__file__).parents[2] / "shared" / "maps"
# map: best without side effects (plain, discounted), and the best of all
KNOWN = {
    "boxpushing/grid-3-t1.bp": (-30.670, -26.514, -30.411),
    "boxpushing/grid-3-t2.bp": (-30.361, -26.288, -30.317),
    "boxpushing/grid-3-t3.bp": (-30.410, -26.325, -30.365),
    "driving/grid-3-t3.nav": (-28.830, -25.192, -28.125),
    "driving/grid-3-t5.nav": (-28.377, -24.839, -28.125),
}
AROUND = "SB.F..G\n..x.x..\n.......\n"  # the short way crosses fragile ground, the long one does not
NARROW = "SB.F..G\n"

# Beside a ledge of fragile ground: without any side effect one can only wait to be pushed along by the slips.
LEDGE = "S....\n...B.\nxx.Fx\nxx.Fx\nxx.Fx\nxx.Fx\nxx.Fx\nG....\n"

INFINITE = """
import jax.numpy as jnp
from sidestep.core.model import Space, Spec, Variable

class Walk:
    spec = Spec("walk", Space((Variable("x"),)), Space((Variable("step", low=-1.0, high=1.0),)), 5, ends=False)

    def reset(self, key):
        return jnp.zeros(1)

    def step(self, state, action, key):
        return state + action, jnp.sum(state), jnp.asarray(False)
"""


@pytest.fixture
def around(tmp_path):
    path = tmp_path / "around.bp"
    path.write_text(AROUND)
    return str(path)


def limits(capsys, *arguments):
    status = main(["limits", *arguments, "--json"])
    return status, json.loads(capsys.readouterr().out)["limits"]


@pytest.mark.parametrize("name", KNOWN)
def test_known_figures(name, capsys):
    if not (SHARED / name).exists():
        pytest.skip(f"the map {SHARED / name} is not on this machine")
    status, found = limits(capsys, str(SHARED / name))
    safe, safe_discounted, free = KNOWN[name]
    assert status == 0
    assert [limit["constraints"] for limit in found] == [[], [], ["penalty<=0"], ["penalty<=0"]]
    assert [limit["discount"] for limit in found] == [1.0, 0.99, 1.0, 0.99]
    assert found[0]["return"] == pytest.approx(free, abs=1e-3)
    assert found[2]["return"] == pytest.approx(safe, abs=1e-3)
    assert found[3]["return"] == pytest.approx(safe_discounted, abs=1e-3)
    assert found[2]["side_effects"] == pytest.approx({"mild": 0.0, "severe": 0.0, "penalty": 0.0}, abs=1e-6)


def test_a_bound_between_the_extremes_is_used_up_and_costs_something(around, capsys):
    _, found = limits(capsys, around, "--constraint", "mild+<=0.5")
    free, _, bounded, _ = found
    _, (_, _, never, _) = limits(capsys, around, "--constraint", "mild<=0", "--constraint", "penalty<=1")
    assert free["side_effects"]["mild"] > 0.5
    assert bounded["side_effects"]["mild"] == pytest.approx(0.5, abs=1e-6)
    assert free["return"] > bounded["return"] + 1e-3 > never["return"] + 2e-3
    assert never["constraints"] == ["mild<=0", "penalty<=1"]


def test_over_runs_of_the_horizon_chance_number_and_no_side_effect_are_told_apart(tmp_path, capsys):
    path = tmp_path / "ledge.bp"
    path.write_text(LEDGE)
    assert main(["limits", str(path), "--constraint", "none>=0.9", "--json"]) == 0
    rows = {row["bounds"]: row for row in json.loads(capsys.readouterr().out)["in_horizon"]}
    free, chance, number, never = (rows[name] for name in ("nothing", "chance", "number", "never"))
    assert free["return"] > chance["return"] > number["return"] > never["return"] > -500
    assert chance["chances"]["none"] == pytest.approx(0.9, abs=1e-9)
    assert number["side_effects"]["mild"] == pytest.approx(0.1, abs=1e-9)
    assert number["chances"]["mild"] < 0.1 < chance["side_effects"]["mild"]
    assert never["chances"] == pytest.approx({"none": 1.0, "mild": 0.0, "severe": 0.0}, abs=1e-12)
    assert never["ended"] < chance["ended"] < free["ended"]
    assert all(row["horizon"] == 500 for row in rows.values())
    assert main(["limits", str(path), "--constraint", "penalty<=1"]) == 0
    said = capsys.readouterr().out
    assert "in runs of 500 steps" in said
    assert "chance penalty" not in said, "a sum of penalties has no chance"


def test_an_infeasible_bound_is_an_answer_with_status_1(tmp_path, capsys):
    path = tmp_path / "narrow.bp"
    path.write_text(NARROW)
    status, found = limits(capsys, str(path), "--constraint", "mild<=0.5")
    assert status == 1
    # With a discount one may stand still for ever, which breaks no bound.
    assert [limit["feasible"] for limit in found] == [True, True, False, True]
    assert found[3]["return"] < found[1]["return"] - 10
    assert "the least that can be reached is 1." in found[2]["reason"]
    assert main(["limits", str(path), "--constraint", "mild<=0.5"]) == 1
    said = capsys.readouterr().out
    assert "infeasible" in said
    assert "no policy meets mild <= 0.5" in " ".join(said.split())


def test_the_table_names_the_problem_both_discounts_and_the_side_effects(around, capsys):
    assert main(["limits", around, "--discount", "0.9"]) == 0
    said = capsys.readouterr().out
    for word in ("unconstrained", "within penalty<=0", "0.9", "mild", "severe", "penalty"):
        assert word in said


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--constraint", "severe>=0.95"], "from above"),
        (["--constraint", "awful<=0"], "there is no 'awful' to bound; there are mild, severe, penalty"),
        (["--constraint", "mild<=x"], "from above"),
        (["--discount", "1.5"], "must be less than 1, not 1.5"),
        (["--rule", "nothing"], "expected paper, share or file.py:function"),
    ],
)
def test_bad_input_gets_one_sentence(around, arguments, sentence, capsys):
    assert main(["limits", around, *arguments]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1


def test_a_model_that_is_not_finite_is_refused(tmp_path, capsys):
    path = tmp_path / "walk.py"
    path.write_text(INFINITE)
    assert main(["limits", f"{path}:Walk"]) == 2
    assert "'walk' is not a finite model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "command", "constraint"),
    [
        ("navigation", "python benchmarks/frontier.py", "none>=0.95"),
        ("hvac", "python benchmarks/bounds.py", "none>=0.95"),
        ("reservoir", "python benchmarks/bounds.py", "none>=0.8"),
    ],
)
def test_a_domain_that_is_not_finite_names_the_command_that_computes_its_limits(name, command, constraint, capsys):
    assert main(["limits", name]) == 2
    assert f"`{command}` computes it, with its error" in capsys.readouterr().err
    kept = json.loads((files(find_domain(name).package) / "limits.json").read_text())
    assert kept["command"] == command
    best = find_domain(name).best_known
    assert best == kept["best"]
    assert all(best[each] < most for each, most in kept.get("at most", {}).items())
    if "" in best:
        assert best[""] > best[constraint]


def test_known_limits_are_those_that_others_found():
    """Navigation's and HVAC's, from a dynamic program and a program of another author."""
    navigation, hvac = (find_domain(name).best_known for name in ("navigation", "hvac"))
    assert navigation[""] == pytest.approx(-74.61, abs=0.05)
    assert navigation["none>=0.95"] == pytest.approx(-86.5, abs=0.1)
    assert hvac[""] == pytest.approx(-481_926, abs=2)
    assert hvac["none>=0.95"] == pytest.approx(-482_188, abs=5)
