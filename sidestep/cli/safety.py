"""`sidestep fit` and `sidestep explain`: a safety model from a store's labels, and what it sees in one trajectory."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from sidestep.cli.console import progress_bar, say, say_json, show_table
from sidestep.core.errors import InputError
from sidestep.core.records import JsonObject, to_json
from sidestep.labels.store import Store
from sidestep.runtime.files import save_picture
from sidestep.safety.config import fit_settings
from sidestep.safety.fit import Progress, fit
from sidestep.safety.io import load_safety, make_safety, safety_header, save_safety
from sidestep.safety.report import FitReport


def fit_store(
    store: Path,
    out: Path,
    kind: str,
    layers: int | None,
    units: int | None,
    dropout: float | None,
    members: int,
    start: Path | None,
    resolve: Any,
    changes: dict[str, Any],
    seed: int,
    quiet: bool,
    as_json: bool,
) -> int:
    """Fit to all labels of the store, save the model, say how good it is."""
    with Store.open(store) as opened:
        ids, trajectories, categories = opened.labelled(resolve)
        scale, names = opened.scale, (*opened.state_names, *opened.action_names)
        sizes = (len(opened.state_names), len(opened.action_names), len(scale))
        model_name = opened.model_name
    if len(ids) < 2:
        raise InputError(f"{len(ids)} labelled trajectories are too few to fit to; label more", place=str(store))
    if start is not None:
        model = load_safety(start)
        if safety_header(start).categories != scale.categories:
            raise InputError(f"its categories are not the store's ({scale})", place=str(start))
    else:
        shape = {"layers": layers, "units": units, "dropout": dropout}
        given: dict[str, Any] = {name: value for name, value in shape.items() if value is not None}
        if kind in ("markov", "share") and (layers or units):
            raise InputError("it has no recurrent layers or units; leave them out", place=f"--kind {kind}")
        if kind == "share" and dropout is not None:
            raise InputError("it has no dropout; leave it out", place="--kind share")
        model = make_safety(kind, *sizes, key=jax.random.key(seed), members=members, **given)
    config = replace(fit_settings(kind), **changes)
    with progress_bar("minibatch", config.steps, quiet or as_json) as bar:

        def show(progress: Progress) -> None:
            bar.update(progress.step, f"held-out loss {progress.held_out_loss:.4f}")

        model, report = fit(model, trajectories, categories, config, jax.random.key(seed), show)
    about: JsonObject = {"model": model_name, "labels": len(ids), "fit": to_json(report)}
    save_safety(out, model, scale, names, about)
    if as_json:
        say_json(about)
    else:
        _print_report(report, scale.categories, out)
        _save_picture(model, trajectories, categories, out)
    return 0


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


def _save_picture(model: Any, trajectories: Any, categories: np.ndarray, out: Path) -> None:
    from sidestep.safety.base import predict
    from sidestep.safety.plots import reliability_plot

    figure = reliability_plot(np.asarray(predict(model, trajectories)), np.asarray(categories))
    save_picture(figure, out.with_suffix(".png"), dpi=130)


def explain(store: Path, trajectory: int, safety: Path, out: Path | None, seed: int, quiet: bool) -> int:
    """Which steps of a stored trajectory carry the blame."""
    from sidestep.safety.explain import explanation
    from sidestep.safety.plots import blame_plot

    model = load_safety(safety)
    with Store.open(store) as opened:
        one = opened.get(trajectory)
        names = opened.state_names
        history = [
            f"{label.annotator} says {opened.scale.categories[label.category]}" for label in opened.history(trajectory)
        ]
        categories = opened.scale.categories
    found = explanation(model, one, categories)
    for line in history + found.lines(names):
        say(line)
    picture = out or store.with_name(f"{store.stem}-{trajectory}.png")
    save_picture(blame_plot(found, names), picture, dpi=130)
    say(f"the picture is in {picture}")
    return 0
