"""The steps of a campaign, each on its own: collect trajectories, ask for labels, fit, plan, certify.

trajectories = sidestep.collect(model, 500)
categories = sidestep.ask(model, trajectories, expert=rule)
safety, report = sidestep.fit(trajectories, categories)
found = sidestep.plan(model, safety, ["none>=0.95"])
result = sidestep.certify(model, found.policy, expert=rule, constraints=["none>=0.95"])
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, ArrayLike, PRNGKeyArray

from sidestep.certification.auditor import not_enforced
from sidestep.certification.bounds import judge
from sidestep.certification.evaluation import ROLLOUTS, certification_key, evaluate
from sidestep.certification.records import Evaluation, Result
from sidestep.core.constraints import Constraint, Scale, parse_constraints
from sidestep.core.errors import InputError
from sidestep.core.model import FunctionPolicy, Model, Policy, Trajectory, UniformPolicy, require_finite, rollout
from sidestep.labels.collect import ExploringPolicy
from sidestep.labels.experts import expert_from
from sidestep.models import load_model
from sidestep.planning import plan as planning
from sidestep.planning.config import PlanConfig
from sidestep.planning.options import with_options
from sidestep.planning.plan import Plan
from sidestep.planning.presets import preset_for
from sidestep.policies.networks import NetworkPolicy
from sidestep.runs.loaded import LoadedRun
from sidestep.safety.base import SafetyModel
from sidestep.safety.config import FitConfig, fit_settings
from sidestep.safety.fit import Progress
from sidestep.safety.io import make_safety
from sidestep.safety.learn import learn
from sidestep.safety.report import FitReport

CHUNK = 10_000  # trajectories that are rolled out at once
PolicyLike = str | Path | Policy | Callable[[Array], Array]


def policy_from(given: PolicyLike, model: Model) -> Policy:
    """`uniform`, `explore`, the folder of a run, a policy, or a function from a state to an action."""
    if isinstance(given, Policy):
        return given
    if callable(given):
        return FunctionPolicy(lambda state, clock, key: given(state))
    if given == "uniform":
        return UniformPolicy(model)
    if given == "explore":
        return ExploringPolicy(model)
    if Path(given).is_dir():
        return LoadedRun(given).policy_of(model)
    raise InputError("expected uniform, explore, or the folder of a run", place=f"--policy {given}")


def collect_batches(
    model: Model, count: int, policy: PolicyLike = "explore", seed: int = 0, horizon: int | None = None
) -> Iterator[Trajectory]:
    """`collect` in batches, for more trajectories than fit into memory."""
    actor, key = policy_from(policy, model), jax.random.key(seed)
    for index, start in enumerate(range(0, count, CHUNK)):
        batch = rollout(model, actor, jax.random.fold_in(key, index), min(CHUNK, count - start), horizon)
        yield require_finite(model.spec, batch)


def collect(
    model: object, count: int = 1000, *, policy: PolicyLike = "explore", seed: int = 0, horizon: int | None = None
) -> Trajectory:
    """`count` trajectories: of explorers, whose random behaviour covers much, or of another policy."""
    batches = list(collect_batches(load_model(model), count, policy, seed, horizon))
    return jax.tree.map(lambda *parts: np.concatenate(parts), *batches)


def ask(model: object, trajectory: Trajectory, expert: object = None) -> np.ndarray:
    """The category of each trajectory, 0 for the best, by a rule: a function, a name, or the model's own."""
    loaded = load_model(model)
    who = expert_from(expert, loaded)
    if who.label is None:
        raise InputError(f"{who.name} answer through a label store; put the trajectories into one with Store.add")
    return np.asarray(who.label(trajectory))


class Fitted(NamedTuple):
    """A fitted safety model, and how good it is on trajectories that were held out."""

    safety: SafetyModel
    report: FitReport


def fit(
    trajectory: Trajectory,
    categories: Sequence[int] | np.ndarray,
    *,
    marks: np.ndarray | None = None,
    kind: str = "hazard",
    scale: Scale | None = None,
    members: int = 1,
    start: SafetyModel | None = None,
    seed: int = 0,
    shape: dict[str, Any] | None = None,
    progress: Callable[[Progress], None] = lambda progress: None,
    **settings: Any,
) -> Fitted:
    """The safety model of largest likelihood on these labels.

    `kind` is hazard, families, classifier, markov, share or a registered one; `shape` says its layers, units, dropout.
    `start` continues a model that was fitted before. `marks` says at which step each severity was first reached: a row
    for each trajectory, -1 where nobody said (`Store.marks`). `settings` are fields of `FitConfig` that differ from
    what suits the kind.
    """
    unknown = settings.keys() - {field.name for field in fields(FitConfig)}
    if unknown:
        names = ", ".join(field.name for field in fields(FitConfig))
        raise InputError(f"a fit has no option '{min(unknown)}'; there are {names}")
    if start is None:
        sizes = trajectory.states.shape[-1], trajectory.actions.shape[-1], len(scale or Scale())
        own = dict(shape or {})
        if kind == "families":  # its hazard models are the ensemble
            own, members = {"hazards": max(members, 2)} | own, 1
        start = make_safety(kind, *sizes, key=jax.random.key(seed), members=members, **own)
    config = replace(fit_settings(kind), **settings)
    key = jax.random.key(seed)
    return Fitted(*learn(start, trajectory, np.asarray(categories), config, key, progress, marks=marks))


def plan(
    model: object,
    safety: SafetyModel | None,
    constraints: Sequence[str | Constraint],
    config: PlanConfig | None = None,
    seed: int | PRNGKeyArray = 0,
    *,
    scale: Scale | None = None,
    policy: NetworkPolicy | None = None,
    rule: Callable[[Trajectory], ArrayLike] | None = None,
    **options: Any,
) -> Plan:
    """Train one policy to maximise return within the constraints, by the learned safety model.

    `config` is what suits the model without it; `options` are those of the planner, by their names on the command line.
    """
    loaded = load_model(model)
    settings = with_options(config or preset_for(loaded, "default"), options)
    limits = _constraints(constraints, scale or Scale())
    key = jax.random.key(seed) if isinstance(seed, int) else seed
    return planning.plan(loaded, safety, limits, settings, key, policy=policy, rule=rule)


def certify(
    model: object,
    policy: PolicyLike,
    expert: object = None,
    constraints: Sequence[str | Constraint] = (),
    *,
    rollouts: int = ROLLOUTS,
    confidence: float = 0.95,
    seed: int = 0,
) -> Result:
    """One audit of a policy on fresh rollouts that a rule labels: bounds that hold together with this confidence.

    Who audits again until it passes has proved nothing; `sidestep certify` keeps a ledger of the audits of a run.
    """
    loaded = load_model(model)
    who = expert_from(expert, loaded)
    if who.label is None:
        raise InputError(f"{who.name} cannot label at once; make a run and audit it with `sidestep certify`")
    limits = _constraints(constraints, who.scale)
    actor = policy_from(policy, loaded)
    actor = actor.mean() if isinstance(actor, NetworkPolicy) else actor
    figures, counts, forbidden, _ = evaluate(loaded, actor, who, certification_key(seed), rollouts)
    reason = not_enforced(loaded) or forbidden
    verdicts = judge(limits, counts, confidence)
    return Result(
        model=loaded.spec.name,
        constraints=tuple(replace(verdict, certified=verdict.certified and not reason) for verdict in verdicts),
        confidence=confidence,
        returns=figures.returns,
        side_effects=figures.side_effects,
        penalty=figures.penalty,
        audit_labels=rollouts,
        audits=1,
        rollouts=rollouts,
        seed=seed,
        evaluation=Evaluation(rollouts),
        reason=reason,
    )


def _constraints(given: Sequence[str | Constraint], scale: Scale) -> tuple[Constraint, ...]:
    texts = [given] if isinstance(given, str) else given
    return parse_constraints([one.text if isinstance(one, Constraint) else one for one in texts], scale)
