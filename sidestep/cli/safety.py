"""`sidestep fit` and `sidestep explain`: a safety model from a store's labels, and what it sees in one trajectory."""

from dataclasses import fields, replace
from pathlib import Path

import jax
import numpy as np

from sidestep.cli.commands import Explain, Fit
from sidestep.cli.console import progress_bar, say, say_json, show_table
from sidestep.core.constraints import Scale
from sidestep.core.errors import InputError
from sidestep.core.options import place_of
from sidestep.core.records import JsonObject, to_json
from sidestep.labels.store import Store
from sidestep.runtime.files import save_picture
from sidestep.safety.base import SafetyModel, predict
from sidestep.safety.config import FitConfig, fit_settings
from sidestep.safety.explain import explanation
from sidestep.safety.fit import Progress, fit
from sidestep.safety.io import load_safety, make_safety, safety_header, save_safety
from sidestep.safety.plots import blame_plot, reliability_plot
from sidestep.safety.report import FitReport

SHAPE = ("layers", "units", "dropout")
WITHOUT = {"markov": ("layers", "units"), "share": SHAPE}  # parts of the shape that a kind does not have


def fit_store(asked: Fit) -> int:
    """Fit to all labels of the store, save the model, say how good it is."""
    with Store.open(asked.store) as store:
        ids, trajectories, categories = store.labelled(asked.resolve)
        scale, names = store.scale, (*store.state_names, *store.action_names)
        sizes = (len(store.state_names), len(store.action_names), len(scale))
        model_name = store.model_name
    if len(ids) < 2:
        raise InputError(f"{len(ids)} labelled trajectories are too few to fit to; label more", place=str(asked.store))
    model, config = _before(asked, sizes, scale)
    with progress_bar("minibatch", config.steps, asked.quiet or asked.json) as bar:

        def show(progress: Progress) -> None:
            bar.update(progress.step, f"held-out loss {progress.held_out_loss:.4f}")

        model, report = fit(model, trajectories, categories, config, jax.random.key(asked.seed), show)
    about: JsonObject = {"model": model_name, "labels": len(ids), "fit": to_json(report)}
    save_safety(asked.out, model, scale, names, about)
    figure = reliability_plot(np.asarray(predict(model, trajectories)), np.asarray(categories))
    save_picture(figure, asked.out.with_suffix(".png"), dpi=130)
    if asked.json:
        say_json(about)
    else:
        _print_report(report, scale.categories, asked.out)
    return 0


def _before(asked: Fit, sizes: tuple[int, int, int], scale: Scale) -> tuple[SafetyModel, FitConfig]:
    """The model that the fit begins with, and the settings that suit its kind."""
    kind: str = asked.kind or "hazard"
    shape = {name: value for name in SHAPE if (value := getattr(asked, name)) is not None}
    if asked.start is not None:
        for name in ("kind", *SHAPE, "members"):
            if getattr(asked, name) is not None:
                raise InputError("has no effect with --start, which says it; leave it out", place=place_of(name))
        header, model = safety_header(asked.start), load_safety(asked.start)
        if header.categories != scale.categories:
            raise InputError(f"its categories are not the store's ({scale})", place=str(asked.start))
        kind = header.kind
    else:
        for name in WITHOUT.get(kind, ()):
            if name in shape:
                raise InputError(f"the kind '{kind}' has no {name}; leave it out", place=place_of(name))
        members = 1 if asked.members is None else asked.members
        model = make_safety(kind, *sizes, key=jax.random.key(asked.seed), members=members, **shape)
    names = {field.name for field in fields(FitConfig)} & {field.name for field in fields(asked)}
    given = {name: value for name in names if (value := getattr(asked, name)) is not None}
    return model, replace(fit_settings(kind), **given)


def _print_report(report: FitReport, categories: tuple[str, ...], out: Path) -> None:
    say(f"{report.train} trajectories to train on, {report.held_out} held out, {report.steps} minibatches")
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
        trajectory, names, categories = store.get(asked.trajectory), store.state_names, store.scale.categories
        labels = store.history(asked.trajectory)
    for label in labels:
        say(f"{label.annotator} says {categories[label.category]}")
    found = explanation(model, trajectory, categories)
    for line in found.lines(names):
        say(line)
    picture = asked.out or asked.store.with_name(f"{asked.store.stem}-{asked.trajectory}.png")
    save_picture(blame_plot(found, names), picture, dpi=130)
    say(f"the picture is in {picture}")
    return 0
