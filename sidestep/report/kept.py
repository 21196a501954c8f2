"""What the pictures of a run are drawn from, kept in its folder when it ends: no model need be run to draw them again.

scenes.safetensors holds the frames of the model's views; for each policy that is drawn, the points of its trajectories
in each view, their lengths and categories; the worst trajectory, to lay blame on; and the words beside them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from sidestep.core.errors import InputError
from sidestep.core.model import Spec, Trajectory
from sidestep.core.records import from_json, to_json
from sidestep.core.views import Frame, Points
from sidestep.models.trust import sha256
from sidestep.runs.folder import Run
from sidestep.runtime.files import read_bytes
from sidestep.runtime.serialisation import load_arrays, read_header, save_arrays

FILE = "scenes.safetensors"
KIND = "scenes"
STEPS = ("states", "actions", "rewards")


class Scene(NamedTuple):
    """Trajectories of one policy, and who says what category they are."""

    words: str
    length: np.ndarray
    categories: np.ndarray
    judge: str
    points: list[Points]  # in each view
    mean_return: float | None = None  # of all rollouts, not only of those that are drawn
    shares: tuple[float, ...] = ()  # of the categories, likewise


class Bad(NamedTuple):
    """The worst trajectory, a batch of one; its points in the first view, and how harmless the safety model takes it to
    be."""

    words: str
    trajectory: Trajectory
    points: Points
    category: int
    harmless: float


@dataclass(frozen=True)
class Kept:
    """Everything in the file."""

    names: tuple[str, ...]  # of the state's entries
    notes: tuple[str, ...]  # of the model's spec
    rule: str  # by name; empty where no rule judged
    frames: list[Frame]
    scenes: list[Scene]
    bad: Bad | None
    failing: Bad | None = None  # a run of the final policy that has a side effect


@dataclass(frozen=True)
class SceneWords:
    words: str
    judge: str
    mean_return: float | None = None
    shares: tuple[float, ...] = ()


@dataclass(frozen=True)
class BadWords:
    words: str
    category: int
    harmless: float


@dataclass(frozen=True)
class Header:
    """What the file says beside its arrays."""

    policy: str  # hash of the policy's file
    rule: str
    names: tuple[str, ...]
    notes: tuple[str, ...]
    frames: tuple[Frame, ...]
    scenes: tuple[SceneWords, ...]
    bad: BadWords | None = None
    failing: BadWords | None = None


def write_kept(
    run: Run,
    spec: Spec,
    rule: str,
    frames: Sequence[Frame],
    scenes: Sequence[Scene],
    bad: Bad | None,
    failing: Bad | None = None,
) -> None:
    arrays: dict[str, np.ndarray] = {}
    for index, scene in enumerate(scenes):
        arrays[f"{index}.length"] = np.asarray(scene.length, np.int32)
        arrays[f"{index}.categories"] = np.asarray(scene.categories, np.int32)
        for view, points in enumerate(scene.points):
            arrays |= _points_arrays(f"{index}.{view}", points, scene.length)
    for name, one in (("bad", bad), ("failing", failing)):
        arrays |= _bad_arrays(name, one) if one is not None else {}
    header = Header(
        policy=sha256(read_bytes(run.path / "policy.safetensors")),
        rule=rule,
        names=spec.state.names,
        notes=spec.notes,
        frames=tuple(frames),
        scenes=tuple(SceneWords(one.words, one.judge, one.mean_return, one.shares) for one in scenes),
        bad=None if bad is None else BadWords(bad.words, bad.category, bad.harmless),
        failing=None if failing is None else BadWords(failing.words, failing.category, failing.harmless),
    )
    save_arrays(run.target(FILE), arrays, {"kind": KIND, **to_json(header)})


def _bad_arrays(name: str, bad: Bad) -> dict[str, np.ndarray]:
    steps = int(bad.trajectory.length[0])
    arrays = {f"{name}.{part}": np.asarray(getattr(bad.trajectory, part))[:, :steps] for part in STEPS}
    arrays[f"{name}.length"] = np.asarray(bad.trajectory.length, np.int32)
    return arrays | _points_arrays(name, bad.points, np.asarray(bad.trajectory.length))


def read_kept(folder: Path) -> Kept | None:
    """None where there is no such file, or where it is of another policy than the one that is there now."""
    file, policy = folder / FILE, folder / "policy.safetensors"
    if not file.is_file() or not policy.is_file():
        return None
    header = read_header(file)
    if header.get("policy") != sha256(read_bytes(policy)):
        return None
    try:
        return _read(from_json(Header, header, str(file)), load_arrays(file))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        if isinstance(error, InputError) and error.place:
            raise
        raise InputError(
            f"does not hold what the pictures need ({type(error).__name__}: {error})", place=str(file)
        ) from None


def _read(header: Header, arrays: dict[str, np.ndarray]) -> Kept:
    scenes = []
    for index, said in enumerate(header.scenes):
        length, categories = arrays[f"{index}.length"], arrays[f"{index}.categories"]
        points = [_checked_points(arrays, f"{index}.{view}", length) for view in range(len(header.frames))]
        about = (said.judge, points, said.mean_return, said.shares)
        scenes.append(Scene(said.words, length, _numbers(categories, length), *about))
    bad, failing = (_read_bad(header, name, arrays) for name in ("bad", "failing"))
    if not scenes or not header.frames:
        raise ValueError("no trajectories")
    return Kept(header.names, header.notes, header.rule, list(header.frames), scenes, bad, failing)


def _read_bad(header: Header, name: str, arrays: dict[str, np.ndarray]) -> Bad | None:
    told: BadWords | None = getattr(header, name)
    if told is None:
        return None
    states, actions, rewards, steps = (jnp.asarray(arrays[f"{name}.{part}"]) for part in (*STEPS, "length"))
    worst = _checked(Trajectory(states, actions, rewards, steps), len(header.names))
    path = _checked_points(arrays, name, arrays[f"{name}.length"])
    return Bad(told.words, worst, path, told.category, told.harmless)


def _points_arrays(name: str, points: Points, length: np.ndarray) -> dict[str, np.ndarray]:
    """Without padding."""
    steps = int(np.max(length))
    real = np.arange(steps)[None, :] < length[:, None]
    x, y = (np.where(real, one[:, :steps], 0.0).astype(np.float32) for one in points)
    return {f"{name}.x": x, f"{name}.y": y}


def _checked_points(arrays: dict[str, np.ndarray], name: str, length: np.ndarray) -> Points:
    if length.ndim != 1 or length.dtype.kind != "i" or not len(length) or length.min() < 1:
        raise ValueError("trajectories without steps")
    for axis in "xy":
        found = arrays[f"{name}.{axis}"]
        if found.shape != (len(length), length.max()) or found.dtype.kind != "f" or not np.isfinite(found).all():
            raise ValueError(f"points of shape {found.shape} for {len(length)} trajectories, or not finite")
    return arrays[f"{name}.x"], arrays[f"{name}.y"]


def _checked(trajectory: Trajectory, size: int) -> Trajectory:
    states, length = trajectory.states, trajectory.length
    if states.ndim != 3 or states.shape[2] != size or length.shape != states.shape[:1]:
        raise ValueError(f"states of shape {states.shape} for {size} entries and {length.shape} lengths")
    if not len(length) or length.min() < 1 or length.max() > states.shape[1] or not np.isfinite(states).all():
        raise ValueError("trajectories without steps, with too many or with states that are not finite")
    return trajectory


def _numbers(categories: np.ndarray, length: np.ndarray) -> np.ndarray:
    if categories.shape != length.shape or categories.dtype.kind != "i":
        raise ValueError(f"{categories.shape} categories of {length.shape} trajectories")
    return categories
