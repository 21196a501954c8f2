"""One planning against a fitted safety model: train from the last checkpoint to the end, certify every policy."""

import time
from dataclasses import replace

import jax
import numpy as np

from sidestep.campaign.job import CONFIDENCE
from sidestep.campaign.setting import Show
from sidestep.certification.auditor import Auditor, audit_until_certified
from sidestep.certification.evaluation import ROLLOUTS, certification_key, evaluate
from sidestep.certification.ledger import Ledger
from sidestep.certification.records import Result, result_to_json
from sidestep.core.records import checked, to_json
from sidestep.planning.plan import Plan, Planner
from sidestep.planning.rows import PlanRow
from sidestep.policies.files import save_policy
from sidestep.runs.folder import Run
from sidestep.runs.loaded import SAFETY, LoadedRun
from sidestep.runs.records import PlanClock, require_tests
from sidestep.runtime.files import atomic_write, read_bytes
from sidestep.safety.io import safety_header

TRAINING = 0x7EA1  # folded into a seed's key: see CERTIFICATION


def continue_once(loaded: LoadedRun, show: Show) -> list[tuple[Run, Result]]:
    """The folder and the result of every seed; `show` is told every test, first the last one on record."""
    run, asked, begun = loaded.run, loaded.config, time.perf_counter()
    config = loaded.planner_settings(asked.settings, "settings")
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
        show("tested", history[-1])
    for state, rows in planner.run(state):  # noqa: B020 (each state follows from the one before)
        run.append_metrics(rows)
        history += rows
        run.save_state(state, to_json(PlanClock(rows[0].epoch, len(history))))
        for row in rows:
            show("tested", row)
    plans = planner.finish(state, history)
    return [_finish(loaded, index, plan, begun) for index, plan in enumerate(plans)]


def _finish(loaded: LoadedRun, index: int, plan: Plan, begun: float) -> tuple[Run, Result]:
    """Write one seed's answer: into the run's own folder, or for several seeds into one folder per seed."""
    asked, model, expert = loaded.config, loaded.model, loaded.expert
    seed, seconds = asked.seed + index, time.perf_counter() - begun
    target = loaded.run if asked.seeds == 1 else _folder_of_seed(loaded, seed)
    file = target.target("policy.safetensors")
    save_policy(file, plan.policy, asked.model)
    result = Result(
        model=model.spec.name,
        confidence=CONFIDENCE,
        labels_used=_labels_behind(loaded.run),
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
    return target, result


def _folder_of_seed(loaded: LoadedRun, seed: int) -> Run:
    """A run's folder inside that of all seeds, with copies of what it is made of."""
    asked, run = loaded.config, loaded.run
    target = Run(run.target(f"seed-{seed}/config.json").parent)
    target.write_json("config.json", to_json(replace(asked, seed=seed, seeds=1)))
    needed = [copy.file for copy in (asked.inputs or {}).values()]
    for name in needed + ([SAFETY] if run.has(SAFETY) else []):
        atomic_write(target.target(name), read_bytes(run.path / name))
    return target


def _labels_behind(run: Run) -> int | None:
    """How many labels the run's safety model was fitted to, by its own file; None when the file does not say."""
    if not run.has(SAFETY):
        return 0
    about = safety_header(run.path / SAFETY).about
    return about.labels if about else None
