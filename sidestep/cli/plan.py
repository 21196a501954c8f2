"""`sidestep plan --safety`, `sidestep resume`: from a fitted safety model to a certified policy."""

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from sidestep.certification.auditor import Auditor, audit_until_certified
from sidestep.certification.evaluation import ROLLOUTS, certification_key, evaluate
from sidestep.certification.ledger import Ledger
from sidestep.certification.records import Result, result_to_json
from sidestep.cli.certify import CERTIFIED, CONFIDENCE, NOT_CERTIFIED, print_certificate
from sidestep.cli.console import progress_bar, say, say_json
from sidestep.cli.people import tell_notes
from sidestep.core.constraints import Constraint, Scale, parse_constraints
from sidestep.core.errors import InputError
from sidestep.core.model import Model, finite_part
from sidestep.core.records import to_json, told_with
from sidestep.labels.experts import Expert, expert_of
from sidestep.models import checked_model, load_model
from sidestep.planning.config import PlanConfig
from sidestep.planning.options import config_from_json, require_constraints, with_options
from sidestep.planning.plan import Plan, Planner
from sidestep.planning.presets import preset_for
from sidestep.planning.programs import prepare_no_more
from sidestep.policies.files import save_policy
from sidestep.runs.folder import Run
from sidestep.runs.records import PlanClock, checked, require_tests
from sidestep.runtime.files import atomic_write, read_bytes
from sidestep.safety.io import load_safety, safety_header

TRAINING = 0x7EA1  # folded into a seed's key: see CERTIFICATION


def plan_once(
    model: str,
    safety: Path | None,
    constraint: tuple[str, ...],
    rule: str | None,
    people: bool,
    method: str,
    changes: dict[str, Any],
    seed: int,
    seeds: int,
    out: Path,
    quiet: bool,
    as_json: bool,
) -> int:
    """Check everything, open the run's folder, train, certify."""
    mdp = checked_model(model)
    expert = expert_of(rule, people, mdp)
    learned = load_safety(safety) if safety else None
    config = with_options(preset_for(mdp, method, per_step=learned is None or learned.per_step), changes)
    if not config.constrains and (safety or constraint):
        raise InputError(
            "there is no gradient for constraints; choose one with --constraint-gradient, or leave --safety and "
            "--constraint out",
            place=f"--method {method}",
        )
    if not constraint:
        require_constraints(config, changes)
    if bool(safety) != bool(constraint):
        raise InputError("a safety model and constraints go together; give both", place="--safety, --constraint")
    scale = expert.scale
    if safety is not None:
        scale = Scale(safety_header(safety).categories)
        if expert.label is not None and expert.scale != scale:
            raise InputError(f"its categories are {scale}, and the rule's {expert.scale}", place=str(safety))
    constraints = parse_constraints(constraint, scale)
    Planner(mdp, learned, constraints, config)
    if expert.label is not None:
        Auditor(Ledger(Run(out)), mdp, constraints, expert).require_certifiable(ROLLOUTS, CONFIDENCE, 1)
    tell_notes(mdp.spec, quiet or as_json)
    run = Run.create(
        out,
        {
            "kind": "plan",
            "model": model,
            "rule": rule,
            "people": people,
            "constraints": list(constraint),
            "categories": list(scale.categories),
            "method": method,
            "seed": seed,
            "seeds": seeds,
            "settings": to_json(config),
        },
        {"safety.safetensors": read_bytes(safety)} if safety else {},
    )
    with run.held():
        return continue_run(run, quiet, as_json, trust=True)  # the user has just given the code


def continue_run(run: Run, quiet: bool, as_json: bool, trust: bool = False) -> int:
    """Train from the last checkpoint, or from the start, to the end; then certify every seed's policy."""
    asked = run.config
    begun = time.perf_counter()
    files = run.files(trust)
    model = load_model(asked["model"], files=files)
    scale = Scale(tuple(asked["categories"]))
    expert = expert_of(asked["rule"], asked["people"], model, scale, files)
    safety = load_safety(run.path / "safety.safetensors") if run.has("safety.safetensors") else None
    constraints = parse_constraints(asked["constraints"], scale)
    config = planner_settings(run, "settings", model)
    planner = Planner(model, safety, constraints, config, expert.label)
    keys = jax.vmap(lambda s: jax.random.fold_in(jax.random.key(s), TRAINING))(
        asked["seed"] + np.arange(asked["seeds"])
    )
    begins = not run.has("state.safetensors")
    state = planner.start(keys, search=begins)
    saved = run.load_state(state)
    history: list[dict[str, Any]] = []
    if saved is not None:
        state, header = saved
        run.cut_metrics(checked(PlanClock, header, str(run.path / "state.safetensors")).rows)
        history = run.metrics()
        metrics = run.path / "metrics.jsonl"
        require_tests(history, asked["seeds"], len(constraints), len(asked["categories"]), metrics)
    with stoppable(run), _bar(config.epochs, quiet or as_json) as show:
        show(history[-1:])
        for state, rows in planner.run(state):  # noqa: B020 (each state follows from the one before)
            run.append_metrics(rows)
            history += rows
            run.save_state(state, {"epoch": rows[0]["epoch"], "rows": len(history)})
            show(rows)
    plans = planner.finish(state, history)
    results = [
        finish(run, index, plan, asked, model, expert, constraints, time.perf_counter() - begun)
        for index, plan in enumerate(plans)
    ]
    report(results, run, as_json)
    return CERTIFIED if all(result.certified for result in results) else NOT_CERTIFIED


def planner_settings(run: Run, name: str, model: Model) -> PlanConfig:
    """The planner's settings, which config.json has under `name`."""
    place = f"{run.path / 'config.json'}, {name}"
    with told_with(place):
        return config_from_json(run.config[name], place, finite=finite_part(model) is not None)


def finish(
    run: Run,
    index: int,
    plan: Plan,
    asked: dict[str, Any],
    model: Model,
    expert: Expert,
    constraints: tuple[Constraint, ...],
    seconds: float,
) -> Result:
    """Write one seed's answer: into the run's own folder, or for several seeds into a folder each."""
    from sidestep.report.scenes import keep_scenes

    seed = asked["seed"] + index
    target = run
    if asked["seeds"] > 1:
        target = Run(run.target(f"seed-{seed}/config.json").parent)
        target.write_json("config.json", {**asked, "seed": seed, "seeds": 1})
        needed = [copy["file"] for copy in (asked["inputs"] or {}).values()]
        for name in needed + (["safety.safetensors"] if run.has("safety.safetensors") else []):
            atomic_write(target.target(name), read_bytes(run.path / name))
    file = target.target("policy.safetensors")
    save_policy(file, plan.policy, asked["model"])
    about: dict[str, Any] = {
        "model": model.spec.name,
        "labels_used": labels_behind(run),
        "seconds": seconds,
        "seed": seed,
        "method": asked["method"],
        "diagnosis": plan.diagnosis,
    }
    if expert.label is None:
        result = Result(**about)
    else:
        ledger = Ledger(target)
        audit = audit_until_certified(
            Auditor(ledger, model, constraints, expert),
            1,
            lambda: 0,
            lambda _: file,
            lambda _: plan.policy.mean(),
            seed=seed,
            most=ROLLOUTS,
            promised=CONFIDENCE,
        )
        sampled = evaluate(model, plan.policy, expert, certification_key(seed)).figures
        result = Result(**about, sampled=sampled).with_audit(audit, ledger.audits)
    target.write_json("result.json", result_to_json(result))
    keep_scenes(target.path, model, expert)
    return result


def labels_behind(run: Run) -> int | None:
    """How many labels the run's safety model was fitted to, by its own file; None when the file does not say."""
    if not run.has("safety.safetensors"):
        return 0
    about = safety_header(run.path / "safety.safetensors").about
    return about.labels if about else None


def report(results: list[Result], run: Run, as_json: bool) -> None:
    if as_json:
        rows = [result_to_json(result) for result in results]
        say_json(rows[0] if len(rows) == 1 else rows)
        return
    for result in results:
        say((f"seed {result.seed}", "bold"), f": {result.diagnosis}")
        print_certificate(result)
    say(f"the run is in {run.path}")


@contextlib.contextmanager
def stoppable(run: Run) -> Iterator[None]:
    """SIGTERM ends a run as Ctrl-C does; the last checkpoint is on disk, so nothing but a few epochs is lost."""
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        say(f"stopped; go on with: sidestep resume {run.path}", stderr=True)
        raise
    finally:
        prepare_no_more()
        signal.signal(signal.SIGTERM, previous)


@contextlib.contextmanager
def _bar(epochs: int, quiet: bool) -> Iterator[Any]:
    """A progress bar with the figures that matter, from the rows of each test."""
    with progress_bar("epoch", epochs, quiet) as bar:

        def show(rows: list[dict[str, Any]]) -> None:
            if rows:
                mean = np.mean([row["mean_return"] for row in rows])
                feasible = sum(row["feasible"] for row in rows)
                costs = np.mean([row.get("mean_costs", []) for row in rows], axis=0)
                words = f"return {mean:.5g}, cost {np.round(costs, 3)}, {feasible} of {len(rows)} feasible"
                bar.update(rows[0]["epoch"], words)

        yield show
