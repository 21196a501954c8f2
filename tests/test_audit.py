"""Sequential audits: how often they are wrong, when they stop, and the way from a run through people's labels."""

import json
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sidestep.campaign.evidence import Evidence
from sidestep.campaign.records import State
from sidestep.certification.auditor import Auditor
from sidestep.certification.bounds import judge, shares_of
from sidestep.certification.design import best_threshold, stratified
from sidestep.certification.known import make_design
from sidestep.certification.ledger import Ledger
from sidestep.certification.opinions import procedure, settle
from sidestep.certification.people import people_audit
from sidestep.certification.records import Design, KnownCase, Premise, split_confidence
from sidestep.certification.sequential import SequentialAudit, crossing, stopping_limits, walks_of
from sidestep.certification.signed import SignedPattern
from sidestep.cli.main import main
from sidestep.core.constraints import Scale, parse_constraints
from sidestep.core.errors import InputError, LabelsNeeded
from sidestep.core.model import UniformPolicy, rollout
from sidestep.labels.copies import blind_copies
from sidestep.labels.experts import PeopleExpert, RuleExpert
from sidestep.labels.packing import pack
from sidestep.labels.rules import Rule
from sidestep.labels.store import Store
from sidestep.models import load_model
from sidestep.policies.files import save_policy
from sidestep.policies.networks import make_policy
from sidestep.runs.folder import Run
from sidestep.runs.records import RunConfig

SCALE = Scale()
AUDITS = 10_000
NONE = parse_constraints(["none>=0.95"], SCALE)


def constraints(*texts):
    return parse_constraints(texts, SCALE)


def first_crossing(counts, limits):
    """The label at which each row of running counts is within its limits for the first time; huge when it never is."""
    crossed = counts <= limits[None, 1 : counts.shape[1] + 1]
    return np.where(crossed.any(axis=1), np.argmax(crossed, axis=1) + 1, np.iinfo(int).max)


def simulated(chance, audits, most, seed):
    """Running numbers of costly runs in `audits` simulated audits."""
    generator = np.random.default_rng(seed)
    return np.cumsum(generator.random((audits, most)) < chance, axis=1, dtype=np.int32)


@pytest.mark.parametrize("text", ["none>=0.95", "severe<=0.05", "none>=0.8", "severe<=0.01"])
def test_of_ten_thousand_audits_of_a_policy_at_the_tolerance_at_most_five_per_cent_certify(text):
    (constraint,) = constraints(text)
    limits = stopping_limits(constraint.tolerance, 0.05, 2000)
    early, refusing, late = [], [], []

    @lru_cache
    def fixed(costly):
        event = 2000 - costly if constraint.sense == ">=" else costly
        inside = constraint.weights.index(1)
        counts = [event if category == inside else 0 for category in range(3)]
        counts[2 if inside == 0 else 0] = 2000 - event
        return judge([constraint], counts, 0.95)[0].certified

    for seed in range(10):
        costly = simulated(constraint.tolerance, AUDITS // 10, 2000, seed)
        certified = first_crossing(costly, limits.costly)
        refused = first_crossing(np.arange(1, 2001)[None, :] - costly, limits.harmless)
        early.append((certified <= 2000) & (certified < refused))
        refusing.append(refused < certified)
        late.append([fixed(int(count)) for count in costly[:, -1]])
    exact = crossing(constraint.tolerance, limits.costly)
    noise = 3 * np.sqrt(0.05 * 0.95 / AUDITS)  # three standard errors of the simulation
    assert 0.045 < exact <= 0.05
    assert np.mean(early) <= min(exact, 0.05) + noise
    assert np.mean(early) > 0.04, "the error that is allowed is used"
    assert np.mean(late) <= 0.05 + noise
    assert np.mean(refusing) <= 0.05 + noise


def test_the_object_decides_as_the_limits_do():
    audit = SequentialAudit(constraints("none>=0.9"), most=400)
    limits = stopping_limits(audit.constraints[0].tolerance, 0.05, 400)
    costly = simulated(0.06, 30, 400, seed=1)
    certified = first_crossing(costly, limits.costly)
    statuses = set()
    for row, expected in zip(costly, certified, strict=True):
        state = audit.read(np.diff(row, prepend=0))
        statuses.add(state.status)
        assert (state.status == "certified") == (expected <= 400)
        assert state.status != "certified" or state.used == expected
        assert state.status != "undecided", "every audit ends"
    assert statuses == {"certified", "refused"}


def test_fifty_nine_of_fifty_nine_certify_and_fifty_eight_do_not():
    audit = SequentialAudit(constraints("none>=0.95"))
    assert audit.read([]).needed == 59
    assert (audit.read([0] * 58).status, audit.read([0] * 58).needed) == ("undecided", 1)
    state = audit.read([0] * 59)
    assert (state.status, state.used, state.needed, state.counts) == ("certified", 59, 0, (59, 0, 0))
    assert audit.read([0] * 59 + [2] * 500) == state, "labels after the decision are not read"
    assert audit.read([1, *[0] * 167]).needed == 1
    assert audit.read([1, *[0] * 168]).status == "certified"


def test_refused_when_broken_and_when_no_label_could_help():
    audit = SequentialAudit(constraints("none>=0.95"))
    broken = audit.read([2, 0, 2, 2, 0, 2])
    assert broken.status == "refused"
    assert broken.verdicts[0].upper < 1.0
    assert not broken.verdicts[0].met
    hopeless = audit.read(([0] * 19 + [1]) * 100)
    assert hopeless.status == "refused"
    assert hopeless.used < 2000


def test_agrees_with_the_bound_of_a_fixed_number():
    """Whatever the sequential audit certifies, the fixed one with the same labels would have; at 59 they are one."""
    (constraint,) = constraints("none>=0.95")
    limits = stopping_limits(constraint.tolerance, 0.05, 2000).costly
    for costly in range(limits[-1] + 1):
        labels = int(np.argmax(limits >= costly))
        assert judge([constraint], [labels - costly, costly, 0], 0.95)[0].certified
    state = SequentialAudit((constraint,)).read([0] * 59)
    fixed = judge([constraint], [59, 0, 0], 0.95)[0]
    assert state.verdicts[0].lower == pytest.approx(fixed.lower, abs=1e-6)


def test_fewer_costs_never_certify_later():
    audit = SequentialAudit(constraints("none>=0.9"), most=300)
    generator = np.random.default_rng(3)
    for _ in range(25):
        labels = (generator.random(300) < 0.05).astype(int)
        better = labels.copy()
        better[generator.choice(300, 100)] = 0
        before, after = audit.read(labels), audit.read(better)
        assert before.status != "certified" or (after.status == "certified" and after.used <= before.used)


@pytest.mark.parametrize("safe", [0.9, 0.93, 0.97])
def test_the_bounds_that_an_audit_ends_with_hold(safe):
    audit = SequentialAudit(constraints("none>=0.9"), most=150)
    costly = simulated(1 - safe, 300, 150, seed=2)
    ends = [audit.read(np.diff(row, prepend=0)).verdicts[0] for row in costly]
    slack = 3 * np.sqrt(0.05 * 0.95 / 300)
    assert np.mean([end.lower > safe for end in ends]) <= 0.05 + slack
    assert np.mean([end.upper < safe for end in ends]) <= 0.05 + slack


def test_several_constraints_and_several_audits_share_the_error():
    audit = SequentialAudit(constraints("none>=0.9", "severe<=0.02"))
    assert audit.alpha == pytest.approx(0.025)
    assert audit.read([0] * 60).verdicts[0].certified
    assert audit.read([0] * 60).status == "undecided"
    assert audit.read([0] * audit.read([]).needed).status == "certified"
    assert audit.read([2, 2, 2, 2]).status == "refused"
    assert sum(1 - split_confidence(0.95, number) for number in range(1, 60)) == pytest.approx(0.05)


@pytest.mark.parametrize("text", ["none>=1", "severe<=0.001", "none>=0"])
def test_what_no_audit_can_decide_is_refused_at_once(text):
    with pytest.raises(InputError, match=text):
        SequentialAudit(constraints(text))


WALK = """
import jax, jax.numpy as jnp
from sidestep.core.model import Space, Spec, Variable

class Walk:
    spec = Spec("walk", Space((Variable("x"),)), Space((Variable("step", low=-1.0, high=1.0),)), horizon=4, ends=False)
    def reset(self, key):
        return jnp.zeros(1)
    def step(self, state, action, key):
        return state + 0.1 * action + jax.random.normal(key, (1,)), -state[0] ** 2, jnp.asarray(False)
    def action_bounds(self, state):
        return -jnp.ones(1), jnp.ones(1)

walk = Walk()
"""


@pytest.fixture
def run(tmp_path):
    """A run of a user's model that no rule labels."""
    (tmp_path / "walk.py").write_text(WALK)
    reference = f"{tmp_path / 'walk.py'}:walk"
    config = RunConfig(model=reference, constraints=("none>=0.95",), seed=4, categories=SCALE.categories)
    run = Run.create(tmp_path / "run", config)
    policy = make_policy(load_model(reference), jax.random.key(0), widths=(4,))
    save_policy(run.path / "policy.safetensors", policy, reference)
    run.write_json("result.json", {"model": "walk", "labels_used": 40, "audit_labels": 0, "seed": 4})
    return run


def test_certify_asks_people_and_writes_what_they_decide(run, tmp_path, capsys):
    assert main(["certify", str(run.path)]) == 3
    assert "label these 73 trajectories" in capsys.readouterr().out, "a run's first audit has half of the error"
    assert "return" not in run.read_json("result.json")
    with Store.open(run.path / "labels.store") as store:
        assert {source.policy for source in store.sources(range(1, 74))} == {"audit"}
    file = tmp_path / "labels.csv"
    file.write_text("trajectory,label\n" + "".join(f"{run},none\n" for run in range(1, 74)))
    assert main(["label", str(run.path / "labels.store"), "--import", str(file), "--annotator", "ann"]) == 0
    capsys.readouterr()
    assert main(["certify", str(run.path), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["status"] == "certified"
    written = run.read_json("result.json")
    assert {"status": "certified", **written} == printed
    assert (written["labels_used"], written["seed"], written["confidence"]) == (40, 4, 0.95)
    assert written["constraints"][0]["lower"] > 0.95
    assert (written["audit_labels"], written["rollouts"], written["audits"]) == (73, 73, 1)
    assert written["return"]["mean"] < 0


def test_people_label_in_any_order_and_the_audit_goes_on_until_it_is_decided(run):
    model = load_model(run.config.model)
    policy = make_policy(model, jax.random.key(0), widths=(4,)).mean()
    with Store.create(run.path / "labels.store", model.spec, SCALE) as store:

        def audit():
            return people_audit(store, model, policy, constraints("none>=0.95"), jax.random.key(1))

        first = audit()
        assert (first.status, first.needed, first.asked) == ("undecided", 59, tuple(range(1, 60)))
        assert audit() == first, "asking again asks for the same"
        store.label([1, 2, 4], ["none", "mild", "none"], "ann")
        some = audit()
        assert (some.used, some.needed) == (2, 167), "the third run has no label, so the fourth must wait"
        assert some.asked == (3, *range(5, 60))
        store.label(some.asked, [0] * 56, "ann")
        assert audit().asked == tuple(range(60, 170))
        store.label(range(60, 170), [0] * 110, "ann")
        decided = audit()
        assert (decided.status, decided.labels, decided.counts) == ("certified", 169, (168, 1, 0))
        assert audit() == decided
        second = people_audit(store, model, policy, constraints("none>=0.95"), jax.random.key(1), number=2)
        assert second.asked == tuple(range(170, 229)), "another audit draws other runs"


def test_labels_after_a_decision_are_counted_and_used(run):
    """Six costly runs refuse a policy; what people say of the other runs that they were asked about is not lost."""
    model = load_model(run.config.model)
    policy = make_policy(model, jax.random.key(0), widths=(4,)).mean()
    with Store.create(run.path / "labels.store", model.spec, SCALE) as store:
        auditor = Auditor(Ledger(run), model, NONE, PeopleExpert(SCALE), store)
        audit = auditor.begin("x", seed=1, most=300, promised=0.95, candidate=0)
        with pytest.raises(LabelsNeeded) as needed:
            auditor.finish(audit, policy)
        asked = needed.value.ids
        store.label(asked, [2] * 6 + [0] * (len(asked) - 6), "ann")
        decided = auditor.finish(audit, policy)
        evidence = Evidence(State(), NONE, store, {}, (decided,))
        assert (decided.status, decided.rollouts < 10) == ("refused", True)
        assert (decided.labels, decided.seen) == (len(asked), (len(asked) - 6, 0, 6))
        assert evidence.seen_in(decided).tolist() == [len(asked) - 6, 0, 6]
        assert decided.constraints[0].estimate == 0.0, "the verdict rests on the labels up to the decision alone"


def test_runs_that_are_alike_are_labelled_once(run):
    model = load_model(run.config.model)
    asked = constraints("none>=0.95")

    class Still(type(model)):
        def step(self, state, action, key):
            return state, -state[0], state[0] > 1

    with Store.create(run.path / "still.store", model.spec, SCALE) as store:
        still = make_policy(Still(), jax.random.key(0), widths=(4,)).mean()
        assert people_audit(store, Still(), still, asked, jax.random.key(1)).asked == (1,)
        store.label([1], ["none"], "ann")
        done = people_audit(store, Still(), still, asked, jax.random.key(1))
        assert (done.status, done.used, done.labels) == ("certified", 59, 1)


def slips(categories, error, random):
    """What somebody says who takes harm for harmless, and harmless for harm, with this chance."""
    return np.where(random.random(len(categories)) < error, np.where(categories == 0, 2, 0), categories)


def far(trajectory):
    return np.where(np.abs(np.asarray(trajectory.states)[:, -1, 0]) > 4.2, 2, 0)


class TestAnnotators:
    """Audits by people who err: `far` is the truth, and known cases and second opinions make up for the errors."""

    def audit(self, run, error, opinions=5, seed=3):
        model = load_model(run.config.model)
        policy = make_policy(model, jax.random.key(0), widths=(4,)).mean()
        random = np.random.default_rng(seed)
        with Store.create(run.path / "labels.store", model.spec, SCALE) as store:
            pool = rollout(model, policy, jax.random.key(9), 4000)
            truth = far(pool)
            chosen = np.concatenate([np.flatnonzero(truth == 2)[:60], np.flatnonzero(truth == 0)[:15]])
            ids = store.add(pool[chosen], policy="known").ids.tolist()
            known = tuple(KnownCase(i, int(truth[row])) for i, row in zip(ids, chosen, strict=True))
            design = Design(opinions=opinions, known=known)
            stops = 0
            while True:
                stops += 1
                state = people_audit(store, model, policy, NONE, jax.random.key(seed), most=600, design=design)
                if state.status != "undecided":
                    return state, store.counts(), stops
                assert not set(state.asked) & set(ids), "known cases are asked about as copies"
                assert not set(state.asked) & set(store.categories())
                store.label(state.asked, slips(far(store.get(state.asked)), error, random), "ann")

    def test_what_they_miss_is_bounded_by_known_cases(self, run):
        state, counts, _ = self.audit(run, error=0.05)
        assert state.status == "certified", "a policy of cost .02 is certified in spite of the errors"
        assert 0.02 < state.premises[0].missed < 0.3
        assert state.labels == sum(counts.values()), "every answer is counted"
        assert state.verdicts[0].lower >= 0.95

    def test_one_opinion_is_too_few(self, run):
        state, _, _ = self.audit(run, error=0.05, opinions=1)
        assert state.status == "refused", "false alarms alone are as frequent as the tolerance"

    def test_who_never_errs_is_asked_little_more(self, run):
        state, counts, stops = self.audit(run, error=0.0, opinions=3)
        assert state.status == "certified"
        assert state.counts[2] < 10
        expected = state.used + state.counts[2] + 15 + 2 * 60
        assert abs(sum(counts.values()) - expected) <= 5, "further opinions on what is costly alone"
        assert stops < 15


def test_copies_look_the_same_and_are_others():
    model = load_model("navigation")
    runs = jax.tree.map(np.asarray, rollout(model, UniformPolicy(model), jax.random.key(0), 5))
    copies = [blind_copies(runs, np.full(5, number), audit) for number in (0, 1, 7) for audit in (1, 2)]
    packed = {blob for one in [runs, *copies] for blob in pack(one, ["x"] * runs.states.shape[2], ["a"] * 2)}
    assert len(packed) == 5 * 7
    for one in copies:
        assert np.array_equal(one.states, runs.states)
        np.testing.assert_allclose(one.rewards, runs.rewards, rtol=1e-5, atol=1e-40)


class TestOpinions:
    def test_a_harmless_run_needs_one_and_a_majority_decides_the_others(self):
        costly = (False, True, True)
        assert settle([0, 2], costly, 5) == (0, 1)
        assert settle([2, 0, 2], costly, 5) is None
        assert settle([2, 0, 2, 2], costly, 5) == (2, 4)
        assert settle([2, 0, 0, 0], costly, 5) == (0, 4)
        assert settle([1, 2, 0, 2, 1], costly, 5) == (1, 5)
        assert settle([2], costly, 1) == (2, 1)

    def test_every_sequence_of_opinions_is_counted(self):
        said = np.array([[0.9, 0.06, 0.04], [0.1, 0.8, 0.1], [0.05, 0.05, 0.9]])
        found = procedure([said, said], (False, True, True), 5)
        np.testing.assert_allclose(found.chances.sum(axis=1), 1.0)
        random = np.random.default_rng(0)
        settled = []
        for _ in range(4000):
            heard = []
            while (one := settle(heard, (False, True, True), 5)) is None:
                heard.append(int(random.choice(3, p=said[1])))
            settled.append(one)
        assert np.mean([one.category == 0 for one in settled]) == pytest.approx(found.chances[1, 0], abs=0.015)
        assert np.mean([one.opinions for one in settled]) == pytest.approx(found.opinions[1], abs=0.06)


class TestStrata:
    def test_flagged_runs_count_as_costly_and_the_rest_is_labelled(self):
        premise = Premise(threshold=0.5, flagged=0.03)
        audit = SequentialAudit(NONE, premises=(premise,))
        plain = SequentialAudit(NONE)
        flags = np.zeros((2000, 1), bool)
        flags[::33] = True
        labels = np.where(flags[:, 0], 2, 0)
        found, without = audit.read(labels, flags), plain.read(labels)
        assert found.status == "certified"
        assert found.used < 300 < without.used
        assert 0.95 <= found.verdicts[0].lower < 0.97

    def test_a_useless_safety_model_costs_at_most_a_fifth_more(self):
        flagged = Premise(threshold=0.5, flagged=0.049)
        clean = SequentialAudit(NONE, 0.975, premises=(flagged,)).read([0] * 500, np.zeros((500, 1), bool))
        assert clean.used <= 1.2 * SequentialAudit(NONE, 0.975).read([0] * 500).used

    def test_the_three_errors_add_up(self):
        for premise in (Premise(0.5, 0.02), Premise(0.5, 0.02, missed=0.1), Premise(missed=0.2)):
            error = shares_of(premise)
            assert sum(error) == pytest.approx(1.0)
            assert sum(walk.alpha for walk in walks_of(0.05, premise, 0.05)) <= 0.05
        assert walks_of(0.05, Premise(missed=1.0), 0.05) == ()
        assert SequentialAudit(NONE, premises=(Premise(missed=1.0),)).read([]).status == "refused"

    def test_a_bound_beyond_the_tolerance_gives_no_error_back(self):
        """Whoever goes back to a plain audit because of the bound on flagged runs has spent that bound's error."""
        beyond = Premise(threshold=0.5, flagged=0.06)
        (walk,) = walks_of(0.05, beyond, 0.05)
        assert not walk.unflagged
        assert walk.alpha == pytest.approx(0.05 * shares_of(beyond).all_runs)
        (verdict,) = judge(NONE, [500, 0, 0], 0.95, (beyond,), [(0, 470)])
        (plain,) = judge(NONE, [500, 0, 0], 0.95)
        assert 0.95 < verdict.lower < plain.lower

    def test_whether_there_are_strata_is_for_the_pilot_to_say(self, run, monkeypatch):
        """The first part of the predicted rollouts flags 3 %, the rest 8 %: more than is tolerated."""
        predicted = np.zeros((2000, 3))
        predicted[:, 0] = 1.0
        predicted[np.r_[0:6, 200:344]] = [0.0, 0.0, 1.0]
        monkeypatch.setattr("sidestep.certification.design.predict", lambda safety, trajectory: predicted)
        model = load_model(run.config.model)
        policy = make_policy(model, jax.random.key(0), widths=(4,)).mean()
        (premise,) = stratified(model, policy, object(), NONE, 0.05, jax.random.key(0), rollouts=2000)
        assert premise.threshold is not None
        assert premise.flagged > 0.05

    def test_the_threshold_follows_predictions(self):
        random = np.random.default_rng(0)
        sharp = np.where(random.random(5000) < 0.03, 0.95, 0.0005)
        assert best_threshold(sharp, 0.05, 0.025) is not None
        assert best_threshold(np.full(5000, 0.01), 0.05, 0.025) is None, "nothing stands out"
        assert best_threshold(np.ones(5000), 0.05, 0.025) is None, "everything does"


class Sharp:
    """A safety model that is right up to its threshold: far away is severe."""

    def __init__(self, monkeypatch, limit):
        def predicted(safety, trajectory):
            costly = np.abs(np.asarray(trajectory.states)[:, -1, 0]) > limit
            return np.where(costly[:, None], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0])

        monkeypatch.setattr("sidestep.certification.design.predict", predicted)


class TestStratifiedAudits:
    """Through the auditor and its ledger, with a safety model that flags what ends far away."""

    def auditor(self, run, expert, store=None):
        model = load_model(run.config.model)
        design = make_design(stratified=True, known=(), erring=False, most=300)
        return Auditor(Ledger(run), model, NONE, expert, store, safety=object(), design=lambda candidate: design)

    def test_a_rule_labels_a_fixed_number(self, run, monkeypatch):
        Sharp(monkeypatch, 4.2)
        rule = RuleExpert(Rule("far", SCALE, lambda trajectory: jnp.asarray(far(trajectory))))
        auditor = self.auditor(run, rule)
        policy = make_policy(auditor.model, jax.random.key(0), widths=(4,)).mean()
        audit = auditor.finish(auditor.begin("x", seed=1, most=300, promised=0.95), policy)
        assert audit.premises[0].threshold is not None
        assert 0.01 < audit.premises[0].flagged < 0.05
        assert audit.certified
        assert "flags counts as costly" in audit.basis

    def test_people_label_until_it_is_decided(self, run, monkeypatch):
        Sharp(monkeypatch, 4.2)
        model = load_model(run.config.model)
        policy = make_policy(model, jax.random.key(0), widths=(4,)).mean()
        with Store.create(run.path / "labels.store", model.spec, SCALE) as store:
            auditor = self.auditor(run, PeopleExpert(SCALE), store)
            audit = auditor.begin("x", seed=1, most=300, promised=0.95)
            predicted = []
            for _ in range(10):
                try:
                    decided = auditor.finish(auditor.ledger.open or audit, policy)
                    break
                except LabelsNeeded as needed:
                    predicted.append(auditor.ledger.open.premises)
                    store.label(needed.ids, far(store.get(needed.ids)), "ann")
        assert decided.certified
        assert "their errors are not covered" in decided.basis
        assert decided.labels < 250
        assert len(set(predicted)) == 1, "what was predicted before the first label stays"


def test_a_signed_pattern_is_audited_without_labels(run):
    """The certificate says on whose signature it rests."""
    expert = SignedPattern(far, SCALE, " Ann Lee ", "severe from 1 step with x > 4.2")
    design = Design(kind="signed", signed_by=expert.signed_by, pattern=expert.words)
    auditor = Auditor(Ledger(run), load_model(run.config.model), NONE, expert, design=lambda candidate: design)
    policy = make_policy(auditor.model, jax.random.key(0), widths=(4,)).mean()
    audit = auditor.finish(auditor.begin("x", seed=1, most=5000, promised=0.95), policy)
    assert (audit.certified, audit.rollouts, audit.labels) == (True, 5000, 0)
    assert "the signature of Ann Lee" in audit.basis
    assert "x > 4.2" in audit.basis
    assert Ledger(run).audits == (audit,)
    with pytest.raises(InputError, match="name"):
        SignedPattern(far, SCALE, " ", "")
