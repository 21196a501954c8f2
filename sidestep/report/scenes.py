"""Trajectories of a run, drawn on their domain: before and after, and which steps of a bad one carry the blame."""

from pathlib import Path

import jax
import numpy as np

from sidestep.certification.evaluation import BATCH
from sidestep.labels.experts import Expert
from sidestep.model import Model, Trajectory, rollout
from sidestep.report import figures
from sidestep.report.drawings import LINES, draw_blame, draw_view, same_frame, views
from sidestep.report.folder import Folder
from sidestep.report.kept import Bad, Scene, write_kept
from sidestep.report.page import Html, code, join, missing, paragraph
from sidestep.report.page import figures as beside
from sidestep.report.svg import svg

DRAWING = 0xD4A3  # folded into a seed's key: the trajectories drawn are those of no training and no audit
BY_RULE = "by the rule"


def keep_scenes(path: Path, model: Model, expert: Expert) -> None:
    """Keep in the folder of a finished run what its pictures are drawn from (see `kept`)."""
    folder = Folder(path)
    folder.model, folder.expert = model, expert
    found = _fresh_scenes(folder)
    drawn = [
        scene._replace(trajectory=scene.trajectory[:LINES], categories=scene.categories[:LINES]) for scene in found
    ]
    write_kept(folder.run, model, expert.name if expert.label else "", drawn, _worst(folder, found))


def scenes(folder: Folder) -> list[Scene]:
    """Trajectories of the answer, and of an earlier policy where the run has one: those it kept, or fresh ones."""
    return folder.kept.scenes if folder.kept else _fresh_scenes(folder)


def _fresh_scenes(folder: Folder) -> list[Scene]:
    found: list[Scene] = []
    earlier = (
        ("before.safetensors", "Before, a policy that heeds no constraint"),
        ("round-0.safetensors", "Before, the policy of the first round"),
    )
    for name, words in (*earlier, ("policy.safetensors", "After, the policy that is the answer")):
        policy = folder.policy(name)
        if policy is None or (found and name.startswith("round")):
            continue
        key = jax.random.fold_in(jax.random.key(int(folder.config.get("seed", 0))), DRAWING)
        trajectory = jax.tree.map(np.asarray, rollout(folder.model, policy, key, BATCH))
        found.append(Scene(words, trajectory, *_judged(folder, trajectory)))
    return found


def _judged(folder: Folder, trajectory: Trajectory) -> tuple[np.ndarray, str]:
    if folder.expert.label is not None:
        return np.asarray(folder.expert.label(trajectory)), BY_RULE
    if folder.safety is not None:
        from sidestep.safety.base import predict

        return np.asarray(predict(folder.safety, trajectory)).argmax(axis=1), "by the safety model's likeliest category"
    return np.full(len(trajectory), -1), "nobody has judged them"


def _worst(folder: Folder, found: list[Scene]) -> Bad | None:
    """Of what the rule calls worst in these scenes, the trajectory of which the safety model is surest."""
    from sidestep.safety.base import predict

    judged = [scene for scene in found if scene.judge == BY_RULE]
    if not judged or folder.safety is None:
        return None
    candidates = jax.tree.map(lambda *parts: np.concatenate(parts), *(scene.trajectory for scene in judged))
    categories = np.concatenate([scene.categories for scene in judged])
    row, harmless = _surest(categories, predict(folder.safety, candidates))
    return Bad(candidates[row : row + 1], int(categories[row]), harmless) if categories[row] > 0 else None


def _surest(categories: np.ndarray, probabilities: np.ndarray) -> tuple[int, float]:
    """Among the worst, the row that the safety model takes least for harmless, and how harmless it takes it to be."""
    rows = np.flatnonzero(categories == categories.max())
    row = int(rows[np.argmin(probabilities[rows, 0])])
    return row, float(probabilities[row, 0])


def trajectories(folder: Folder) -> Html:
    """Before and after, in every view of the domain."""
    shown = scenes(folder)
    if not shown:
        return missing("There is no policy yet, so there are no trajectories to draw.")
    parts = []
    for number_of_view, view in enumerate(views(folder.described)):
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
    names = folder.described.spec.state.names
    over_time = "The state over time, and each step's share of the blame."
    first = views(folder.described)[0]
    on_view = f"The larger the disc, the more of the blame the step carries: {first.title}."
    pictures = beside(
        (svg("blame-view", on_view, draw_blame(first, one, seen.shares, category)), on_view),
        (svg("blame-time", over_time, figures.blame_over_time(seen, names)), over_time),
    )
    return join([paragraph(words), pictures, code("\n".join(seen.lines(names)))])


def _bad_trajectory(folder: Folder) -> tuple[Trajectory, int, str] | None:
    """Of those labelled worst, the one of which the safety model is surest: from the store, or else from the rule."""
    if folder.labels is not None:
        ids, candidates, categories, _ = folder.labels
        row, _ = _surest(categories, folder.predicted)
        worst, one = int(categories[row]), candidates[row : row + 1]
        words = f"Trajectory {ids[row]} of the run's labels was labelled"
    else:
        found = [_kept_worst(one) for one in folder.seeds or [folder]]
        bad = min((one for one in found if one), key=lambda one: (-one.category, one.harmless), default=None)
        if bad is None:
            return None
        worst, one = bad.category, bad.trajectory
        words = "A fresh trajectory was called, by the rule,"
    if not 0 < worst < len(folder.categories):
        return None
    return one, worst, f"{words} '{folder.categories[worst]}'."


def _kept_worst(folder: Folder) -> Bad | None:
    return folder.kept.bad if folder.kept else _worst(folder, _fresh_scenes(folder))


def _slug(folder: Folder) -> str:
    return f"{folder.path.name}-" if folder.above else ""
