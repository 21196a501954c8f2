"""Trajectories of a run, drawn on their domain: before and after, and which steps of a bad one carry the blame."""

from pathlib import Path

import jax
import numpy as np
from matplotlib.figure import Figure

from sidestep.certification.evaluation import BATCH
from sidestep.core.errors import InputError
from sidestep.core.model import Model, Trajectory, rollout
from sidestep.core.views import Frame
from sidestep.labels.experts import Expert
from sidestep.report import figures
from sidestep.report.drawings import LINES, draw_beside, draw_blame, draw_view, same_frame, views
from sidestep.report.folder import Folder
from sidestep.report.kept import Bad, Scene, write_kept
from sidestep.report.page import Html, code, join, missing, paragraph, tag
from sidestep.report.page import figures as beside
from sidestep.report.svg import style, svg
from sidestep.safety.base import predict
from sidestep.safety.explain import explanation

DRAWING = 0xD4A3  # folded into a seed's key: the trajectories drawn are those of no training and no audit
BY_RULE = "by the rule"


def keep_scenes(path: Path, model: Model, expert: Expert) -> None:
    """Keep in the folder of a finished run what its pictures are drawn from (see `kept`)."""
    folder = Folder(path)
    folder.model, folder.expert = model, expert
    frames = [view.frame for view in views(model)]
    rolled = _rolled_out(folder)
    found = [_scene(folder, *one) for one in rolled]
    rule, bad, failing = expert.name if expert.label else "", _worst(folder, rolled), _failing(folder, rolled)
    write_kept(folder.run, model.spec, rule, frames, found, bad, failing)


def scenes(folder: Folder) -> tuple[list[Frame], list[Scene]]:
    """The views, and in them trajectories of the answer, and of an earlier policy where the run has one: those that
    the run kept, or fresh ones."""
    if folder.kept:
        return folder.kept.frames, folder.kept.scenes
    found = [_scene(folder, *one) for one in _rolled_out(folder)]
    return [view.frame for view in views(folder.model)] if found else [], found


def _rolled_out(folder: Folder) -> list[tuple[str, Trajectory]]:
    """Fresh trajectories of each policy that is drawn, and words for it."""
    found: list[tuple[str, Trajectory]] = []
    key = jax.random.fold_in(jax.random.key(folder.config.seed), DRAWING)
    for name, words in (
        ("before.safetensors", "Before: a policy that ignores side effects"),
        ("policy.safetensors", "After: the final policy"),
    ):
        policy = folder.policy_in(name)
        if policy is not None:
            found.append((words, jax.tree.map(np.asarray, rollout(folder.model, policy, key, BATCH))))
    return found


def _scene(folder: Folder, words: str, rolled: Trajectory) -> Scene:
    drawn = rolled[:LINES]
    points = [view.points(drawn) for view in views(folder.model)]
    categories, judge = _judged(folder, rolled)
    counts = np.bincount(categories[categories >= 0], minlength=len(folder.categories))
    shares = tuple((counts / max(counts.sum(), 1)).tolist())
    mean_return = float(np.mean(np.asarray(rolled.returns())))
    return Scene(words, np.asarray(drawn.length), categories[:LINES], judge, points, mean_return, shares)


def _judged(folder: Folder, trajectory: Trajectory) -> tuple[np.ndarray, str]:
    if folder.expert.label is not None:
        return np.asarray(folder.expert.label(trajectory)), BY_RULE
    if folder.safety is not None:
        return np.asarray(predict(folder.safety, trajectory)).argmax(axis=1), "by the safety model's likeliest category"
    return np.full(len(trajectory), -1), "grey, since nobody has judged them"


def _worst(folder: Folder, rolled: list[tuple[str, Trajectory]]) -> Bad | None:
    """The trajectory to lay blame on: of those labelled worst, or of those that the rule calls worst, the one of which
    the safety model is surest."""
    if folder.safety is None:
        return None
    if folder.labels is not None:
        ids, candidates, categories, _ = folder.labels
        row, harmless = _surest(categories, folder.predicted)
        words = f"Trajectory {ids[row]} of the run's labels was labelled"
    elif rolled and folder.expert.label is not None:
        candidates = jax.tree.map(lambda *parts: np.concatenate(parts), *(trajectory for _, trajectory in rolled))
        categories = np.asarray(folder.expert.label(candidates))
        row, harmless = _surest(categories, predict(folder.safety, candidates))
        words = "A fresh trajectory was called, by the rule,"
    else:
        return None
    one, category = candidates[row : row + 1], int(categories[row])
    if category == 0:
        return None
    words = f"{words} '{folder.categories[category]}'."
    return Bad(words, one, views(folder.model)[0].points(one), category, harmless)


def _failing(folder: Folder, rolled: list[tuple[str, Trajectory]]) -> Bad | None:
    """The worst of the final policy's own runs; None where none of them has a side effect."""
    if not rolled:
        return None
    _, runs = rolled[-1]
    categories, judge = _judged(folder, runs)
    probabilities = np.zeros((len(runs), 1)) if folder.safety is None else predict(folder.safety, runs)
    row, harmless = _surest(categories, probabilities)
    category = int(categories[row])
    if category <= 0:
        return None
    failed = int((categories > 0).sum())
    words = (
        f"{failed:,} of {len(runs):,} fresh runs of the final policy had a side effect. This one is "
        f"'{folder.categories[category]}' {judge}."
    )
    one = runs[row : row + 1]
    return Bad(words, one, views(folder.model)[0].points(one), category, harmless)


def _surest(categories: np.ndarray, probabilities: np.ndarray) -> tuple[int, float]:
    """Among the worst, the row that the safety model takes least for harmless, and how harmless it takes it to be."""
    rows = np.flatnonzero(categories == categories.max())
    row = int(rows[np.argmin(probabilities[rows, 0])])
    return row, float(probabilities[row, 0])


def trajectories(folder: Folder) -> Html:
    """Before and after, in every view of the domain."""
    frames, shown = scenes(folder)
    if not shown:
        return missing("There is no policy yet, so there are no trajectories to draw.")
    parts = []
    for number_of_view, frame in enumerate(frames):
        drawn = [
            draw_view(frame, scene.points[number_of_view], scene.length, scene.categories, folder.categories)
            for scene in shown
        ]
        same_frame(drawn)
        pictures = []
        for index, (figure, scene) in enumerate(zip(drawn, shown, strict=True)):
            caption = f"{scene.words} ({frame.title}). {_shares(folder, scene)}"
            pictures.append((svg(f"{_slug(folder)}path{number_of_view}{index}", caption, figure), caption))
        parts.append(beside(*pictures))
    if len(shown) == 1:
        parts.append(missing("The run kept no earlier policy, so there is nothing to compare these with."))
    first, *others = parts
    note = paragraph(f"Each picture shows {LINES} fresh runs, coloured {shown[0].judge}.")
    more = tag("details", tag("summary", "Seen in other ways"), *others) if others else ""
    return join([first, more, note])


def _shares(folder: Folder, scene: Scene) -> str:
    """What the picture shows, for those who do not see it."""
    if not scene.shares:
        return f"Coloured {scene.judge}."
    parts = [
        f"{share:.0%}".replace("%", "\u00a0%") + f" {name}"  # a number and its unit stay in one line
        for name, share in zip(folder.categories, scene.shares, strict=True)
    ]
    return f"{', '.join(parts)}."


def failing(folder: Folder) -> Html:
    """A run of the final policy that goes wrong, and the steps that the safety model blames, where there is one."""
    kept = folder.kept
    if kept is None or (kept.failing is None and kept.scenes[-1].shares[:1] != (1.0,)):
        return missing("The run kept no failing run of its final policy.")
    bad, frame = kept.failing, kept.frames[0]
    if bad is None:
        return paragraph(f"None of {BATCH:,} fresh runs of the final policy had a side effect.")
    if folder.safety is not None:
        return _blamed(folder, bad, frame, "failing")
    caption = f"{bad.words} ({frame.title})"
    length, category = np.asarray(bad.trajectory.length), np.array([bad.category])
    drawn = draw_view(frame, bad.points, length, category, folder.categories)
    return join([paragraph(bad.words), beside((svg("failing-view", caption, drawn), f"The run ({frame.title})."))])


def before_and_after(folder: Folder, view: int = 0) -> Figure:
    """The same as one figure of Matplotlib, in one of the views."""
    frames, shown = scenes(folder)
    if not shown:
        raise InputError("this run has no policy yet, so there are no trajectories to draw", place=str(folder.path))
    if not 0 <= view < len(frames):
        raise InputError(f"the model has {len(frames)} views, counted from 0, and not {view}")
    with style(ground=True):
        return draw_beside(frames[view], shown, view, folder.categories)


def blame(folder: Folder) -> Html:
    """One trajectory that was labelled bad, and the steps that the safety model blames for it."""
    if folder.safety is None:
        return missing("The run has no safety model to ask.")
    found = [(one, bad) for one in folder.seeds or [folder] if (bad := _bad(one))]
    if not found:
        return missing("No trajectory with a side effect is at hand, so there is nothing to blame.")
    of, bad = min(found, key=lambda one: (-one[1].category, one[1].harmless))
    frame = of.kept.frames[0] if of.kept else views(of.model)[0].frame
    return _blamed(folder, bad, frame, "blame")


def _blamed(folder: Folder, bad: Bad, frame: Frame, name: str) -> Html:
    assert folder.safety is not None
    seen = explanation(folder.safety, bad.trajectory, folder.categories)
    names = folder.names
    most = f"Step {seen.shares.argmax()} has {seen.shares.max():.0%}".replace("%", " %") + " of the blame"
    over_time = f"The state over time, and each step's share of the blame. {most}."
    on_view = f"{most}: the larger the disc, the larger the step's share ({frame.title})."
    pictures = beside(
        (svg(f"{name}-view", on_view, draw_blame(frame, bad.points, seen.shares, bad.category)), on_view),
        (svg(f"{name}-time", over_time, figures.blame_over_time(seen, names)), over_time),
    )
    return join([paragraph(bad.words), pictures, code("\n".join(seen.lines(names)))])


def _bad(folder: Folder) -> Bad | None:
    """The trajectory to lay blame on, kept or found now; None where there is none."""
    bad = folder.kept.bad if folder.kept else _worst(folder, _rolled_out(folder))
    return bad if bad and 0 < bad.category < len(folder.categories) else None


def _slug(folder: Folder) -> str:
    return f"{folder.path.name}-" if folder.above else ""
