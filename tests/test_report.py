"""The report of a run: complete where the run is, plain words where it is not, and safe to open anywhere."""

import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser

import jax
import numpy as np
import pytest

from sidestep.certification.bounds import judge
from sidestep.certification.ledger import Ledger
from sidestep.certification.records import (
    Agreement,
    Audit,
    Design,
    Figures,
    Forecast,
    Penalty,
    Price,
    Result,
    Return,
    result_to_json,
    split_confidence,
)
from sidestep.certification.words import bound_in_words
from sidestep.cli.main import main
from sidestep.core.constraints import Scale, parse_constraints
from sidestep.core.model import Space, Spec, Trajectory, UniformPolicy, Variable, rollout
from sidestep.labels.rules import load_rule
from sidestep.labels.store import Store
from sidestep.models import load_model
from sidestep.planning.rows import PlanRow
from sidestep.policies.files import save_policy
from sidestep.policies.networks import make_policy
from sidestep.report import figures
from sidestep.report.drawings import draw_blame, draw_view, same_frame, views
from sidestep.report.html import write_report
from sidestep.report.page import number, tag
from sidestep.report.svg import INK, style, svg
from sidestep.runs.folder import Run
from sidestep.runs.records import Round
from sidestep.safety.io import make_safety, save_safety

MODEL = '''
import jax
import jax.numpy as jnp
from sidestep.core.model import Space, Spec, Variable

class Walk:
    """A walk on the line with a fuel gauge."""
    spec = Spec(
        "<b>walk</b> $x$", Space((Variable("place $x<i>"), Variable("fuel"), Variable("mood", "one-hot", 2, 0.0, 1.0))),
        Space((Variable("push", low=-1.0, high=1.0),)), horizon=6, ends=False,
    )
    def reset(self, key):
        return jnp.array([0.0, 1.0, 1.0, 0.0])
    def step(self, state, action, key):
        place = state[0] + action[0] + 0.1 * jax.random.normal(key)
        mood = jnp.where(place > 0, jnp.array([1.0, 0.0]), jnp.array([0.0, 1.0]))
        return jnp.concatenate([jnp.stack([place, state[1] - 0.1]), mood]), -jnp.abs(place), jnp.zeros((), bool)
    def action_bounds(self, state):
        return -jnp.ones(1), jnp.ones(1)

def rule(trajectory):
    return (trajectory.states[:, -1, 0] > 0).astype(int) * 2
rule.categories = ("fine & $dandy$", "so-so", "bad\\\\_{")
'''
CATEGORIES = ("fine & $dandy$", "so-so", "bad\\_{")
CONSTRAINTS = ["fine & $dandy$>=0.9", "bad\\_{<=0.05"]
LONELY = {"meta"}


class Reader(HTMLParser):
    """Elements, attributes and text of a page; complains about elements that are not closed in order."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.words, self.open = [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, name, attributes):
        self.tags.append(name)
        self.attributes += attributes
        if name not in LONELY:
            self.open.append(name)

    def handle_startendtag(self, name, attributes):
        self.tags.append(name)
        self.attributes += attributes

    def handle_endtag(self, name):
        assert self.open.pop() == name

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def read(path):
    """The report's page, after the checks that every report must pass."""
    text = path.read_text(encoding="utf-8")
    page = Reader(text)
    assert not {"script", "link", "iframe", "img", "b", "i"} & set(page.tags), "nothing active, nothing fetched"
    for name, value in page.attributes:
        assert not name.startswith("on")
        if name in ("href", "src"):
            assert value.startswith("#"), value
    assert "http:" not in text
    assert "https:" not in text
    assert "@import" not in text
    ids = [value for name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids)), "ids of the figures stay apart"
    targets = {value[1:] for name, value in page.attributes if name == "href"}
    assert targets <= set(ids)
    assert INK not in text
    assert "@media (prefers-color-scheme: dark)" in text
    assert ("name", "viewport") in page.attributes
    return page


PLAIN = Design()


def write_result(folder, audits, constraints=CONSTRAINTS, categories=CATEGORIES, mean=-12.345, design=PLAIN, **more):
    """What a run writes after audits that counted so many rollouts of each category; the last one is its answer."""
    ledger = Ledger(Run(folder))
    parsed = parse_constraints(constraints, Scale(categories))
    for place, counts in enumerate(audits, 1):
        verdicts = judge(parsed, counts, split_confidence(0.95, place))
        shares = dict(zip(categories, (n / sum(counts) for n in counts), strict=True))
        figures = Figures(Return(mean, 1.0, mean, (mean - 1, mean + 1)), shares, more.pop("penalty", None))
        status = "certified" if all(one.certified for one in verdicts) else "refused"
        audit = Audit(place, "fixed", "the rule", "", 0, sum(counts), 0.95, 0, status=status, constraints=verdicts)
        audit = replace(audit, rollouts=sum(counts), labels=sum(counts), figures=figures, design=design)
        ledger.begin(audit)
    about = {"model": "m", "labels_used": 1234, "seconds": 90.0, "seed": 0, "method": "default"}
    about |= {"diagnosis": "feasible"}
    result = Result(**about | more).with_audit(audit, ledger.audits)
    Run(folder).write_json("result.json", result_to_json(result))


def metric(epoch, index=0, **more):
    shares = [0.9, 0.06, 0.04]
    return {
        "seed_index": index,
        "epoch": epoch,
        "feasible": epoch > 10,
        "seconds": 1.0,
        "train_multipliers": [0.1 * epoch, 5.0],
        "mean_return": -100.0 + epoch,
        "mean_predicted": shares,
        "mean_true": shares[::-1],
    } | more


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def start_run(folder, reference, **config):
    folder.mkdir(parents=True)
    config = {
        "format": 1,
        "kind": "plan",
        "model": reference,
        "seed": 0,
        "categories": list(Scale().categories),
    } | config
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def put_policy(folder, reference, name="policy.safetensors", seed=0):
    save_policy(folder / name, make_policy(load_model(reference), jax.random.key(seed), widths=(4,)), reference)


@pytest.fixture(scope="module")
def campaign(tmp_path_factory):
    """A folder with every part that a campaign leaves, and a name that does not wish us well."""
    folder = tmp_path_factory.mktemp("runs") / "<img src=x onerror=alert(1)>"
    file = folder.parent / "walk.py"
    file.write_text(MODEL)
    reference = f"{file}:Walk"
    start_run(
        folder,
        reference,
        kind="campaign",
        rule=f"{file}:rule",
        categories=CATEGORIES,
        constraints=CONSTRAINTS,
        labels=2000,
        method="default",
        settings={"note": "</code><script>alert(2)</script>"},
    )
    load_rule(f"{file}:rule", load_model(reference))  # the user has given this rule to a command before
    put_policy(folder, reference)
    put_policy(folder, reference, "before.safetensors", seed=1)
    model = load_model(reference)
    trajectories = rollout(model, UniformPolicy(model), jax.random.key(0), 12)
    with Store.create(folder / "labels.store", model.spec, Scale(CATEGORIES)) as store:
        rounds = [None] * 6 + [3] * 6
        ids, _ = store.add(trajectories, policy="<i>explorers</i>", round=rounds)
        store.label(ids, [0, 2] * 6, "the rule")
    safety = make_safety("hazard", 4, 1, 3, key=jax.random.key(0), units=4, encoder=())
    about = {"fit": {"scores": {"trajectories": 77, "accuracy": 0.875, "log_loss": 0.25, "calibration_error": 0.0625}}}
    save_safety(folder / "safety.safetensors", safety, Scale(CATEGORIES), about=about)
    rows = [metric(epoch, index, round=place) for place in (0, 1) for epoch in (10, 20) for index in (0, 1)]
    write_lines(folder / "metrics.jsonl", rows)
    rounds = [
        {"round": place, "labels": 600 + place, "asked": 600, "return": -20.5 + place, "predicted": [0.9, 0.06, 0.04]}
        | {"labelled": None if place == 0 else [0.8, 0.1, 0.1], "margin": 0.1, "seconds": 3.0, "feasible": place == 1}
        for place in (0, 1)
    ]
    write_lines(folder / "rounds.jsonl", rounds)
    noisy = Figures(Return(-13.5, 1.0, -13.5), dict.fromkeys(CATEGORIES, 1 / 3))
    told = Forecast(0.6, 0.05, 0.3, 412.0, 5, (Price(3, 0.1, 380.0), Price(7, 0.29, 520.0)), ("severe<=0.09",))
    agreement = Agreement(50, 45, 0.8)
    write_result(
        folder, [(1815, 165, 20), (1875, 105, 20)], design=Design(forecast=told), sampled=noisy, agreement=agreement
    )
    return folder


@pytest.fixture(scope="module")
def campaign_page(campaign):
    before = {file.name: file.read_bytes() for file in campaign.iterdir()}
    assert write_report(campaign) == campaign / "report.html"
    after = {file.name: file.read_bytes() for file in campaign.iterdir()}
    after.pop("report.html")
    assert before == after, "a report only reads what is there"
    return read(campaign / "report.html")


def test_a_campaign_says_what_people_agree_on_and_what_an_audit_should_have_proven(campaign_page):
    text = campaign_page.text
    assert "Of 50 pairs of answers to one question" in text
    assert "45 are the same: 0.9000, and with 95 % confidence at least 0.8000" in text
    assert "Before the first label of audit 1 it was said: with answers wrong in about 5.0%" in text
    assert "a chance of 30%, after about 412 labels, with up to 5 opinions" in text
    assert "what is likely to be proven is severe<=0.09. It took 2,000 labels, and was refused." in text


def test_a_campaign_says_what_was_asked_and_what_came_of_it(campaign_page):
    text = campaign_page.text
    assert (
        "Certified: 93 of 100 runs were 'fine & $dandy$', without side effects, at least 92 with 95 % confidence"
        in text
    )
    assert "1 of 100 runs were 'bad\\_{', at most 2 with 95 % confidence. It earns -12.3" in text
    assert "fine & $dandy$ < so-so < bad\\_{" in text
    for words in ("1,234 of 2,000", "4,000", "1.5", "sampled instead of mean actions the return is -13.5"):
        assert words in text
    assert "There were 2 audits" in text
    assert "so that with 95 % confidence all hold together" in text
    assert "97.5 %" in text
    assert "98.75 %" in text
    assert "met, not certified" in text
    for verdict in judge(parse_constraints(CONSTRAINTS, Scale(CATEGORIES)), (1875, 105, 20), 0.9875):
        assert bound_in_words(verdict, 3) in text


def test_a_campaign_shows_its_figures(campaign_page):
    text = campaign_page.text
    # Two figures of the rounds, three of the epochs, four views before and after, calibration, two of the blame.
    assert campaign_page.tags.count("svg") == 2 + 3 + 3 * 2 + 1 + 2, "no failing run was kept"
    assert "Before: a policy that ignores side effects" in text
    assert "After: the final policy" in text
    assert "coloured by the rule" in text
    assert "held out: accuracy 0.875, log loss 0.25, calibration error 0.0625" in text
    assert "of the run's labels was labelled 'bad\\_{'" in text
    assert "blame for" in text
    assert "round 3 3 0 3 6" in text
    assert "<i>explorers</i> 3 0 3 6" in text
    assert "all 6 0 6 12" in text
    assert "sidestep.load(" in text
    assert "no labels" not in text


def test_captions_say_what_the_pictures_show(campaign_page):
    text = campaign_page.text
    for finding in (r"Step \d+ has \d+ % of the blame", r"In the last round it predicts fine & \$dandy\$ [\d.]+ %"):
        assert re.search(finding, text), finding
    assert text.count(" At the end ") >= 2, "the curves"


def test_the_user_s_words_stay_words(campaign, campaign_page):
    text = (campaign / "report.html").read_text()
    assert "alert(1)" in campaign_page.text
    assert "</code><script>alert(2)</script>" in campaign_page.text
    assert "place $x<i>" in campaign_page.text, "in the figures too, and a dollar starts no formula"
    assert "<img" not in text
    assert "<script" not in text


def test_a_report_is_the_same_every_time(campaign, campaign_page):
    first = (campaign / "report.html").read_bytes()
    write_report(campaign)
    assert (campaign / "report.html").read_bytes() == first


def test_a_damaged_part_is_left_out_with_its_reason(campaign, campaign_page, tmp_path):
    folder = tmp_path / "damaged"
    shutil.copytree(campaign, folder)
    (folder / "result.json").write_text("{")
    (folder / "labels.store").write_bytes(b"no store")
    (folder / "metrics.jsonl").write_text("oops\n")
    (folder / "policy.safetensors").write_bytes(b"no policy")
    page = read(write_report(folder))
    assert "result.json: is not JSON" in page.text
    assert "metrics.jsonl:1: is not JSON" in page.text
    assert page.text.count("Left out:") >= 5
    assert "What was asked" in page.text


def test_a_run_that_has_only_begun(tmp_path):
    folder = start_run(tmp_path / "begun", "navigation", constraints=["none>=0.95"])
    page = read(write_report(folder))
    for words in (
        "There is no answer yet: the run has not finished",
        "There is no certificate: the run has not finished.",
        "No test of the training is on record",
        "The run has no safety model.",
        "The run's folder holds no labels of its own.",
        "no policy yet",
    ):
        assert words in page.text
    assert "svg" not in page.tags


def test_a_run_without_rule_says_so(campaign, tmp_path):
    reference = f"{campaign.parent / 'walk.py'}:Walk"
    folder = start_run(tmp_path / "plain", reference, constraints=["none>=0.95"], seeds=1)
    put_policy(folder, reference)
    write_lines(folder / "metrics.jsonl", [metric(10), metric(20, mean_return=float("nan"), train_multipliers=None)])
    (folder / "result.json").write_text(
        json.dumps({"model": "walk", "labels_used": 0, "audit_labels": 0, "seconds": 3.0})
    )
    page = read(write_report(folder))
    assert "A policy was planned but nothing is certified: there was no rule" in page.text
    assert "There is no certificate: the run has no rule" in page.text
    assert "nobody has judged them" in page.text
    assert "The run kept no earlier policy" in page.text
    assert page.tags.count("svg") == 3 + 3


@pytest.mark.parametrize(
    ("constraints", "counts", "sentence", "kind"),
    [
        (["none>=0.95"], (1904, 90, 6), "Not proved: none>=0.95 held in the audit", "fair"),
        (
            ["none>=0.95"],
            (1000, 900, 100),
            "Not safe enough: none>=0.95 did not hold in the audit: 50 of 100 runs were free of side effects, at most",
            "bad",
        ),
        ([], (2000, 0, 0), "A policy was planned without any constraint. It earns -12.3 per run.", "fair"),
    ],
)
def test_other_answers(constraints, counts, sentence, kind, tmp_path):
    folder = start_run(tmp_path / "run", "nowhere.rddl")
    write_result(folder, [counts], constraints, Scale().categories, penalty=Penalty(0.25, 0.5))
    (folder / "policy.safetensors").write_bytes(b"")
    page = read(write_report(folder))
    assert sentence in page.text
    assert ("class", f"answer {kind}") in page.attributes
    assert "0.25 ± 0.5" in page.text
    assert "Left out: nowhere.rddl" in page.text, "the model is gone, and the rest is there"


def test_several_seeds_on_a_map(tmp_path, capsys):
    reference = "boxpushing?horizon=30"
    folder = start_run(tmp_path / "seeds", reference, constraints=["none>=0.95"], seeds=2)
    write_lines(folder / "metrics.jsonl", [metric(epoch, index) for epoch in (10, 20) for index in (0, 1)])
    for seed, met in ((9, True), (10, False)):
        inner = start_run(folder / f"seed-{seed}", reference, constraints=["none>=0.95"], seed=seed)
        put_policy(inner, reference, seed=seed)
        counts = (1980, 20, 0) if met else (500, 1500, 0)
        write_result(inner, [counts], ["none>=0.95"], Scale().categories, mean=-float(seed))
    assert main(["report", str(folder)]) == 0
    assert str(folder / "report.html") in capsys.readouterr().out
    page = read(folder / "report.html")
    assert "1 of 2 seeds are certified. The mean return is -9.5, the worst -10." in page.text
    assert page.text.index("seed-9") < page.text.index("seed-10")
    assert {("href", "#seed-9"), ("id", "seed-9"), ("href", "#seed-10"), ("id", "seed-10")} <= set(page.attributes)
    assert "the walk on the map" in page.text
    assert "seed-9')" in page.text
    assert page.tags.count("svg") == 2 + 3


def test_bad_input_of_the_command(tmp_path, capsys):
    assert main(["report", str(tmp_path / "nowhere")]) == 2
    assert "config.json" in capsys.readouterr().err


class Known:
    """A model that is one of ours by its family, as far as drawings can tell."""

    def __init__(self, family, variable):
        self.spec = Spec("known", Space((variable,)), Space((Variable("a"),)), horizon=8, family=family)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (Known("hvac", Variable("temp", size=3, labels=("r1", "r2", "r3"))), ["temp[r2]", "other rooms"]),
        (Known("reservoir", Variable("water", size=2, labels=("t1", "t2"))), ["gap in shares", "water[t1]"]),
        (Known("navigation", Variable("location", size=2, labels=("x", "y"))), ["plane"]),
        (Known("", Variable("speed", size=6)), ["speed[0]", "speed[1]", "speed[2]", "speed[3]"]),
    ],
)
def test_trajectories_are_drawn_on_their_domain(model, expected):
    size = model.spec.state.size
    states = np.random.default_rng(0).normal(20.0, 2.0, (7, 8, size)).astype(np.float32)
    trajectory = Trajectory(states, np.zeros((7, 8, 1)), np.zeros((7, 8)), np.array([8, 8, 8, 8, 8, 5, 1]))
    found = views(model)
    assert [word in view.frame.title for word, view in zip(expected, found, strict=True)] == [True] * len(expected)
    with style():
        for view in found:
            first, second = (
                draw_view(view.frame, view.points(some), some.length, np.arange(3) + 3, tuple("abcdefg"))
                for some in (trajectory[:3], trajectory[4:7])
            )
            same_frame([first, second])
            assert first.axes[0].get_ylim() == second.axes[0].get_ylim()
            drawn = svg("one", "words", first)
            assert ">d</text>" in drawn
            assert ">e</text>" in drawn, "more categories than colours are no trouble"
            assert "fill: #ffffff" not in drawn, "the ground shows through"
            assert "currentColor" in drawn
            discs = draw_blame(view.frame, view.points(trajectory[6:]), np.ones(1), 2)
            svg("two", "words", discs)


def test_epochs_count_on_from_round_to_round():
    rows = [PlanRow(epoch=epoch, round=place) for place in range(2) for epoch in (50, 100)]
    done, begins = figures.epochs(rows)
    assert done.tolist() == [50, 100, 150, 200]
    assert begins == [100]
    on = [PlanRow(epoch=epoch, round=place) for epoch, place in ((50, 0), (100, 0), (150, 1))]
    assert figures.epochs(on)[0].tolist() == [50, 100, 150]


def test_curves_of_rows_with_holes():
    constraints = parse_constraints(["none>=0.95"], Scale())
    rows = [
        PlanRow(epoch=1),
        PlanRow(**metric(2, mean_true=[0.5], mean_return=float("nan"))),
        PlanRow(**metric(3, train_multipliers=[1000.0])),
    ]
    with style():
        for figure in (
            figures.return_curves([rows]),
            figures.side_effect_curves([rows], Scale().categories, constraints),
            figures.multiplier_curves([rows], ["none>=0.95"]),
            figures.round_returns([Round(0)]),
            figures.round_side_effects([Round(0)], Scale().categories, constraints),
        ):
            assert "</svg>" in svg("x", "words", figure)


def test_small_words():
    assert tag("p", "a < b", class_='"quoted"') == '<p class="&quot;quoted&quot;">a &lt; b</p>'
    assert [number(value) for value in (None, float("nan"), 12345, 0.123456, -482188.4)] == [
        "–",
        "–",
        "12,345",
        "0.1235",
        "-482,188",
    ]
