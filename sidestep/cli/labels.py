"""`sidestep collect` and `sidestep label`: trajectories into a store, labels onto them, both in and out of files."""

from pathlib import Path
from typing import Any

from sidestep.cli.console import progress_bar, say
from sidestep.core.errors import InputError

MOST_COLLECTED = 10**8
MOST_FAULTS = 20  # that are listed
CHUNK = 10_000  # trajectories between two movements of the progress bar


def collect(
    model: str, store: Path, policy: str, count: int, horizon: int | None, rule: str | None, seed: int, quiet: bool
) -> int:
    """Roll out `count` trajectories of a policy and put them into the store, which is made if it is not there."""
    import jax

    from sidestep.cli.policies import named_policy
    from sidestep.core.model import MOST_STEPS, require_finite, rollout
    from sidestep.labels.rules import scale_of
    from sidestep.labels.store import Store
    from sidestep.models import checked_model

    for option, number, most in (("--count", count, MOST_COLLECTED), ("--horizon", horizon, MOST_STEPS)):
        if number is not None and not 1 <= number <= most:
            raise InputError(f"must lie between 1 and {most:,}, not {number}", place=option)
    mdp = checked_model(model)
    acting = named_policy(policy, mdp)
    scale = scale_of(rule, mdp)
    key = jax.random.key(seed)

    def rolled(index: int) -> Any:
        batch = min(CHUNK, count - index * CHUNK)
        return require_finite(mdp.spec, rollout(mdp, acting, jax.random.fold_in(key, index), batch, horizon))

    first = rolled(0)  # before a store is made: a model that fails leaves none behind
    added = 0
    with (
        Store.open_or_create(store, mdp.spec, scale) as opened,
        progress_bar("trajectory", count, quiet) as bar,
    ):
        for index in range(-(-count // CHUNK)):
            trajectory = rolled(index) if index else first
            added += opened.add(trajectory, policy=policy, seed=seed).new
            bar.update(min((index + 1) * CHUNK, count))
        total = len(opened)
    say(f"{added} new trajectories in {store}, {total} in all")
    return 0


def label(
    store: Path,
    rule: str | None,
    model: str | None,
    annotator: str,
    every: bool,
    verify: bool,
    export: Path | None,
    next: int,
    safety: Path | None,
    seed: int,
    quiet: bool,
    **files: Path | None,
) -> int:
    """Label what has no label yet by a rule, or read and write files of trajectories and labels."""
    from sidestep.labels.store import Store

    with Store.open(store) as opened:
        incoming = files["import"]
        if verify:
            _verify(opened)
        elif next:
            _list_next(opened, next, safety, seed)
        elif incoming is not None:
            _import(opened, incoming, annotator)
        elif export is None and not verify:
            _label_by_rule(opened, rule, model or opened.model_name, annotator, every)
        if export is not None:
            _export(opened, export)
        shares = ", ".join(f"{name} {count}" for name, count in opened.counts().items())
        say(f"{store}: {len(opened)} trajectories; {shares}")
        agreement = opened.agreement()
        if agreement.trajectories:
            several = f"{agreement.trajectories} trajectories with several labels"
            say(f"annotators agree on {agreement.unanimous:.1%} of {several}")
    return 0


def _label_by_rule(store: Any, rule: str | None, model_reference: str, annotator: str, every: bool) -> None:
    import numpy as np

    from sidestep.labels.rules import load_rule
    from sidestep.labels.schema import spec_hash
    from sidestep.models import checked_model

    model = checked_model(model_reference)
    if spec_hash(model.spec) != store.model_hash:
        raise InputError(
            f"the store is of the model '{store.model_name}', and this is another; name the right one",
            place=f"--model {model_reference}",
        )
    expert = load_rule(rule, model)
    if expert.scale != store.scale:
        raise InputError(
            f"the rule's categories are {expert.scale} and the store's {store.scale}", place=str(store.path)
        )
    ids, trajectories = store.everything() if every else store.unlabelled()
    if len(ids):
        store.label(ids, np.asarray(expert.label(trajectories)), annotator or f"rule:{expert.name}")
    say(f"{len(ids)} trajectories labelled by the rule '{expert.name}'")


def _verify(store: Any) -> None:
    found = store.verify()
    counts = f"{found.trajectories} trajectories and {found.labels} labels looked at"
    if found.faults:
        for fault in found.faults[1:MOST_FAULTS]:
            say(f"  {fault}")
        more = f" ({len(found.faults)} faults in all)" if len(found.faults) > 1 else ""
        raise InputError(f"this label store is damaged: {found.faults[0]}{more}; {counts}", place=str(store.path))
    say(f"{counts}: all are as they were put in")


def _list_next(store: Any, count: int, safety: Path | None, seed: int) -> None:
    import jax

    from sidestep.safety.io import load_safety
    from sidestep.safety.select import choose

    if count < 1 or safety is None:
        raise InputError("asking needs a number of at least 1 and a safety model, --safety FILE", place="--next")
    ids, pool = store.unlabelled()
    if not len(ids):
        raise InputError("every trajectory has a label; collect more first", place=str(store.path))
    _, labelled, _ = store.labelled()
    rows = choose("well", load_safety(safety), pool, labelled, count, jax.random.key(seed))
    say("worth a label next: " + " ".join(str(ids[row]) for row in rows))


def _import(store: Any, path: Path, annotator: str) -> None:
    from sidestep.labels.transfer import BadRows, import_file

    try:
        done = import_file(store, path, annotator or "import")
    except BadRows as error:
        for problem in error.problems[1:]:
            say(f"  {problem}")
        raise
    say(f"{done.new_trajectories} new trajectories and {done.new_labels} labels from {path}")


def _export(store: Any, path: Path) -> None:
    from sidestep.labels.transfer import export_labels, export_trajectories

    if path.name.endswith(".labels.csv"):
        say(f"{export_labels(store, path)} labels to {path}")
    else:
        say(f"{export_trajectories(store, path)} trajectories to {path}")
