"""Domains of rddlrepository that were refused or simulated with forbidden actions; the whole table is a benchmark."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from sidestep.core.errors import InputError
from sidestep.core.model import UniformPolicy, forbidden, rollout
from sidestep.models import load_model
from sidestep.models.check import check_model

pytest.importorskip("rddlrepository")

spec = importlib.util.spec_from_file_location(
    "rddl_domains", Path(__file__).parents[1] / "benchmarks" / "rddl_domains.py"
)
table = importlib.util.module_from_spec(spec)
spec.loader.exec_module(table)


def reference(name):
    domain, instance = table.domains()[name]
    return f"{domain}:{instance}"


@pytest.mark.parametrize(
    ("name", "ways"),
    [
        ("arcade/Tetris", ("linear", "count")),
        ("or/Option", ()),
        ("or/BinPacking", ("linear", "count")),
        ("or/Knapsack", ()),
        ("arcade/Blackjack", ()),
        ("standalone/Intruders/Discrete", ()),
        ("competitions/IPPC2014/Tamarisk/MDP", ("count",)),
        ("competitions/IPPC2014/TriangleTireworld/MDP", ("count",)),
        ("competitions/IPPC2018/PushYourLuck", ("linear", "rejection")),
        ("competitions/IPPC2018/EarthObservation", ("masks", "rejection")),
        ("competitions/IPPC2018/AcademicAdvising", ("masks", "linear")),
        ("competitions/IPPC2018/WildlifePreserve", ("linear",)),
        ("or/TSP", ("linear", "rejection", "count")),
    ],
)
def test_domains_load_and_keep_their_rules(name, ways, key):
    model = load_model(reference(name))
    assert model.ways == ways
    if ways in ((), ("count",)):
        assert (model.allowed is None) == (ways == ())
        return
    trajectory = rollout(model, UniformPolicy(model), key, 8, min(model.spec.horizon, 10))
    assert forbidden(model, trajectory) is None
    asked, allowed = table.asked_of_pyrddlgym(model, trajectory, *table.domains()[name])
    assert asked > 5
    assert allowed == asked
    assert len(np.unique(np.asarray(trajectory.actions)[np.asarray(trajectory.mask)], axis=0)) > 1


@pytest.mark.parametrize(
    ("name", "action"),
    [
        ("or/SupplyChain", "ship"),
        ("rddlsim/Workforce", "train"),
        ("standalone/TrafficBLX/ComplexPhases", "set-phase"),
    ],
)
def test_domains_whose_integers_have_no_bounds_ask_for_a_range(name, action):
    with pytest.raises(
        InputError, match=rf"domain\.rddl:\d+: the action-fluent '{action}' is an integer without bounds"
    ):
        load_model(reference(name))
    model = load_model(f"{reference(name)}?integers=0..4")
    np.testing.assert_array_equal(model.spec.action.take(model.spec.action.high[None], action), 4.0)


@pytest.mark.mixes_types("pow[x, 2] of its text: JAX differentiates it by promoting the exponent")
def test_the_gradient_of_the_wild_quadcopter_is_right(key):
    """Steps of 1e-5 are too long for differences of a return whose derivatives grow to 1e16."""
    name = reference("physics/Quadcopter")
    findings = check_model(load_model(name), key, lambda: load_model(name, double=True))
    said = [finding for finding in findings if finding.what == "gradient"]
    assert [finding.verdict for finding in said] == ["good", "note"]
    assert "depends wildly on the actions" in said[1].found
