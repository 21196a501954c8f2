"""The experiments: baselines on maps with known answers, jobs that resume, tables that say what the jobs say."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from grid_helpers import AROUND, PUDDLES, safe_optimum

from sidestep.cli.main import main
from sidestep.cluster.engine import open_cluster
from sidestep.cluster.jobs import Job, Jobs
from sidestep.core.errors import InputError
from sidestep.core.model import FunctionPolicy, rollout
from sidestep.finite.tabular import TabularPolicy
from sidestep.labels.collect import ExploringPolicy
from sidestep.labels.rules import load_rule
from sidestep.models.domains.boxpushing.model import Boxpushing
from sidestep.models.domains.driving.model import Driving
from sidestep.reproduce.data import MixedPolicy
from sidestep.reproduce.exact import PENALTY, over_horizon, side_effects
from sidestep.reproduce.experiments import FULL, continuous_jobs, curve_jobs, find_maps, table1_jobs
from sidestep.reproduce.grid_work import GridLimits
from sidestep.reproduce.markov_ha_s import markov_ha_s, price_of_safety, random_queries, state_features

# Baselines and exact judgement


@pytest.mark.parametrize("model", [Boxpushing(AROUND), Driving(PUDDLES)], ids=["boxpushing", "driving"])
def test_markov_ha_s_with_every_answer_plans_the_safe_optimum(model, key):
    rule = load_rule(None, model)
    plan = markov_ha_s(model, rule, 10_000, key)
    tables = side_effects(model, rule)
    total, choice = (over_horizon(model.finite, plan.policies[s], tables, 500, 0.99) for s in ("total", "choice"))
    assert plan.slack == pytest.approx(price_of_safety(model, rule))
    assert plan.slack > 0.1
    assert total[PENALTY] == pytest.approx(0.0, abs=1e-4)
    assert total["return"] == pytest.approx(safe_optimum(model).value, abs=1e-4)
    assert choice[PENALTY] == pytest.approx(0.0, abs=1e-4)
    assert choice["return"] < total["return"] + 1e-4


def test_the_forest_carries_answers_over_to_pairs_that_nobody_asked_about(key):
    model = Driving("S.@@.@@.\n........\n..@@.@@G\n")
    rule = load_rule(None, model)
    every = random_queries(model, rule, 10_000, key)
    plan = markov_ha_s(model, rule, len(every.states) // 2, key)
    dangerous = side_effects(model, rule)[PENALTY] > 0
    met = np.zeros(dangerous.shape, bool)
    met[every.states, every.actions] = True
    assert plan.queries == len(every.states) // 2
    assert np.mean((plan.predicted > 5.0)[met] == dangerous[met]) > 0.98


def test_markov_ha_s_without_answers_about_side_effects_takes_the_short_way(key):
    model = Boxpushing(AROUND)
    rule = load_rule(None, model)
    plan = markov_ha_s(model, rule, 3, key)
    assert plan.predicted.max() == 0.0
    for policy in plan.policies.values():
        assert over_horizon(model.finite, policy, side_effects(model, rule), 500, 0.99)[PENALTY] > 1.0


def test_queries_are_pairs_that_can_be_met_none_twice(key):
    model = Boxpushing(AROUND)
    rule = load_rule(None, model)
    asked = random_queries(model, rule, 10_000, key)
    pairs = set(zip(asked.states.tolist(), asked.actions.tolist(), strict=True))
    assert len(pairs) == len(asked.states)
    assert not model.finite.absorbing[asked.states].any()
    assert not (model.on[asked.states] == "x").any()
    assert asked.categories.tolist() == model.side_effect[asked.states, asked.actions].tolist()
    some = random_queries(model, rule, 20, key)
    assert len(some.states) == 20


def test_features_tell_the_ground_and_the_load_and_not_the_cell():
    model = Boxpushing(AROUND)
    features = state_features(model)
    same = (model.on == ".") & (model.status == 1)
    assert len(np.unique(features[same][:, 2:], axis=0)) == 1
    fragile = (model.on == "F") & (model.status == 1)
    assert not np.array_equal(features[fragile][0, 2:], features[same][0, 2:])


def test_exact_judgement_agrees_with_the_linear_program_and_with_rollouts(key):
    model = Boxpushing(AROUND)
    tables = side_effects(model, load_rule(None, model))
    optimum = safe_optimum(model)
    judged = over_horizon(model.finite, optimum.policy, tables, 500, 0.99)
    assert judged["return"] == pytest.approx(optimum.value, abs=1e-6)
    assert judged["ended"] == pytest.approx(1.0)
    random = np.full(model.finite.reward.shape, 0.2)
    expected = over_horizon(model.finite, random, tables, 40, 0.99)
    trajectory = rollout(model, TabularPolicy(jnp.asarray(random), model), key, 4000, 40)
    penalty = np.asarray(load_rule(None, model).penalty(trajectory))
    discounted = np.asarray(trajectory.returns(0.99))
    assert penalty.mean() == pytest.approx(expected[PENALTY], abs=5 * penalty.std() / np.sqrt(4000))
    assert discounted.mean() == pytest.approx(expected["discounted"], abs=5 * discounted.std() / np.sqrt(4000) + 1e-6)


def test_a_mixture_is_the_policy_alone_when_it_is_told_so(key):
    model = Driving(PUDDLES)
    always = FunctionPolicy(lambda state, clock, key: jax.nn.one_hot(3, model.spec.action.size))
    explorer = ExploringPolicy(model)
    alone = rollout(model, MixedPolicy(always, explorer, jnp.ones(())), key, 50, 5)
    mixed = rollout(model, MixedPolicy(always, explorer, jnp.zeros(())), key, 50, 5)
    assert (np.asarray(alone.actions).argmax(-1)[np.asarray(alone.mask)] == 3).all()
    shares = (np.asarray(mixed.actions).argmax(-1) == 3).mean(axis=1)
    assert shares.min() < 0.3
    assert shares.max() > 0.9


# Which jobs there are


def test_full_size_jobs_are_what_the_paper_ran():
    maps = find_maps(None, FULL)
    jobs = table1_jobs(maps, range(5), FULL)
    assert [grid.name for grid in maps if grid.domain == "driving"] == [f"driving-{n}" for n in range(1, 6)]
    assert len({job.name for job in jobs}) == len(jobs) == 10 + 50 + 2 * 50 + 50
    asked = next(job for job in jobs if job.name == "boxpushing-1-markov-ha-s-seed0")
    assert asked.task.budgets == (2000, 4000, 6000, 7000)
    named = {job.name for job in jobs}
    assert all(need in named for job in jobs for need in job.needs)
    continuous = {job.name: job for job in continuous_jobs(range(5), FULL)}
    assert {"navigation-mfge-seeds0-4", "hvac-ppo-seeds0-4", "hvac-mbge-seeds0-4"} <= set(continuous)
    assert "hvac-mfge-seeds0-4" not in continuous
    assert continuous["navigation-mbge-seeds0-4"].task.epochs is None
    assert {job.name for job in curve_jobs(maps, range(5), FULL)} <= set(continuous) | named


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda folder: folder / "nowhere", "is not a folder"),
        (lambda folder: folder, "has no .bp or .nav file"),
    ],
)
def test_a_folder_without_maps_is_refused(tmp_path, make, sentence, capsys):
    assert main(["reproduce", "table1", "--maps", str(make(tmp_path)), "--out", str(tmp_path / "out")]) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


# Jobs in their files


@pytest.fixture
def map_file(tmp_path):
    path = tmp_path / "around.bp"
    path.write_text(AROUND)
    return str(path)


def test_workers_write_the_same_as_this_process_and_finished_jobs_are_skipped(tmp_path, map_file):
    jobs = [Job(f"limits-{n}", GridLimits(map_file)) for n in range(2)]
    jobs[1] = Job("limits-1", GridLimits(map_file), needs=("limits-0",))
    said: list[str] = []
    apart, here = Jobs(tmp_path / "apart"), Jobs(tmp_path / "here")
    with open_cluster("local", 1) as cluster:
        apart.run(jobs, said.append, cluster)
    here.run(jobs, said.append)
    assert apart.result(jobs[0]) == apart.result(jobs[1]) == here.result(jobs[0])
    assert sorted(path.name for path in apart.folder.iterdir()) == ["limits-0.json", "limits-1.json"]
    before = apart.file("limits-0").stat().st_mtime_ns
    apart.run(jobs, said.append)
    assert said[-1] == "0 jobs to do, 2 found done"
    assert apart.file("limits-0").stat().st_mtime_ns == before
    changed = Job("limits-0", GridLimits(f"{map_file}?horizon=100"))
    assert apart.record(changed) is None


def test_bad_input_in_a_worker_comes_back_as_one_sentence(tmp_path):
    job = Job("limits", GridLimits(str(tmp_path / "missing.bp")))
    with (
        open_cluster("local", 1) as cluster,
        pytest.raises(InputError, match=r"missing\.bp: the map cannot be read"),
    ):
        Jobs(tmp_path).run([job], lambda text: None, cluster)
    assert not Jobs(tmp_path).file("limits").exists()


def test_a_job_whose_files_are_gone_is_not_done(tmp_path, map_file):
    jobs = Jobs(tmp_path)
    job = Job("limits", GridLimits(map_file))
    jobs.do(job)
    record = json.loads(jobs.file("limits").read_text())
    record["result"]["files"] = ["safety/x.safetensors"]
    jobs.file("limits").write_text(json.dumps(record))
    assert jobs.record(job) is None
    (tmp_path / "safety").mkdir()
    (tmp_path / "safety" / "x.safetensors").touch()
    assert jobs.record(job) is not None
