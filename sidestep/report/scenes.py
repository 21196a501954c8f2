"""Trajectories of a run, drawn on their domain: before and after, and which steps of a bad one carry the blame."""

from typing import NamedTuple

import jax
import numpy as np

from sidestep.certification.evaluation import BATCH
from sidestep.model import Trajectory, rollout
from sidestep.report import figures
from sidestep.report.drawings import LINES, draw_blame, draw_view, same_frame, views
from sidestep.report.folder import Folder
from sidestep.report.page import Html, code, join, missing, paragraph
from sidestep.report.page import figures as beside
from sidestep.report.svg import svg

DRAWING = 0xD4A3  # folded into a seed's key: the trajectories drawn are those of no training and no audit


class Scene(NamedTuple):
    """Trajectories of one policy, and who says what category they are."""

    words: str
    trajectory: Trajectory
    categories: np.ndarray
    judge: str


def scenes(folder: Folder) -> list[Scene]:
    """Fresh trajectories of the answer, and of an earlier policy where the run kept one."""
    found: list[Scene] = []
    kept = (
        ("before.safetensors", "Before, a policy that heeds no constraint"),
        ("round-0.safetensors", "Before, the policy of the first round"),
    )
    for name, words in (*kept, ("policy.safetensors", "After, the policy that is the answer")):
        policy = folder.policy(name)
        if policy is None or (found and name.startswith("round")):
            continue
        key = jax.random.fold_in(jax.random.key(int(folder.config.get("seed", 0))), DRAWING)
        trajectory = jax.tree.map(np.asarray, rollout(folder.model, policy, key, BATCH))
        found.append(Scene(words, trajectory, *_judged(folder, trajectory)))
    return found


def _judged(folder: Folder, trajectory: Trajectory) -> tuple[np.ndarray, str]:
    if folder.rule is not None:
        return np.asarray(folder.rule.label(trajectory)), "by the rule"
    if folder.safety is not None:
        from sidestep.safety.base import predict

        return np.asarray(predict(folder.safety, trajectory)).argmax(axis=1), "by the safety model's likeliest category"
    return np.full(len(trajectory), -1), "nobody has judged them"


def trajectories(folder: Folder) -> Html:
    """Before and after, in every view of the domain."""
    shown = scenes(folder)
    if not shown:
        return missing("There is no policy yet, so there are no trajectories to draw.")
    parts = []
    for number_of_view, view in enumerate(views(folder.model)):
        drawn = [draw_view(view, scene.trajectory, scene.categories, folder.categories) for scene in shown]
        same_frame(drawn)
        pictures = []
        for index, (figure, scene) in enumerate(zip(drawn, shown, strict=True)):
            caption = f"{scene.words}: {view.title}. Colours: {scene.judge}."
            pictures.append((svg(f"{_slug(folder)}path{number_of_view}{index}", caption, figure), caption))
        parts.append(beside(*pictures))
    if len(shown) == 1:
        parts.append(missing("The run kept no earlier policy, so there is nothing to compare these with."))
    return join([paragraph(f"Each picture shows {LINES} fresh trajectories of the mean action."), *parts])


def blame(folder: Folder) -> Html:
    """One trajectory that was labelled bad, and the steps that the safety model blames for it."""
    from sidestep.safety.explain import explanation

    if folder.safety is None:
        return missing("The run has no safety model to ask.")
    found = _bad_trajectory(folder)
    if found is None:
        return missing("No trajectory with a side effect is at hand, so there is nothing to blame.")
    one, category, words = found
    seen = explanation(folder.safety, one, folder.categories)
    names = folder.model.spec.state.names
    over_time = "The state over time, and each step's share of the blame."
    first = views(folder.model)[0]
    on_view = f"The larger the disc, the more of the blame the step carries: {first.title}."
    pictures = beside(
        (svg("blame-view", on_view, draw_blame(first, one, seen.shares, category)), on_view),
        (svg("blame-time", over_time, figures.blame_over_time(seen, names)), over_time),
    )
    return join([paragraph(words), pictures, code("\n".join(seen.lines(names)))])


def _bad_trajectory(folder: Folder) -> tuple[Trajectory, int, str] | None:
    """Of those labelled worst, the one of which the safety model is surest: from the store, or else from the rule."""
    from sidestep.safety.base import predict

    if folder.labels is not None:
        ids, candidates, categories, _ = folder.labels
        probabilities = folder.predicted
        who = "labelled"
    else:
        judged = [scene for scene in scenes(folder) if scene.judge == "by the rule"] if not folder.seeds else []
        judged = judged or [s for one in folder.seeds for s in scenes(one) if s.judge == "by the rule"]
        if not judged:
            return None
        candidates = jax.tree.map(lambda *parts: np.concatenate(parts), *(scene.trajectory for scene in judged))
        categories, ids, who = np.concatenate([scene.categories for scene in judged]), None, "called, by the rule,"
        probabilities = predict(folder.safety, candidates)
    worst = int(categories.max())
    if worst == 0:
        return None
    rows = np.flatnonzero(categories == worst)
    bad = candidates[rows]
    surest = int(np.argmin(probabilities[rows, 0]))
    name = f"Trajectory {ids[rows[surest]]} of the run's labels" if ids is not None else "A fresh trajectory"
    return bad[surest : surest + 1], worst, f"{name} was {who} '{folder.categories[worst]}'."


def _slug(folder: Folder) -> str:
    return f"{folder.path.name}-" if folder.above else ""
