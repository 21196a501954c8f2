"""Campaigns on labelled steps plan with the tolerance that was asked for, and certify what they plan."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sidestep
from sidestep.campaign.campaign import Campaign
from sidestep.campaign.config import CampaignConfig
from sidestep.campaign.pairs import PairStrategy
from sidestep.campaign.setting import Setting
from sidestep.certification.proof import contradicted, prove
from sidestep.cli.main import main
from sidestep.core.constraints import Scale, parse_constraints
from sidestep.core.errors import Infeasible, InputError, LabelsNeeded
from sidestep.deploy.acting import PolicyRunner
from sidestep.deploy.export import export_numpy
from sidestep.finite.horizon import Limit, horizon_optimum
from sidestep.finite.runs import prospect
from sidestep.finite.tabular import horizon_policy
from sidestep.labels.experts import PeopleExpert, RuleExpert
from sidestep.labels.rules import load_rule
from sidestep.labels.store import Store
from sidestep.models.domains.boxpushing.model import Boxpushing
from sidestep.models.python_model import load_object
from sidestep.planning.config import PlanConfig
from sidestep.policies.files import load_policy, save_policy
from sidestep.runs.folder import Run

LEDGE = "S....\n...B.\nxx.Fx\nxx.Fx\nxx.Fx\nG....\n"
HORIZON = 40
WORSE = (0.0, 1.0, 1.0)


@pytest.fixture(scope="module")
def ledge():
    return Boxpushing(LEDGE, name="boxpushing", horizon=HORIZON)


def optimum(model, tolerance, counts=False):
    return horizon_optimum(
        model.finite, model.spec.horizon, model.side_effect, [Limit(WORSE, tolerance, counts=counts)]
    ).value


def setting(folder, model, texts, expert=None, **options):
    folder.mkdir(exist_ok=True)
    file = folder / "labels.store"
    store = Store.open(file) if file.exists() else Store.create(file, model.spec, Scale())
    expert = expert or RuleExpert(load_rule(None, model))
    about = ("default", 3, "ledge", lambda stage, record: None)
    constraints = parse_constraints(texts, Scale())
    config = CampaignConfig(**({"rollouts": 20_000} | options))
    return Setting(Run(folder), model, expert, constraints, store, config, PlanConfig(), *about)


@pytest.mark.parametrize("tolerance", ["0.05", "0"])
def test_a_campaign_earns_what_the_tolerance_allows_and_proves_it(ledge, tolerance, tmp_path):
    """Rollouts would need more room than a tenth of the return; a tolerance of zero they cannot prove at all."""
    result = Campaign(setting(tmp_path / "run", ledge, [f"mild+<={tolerance}"])).run()
    best = optimum(ledge, float(tolerance))
    assert result.certified
    assert result.constraints[0].proof == "exact"
    assert result.constraints[0].upper <= float(tolerance)
    assert result.steps.planned_return == pytest.approx(best, abs=0.05)
    assert result.steps.optimum == pytest.approx(best, abs=1e-4)
    assert result.steps.avoiding == pytest.approx(optimum(ledge, 0.0), abs=1e-6)
    assert result.returns.mean == pytest.approx(best, abs=5 * result.returns.std / np.sqrt(20_000))
    assert result.labels_used < ledge.finite.reward.size / 2
    policy = load_policy(tmp_path / "run" / "policy.safetensors", ledge)
    true = prospect(ledge, policy, ledge.side_effect, 3)
    assert float(true.chances[1:].sum()) <= float(tolerance)
    assert result.evaluation.policy == ("sampled" if len(policy.weights) > 1 else "mean")
    if tolerance == "0":
        assert result.steps.used == "avoid"
        assert result.constraints[0].upper == 0.0
        assert true.never.tolist() == [False, True, True]
    else:
        assert result.steps.used == "chance"
        assert result.steps.planned_return > result.steps.avoiding + 1.0
        assert "to avoid them altogether would earn" in "".join(sidestep_lines(result))


def sidestep_lines(result):
    from sidestep.certification.words import certificate_lines

    return certificate_lines(result)


class TestPlans:
    """What the tolerance bounds, where every label is known."""

    def plan(self, tmp_path, model, texts, **options):
        return PairStrategy(setting(tmp_path / "plan", model, texts, **options))._plan(model.side_effect.ravel())

    def test_each_choice_bounds_what_it_says(self, ledge, tmp_path):
        plans = {
            used: self.plan(tmp_path, ledge, ["mild+<=0.1"], step_tolerance=used)
            for used in ("chance", "number", "avoid")
        }
        assert [plan.used for plan in plans.values()] == ["chance", "number", "avoid"]
        values = [plan.optimum.value for plan in plans.values()]
        assert values[0] == pytest.approx(optimum(ledge, 0.1), abs=0.01)
        assert values[1] == pytest.approx(optimum(ledge, 0.1, counts=True), abs=0.01)
        assert values[2] == pytest.approx(optimum(ledge, 0.0), abs=1e-9)
        assert values[0] > values[1] > values[2]

    def test_avoiding_is_the_default_where_it_costs_nothing(self, tmp_path):
        open_yard = Boxpushing("SB...G\n......\n@.....\n", name="boxpushing", horizon=HORIZON)
        assert self.plan(tmp_path, open_yard, ["mild+<=0.05"]).used == "avoid"
        assert self.plan(tmp_path, open_yard, ["mild+<=0.05"], step_tolerance="chance").used == "chance"

    def test_room_for_an_audit_where_it_costs_little(self, ledge, tmp_path):
        """Near the unconstrained optimum the return hardly falls with the tolerance."""
        slack = 0.9 * (1.0 - float(prospect_of(ledge).chances[0]))
        plan = self.plan(tmp_path, ledge, [f"mild+<={slack:.3f}"], rollouts=1_000_000)
        assert plan.proof == "rollouts"
        assert plan.optimum.limit_values[0] < slack
        few = self.plan(tmp_path, ledge, ["mild+<=0.05"], rollouts=10)
        assert few.proof == "exact", "ten rollouts prove nothing"

    def test_what_cannot_be_avoided_is_said(self, tmp_path):
        lost = Boxpushing("SB\nG.\n", name="boxpushing", horizon=HORIZON)
        bad = replace_side_effect(lost)
        with pytest.raises(Infeasible, match="no policy avoids all side effects in runs of 40 steps"):
            self.plan(tmp_path, bad, ["mild+<=0.05"], step_tolerance="avoid")


def prospect_of(model):
    free = horizon_optimum(model.finite, model.spec.horizon, model.side_effect)
    return prospect(model, horizon_policy(free, model), model.side_effect, 3)


def replace_side_effect(model):
    """The same map, on which every step is mild."""
    model.side_effect = np.ones_like(model.side_effect)
    return model


def test_people_who_labelled_every_pair_have_a_proof(ledge, tmp_path):
    rule, people = load_rule(None, ledge), PeopleExpert(Scale(), labels_steps=True)
    asked = []
    for _ in range(20):
        one = setting(tmp_path / "people", ledge, ["none>=1"], people)
        try:
            result = Campaign(one).run()
            break
        except LabelsNeeded as needed:
            asked += needed.ids
            one.store.label(needed.ids, rule.label(one.store.get(needed.ids)), annotator="ann")
    assert result.certified
    assert (result.constraints[0].lower, result.constraints[0].proof) == (1.0, "exact")
    assert len(asked) == len(set(asked)) == result.labels_used, "the proof asks for nothing new"


def test_rollouts_that_contradict_a_proof_are_noticed(ledge):
    constraints = parse_constraints(["mild+<=0.2"], Scale())
    found = horizon_optimum(ledge.finite, HORIZON, ledge.side_effect, [Limit(WORSE, 0.2)])
    verdicts = prove(ledge, horizon_policy(found, ledge), constraints, ledge.side_effect)
    assert contradicted(verdicts, constraints, [400, 100, 0]) is None
    assert "not as bad as its worst step" in contradicted(verdicts, constraints, [200, 300, 0])
    assert "not as bad as its worst step" in contradicted(verdicts, constraints, [500, 0, 0])


def test_a_policy_of_clock_and_memory_is_saved_loaded_and_exported(ledge, tmp_path):
    found = horizon_optimum(ledge.finite, HORIZON, ledge.side_effect, [Limit(WORSE, 0.03)])
    policy = horizon_policy(found, ledge)
    assert len(policy.weights) == 2
    assert policy.which.shape[1] > 1, "the clock matters here"
    save_policy(tmp_path / "policy.safetensors", policy, "ledge")
    again = load_policy(tmp_path / "policy.safetensors", ledge)
    for one, other in zip(policy.schedule, again.schedule, strict=True):
        np.testing.assert_array_equal(one, other)
    single = replace(policy, weights=jnp.ones(1), which=policy.which[1:])
    export_numpy(single, tmp_path / "single.py")
    numpy_policy = load_object(f"{tmp_path / 'single.py'}:Policy", "policy")()
    runner = PolicyRunner(single)
    for state in np.asarray(ledge.finite.encoding)[np.random.default_rng(0).permutation(len(found.letters))[:60]]:
        np.testing.assert_array_equal(numpy_policy.act(state), runner.act(state, jax.random.key(0)))
    export_numpy(policy, tmp_path / "mixed.py")
    mixed = load_object(f"{tmp_path / 'mixed.py'}:Policy", "policy")()
    with pytest.raises(ValueError, match="draws at random"):
        mixed.act(np.asarray(ledge.finite.encoding)[0])
    with pytest.raises(InputError, match="draws at random"):
        PolicyRunner(policy).act(np.asarray(ledge.finite.encoding)[0])
    mixed.act(np.tile(np.asarray(ledge.finite.encoding)[0], (4000, 1)), np.random.default_rng(1))
    assert np.mean(mixed.memory[0].kept[0]) == pytest.approx(float(policy.weights[1]), abs=0.03)


def test_the_command_says_what_was_bounded_and_certify_proves_zero_again(tmp_path, capsys):
    path = tmp_path / "ledge.bp"
    path.write_text(LEDGE)
    run = str(tmp_path / "run")
    words = ["plan", f"{path}?horizon={HORIZON}", "--constraint", "mild+<=0", "--rollouts", "1000", "--out", run]
    assert main([*words, "--quiet"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "side effects are avoided altogether" in said
    assert "mild+<=0: 0, computed exactly: certified" in said
    assert main(["certify", run, "--rollouts", "1000", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["constraints"][0]["proof"] == "exact"
    assert again["audits"] == 2
    assert sidestep.load(run).certificate.steps.used == "avoid"
