"""The main job: the ladder, the choice among candidates, and whole small campaigns, stopped and resumed."""

import json
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sidestep.campaign.campaign import Campaign
from sidestep.campaign.choice import beliefs, believed_costs, challenger, favourite, optimism
from sidestep.campaign.config import POLISH_TEST, CampaignConfig
from sidestep.campaign.evidence import best_harmless, varied
from sidestep.campaign.records import Candidate
from sidestep.campaign.schedule import SLOTS, certifiable, certifiable_costs, tolerance_schedule
from sidestep.campaign.setting import Setting
from sidestep.certification.bounds import CERTIFYING
from sidestep.certification.records import KnownCase
from sidestep.core.constraints import Scale, parse_constraints
from sidestep.core.errors import InputError, LabelsNeeded
from sidestep.core.model import Trajectory, rollout
from sidestep.deploy.answers import load
from sidestep.finite.occupancy import Bound, occupancy_lp
from sidestep.finite.values import evaluate, from_start, value_iteration
from sidestep.labels.experts import PeopleExpert, RuleExpert
from sidestep.labels.rules import Rule, load_rule
from sidestep.labels.store import Store
from sidestep.models import load_model
from sidestep.models.domains.driving.model import Driving
from sidestep.planning.bank import select_starts
from sidestep.planning.config import PlanConfig
from sidestep.planning.methods import Pathwise
from sidestep.planning.table_bank import TESTS, PairHazards, TableBank
from sidestep.policies.networks import make_policy, with_memory
from sidestep.runs.folder import Run
from sidestep.safety.base import predict
from sidestep.safety.io import make_safety

NONE = parse_constraints(["none>=0.95"], Scale())


def quiet(stage, figures):
    pass


class TestSchedule:
    def test_begins_wide_and_ends_within_what_an_audit_certifies(self):
        aim = certifiable(NONE[0], 2000, 0.975)
        assert 0.03 < aim < 0.04
        first, last = (tolerance_schedule(NONE, np.array([aim]), progress, 1.0) for progress in (0.0, 1.0))
        assert first[0, 0] == pytest.approx(0.05)
        assert first[-1, 0] == 1.0
        assert (np.diff(first[:, 0]) > 0).all()
        assert (np.diff(last[:, 0]) > 0).all()
        assert last[-1, 0] < aim

    def test_rosy_predictions_make_it_stricter(self):
        aim = np.array([0.03])
        assert np.allclose(tolerance_schedule(NONE, aim, 1.0, 2.0), tolerance_schedule(NONE, aim, 1.0, 1.0) / 2)

    def test_a_rung_goes_on_from_the_best_policy_that_it_can_mend(self):
        returns, costs = np.array([-90.0, -80.0, -120.0]), np.array([[0.1], [1.0], [0.0]])
        assert select_starts(returns, costs, np.array([[0.05], [0.5], [0.001]])).tolist() == [0, 1, 2]

    def test_after_a_refusal_less_is_certifiable_since_less_confidence_is_left(self):
        aims = [certifiable_costs(NONE, 2000, 0.95, audit)[0] for audit in (1, 2, 3)]
        assert aims[0] == certifiable(NONE[0], 2000, 1.0 - CERTIFYING * 0.025)
        assert aims[0] > aims[1] > aims[2]

    def test_few_rollouts_cannot_certify_much(self):
        assert certifiable(NONE[0], 100, 0.95) < certifiable(NONE[0], 2000, 0.95) < 0.05


class TestTableBank:
    """Rungs of a finite model, by a share model that was never fitted: any hazards will do."""

    model = Driving("S....\n.....\n....G", name="driving", place="test")
    constraints = parse_constraints(["safe>=0.95"], Scale(("safe", "unsafe")))

    def climb(self, tolerances):
        sizes = self.model.spec.state.size, self.model.spec.action.size, 2
        safety = make_safety("share", *sizes, key=jax.random.key(1), members=2, hidden=(16,))
        ladder = TableBank(self.model, self.constraints, SLOTS, jax.random.key(0))
        rows = ladder.advance(0, safety, np.array(tolerances)[:, None], lost=False)
        least = PairHazards(self.model, self.constraints, safety).least()
        costs = np.array([row.mean_costs[0] for row in rows])
        return ladder, safety, rows, costs, ladder._predicted(np.stack([least] * 4), safety)[0].mean_costs[0]

    def test_each_keeps_its_tolerance_and_a_higher_one_earns_no_less(self):
        _, _, _, _, least = self.climb([0.5] * 4)
        tolerances = least * np.array([1.02, 1.1, 1.3, 1.6])
        _, _, rows, costs, _ = self.climb(tolerances)
        assert (costs <= tolerances).all()
        assert all(row.feasible for row in rows)
        returns = np.array([row.mean_return for row in rows])
        assert (np.diff(returns) >= 0.0).all()
        assert returns[-1] > returns[0]

    def test_where_anything_goes_the_highest_earns_the_optimum(self):
        ladder, *_ = self.climb([0.5, 0.6, 0.9, 1.0])
        finite = self.model.finite
        best = from_start(finite, value_iteration(finite).values)
        assert from_start(finite, evaluate(finite, np.asarray(ladder.state[-1], float))) == pytest.approx(
            best, abs=1e-3
        )

    def test_out_of_reach_it_stands_on_the_least_hazard(self):
        """The lowest rung shows what safety looks like; the others keep their distances to it."""
        _, _, rows, costs, least = self.climb([0.001, 0.0011, 0.0012, 0.0013])
        assert costs[0] <= least * (1 + 1e-6)
        assert (costs <= least * np.array([1.0, 1.1, 1.2, 1.3]) * (1 + 1e-6)).all()
        assert not any(row.feasible for row in rows)

    def test_pairs_asked_once_say_what_whole_trajectories_say(self):
        ladder, safety, rows, _, _ = self.climb([0.5, 0.6, 0.7, 0.8])
        for rung, row in enumerate(rows):
            policy = jax.tree.map(lambda leaf, rung=rung: leaf[rung], ladder.policies)
            trajectory = rollout(self.model, policy, ladder.key, TESTS)
            np.testing.assert_allclose(row.mean_predicted, predict(safety, trajectory).mean(axis=0), rtol=1e-4)


class TestCandidates:
    def test_labels_outweigh_a_prediction(self):
        rosy = Candidate("a", -80.0, (0.01,), labels=200, expected=(2.0,), costly=(40.0,))
        assert believed_costs(rosy, 1.0)[0] > 0.15

    def test_bad_luck_that_was_foreseen_does_not_count(self):
        unlucky = Candidate("a", -80.0, (0.03,), labels=60, costly=(4.0,), expected=(3.9,))
        assert believed_costs(unlucky, 1.0)[0] == pytest.approx(0.031)
        surprised = replace(unlucky, expected=(1.8,))
        assert believed_costs(surprised, 1.0)[0] > 0.05

    def test_the_favourite_earns_most_within_the_aims(self):
        candidates = [
            Candidate("a", -90.0, (0.01,), labels=0, expected=(0.0,), costly=(0.0,)),
            Candidate("b", -85.0, (0.02,), labels=0, expected=(0.0,), costly=(0.0,)),
        ]
        candidates.append(Candidate("c", -80.0, (0.2,), labels=0, expected=(0.0,), costly=(0.0,)))
        aims = np.array([0.03])
        assert favourite(candidates, aims, 1.0) == 1
        assert favourite(candidates, aims, 2.0) == 0  # predictions were too optimistic
        assert favourite(candidates, aims, 1.0, tried=[1]) == 0
        assert favourite(candidates[2:], aims, 1.0) == 0  # nothing within: the safest

    def test_a_few_lucky_labels_do_not_outweigh_a_prediction_that_an_audit_has_confirmed(self):
        lucky, safe = (
            Candidate("a", -17.0, (0.044,), labels=25, expected=(1.1,), costly=(0.0,)),
            Candidate("b", -19.0, (0.032,), labels=0, expected=(0.0,), costly=(0.0,)),
        )
        aims = np.array([0.035])
        assert favourite([lucky, safe], aims, 1.0) == 0
        assert favourite([lucky, safe], aims, 1.0, audited=2000) == 1

    def test_what_labels_of_some_policies_refute_is_believed_of_none_that_was_planned_with_them(self):
        """The safety model is exploited: one costs ten times what was predicted. Who has no labels is no better."""
        exploited = Candidate("a", -93.0, (0.014,), labels=60, expected=(0.9,), costly=(9.0,))
        unseen = Candidate("b", -94.0, (0.012,), labels=0, expected=(0.0,), costly=(0.0,))
        earlier = Candidate("c", -99.0, (0.02,), labels=6, expected=(0.1,), costly=(0.0,), round=3, slot=1)
        aims = np.array([0.035])
        assert favourite([exploited, unseen, earlier], aims, 2.5) == 2
        assert beliefs([exploited, unseen, earlier], 1.0)[1] > 0.05
        unlucky = replace(exploited, costly=(3.0,))
        assert favourite([unlucky, unseen, earlier], aims, 1.0) == 1, "two too many are chance"

    def test_a_challenger_earns_clearly_more_and_is_within_reach(self):
        aims = np.array([0.04])
        chosen = Candidate("a", -30.0, (0.0,), labels=120, expected=(0.0,), costly=(0.0,), deviation=5.0)
        close, far = (
            Candidate("b", 10.0, (0.06,), labels=25, expected=(1.5,), costly=(2.0,)),
            Candidate("c", 12.0, (0.3,), labels=25, expected=(7.5,), costly=(8.0,)),
        )
        hardly_more, known = (
            Candidate("d", -26.0, (0.05,), labels=0, expected=(0.0,), costly=(0.0,)),
            Candidate("e", 11.0, (0.05,), labels=120, expected=(6.0,), costly=(6.0,)),
        )
        assert challenger([chosen, far, close, hardly_more, known], aims, 1.0, 0, 120) == 2
        assert challenger([chosen, far, hardly_more, known], aims, 1.0, 0, 120) is None

    def test_the_gap_needs_evidence(self):
        assert optimism([]) == 1.0
        assert optimism([(2.0, 1.0)]) < 1.2 < optimism([(40.0, 20.0)]) < 2.0
        assert optimism([(0.0, 30.0)]) == 1.0


def test_what_harmless_trajectories_earned_is_known():
    rewards = np.arange(40.0)[:, None] * np.array([[1.0, 0.0]])
    known = Trajectory(np.zeros((40, 2, 1)), np.zeros((40, 2, 1)), rewards, np.ones(40, int))
    categories = np.where(np.arange(40) < 25, 0, 2)
    assert best_harmless(NONE, known, categories) == pytest.approx(np.arange(15.0, 25.0).mean())
    assert best_harmless(NONE, known, np.full(40, 2)) is None, "of none that is harmless nothing is known"


def test_labels_of_one_side_alone_teach_nothing():
    severe, none = np.full(90, 2), np.zeros(30, int)
    assert not varied(NONE, severe)
    assert not varied(NONE, np.concatenate([severe, none[:3]]))
    assert varied(NONE, np.concatenate([severe, none]))
    two = parse_constraints(["none>=0.9", "severe<=0.02"], Scale())
    mild = np.concatenate([np.ones(40, int), none, severe[:2]])
    assert varied(two, mild).tolist() == [True, False], "that nothing is severe switches off that constraint alone"


class TestOptions:
    def test_bad_ones_are_refused(self):
        for changes in ({"labels": 5}, {"rounds": 0}, {"check_share": 0.0}, {"polish_epochs": 70}, {"confidence": 1.0}):
            with pytest.raises(InputError):
                CampaignConfig(**changes)

    @pytest.mark.parametrize(
        ("model", "options", "named"),
        [
            ("navigation", ["--epochs", "50"], "--epochs"),
            ("navigation", ["--test-every", "10"], "--test-every"),
            ("navigation", ["--search-population", "500"], "--search-population"),
            ("navigation", ["--margin", "0.3"], "--margin"),
            ("navigation", ["--learning-rate-end", "0.05"], "--learning-rate-end"),
            ("navigation", ["--categories", "fine < bad"], "--categories"),
            ("boxpushing", ["--batch", "50"], "--batch"),
            ("boxpushing", ["--rounds", "3"], "--rounds"),
            ("boxpushing", ["--audits", "2"], "--audits"),
            ("boxpushing", ["--method", "gradient", "--margin", "0.3"], "--margin"),
            ("driving", ["--rule", "share", "--learning-rate", "0.1"], "--learning-rate"),
            ("driving", ["--rule", "share", "--units", "8"], "--units"),
        ],
    )
    def test_what_would_do_nothing_is_refused(self, model, options, named, tmp_path, capsys):
        from sidestep.cli.main import main

        assert main(["plan", model, *options, "--out", str(tmp_path / "run")]) == 2
        assert named in capsys.readouterr().err
        assert not (tmp_path / "run").exists()

    def test_the_budget_is_spent_exactly(self):
        for labels in (37, 250, 2000):
            config = CampaignConfig(labels=labels)
            spent = config.explored + config.checked + sum(config.asked(number) for number in range(config.rounds))
            assert spent == labels


def test_memory_changes_nothing_at_first():
    model = load_model("navigation")
    policy = make_policy(model, jax.random.key(0), clock=True).mean()
    safety = make_safety("hazard", 2, 2, 3, key=jax.random.key(1), units=4, encoder=(8, 4))
    wider = with_memory(policy, safety)
    state = jnp.array([3.0, 2.0])
    one, _ = policy.act(state, jnp.asarray(3), policy.start(), jax.random.key(2))
    other, _ = wider.act(state, jnp.asarray(3), wider.start(), jax.random.key(2))
    assert np.allclose(one, other, atol=1e-6)


class TestPairs:
    """Boxpushing: the exact optimum from few labels."""

    def campaign(self, folder: Path, expert) -> Campaign:
        model = load_model("boxpushing?map=1")
        folder.mkdir(exist_ok=True)
        file = folder / "labels.store"
        store = Store.open(file) if file.exists() else Store.create(file, model.spec, Scale())
        config = CampaignConfig(rollouts=200, step_tolerance="avoid")
        about = ("default", 3, "boxpushing?map=1", quiet)
        return Campaign(Setting(Run(folder), model, expert, NONE, store, config, PlanConfig(), *about))

    def test_finds_the_optimum_with_a_few_labels_and_asks_nothing_twice(self, tmp_path):
        model = load_model("boxpushing?map=1")
        rule = load_rule(None, model)
        result = self.campaign(tmp_path / "rule", RuleExpert(rule)).run()
        exact = occupancy_lp(model.finite, [Bound(model.side_effect.astype(float), 0.0)])
        rounds = Run(tmp_path / "rule").path / "rounds.jsonl"
        assert json.loads(rounds.read_text().splitlines()[-1])["return"] == pytest.approx(exact.value, abs=1e-3)
        assert result.penalty.mean == 0.0
        assert result.certified
        assert result.labels_used < 0.2 * model.finite.reward.size

        people, asked = PeopleExpert(Scale(), labels_steps=True), []
        while True:
            campaign = self.campaign(tmp_path / "people", people)
            try:
                same = campaign.run()
                break
            except LabelsNeeded as needed:
                if needed.audit is None:
                    asked += needed.ids
                store = campaign.setting.store
                store.label(needed.ids, rule.label(store.get(needed.ids)), annotator="ann")
        assert len(asked) == len(set(asked)) == result.labels_used == same.labels_used
        assert same.certified
        policies = [(tmp_path / who / "policy.safetensors").read_bytes() for who in ("rule", "people")]
        assert policies[0] == policies[1]


class Stopped(Exception):
    pass


SMALL = CampaignConfig(
    labels=60,
    rounds=2,
    members=1,
    units=4,
    first_fit=100,
    later_fit=50,
    round_epochs=4,
    searching_rounds=1,
    polish_epochs=2 * POLISH_TEST,
    audits=2,
    rollouts=100,
    aim=0.9,
    known=0,  # nothing is asked twice
)
PLANNING = PlanConfig(reward=Pathwise(batch=16), search=None, widths=(8,), test_batch=32)


@pytest.fixture(scope="module")
def walk():
    """A walk along a line, as a user's Python model: the goal lies behind a place where one must not linger."""
    from sidestep.core.model import Space, Spec, Variable

    class Walk:
        spec = Spec(
            name="walk",
            state=Space((Variable("x", "real", 1, -10.0, 10.0),)),
            action=Space((Variable("move", "real", 1, -1.0, 1.0),)),
            horizon=6,
            discount=1.0,
            gradient="exact",
        )

        def reset(self, key):
            return jnp.zeros(1)

        def step(self, state, action, key):
            moved = state + action + 0.1 * jax.random.normal(key, (1,))
            return moved, -jnp.abs(moved[0] - 3.0), jnp.zeros((), bool)

        def action_bounds(self, state):
            return -jnp.ones(1), jnp.ones(1)

    return Walk()


def lingering(trajectory) -> jax.Array:
    inside = (trajectory.states[..., 0] > 1.0) & (trajectory.states[..., 0] < 2.0) & trajectory.mask
    count = jnp.sum(inside, axis=1)
    return (count >= 2).astype(int) + (count >= 4).astype(int)


class TestTrajectories:
    def campaign(self, folder: Path, model, expert, show=quiet, config=SMALL) -> Campaign:
        folder.mkdir(exist_ok=True)
        file = folder / "labels.store"
        store = Store.open(file) if file.exists() else Store.create(file, model.spec, Scale())
        return Campaign(Setting(Run(folder), model, expert, NONE, store, config, PLANNING, "default", 5, "walk", show))

    def test_all_labels_are_counted(self, tmp_path, walk):
        whole = self.campaign(tmp_path / "whole", walk, RuleExpert(Rule("lingering", Scale(), lingering)))
        result = whole.run()
        assert result.labels_used <= SMALL.labels
        assert result.audit_labels == 100 * result.audits
        assert len(whole.setting.store.labelled()[0]) == result.labels_used

    def by_people(self, folder, walk, show=lambda stage, record: None, before=None):
        """A campaign that people label up to its first audit, and what they were asked."""
        people, asked = self.campaign(folder, walk, PeopleExpert(Scale()), show), []
        if before is not None:  # what is compiled need not be compiled again
            people.strategy.bank.planner = before.strategy.bank.planner
            people.strategy.bank.polisher = before.strategy.bank.polisher
        store = people.setting.store
        while True:
            try:
                people.run()
            except Stopped:
                continue
            except LabelsNeeded as needed:
                if needed.audit is not None:
                    return people, asked
                asked += needed.ids
                store.label(needed.ids, lingering(store.get(needed.ids)), annotator="ann")

    def test_stopped_anywhere_and_labelled_by_people_it_comes_to_the_same_candidates(self, tmp_path, walk):
        # The stage at which to stop, and how often it is passed before; the second test of the last planning is one.
        stops = [("auditing", 0), ("polishing", 1), ("polishing", 0), ("planning", 0), ("fitting", 0)]
        seen = [[]]  # the stages between two stops

        def stopping(stage, record):
            seen[-1].append(stage)
            if stops and stage == stops[-1][0] and seen[-1].count(stage) > stops[-1][1]:
                stops.pop()
                seen.append([])
                raise Stopped

        people, asked = self.by_people(tmp_path / "people", walk, stopping)
        assert stops == []
        assert seen[-2].count("polishing") == 1, "what was tested before a stop is not done again"
        assert "fitting" not in seen[-2]
        assert len(asked) == len(set(asked))
        assert asked == self.by_people(tmp_path / "whole", walk, before=people)[1]
        files = sorted(file.name for file in (tmp_path / "whole").glob("[rp]o*-*-*.safetensors"))
        assert len(files) == 4 * SMALL.rounds + 4 * 2
        for name in [*files, "safety.safetensors"]:
            assert (tmp_path / "people" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()

    def test_second_opinions_come_before_the_audit_and_it_is_told_what_it_should_prove(
        self, tmp_path, walk, monkeypatch
    ):
        def doubtful(evidence, state, choose, known):
            return [] if any(group.deciding for group in state.asked) else state.asked_ids[:2]

        monkeypatch.setattr("sidestep.campaign.campaign.deciding", doubtful)
        people = self.campaign(tmp_path / "people", walk, PeopleExpert(Scale()))
        store, again, audited = people.setting.store, {}, None
        while audited is None:
            try:
                people.run()
            except LabelsNeeded as needed:
                groups = people._load().asked
                if groups[-1].deciding and set(groups[-1].ids) & set(needed.ids):
                    again = people._load().copied
                audited = needed.audit
                store.label(needed.ids, lingering(store.get(needed.ids)), annotator="ann")
        copies = [copy for group in people._load().asked if group.deciding for copy in group.ids]
        assert [again[copy] for copy in copies] == people._load().asked_ids[:2]
        np.testing.assert_array_equal(store.get(copies).states, store.get([again[copy] for copy in copies]).states)
        assert len(people._load().asked_ids) <= SMALL.labels
        forecast = audited.design.forecast
        assert (forecast.opinions, forecast.error) == (audited.design.opinions, 0.0)
        assert 0.0 <= forecast.certified <= 1.0
        assert forecast.labels > 0

    def test_known_cases_of_the_audit_are_asked_about_while_the_last_planning_goes_on(
        self, tmp_path, walk, monkeypatch
    ):
        def known(campaign, evidence):
            return tuple(KnownCase(i, campaign.setting.store.categories("majority")[i]) for i in evidence.originals[0])

        monkeypatch.setattr(Campaign, "_known", known)
        monkeypatch.setattr("sidestep.certification.auditor.can_cover_annotators", lambda *about: True)
        config = replace(SMALL, labels=120, known=40, polish_epochs=3 * POLISH_TEST)
        folder, offered, stops = tmp_path / "run", [], [1]

        def show(stage, record):
            if stage == "offered":
                offered.append(people._load())
            if stage == "polishing" and offered and stops:
                stops.pop()
                raise Stopped

        def begin():
            return self.campaign(folder, walk, PeopleExpert(Scale()), show, config)

        audited, people, asked = None, begin(), []
        store = people.setting.store
        while audited is None:
            try:
                people.run()
            except Stopped:
                people = begin()
            except LabelsNeeded as needed:
                audited, asked = needed.audit, needed.ids
                if audited is None:
                    ids = [*needed.ids, *people._load().hidden]
                    store.label(ids, lingering(store.get(ids)), annotator="ann")
        state = people._load()
        assert not stops
        assert len(offered) > 1, "at each test"
        for told in offered:
            assert 0 < len(told.hidden) == min(len(told.ahead) - len(told.hidden), len(told.known)), "one for one"
            assert not set(told.hidden) & set(told.asked_ids)
            assert told.known == state.known, "chosen once"
        assert len(state.asked_ids) <= config.labels
        assert audited.design.known == state.known
        assert state.hidden
        assert not set(asked) & set(state.hidden), "nobody is asked about them again"
        first = [case.trajectory for case in state.known[: len(state.hidden)]]
        np.testing.assert_array_equal(store.get(list(state.hidden)).states, store.get(first).states)

    @pytest.mark.parametrize("labels", [40, 60, 100])
    def test_with_repeats_a_small_budget_holds_too(self, tmp_path, walk, labels):
        config = replace(SMALL, labels=labels, known=40, rounds=3)
        people = self.campaign(tmp_path / "run", walk, PeopleExpert(Scale()), config=config)
        store, audit = people.setting.store, None
        while audit is None:
            try:
                people.run()
            except LabelsNeeded as needed:
                audit = needed.audit
                store.label(needed.ids, lingering(store.get(needed.ids)), annotator="ann")
        state = people._load()
        assert sum(len(group.repeats) for group in state.asked) > 0
        assert len(state.asked_ids) <= labels


def test_the_command_tells_people_what_to_label(tmp_path, capsys):
    from sidestep.cli.main import main

    file = tmp_path / "line.py"
    file.write_text(
        "import jax.numpy as jnp\n"
        "from sidestep.core.model import Space, Spec, Variable\n"
        "class Line:\n"
        "    spec = Spec(name='line', state=Space((Variable('x', 'real', 1, -9.0, 9.0),)),\n"
        "                action=Space((Variable('move', 'real', 1, -1.0, 1.0),)),\n"
        "                horizon=3, discount=1.0, gradient='exact')\n"
        "    def reset(self, key): return jnp.zeros(1)\n"
        "    def step(self, state, action, key): return state + action, state[0], jnp.zeros((), bool)\n"
        "    def action_bounds(self, state): return -jnp.ones(1), jnp.ones(1)\n"
        "line = Line()\n"
    )
    arguments = ["plan", f"{file}:line", "--labels", "40", "--categories", "fine<bad", "--out", str(tmp_path / "run")]
    assert main([*arguments, "--quiet"]) == 3
    told = capsys.readouterr().out
    assert "11 trajectories need labels to learn from, before round 1" in told  # two of them are asked about twice
    assert "sidestep resume" in told
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert config["constraints"] == ["fine>=0.95"]
    assert config["kind"] == "campaign"
    assert main(["resume", str(tmp_path / "run"), "--quiet", "--json"]) == 3
    waiting = json.loads(capsys.readouterr().out)
    assert waiting["status"] == "waiting"
    assert len(waiting["trajectories"]) == 11
    assert load(tmp_path / "run").categories == ("fine", "bad")
