"""The planner's options: each one has an effect or is refused, and a run's config.json gives them back."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args, get_origin

import jax
import pytest

from sidestep.cli.main import _parse, main
from sidestep.core.constraints import Scale
from sidestep.core.errors import InputError
from sidestep.core.records import to_json
from sidestep.planning.config import PlanConfig
from sidestep.planning.methods import PID, PPO, Exact, Pathwise, PathwiseCost, Projected, Score, Search
from sidestep.planning.options import config_from_json, flattened, plan_options, require_constraints, with_options
from sidestep.planning.presets import PRESETS, preset
from sidestep.safety.hazard import HazardModel
from sidestep.safety.io import save_safety

OPTIONS = plan_options()
METHODS = {
    "default": preset("default"),
    "model-free": preset("default", gradient="none"),
    "exact": preset("default", finite=True),
    "paper": preset("paper"),
    "pid": replace(preset("default"), multiplier=PID()),
    "grid": preset("paper", finite=True),
}


def other_value(name, kind, current):
    """A value of this type, within its range, that is not the current one."""
    if name == "search_population":
        return 512
    if name in ("epochs", "test_every"):
        return current * 2 if name == "epochs" else current // 5
    if get_origin(kind) is Literal:
        return next(choice for choice in get_args(kind) if choice != current)
    if kind is bool:
        return not current
    if kind is int:
        return (current or 0) + 1
    if kind is float:
        return 0.5 * current if current else 0.5
    return (5, 6)


def as_arguments(name, value):
    values = value if isinstance(value, tuple) else (value,)
    return [f"--{name.replace('_', '-')}", *map(str, values)]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_of_the_planner_changes_the_plan_or_is_refused(name, method):
    """From the command line's words to the configuration that `plan --safety` trains with."""
    config = METHODS[method]
    before = flattened(config)
    value = other_value(name, OPTIONS[name][0], before.get(name))
    words = ["plan", "navigation", "--safety", "nav.safetensors", *as_arguments(name, value)]
    given = _parse(words).planning
    assert given == {name: value}
    idle = name == "log_cap" and before.get("constraint_form") == "probability"
    if name in before and not idle and not (name == "constraint_gradient" and method == "exact"):
        after = with_options(config, given)
        assert after != config
        assert flattened(after)[name] == value
    else:
        with pytest.raises(InputError, match=f"^option --{name.replace('_', '-')}: .*; "):
            with_options(config, given)


def test_every_option_belongs_to_some_method():
    assert set().union(*(flattened(config) for config in METHODS.values())) | {"violation_max"} == set(OPTIONS)


def test_another_method_keeps_what_both_have_and_takes_what_was_given_for_it():
    config = with_options(preset("paper"), {"multiplier": "pid", "pid_derivative": 0.7, "reward_gradient": "pathwise"})
    assert config.multiplier == PID(start=2.0, rate=0.003, max=200.0, derivative=0.7)
    assert config.reward == Pathwise(noise_start=0.6)
    assert with_options(config, {"search_rounds": 3}).search == Search(rounds=3)
    assert with_options(preset("default"), {"search_rounds": 0}).search is None


def test_the_exact_gradient_brings_the_constraints_own():
    config = with_options(preset("default"), {"reward_gradient": "exact", "observe": "state"})
    assert config.reward == Exact()
    assert config.constraint is None
    with pytest.raises(InputError, match="--constraint-gradient"):
        PlanConfig(reward=Exact(), constraint=Score())


def test_without_constraints_their_options_are_refused():
    config = preset("ppo")
    for given in ({"margin": 0.1}, {"multiplier": "pid"}, {"multiplier_rate": 1.0}, {"ppo_joint": True}):
        with pytest.raises(InputError, match="no effect, since there are no constraints"):
            require_constraints(config, given)
    require_constraints(config, {"ppo_clip": 0.1, "epochs": 50})
    require_constraints(preset("default"), {"discount_training": True})


@pytest.mark.parametrize(
    ("wrong", "place"),
    [
        (lambda: PPO(minibatch=0), "option --ppo-minibatch: must be at least 1, not 0"),
        (lambda: Pathwise(noise_end=0.0), "option --noise-end: must be greater than 0, not 0.0"),
        (lambda: Exact(start_share=1.5), "option --start-share: must be at most 1, not 1.5"),
        (lambda: PathwiseCost(cap=float("nan")), "option --log-cap: must be a finite number, not nan"),
        (lambda: Search(population=100), "option --search-population: must be at least 256, not 100"),
        (lambda: PlanConfig(widths=(8, 0)), "option --widths: must be at least 1, not 0"),
        (lambda: PlanConfig(epochs=70), "option --epochs: 70 is not a multiple of 50"),
        (lambda: with_options(PlanConfig(), {"colour": 1}), "option --colour: the planner has no such option"),
    ],
)
def test_values_outside_their_range_are_refused_by_the_option_s_name(wrong, place):
    with pytest.raises(InputError) as refused:
        wrong()
    assert str(refused.value).startswith(place)


@pytest.mark.parametrize("finite", [False, True])
@pytest.mark.parametrize("name", PRESETS)
def test_a_configuration_comes_back_from_json(name, finite):
    config = replace(preset(name, finite=finite), multiplier=Projected(violation_max=0.5))
    written = json.loads(json.dumps(to_json(config)))
    assert config_from_json(written, "config.json", finite=finite) == config


def test_a_damaged_configuration_is_refused_by_its_field():
    written = to_json(preset("default"))
    for damage, words in (
        ({"reward": {"kind": "newton"}}, "'reward' must have a 'kind', one of pathwise, ppo, exact"),
        ({"reward": {"kind": "ppo", "clip": "much"}}, "'clip' must be a number, not 'much'"),
        ({"epochs": "all"}, "'epochs' must be a whole number, not 'all'"),
    ):
        with pytest.raises(InputError) as refused:
            config_from_json({**written, **damage}, "config.json", finite=False)
        assert words in str(refused.value)
        assert str(refused.value).startswith("config.json")


def old_settings():
    """The settings that the version before this form wrote for its presets, as they stand in its config.json."""
    lines = (Path(__file__).parent / "format_1_settings.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("old", old_settings(), ids=lambda old: "-".join([old["preset"], *old["of"]]))
def test_settings_of_older_runs_are_the_same_configuration(old):
    finite = old["of"].get("finite", False)
    today = replace(preset(old["preset"], **old["of"]), lookahead=None)  # they had none
    assert config_from_json(old["settings"], "config.json", finite=finite) == today


def test_the_command_line_refuses_an_option_that_the_method_does_not_have(tmp_path, capsys):
    file = tmp_path / "safety.safetensors"
    safety = HazardModel(2, 2, 3, key=jax.random.key(1), units=4, encoder=())
    save_safety(file, safety, Scale(), ("x", "y", "a", "b"))
    words = ["plan", "navigation", "--safety", str(file), "--constraint", "none>=0.95", "--out", str(tmp_path / "run")]
    assert main([*words, "--ppo-clip", "0.1"]) == 2
    assert capsys.readouterr().err == (
        "sidestep: option --ppo-clip: the pathwise reward gradient has no such option; "
        "choose --reward-gradient ppo for it\n"
    )
    assert main([*words, "--constraint-gradient", "none"]) == 2
    assert "--constraint-gradient" in capsys.readouterr().err
    assert main(["plan", "navigation", "--method", "ppo", "--margin", "0.1", "--out", str(tmp_path / "run")]) == 2
    assert "option --margin: has no effect, since there are no constraints" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
