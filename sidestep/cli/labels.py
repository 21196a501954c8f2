"""`sidestep collect` and `sidestep label`: trajectories into a store, labels onto them, both in and out of files."""

from itertools import chain

import jax
import numpy as np

from sidestep.campaign.steps import collect_batches
from sidestep.cli.commands import Collect, Label
from sidestep.cli.console import progress_bar, say
from sidestep.core.errors import InputError
from sidestep.core.model import Trajectory
from sidestep.core.options import place_of
from sidestep.labels.marks import MarksArray
from sidestep.labels.prefixes import marks_from_prefixes, prefix_categories, taken_back_in_words
from sidestep.labels.rules import Rule, load_rule, scale_of
from sidestep.labels.schema import spec_hash
from sidestep.labels.store import Store
from sidestep.labels.transfer import BadRows, export_labels, export_store, export_trajectories, import_file, is_store
from sidestep.models import checked_model
from sidestep.safety.io import load_safety
from sidestep.safety.select import choose

MOST_FAULTS = 20  # that are listed


def collect(asked: Collect) -> int:
    """Roll out trajectories of a policy and put them into the store, which is made if it is not there."""
    model, count = checked_model(asked.model), asked.count
    scale = scale_of(asked.rule, model)
    batches = collect_batches(model, count, asked.policy, asked.seed, asked.horizon)
    first = next(batches)  # before a store is made: a model that fails leaves none behind
    added = done = 0
    with (
        Store.open_or_create(asked.store, model.spec, scale) as store,
        progress_bar("trajectory", count, asked.quiet) as bar,
    ):
        for batch in chain([first], batches):
            added += store.add(batch, policy=asked.policy, seed=asked.seed).new
            done += len(batch)
            bar.update(done)
        total = len(store)
    say(f"{added} new trajectories in {asked.store}, {total} in all")
    return 0


def label(asked: Label) -> int:
    """Label what has no label yet by a rule, or read and write files of trajectories and labels."""
    _refuse_idle(asked)
    with Store.open(asked.store) as store:
        if asked.verify:
            _verify(store)
        elif asked.next:
            _list_next(store, asked)
        elif asked.import_ is not None:
            _import(store, asked.import_, asked.annotator)
        elif asked.export is None:
            _label_by_rule(store, asked)
        if asked.export is not None:
            _export(store, asked.export, asked.every)
        counts = ", ".join(f"{name} {count}" for name, count in store.counts().items())
        say(f"{asked.store}: {len(store)} trajectories; {counts}")
        agreement = store.agreement()
        if agreement.trajectories:
            several = f"{agreement.trajectories} trajectories with several labels"
            say(f"annotators agree on {agreement.unanimous:.1%} of {several}")
    return 0


def _refuse_idle(asked: Label) -> None:
    """Refuse options that have no effect beside the others that were given."""
    chosen = [name for name in ("verify", "next", "import_") if getattr(asked, name)]
    doing = chosen[0] if chosen else "export" if asked.export else ""
    of_rule: tuple[str, ...] = ("rule", "model", "marks")
    if asked.export is None or asked.export.endswith(".labels.csv") or is_store(asked.export):
        of_rule = (*of_rule, "every")
    idle = {
        "verify": (*chosen[1:], *of_rule, "annotator", "safety"),
        "next": (*chosen[1:], *of_rule, "annotator"),
        "import_": (*of_rule, "safety"),
        "export": (*of_rule, "annotator", "safety"),
        "": ("safety",),
    }
    for name in idle[doing]:
        if getattr(asked, name):
            beside = f"beside --{doing.rstrip('_')}" if doing else "without --next"
            raise InputError(f"has no effect {beside}; leave it out", place=place_of(name.rstrip("_")))


def _label_by_rule(store: Store, asked: Label) -> None:
    reference = asked.model or store.model_name
    model = checked_model(reference)
    if spec_hash(model.spec) != store.model_hash:
        raise InputError(
            f"the store belongs to the model '{store.model_name}', not to this one; name the right one",
            place=f"--model {reference}",
        )
    rule = load_rule(asked.rule, model)
    if rule.scale != store.scale:
        raise InputError(f"the rule's categories are {rule.scale} and the store's {store.scale}", place=str(store.path))
    ids, trajectories = store.everything() if asked.every else store.unlabelled()
    if len(ids):
        marks = _marks(rule, trajectories) if asked.marks else None
        store.label(ids, np.asarray(rule.label(trajectories)), asked.annotator or f"rule:{rule.name}", marks=marks)
    say(f"{len(ids)} trajectories labelled by the rule '{rule.name}'")


def _marks(rule: Rule, trajectories: Trajectory) -> MarksArray | None:
    """The rule's marks; None, and the reason is said, where it may take a category back."""
    categories = prefix_categories(rule.label, rule.jittable, trajectories)
    refused = taken_back_in_words(categories, rule.scale)
    if refused:
        say(f"note: {refused}", stderr=True)
    return None if refused else marks_from_prefixes(categories, len(rule.scale) - 1)


def _verify(store: Store) -> None:
    found = store.verify()
    counts = f"{found.trajectories} trajectories and {found.labels} labels checked"
    if found.faults:
        for fault in found.faults[1:MOST_FAULTS]:
            say(f"  {fault}")
        more = f" ({len(found.faults)} faults in all)" if len(found.faults) > 1 else ""
        raise InputError(f"this label store is damaged: {found.faults[0]}{more}; {counts}", place=str(store.path))
    say(f"{counts}: all are as they were put in")


def _list_next(store: Store, asked: Label) -> None:
    if asked.safety is None:
        raise InputError("needs a fitted safety model; give --safety FILE", place="--next")
    ids, pool = store.unlabelled()
    if not len(ids):
        raise InputError("every trajectory has a label; collect more first", place=str(store.path))
    _, labelled, _ = store.labelled()
    rows = choose("well", load_safety(asked.safety), pool, labelled, asked.next, jax.random.key(0))
    say("most worth a label: " + " ".join(str(ids[row]) for row in rows))


def _import(store: Store, path: str, annotator: str) -> None:
    try:
        done = import_file(store, path, annotator or "import")
    except BadRows as error:
        for problem in error.problems[1:]:
            say(f"  {problem}")
        raise
    say(f"{done.new_trajectories} new trajectories and {done.new_labels} labels from {path}")


def _export(store: Store, path: str, every: bool) -> None:
    if is_store(path):
        done = export_store(store, path)
        say(f"{done.new_trajectories} new trajectories and {done.new_labels} labels to {path}")
        return
    if path.endswith(".labels.csv"):
        say(f"{export_labels(store, path)} labels to {path}")
        return
    count = export_trajectories(store, path, every=every)
    others = len(store) - count
    left_out = f"; {others} have labels, and --every writes them too" if others else ""
    say(f"{count} trajectories to {path}{left_out}")
