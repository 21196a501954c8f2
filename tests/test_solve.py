"""The main job and its steps from Python: live objects, what the answer offers, and what is refused."""

import re
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sidestep
from sidestep.cli.main import main
from sidestep.core.views import Frame, View
from sidestep.deploy.tables import Table
from sidestep.models.domains.driving.model import Driving
from sidestep.models.python_model import WithStatedBounds
from sidestep.safety.io import make_safety

SMALL = {"labels": 40, "rounds": 1, "members": 1, "first_fit": 20, "later_fit": 10, "rollouts": 200, "audits": 1}
ONCE = {"epochs": 2, "test_every": 1, "batch": 4, "test_batch": 4, "widths": (4,), "search_rounds": 0}


def yard():
    return Driving("S.@..\n.....\n..@.G", name="yard", horizon=20)


def slow(trajectory):
    return (trajectory.length > 12).astype(int) * 2


class Tank:
    """Without action_bounds: its spec says them."""

    spec = sidestep.Spec(
        name="tank",
        state=sidestep.Space((sidestep.Variable("level"),)),
        action=sidestep.Space((sidestep.Variable("valve", low=0.0, high=1.0),)),
        horizon=3,
    )

    def reset(self, key):
        return jnp.array([5.0])

    def step(self, state, action, key):
        level = jnp.maximum(state + 0.5 + 0.1 * jax.random.normal(key) - action, 0.0)
        return level, -jnp.abs(state[0] - 4.0), level[0] > 20.0

    def views(self):
        time = np.arange(3)[None, :]
        return [View(Frame("time", "the level"), lambda t: (np.repeat(time, len(t), 0), np.asarray(t.states)[..., 0]))]


@pytest.fixture(scope="module")
def solved(tmp_path_factory):
    events = []
    folder = tmp_path_factory.mktemp("solved") / "run"
    answer = sidestep.solve(
        yard(), expert=slow, constraints="none>=0.5", seed=3, out=folder, callback=events.append, verbose=False, **SMALL
    )
    return answer, events


def test_an_answer_has_all_that_was_found(solved, tmp_path):
    answer, events = solved
    assert answer.certified == answer.certificate.certified
    assert answer.certificate.constraints[0].text == "none>=0.5"
    state = np.asarray(answer.model.reset(jax.random.key(0)))
    assert answer.policy.act(state).shape == (answer.model.spec.action.size,)
    assert answer.history.columns[:3] == ("round", "labels", "new")
    assert len(answer.labels) >= 40
    assert set(answer.labels["annotator"]) == {"slow"}
    assert answer.plot().axes
    assert answer.report().name == "report.html"
    assert answer.export(tmp_path / "policy.py").is_file()
    assert "none>=0.5" in repr(answer)
    assert "data:image/png" in answer._repr_html_()
    stages = [event.stage for event in events]
    assert stages[0] == "exploring"
    assert stages[-1] == "finished"
    assert {"round", "audited", "tested"} <= set(stages)


def test_a_run_of_objects_is_loaded_and_says_which_object_it_needs(solved, capsys):
    answer, _ = solved
    loaded = sidestep.load(answer.path)
    assert repr(loaded) == repr(answer)
    assert loaded.history.rows == answer.history.rows
    with pytest.raises(sidestep.InputError, match=r"the model of this run was a Python object.*sidestep.resume"):
        _ = loaded.policy
    again = sidestep.load(answer.path, model=yard(), expert=slow)
    state = np.asarray(again.model.reset(jax.random.key(0)))
    assert (again.policy.act(state) == answer.policy.act(state)).all()
    assert main(["resume", str(answer.path)]) == 2
    said = capsys.readouterr().err
    assert "was a Python object, which no folder can hold" in said
    assert main(["plan", "--config", str(answer.path / "config.json")]) == 2
    resumed = sidestep.resume(answer.path, model=yard(), expert=slow, verbose=False)
    assert replace(resumed.certificate, seconds=0) == replace(answer.certificate, seconds=0)


def test_labelled_steps_have_a_report_with_before_after_and_a_failing_run(tmp_path):
    answer = sidestep.solve(
        "driving?horizon=40", constraints=["none>=0.7"], rollouts=5000, out=tmp_path / "run", verbose=False
    )
    text = (answer.path / "report.html").read_text()
    assert "Before: a policy that ignores side effects" in text
    assert "After: the final policy" in text
    assert re.search(r"\d+ of 1,000 fresh runs of the final policy had a side effect", text)
    assert "less than the" in answer.finding.sentence, "the price is told"
    assert "run.monitor" not in text, "there is no safety model to monitor with"
    assert '<th scope="col">accuracy</th>' not in text, "nothing is known of it"


def test_people_label_in_a_store_of_theirs(tmp_path, capsys):
    model = yard()
    with sidestep.Store.create(tmp_path / "ours.store", model.spec, sidestep.Scale(("fine", "poor"))) as store:
        with pytest.raises(sidestep.LabelsNeeded, match=r"11 trajectories need labels in .*ours\.store; .*resume") as e:
            sidestep.solve(model, store, ["fine>=0.5"], out=tmp_path / "run", verbose=False, **SMALL)
        assert len(e.value.ids) == 11
        assert len(store) > 11, "some may be labelled ahead"
        assert e.value.store == tmp_path / "ours.store"
    assert not (tmp_path / "run/labels.store").exists()


def test_without_a_folder_a_temporary_one_is_used_and_said(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    answer = sidestep.solve("driving?horizon=8", method="ppo", **(ONCE | {"epochs": 1, "test_batch": 2}))
    assert str(answer.path) in capsys.readouterr().err
    assert tmp_path in answer.path.parents
    assert not answer.certificate.constraints


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"expert": 3}, "an expert is a function of trajectories"),
        ({"expert": slow, "lables": 3}, "did you mean 'labels'?"),
        ({"expert": slow, "safety": 3}, "expected a fitted safety model"),
        ({"expert": lambda a, b, c: 0}, r"a rule takes \(trajectory\) or \(trajectory, model\), not 3 arguments"),
        ({"expert": slow, "constraints": ["nnoe>=0.5"]}, "did you mean 'none'?"),
    ],
)
def test_what_cannot_be_used_is_refused_in_a_sentence(given, words, tmp_path):
    with pytest.raises(sidestep.InputError, match=words):
        sidestep.solve(yard(), out=tmp_path / "run", verbose=False, **given)
    assert not (tmp_path / "run").exists()


def test_a_class_without_bounds_of_its_own_is_a_model(key):
    trajectory = sidestep.rollout(Tank(), sidestep.UniformPolicy(Tank()), key, 5)
    assert trajectory.states.shape == (5, 3, 1)
    model = sidestep.load_model(Tank)
    assert isinstance(model, WithStatedBounds)
    again = sidestep.rollout(model, sidestep.UniformPolicy(model), key, 5)
    assert (trajectory.states == again.states).all()
    rule = sidestep.load_rule(lambda t: t.states[:, -1, 0] > 5, model)
    assert rule.label(trajectory).shape == (5,)
    with pytest.raises(sidestep.InputError, match="a model has 'spec', 'reset' and 'step'"):
        sidestep.load_model(object())


class Linear(eqx.Module):
    """A policy network of one's own."""

    layer: eqx.nn.Linear

    def __init__(self, inputs, outputs, *, key):
        self.layer = eqx.nn.Linear(inputs, outputs, key=key)

    def __call__(self, x):
        return 0.1 * self.layer(x)


def test_a_network_of_ones_own_is_trained_saved_and_loaded(tmp_path):
    model = sidestep.load_model(Tank)
    safety = make_safety("hazard", 1, 1, 3, key=jax.random.key(0), units=2)
    options = ONCE | {"observe": "memory"}
    del options["widths"]
    answer = sidestep.solve(
        model, None, ["none>=0.5"], out=tmp_path / "run", safety=safety, policy=Linear, verbose=False, **options
    )
    state = np.array([5.0])
    loaded = sidestep.load(answer.path, model=model)
    assert (loaded.policy.act(state) == answer.policy.act(state)).all()
    assert type(loaded.policy.policy.net) is Linear
    assert "(the level)" in answer.report().read_text(), "drawn as the model says"
    with pytest.raises(sidestep.InputError, match="the network 'Linear' is your own"):
        answer.export(tmp_path / "policy.py")


def test_the_steps_of_a_campaign(tmp_path):
    model = sidestep.load_model(yard())
    trajectories = sidestep.collect(model, 30, seed=1)
    categories = sidestep.ask(model, trajectories, expert=slow)
    assert categories.shape == (30,)
    safety, report = sidestep.fit(trajectories, categories, kind="markov", steps=2, batch=4, held_out=0.0)
    assert report.train == 30
    result = sidestep.certify(model, "uniform", expert=slow, constraints=["none>=0.01"], rollouts=50)
    assert result.audits == 1
    assert result.constraints[0].lower <= result.constraints[0].estimate
    with pytest.raises(sidestep.InputError, match="a fit has no option 'stepz'"):
        sidestep.fit(trajectories, categories, stepz=3)
    assert safety.categories == 3


def test_a_table_becomes_a_data_frame():
    pytest.importorskip("pandas", reason="pandas is the user's own choice")
    assert list(Table(("name",), [("a",)]).to_pandas().columns) == ["name"]


def test_a_table_shows_itself():
    table = Table(("name", "return"), [("a", 1.0), ("b", -12345.6)])
    assert repr(table) == "name   return\na           1\nb     -12,346"
    assert table["return"].tolist() == [1.0, -12345.6]
    assert table[1] == {"name": "b", "return": -12345.6}
    assert "<td>-12,346</td>" in table._repr_html_()
    assert len(repr(Table(("i",), [(i,) for i in range(100)])).splitlines()) == 22
