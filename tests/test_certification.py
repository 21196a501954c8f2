"""What a run claims: one confidence, a ledger of all audits, nothing promised that is not proven. As a user sees it."""

import json
import re
import shutil

import numpy as np
import pytest

import sidestep
from sidestep.certification.bounds import judge, lower_bound, require_certifiable, upper_bound
from sidestep.certification.ledger import Ledger
from sidestep.certification.records import result_from_json, result_to_json, split_confidence
from sidestep.certification.words import at_least, at_most, percent
from sidestep.cli.main import main
from sidestep.core.constraints import Scale, parse_constraints
from sidestep.core.errors import InputError
from sidestep.core.records import from_json, to_json
from sidestep.runs.folder import Run

COIN = '''
import os
import jax
import jax.numpy as jnp
from sidestep.core.model import Space, Spec, Variable

class Coin:
    """Whatever one does, a trajectory is costly with the chance of its last flip."""
    spec = Spec("coin", Space((Variable("flip", low=0.0, high=1.0),)), Space((Variable("push", low=-1.0, high=1.0),)),
                horizon=2, discount=1.0, ends=False, unenforced=UNENFORCED)
    def reset(self, key):
        return jax.random.uniform(key, (1,))
    def step(self, state, action, key):
        return jax.random.uniform(key, (1,)), -action[0] ** 2, jnp.asarray(False)
    def action_bounds(self, state):
        return -jnp.ones(1), jnp.ones(1)

def rule(trajectory):
    if "STOP_HERE" in os.environ:
        raise KeyboardInterrupt
    return (trajectory.states[:, 1, 0] < CHANCE).astype(int) * 2
'''
SMALL = ["--labels", "40", "--learner", "hazard", "--rounds", "1", "--members", "1", "--units", "4"]
SMALL += ["--first-fit", "40", "--later-fit", "40"]
SMALL += ["--round-epochs", "2", "--searching-rounds", "1", "--polish-epochs", "50", "--widths", "4", "--batch", "8"]
SMALL += ["--test-batch", "16", "--search-rounds", "0", "--audits", "2", "--rollouts", "150", "--quiet"]


def coin(folder, chance, unenforced=()):
    """A model, and a rule by which this share of its trajectories is severe."""
    file = folder / f"coin_{round(1000 * chance)}_{len(unenforced)}.py"
    file.write_text(COIN.replace("CHANCE", str(chance)).replace("UNENFORCED", repr(tuple(unenforced))))
    return [f"{file}:Coin", "--rule", f"{file}:rule"]


@pytest.fixture(scope="module")
def refused(tmp_path_factory):
    """A real campaign both of whose audits were refused."""
    folder = tmp_path_factory.mktemp("refused")
    assert main(["plan", *coin(folder, 0.5), *SMALL, "--out", str(folder / "run")]) == 1
    return folder / "run"


@pytest.fixture(scope="module")
def passed(tmp_path_factory):
    """A real campaign that its first audit certified, by rollouts."""
    folder = tmp_path_factory.mktemp("passed")
    plan = ["plan", *coin(folder, 0.01), *SMALL, "--rollouts", "200", "--constraint", "none>=0.9"]
    assert main([*plan, "--out", str(folder / "run")]) == 0
    return folder / "run"


@pytest.fixture
def certified(passed, tmp_path):
    """A copy of it, for one test alone."""
    return shutil.copytree(passed, tmp_path / "certified")


def read(folder, name="result.json"):
    return json.loads((folder / name).read_text())


class TestOneConfidence:
    def test_everything_says_the_confidence_that_was_promised(self, refused, capsys):
        result, audits = read(refused), Ledger(Run(refused)).audits
        assert (result["confidence"], result["audits"], len(audits)) == (0.95, 2, 2)
        assert [audit.confidence for audit in audits] == [0.975, 0.9875]
        assert result["audit_labels"] == 300
        assert not any(verdict["certified"] for verdict in result["constraints"])
        assert "confidence" not in result["evaluation"]
        text = re.sub(r"<[^>]+>", " ", (refused / "report.html").read_text())
        text = " ".join(text.split())
        assert "with 95 % confidence all hold together" in text
        assert "With 95 % confidence all bounds of this run hold together" in text
        assert "100 %" not in text.partition("Every audit")[2][:2000]
        for audit in audits:
            for verdict in audit.constraints:
                assert f"at least {at_least(verdict.lower)}" in text

    def test_the_terminal_too(self, certified, capsys):
        capsys.readouterr()
        assert main(["certify", str(certified), "--rollouts", "300"]) == 0
        told = " ".join(capsys.readouterr().out.split())
        assert "with 95 % confidence: certified" in told
        assert "audit 2 of this run" in told
        assert "98.75 %" in told
        assert "99 %" not in told

    def test_another_confidence_is_the_one_that_is_told(self, certified, capsys):
        capsys.readouterr()
        assert main(["certify", str(certified), "--rollouts", "300", "--confidence", "0.9", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["confidence"] == 0.9
        assert read(certified)["confidence"] == 0.95, "the run's own certificate stays"

    @pytest.mark.parametrize(
        ("confidence", "words"),
        [(0.95, "95 %"), (0.9875, "98.75 %"), (0.99999999, "99.9999 %"), (1 - 0.05 / 8, "99.375 %"), (0.5, "50 %")],
    )
    def test_a_confidence_is_never_rounded_up(self, confidence, words):
        assert percent(confidence) == words

    def test_a_bound_is_never_rounded_towards_a_stronger_claim(self):
        for bound in np.random.default_rng(0).random(1000):
            assert float(at_least(bound)) <= bound <= float(at_most(bound))
        assert (at_least(0.94999), at_most(0.05001)) == ("0.9499", "0.0501")

    @pytest.mark.parametrize("chance", [0.02, 0.05, 0.3])
    def test_lower_and_upper_bounds_of_all_constraints_hold_together(self, chance):
        constraints = parse_constraints(["none>=0.95", "severe<=0.05", "mild<=0.2"], Scale())
        true = np.array([1 - 2 * chance, chance, chance])
        draws = np.random.default_rng(1).multinomial(300, true, 4000)
        wrong = 0
        for counts in draws:
            events = [float(true @ np.array(constraint.weights)) for constraint in constraints]
            verdicts = judge(constraints, counts.tolist(), 0.95)
            wrong += any(not v.lower <= p <= v.upper for v, p in zip(verdicts, events, strict=True))
        assert wrong / 4000 <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 4000)

    @pytest.mark.parametrize(("inside", "trials"), [(99, 100), (484, 500), (962, 1000), (1917, 2000)])
    def test_the_fewest_clean_rollouts_that_certify(self, inside, trials):
        constraints = parse_constraints(["none>=0.95"], Scale())
        assert judge(constraints, (inside, trials - inside, 0), 0.95)[0].certified
        assert not judge(constraints, (inside - 1, trials - inside + 1, 0), 0.95)[0].certified

    def test_bounds_at_the_ends(self):
        assert lower_bound(0, 10, 0.05) == 0.0
        assert upper_bound(10, 10, 0.05) == 1.0


class TestLedger:
    def test_a_further_audit_shares_the_error_and_keeps_what_was(self, certified, capsys):
        before = read(certified)
        for number in (2, 3, 4):
            capsys.readouterr()
            assert main(["certify", str(certified), "--rollouts", "300", "--seed", str(number), "--json"]) == 0
            told = json.loads(capsys.readouterr().out)
            assert told["audits"] == number
        audits = Ledger(Run(certified)).audits
        assert [audit.confidence for audit in audits] == pytest.approx(
            [split_confidence(0.95, k) for k in (1, 2, 3, 4)]
        )
        assert sum(1 - audit.confidence for audit in audits) < 0.05
        after = read(certified)
        assert (after.pop("audits"), after.pop("audit_labels")) == (4, 1100)
        assert after == {name: value for name, value in before.items() if name not in ("audits", "audit_labels")}

    def test_each_audit_has_rollouts_of_its_own(self, refused, tmp_path):
        """The same seed again is no way to the same rollouts, nor to those of the campaign."""
        run = tmp_path / "run"
        shutil.copytree(refused, run)
        for _ in range(2):
            assert main(["certify", str(run), "--rollouts", "150"]) == 1
        returns = [audit.figures.side_effects["none"] for audit in Ledger(Run(run)).audits]
        assert len(set(returns)) > 1

    def test_people_do_not_overwrite_what_the_rule_certified(self, certified, tmp_path, capsys):
        before = read(certified)
        assert main(["certify", str(certified), "--people", "--rollouts", "300"]) == 3
        assert read(certified) == before
        audit = Ledger(Run(certified)).open
        assert (audit.number, audit.method, audit.labelled_by) == (2, "sequential", "people")
        capsys.readouterr()
        assert main(["certify", str(certified), "--people", "--json"]) == 3, "what is left out is as it was begun"
        asked = json.loads(capsys.readouterr().out)
        file = tmp_path / "labels.csv"
        file.write_text("trajectory,label\n" + "".join(f"{i},severe\n" for i in asked["trajectories"]))
        assert main(["label", str(certified / "labels.store"), "--import", str(file), "--annotator", "ann"]) == 0
        assert main(["certify", str(certified), "--people"]) == 1
        after = read(certified)
        assert after["constraints"] == before["constraints"], "the certificate stays, and the refusal is on record"
        assert Ledger(Run(certified)).audits[1].status == "refused"
        assert after["audits"] == 2

    def test_an_audit_that_was_given_up_keeps_its_share(self, certified):
        assert main(["certify", str(certified), "--people", "--rollouts", "300"]) == 3
        assert main(["certify", str(certified), "--rollouts", "300"]) == 0
        audits = Ledger(Run(certified)).audits
        assert [audit.status for audit in audits] == ["certified", "abandoned", "certified"]
        assert audits[2].confidence == split_confidence(0.95, 3)

    def test_an_audit_that_was_interrupted_is_finished_as_it_was_begun(self, refused, tmp_path, monkeypatch):
        run = tmp_path / "run"
        shutil.copytree(refused, run)
        monkeypatch.setenv("STOP_HERE", "1")  # the rule stops the process in the middle of the audit, as Ctrl-C would
        assert main(["certify", str(run), "--rollouts", "150"]) in (2, 130)
        assert Ledger(Run(run)).open.number == 3
        monkeypatch.delenv("STOP_HERE")
        assert main(["certify", str(run)]) == 1
        finished = Ledger(Run(run)).audits
        assert (len(finished), finished[2].status, finished[2].rollouts) == (3, "refused", 150)

    def test_when_too_little_error_is_left_it_says_how_many_rollouts_it_takes(self, certified, capsys):
        for _ in range(3):
            assert main(["certify", str(certified), "--rollouts", "300"]) == 0
        capsys.readouterr()
        assert main(["certify", str(certified), "--rollouts", "50"]) == 2
        said = capsys.readouterr().err
        assert re.search(r"audit 5 of this run needs \d+ rollouts", said)
        assert len(Ledger(Run(certified)).audits) == 4, "nothing was begun"

    def test_records_come_back_as_they_were_written(self, refused):
        audits = Ledger(Run(refused)).audits
        assert tuple(from_json(type(audit), to_json(audit), "test") for audit in audits) == audits
        result = result_from_json(read(refused), "test")
        assert result_to_json(result) == read(refused)
        assert sidestep.load(refused).result == read(refused)


OLD_RESULT = {
    "model": "navigation",
    "constraints": [
        {"text": "none>=0.95", "estimate": 0.97, "lower": 0.96, "upper": 0.98, "met": True, "certified": True}
    ],
    "return": {"mean": -89.4, "std": 3.0, "discounted_mean": -80.0, "interval": [-89.5, -89.3]},
    "side_effects": {"none": 0.97, "mild": 0.02, "severe": 0.01},
    "rollouts": 2000,
    "evaluation": {"trajectories": 2000, "policy": "mean", "confidence": 0.9875},
    "labels_used": 1800,
    "audit_labels": 4000,
    "audits": 2,
    "seconds": 100.0,
    "seed": 11,
    "method": "default",
}


def test_a_run_of_the_first_version_is_read():
    """Its result named the confidence of one audit; what it may claim is the promise."""
    result = result_from_json(OLD_RESULT, "result.json")
    assert (result.confidence, result.certified, result.returns.mean) == (0.95, True, -89.4)


class TestNotPossible:
    @pytest.mark.parametrize(
        ("constraint", "words"),
        [
            ("severe<=0", "no number of rollouts proves that something never happens"),
            ("none>=1", "no number of rollouts proves that something never happens"),
            ("none>=0.998", "audit 3 of this run needs"),
            ("severe<=0.0005", "audit 3 of this run needs"),
        ],
    )
    @pytest.mark.parametrize("people", [False, True])
    def test_it_is_refused_before_the_first_label(self, constraint, words, people, tmp_path, capsys):
        model = coin(tmp_path, 0.5)
        model = model[:1] if people else model
        out = tmp_path / "run"
        assert main(["plan", *model, "--constraint", constraint, "--out", str(out), "--quiet"]) == 2
        said = capsys.readouterr().err
        assert words in said
        assert "what can be certified is" in said
        assert not out.exists()

    def test_what_it_suggests_can_be_certified(self):
        for text in ("severe<=0", "none>=0.9999"):
            constraint = parse_constraints([text], Scale())
            with pytest.raises(InputError) as refusal:
                require_certifiable(constraint, 2000, 0.95, last=3)
            suggested = re.search(r"what can be certified is (\S+)", str(refusal.value))[1]
            require_certifiable(parse_constraints([suggested], Scale()), 2000, 0.95, last=3)

    def test_what_is_not_enforced_is_never_certified(self, tmp_path, capsys):
        """A policy that may do what the model forbids: with a rule the figures are told, but nothing is claimed."""
        model = coin(tmp_path, 0.0001, ["the precondition 'a <= b' cannot be enforced"])
        out = tmp_path / "run"
        assert main(["plan", *model, *SMALL, "--out", str(out)]) == 1
        told = capsys.readouterr().out
        assert "not certified: rollouts of 'coin' may do what the model forbids" in told
        result = read(out)
        assert result["audits"] == 1, "no other audit could succeed"
        assert "a <= b" in result["reason"]
        assert [verdict["certified"] for verdict in result["constraints"]] == [False]
        assert main(["certify", str(out), "--people"]) == 2, "no label is asked for in vain"
        assert "nothing can be certified" in capsys.readouterr().err


class TestExitStatus:
    def test_infeasible_is_one_with_a_sentence(self, tmp_path, capsys):
        corridor = tmp_path / "corridor.bp"
        corridor.write_text("SB.G\n")  # nothing to be harmed, and harm is asked for
        words = ["plan", str(corridor), "--constraint", "none<=0.05", "--out", str(tmp_path / "run"), "--quiet"]
        assert main(words) == 1
        assert "no policy meets none<=0.05 in runs of 500 steps" in capsys.readouterr().err

    def test_who_may_not_pass_stands_still_and_that_is_said(self, tmp_path, capsys):
        corridor = tmp_path / "corridor.bp"
        corridor.write_text("SB@G\n")  # the box must be carried over the hole
        words = ["plan", f"{corridor}?horizon=30", "--constraint", "none>=1", "--rollouts", "100", "--quiet"]
        assert main([*words, "--out", str(tmp_path / "run")]) == 0
        assert "only 0.0 % of the runs reach an end" in capsys.readouterr().out

    def test_help_tells_them(self, capsys):
        for command in ("plan", "resume", "certify"):
            with pytest.raises(SystemExit):
                main([command, "--help"])
            assert "Exit status" in capsys.readouterr().out
