"""`sidestep fit` and `sidestep explain`: a safety model from a store's labels, and what it sees in one trajectory."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from sidestep.campaign.steps import fit
from sidestep.cli.commands import Explain, Fit
from sidestep.cli.console import progress_bar, say, say_json, show_table
from sidestep.core.constraints import Scale
from sidestep.core.errors import InputError
from sidestep.core.options import place_of
from sidestep.core.records import JsonObject, to_json
from sidestep.labels.marks import marks_of
from sidestep.labels.store import Store, store_place
from sidestep.runtime.files import save_picture
from sidestep.safety.base import predict
from sidestep.safety.config import FitConfig, fit_settings
from sidestep.safety.derived import alike_by_name
from sidestep.safety.explain import explanation
from sidestep.safety.fit import Progress
from sidestep.safety.io import load_safety, safety_header, save_safety
from sidestep.safety.pattern import learned_pattern
from sidestep.safety.plots import blame_plot, reliability_plot
from sidestep.safety.report import FitReport

SHAPE = ("layers", "units", "dropout")
WITHOUT = {"markov": ("layers", "units"), "share": SHAPE}  # parts of the shape that a kind does not have


def fit_store(asked: Fit) -> int:
    """Fit to all labels of the store, save the model, say how good it is."""
    with Store.open(asked.store) as store:
        ids, trajectories, categories = store.labelled(asked.resolve)
        marks = None if asked.marks is False else store.marks(ids, asked.resolve)
        scale, names = store.scale, (*store.state_names, *store.action_names)
        model_name = store.model_name
    if len(ids) < 2:
        raise InputError(f"{len(ids)} labelled trajectories are too few to fit to; label more", place=str(asked.store))
    kind, how = _asked_for(asked, scale)
    if kind == "families" and "start" not in how:
        how["shape"] |= {"alike": alike_by_name(names)}
    steps = how.get("steps", fit_settings(kind).steps)
    with progress_bar("minibatch", steps, asked.quiet or asked.json) as bar:

        def show(progress: Progress) -> None:
            bar.update(progress.step, f"held-out loss {progress.held_out_loss:.4f}")

        how |= {"marks": marks, "seed": asked.seed, "progress": show}
        model, report = fit(trajectories, categories, kind=kind, scale=scale, **how)
    pattern = learned_pattern(model, trajectories)
    words = pattern.words(names, trajectories.states.shape[2], scale.categories) if pattern else None
    about: JsonObject = {"model": model_name, "labels": len(ids), "fit": to_json(report), "pattern": words}
    save_safety(asked.out, model, scale, names, about)
    figure = reliability_plot(np.asarray(predict(model, trajectories)), np.asarray(categories))
    save_picture(figure, asked.out.with_suffix(".png"), dpi=130)
    if asked.json:
        say_json(about)
    else:
        _print_report(report, scale.categories, asked.out)
        if words:
            say(f"the learned pattern: {words}")
    return 0


def _asked_for(asked: Fit, scale: Scale) -> tuple[str, dict[str, Any]]:
    """The kind of safety model, and what of a fit's arguments was given."""
    kind: str = asked.kind or "hazard"
    how: dict[str, Any] = {}
    shape = {name: value for name in SHAPE if (value := getattr(asked, name)) is not None}
    if asked.start is not None:
        for name in ("kind", *SHAPE, "members"):
            if getattr(asked, name) is not None:
                raise InputError("has no effect with --start, which says it; leave it out", place=place_of(name))
        header, how["start"] = safety_header(asked.start), load_safety(asked.start)
        if header.categories != scale.categories:
            raise InputError(f"its categories are not the store's ({scale})", place=str(asked.start))
        kind = header.kind
    else:
        for name in WITHOUT.get(kind, ()):
            if name in shape:
                raise InputError(f"the kind '{kind}' has no {name}; leave it out", place=place_of(name))
        how |= {"shape": shape, "members": 1 if asked.members is None else asked.members}
    names = {field.name for field in fields(FitConfig)} & {field.name for field in fields(asked)}
    return kind, how | {name: value for name in names if (value := getattr(asked, name)) is not None}


def _print_report(report: FitReport, categories: tuple[str, ...], out: Path) -> None:
    marks = f", {report.marks} marks" if report.marks else ""
    say(f"{report.train} trajectories to train on, {report.held_out} held out{marks}, {report.steps} minibatches")
    scores = report.scores
    if scores is not None:
        rows = zip(categories, map(_percent, scores.precision), map(_percent, scores.recall), strict=True)
        show_table(["category", "precision", "recall"], rows)
        say(
            f"held out: accuracy {scores.accuracy:.2%}, '{categories[0]}' or not {scores.best_or_not_accuracy:.2%}, "
            f"log loss {scores.log_loss:.4f}, calibration error {scores.calibration_error:.4f}"
        )
    say(f"the safety model is in {out}, the reliability plot in {out.with_suffix('.png')}")


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def explain(asked: Explain) -> int:
    """Which steps of a stored trajectory carry the blame."""
    model = load_safety(asked.safety)
    with Store.open(asked.store) as store:
        trajectory, names, scale = store.get(asked.trajectory), store.state_names, store.scale
        labels = store.history(asked.trajectory)
        steps = store.marks([asked.trajectory])[0].tolist()
    marks = marks_of(steps, scale)
    about = safety_header(asked.safety).about
    if about and about.pattern:
        say(f"the learned pattern: {about.pattern}")
    for label in labels:
        say(f"{label.annotator} says {label.words(scale)}")
    found = explanation(model, trajectory, scale.categories, marks)
    for line in found.lines(names):
        say(line)
    place = store_place(asked.store)
    beside = Path(f"labels-{asked.trajectory}.png")
    if isinstance(place, Path):
        beside = place.with_name(f"{place.stem}-{asked.trajectory}.png")
    picture = asked.out or beside
    save_picture(blame_plot(found, names), picture, dpi=130)
    say(f"the picture is in {picture}")
    return 0
