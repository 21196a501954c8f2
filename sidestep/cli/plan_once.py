"""`sidestep plan MODEL --safety FILE`: from a fitted safety model to a certified policy."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import jax
import numpy as np

from sidestep.certification.auditor import Auditor, audit_until_certified
from sidestep.certification.evaluation import ROLLOUTS, certification_key, evaluate
from sidestep.certification.ledger import Ledger
from sidestep.certification.records import Result, result_to_json
from sidestep.cli.certify import CONFIDENCE, print_certificate
from sidestep.cli.commands import Plan as Asked
from sidestep.cli.console import progress_bar, say, say_json
from sidestep.cli.work import CERTIFIED, NOT_CERTIFIED, planner_settings, stoppable, tell_notes
from sidestep.core.constraints import parse_constraints
from sidestep.core.errors import InputError
from sidestep.core.records import checked, to_json
from sidestep.deploy.answers import Answer
from sidestep.labels.experts import expert_of
from sidestep.models import checked_model
from sidestep.planning.options import require_constraints, with_options
from sidestep.planning.plan import Plan, Planner
from sidestep.planning.presets import preset_for
from sidestep.planning.rows import PlanRow
from sidestep.policies.files import save_policy
from sidestep.report.scenes import keep_scenes
from sidestep.runs.folder import Run
from sidestep.runs.records import PlanClock, RunConfig, require_tests
from sidestep.runtime.files import atomic_write, read_bytes
from sidestep.safety.io import load_safety, safety_header

TRAINING = 0x7EA1  # folded into a seed's key: see CERTIFICATION
SAFETY = "safety.safetensors"


def begin(asked: Asked) -> Run:
    """Check everything, then open the run's folder."""
    model = checked_model(asked.model)
    expert = expert_of(asked.rule, asked.people, model)
    safety = load_safety(asked.safety) if asked.safety else None
    config = with_options(preset_for(model, asked.method, per_step=safety is None or safety.per_step), asked.planning)
    if not config.constrains and (asked.safety or asked.constraint):
        raise InputError(
            "there is no gradient for constraints; choose one with --constraint-gradient, or leave --safety and "
            "--constraint out",
            place=f"--method {asked.method}",
        )
    if not asked.constraint:
        require_constraints(config, asked.planning)
    if bool(asked.safety) != bool(asked.constraint):
        raise InputError("a safety model and constraints go together; give both", place="--safety, --constraint")
    scale = expert.scale
    if asked.safety is not None:
        scale = type(scale)(safety_header(asked.safety).categories)
        if expert.label is not None and expert.scale != scale:
            raise InputError(f"its categories are {scale}, and the rule's {expert.scale}", place=str(asked.safety))
    constraints = parse_constraints(asked.constraint, scale)
    Planner(model, safety, constraints, config)
    if expert.label is not None:
        Auditor(Ledger(Run(asked.out)), model, constraints, expert).require_certifiable(ROLLOUTS, CONFIDENCE, 1)
    tell_notes(model.spec, asked.quiet or asked.json)
    run_config = RunConfig(
        kind="plan",
        model=asked.model,
        rule=asked.rule,
        people=asked.people,
        constraints=asked.constraint,
        categories=scale.categories,
        method=asked.method,
        seed=asked.seed,
        seeds=asked.seeds,
        settings=to_json(config),
    )
    return Run.create(asked.out, run_config, {SAFETY: read_bytes(asked.safety)} if asked.safety else {})


def continue_run(loaded: Answer, quiet: bool, as_json: bool) -> int:
    """Train from the last checkpoint, or from the start, to the end; then certify every seed's policy."""
    run, asked, begun = loaded.run, loaded.config, time.perf_counter()
    config = planner_settings(loaded, asked.settings, "settings")
    planner = Planner(loaded.model, loaded.safety, loaded.constraints, config, loaded.expert.label)
    seeds = asked.seed + np.arange(asked.seeds)
    keys = jax.vmap(lambda seed: jax.random.fold_in(jax.random.key(seed), TRAINING))(seeds)
    state = planner.start(keys, search=not run.has("state.safetensors"))
    header = run.state_header()
    history: list[PlanRow] = []
    if header is not None:
        state = run.load_state(state)
        run.cut_metrics(checked(PlanClock, header, str(run.path / "state.safetensors")).rows)
        sizes = (asked.seeds, len(loaded.constraints), len(asked.categories))
        require_tests(run.metrics(), *sizes, run.path / "metrics.jsonl")
        history = run.metrics()
    with stoppable(f"go on with: sidestep resume {run.path}"), _bar(config.epochs, quiet or as_json) as show:
        show(history[-1:])
        for state, rows in planner.run(state):  # noqa: B020 (each state follows from the one before)
            run.append_metrics(rows)
            history += rows
            run.save_state(state, to_json(PlanClock(rows[0].epoch, len(history))))
            show(rows)
    plans = planner.finish(state, history)
    results = [_finish(loaded, index, plan, begun) for index, plan in enumerate(plans)]
    _tell(results, run, as_json)
    return CERTIFIED if all(result.certified for result in results) else NOT_CERTIFIED


def _finish(loaded: Answer, index: int, plan: Plan, begun: float) -> Result:
    """Write one seed's answer: into the run's own folder, or for several seeds into one folder per seed."""
    asked, model, expert = loaded.config, loaded.model, loaded.expert
    seed, seconds = asked.seed + index, time.perf_counter() - begun
    target = loaded.run if asked.seeds == 1 else _folder_of_seed(loaded, seed)
    file = target.target("policy.safetensors")
    save_policy(file, plan.policy, asked.model)
    result = Result(
        model=model.spec.name,
        confidence=CONFIDENCE,
        labels_used=labels_behind(loaded.run),
        seconds=seconds,
        seed=seed,
        method=asked.method,
        diagnosis=plan.diagnosis,
    )
    if expert.label is not None:
        ledger = Ledger(target)
        audit = audit_until_certified(
            Auditor(ledger, model, loaded.constraints, expert),
            1,
            lambda: 0,
            lambda _: file,
            lambda _: plan.policy.mean(),
            seed=seed,
            most=ROLLOUTS,
            promised=CONFIDENCE,
        )
        sampled = evaluate(model, plan.policy, expert, certification_key(seed)).figures
        result = replace(result.with_audit(audit, ledger.audits), sampled=sampled)
    target.write_json("result.json", result_to_json(result))
    keep_scenes(target.path, model, expert)
    return result


def _folder_of_seed(loaded: Answer, seed: int) -> Run:
    """A run's folder inside that of all seeds, with copies of what it is made of."""
    asked, run = loaded.config, loaded.run
    target = Run(run.target(f"seed-{seed}/config.json").parent)
    target.write_json("config.json", to_json(replace(asked, seed=seed, seeds=1)))
    needed = [copy.file for copy in (asked.inputs or {}).values()]
    for name in needed + ([SAFETY] if run.has(SAFETY) else []):
        atomic_write(target.target(name), read_bytes(run.path / name))
    return target


def labels_behind(run: Run) -> int | None:
    """How many labels the run's safety model was fitted to, by its own file; None when the file does not say."""
    if not run.has(SAFETY):
        return 0
    about = safety_header(run.path / SAFETY).about
    return about.labels if about else None


def _tell(results: list[Result], run: Run, as_json: bool) -> None:
    if as_json:
        rows = [result_to_json(result) for result in results]
        say_json(rows[0] if len(rows) == 1 else rows)
        return
    for result in results:
        say((f"seed {result.seed}", "bold"), f": {result.diagnosis}")
        print_certificate(result)
    say(f"the run is in {run.path}")


@contextlib.contextmanager
def _bar(epochs: int, quiet: bool) -> Iterator[Callable[[list[PlanRow]], None]]:
    """A progress bar with the figures that matter, from the rows of each test."""
    with progress_bar("epoch", epochs, quiet) as bar:

        def show(rows: list[PlanRow]) -> None:
            if rows:
                mean = np.mean([row.mean_return for row in rows])
                feasible = sum(row.feasible for row in rows)
                costs = np.mean([row.mean_costs for row in rows], axis=0)
                words = f"return {mean:.5g}, cost {np.round(costs, 3)}, {feasible} of {len(rows)} feasible"
                bar.update(rows[0].epoch, words)

        yield show
