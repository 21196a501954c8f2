"""What the pictures of a run are drawn from, kept in its folder when it ends: no model need be run to draw them again.

scenes.safetensors holds, for each policy that is drawn, states, lengths and categories of the trajectories drawn; the
worst trajectory that the rule found, to lay blame on; and in its header the words beside them and what the model is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sidestep.errors import InputError
from sidestep.files import read_bytes
from sidestep.model import Space, Spec, Trajectory, Variable
from sidestep.models.map_text import SUFFIXES, parse_map
from sidestep.runs import Run
from sidestep.trees import load_arrays, read_header, save_arrays
from sidestep.trust import sha256

FILE = "scenes.safetensors"
KIND = "scenes"
DOMAINS = tuple(SUFFIXES.values())  # those with a map
STEPS = ("states", "actions", "rewards")


class Scene(NamedTuple):
    """Trajectories of one policy, and who says what category they are."""

    words: str
    trajectory: Trajectory
    categories: np.ndarray
    judge: str


class Bad(NamedTuple):
    """A trajectory that the rule calls bad, a batch of one, and how harmless the safety model takes it to be."""

    trajectory: Trajectory
    category: int
    harmless: float


@dataclass(frozen=True)
class Described:
    """What drawings need of a model."""

    spec: Spec
    map: tuple[str, ...] | None


@dataclass(frozen=True)
class Kept:
    """Everything in the file."""

    model: Described
    rule: str  # by name; empty where no rule judged
    scenes: list[Scene]
    bad: Bad | None


def write_kept(run: Run, model: Any, rule: str, scenes: Sequence[Scene], bad: Bad | None) -> None:
    arrays: dict[str, np.ndarray] = {}
    for index, scene in enumerate(scenes):
        arrays |= {
            f"{index}.states": _small(scene.trajectory),
            f"{index}.length": np.asarray(scene.trajectory.length, np.int32),
            f"{index}.categories": np.asarray(scene.categories, np.int32),
        }
    if bad is not None:
        steps = int(bad.trajectory.length[0])
        arrays |= {f"bad.{name}": np.asarray(getattr(bad.trajectory, name))[:, :steps] for name in STEPS}
        arrays["bad.length"] = np.asarray(bad.trajectory.length, np.int32)
    header = {
        "kind": KIND,
        "policy": sha256(read_bytes(run.path / "policy.safetensors")),
        "rule": rule,
        "model": _describe(model),
        "scenes": [{"words": scene.words, "judge": scene.judge} for scene in scenes],
        "bad": None if bad is None else {"category": bad.category, "harmless": bad.harmless},
    }
    save_arrays(run.target(FILE), arrays, header)


def read_kept(folder: Path) -> Kept | None:
    """None where there is no such file, or where it is of another policy than the one that is there now."""
    file, policy = folder / FILE, folder / "policy.safetensors"
    if not file.is_file() or not policy.is_file():
        return None
    header = read_header(file)
    if header.get("policy") != sha256(read_bytes(policy)):
        return None
    try:
        return _read(header, load_arrays(file))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise InputError(
            f"does not hold what the pictures need ({type(error).__name__}: {error})", place=str(file)
        ) from None


def _read(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> Kept:
    model = _described(header["model"])
    size, scenes, bad = model.spec.state.size, [], None
    for index, said in enumerate(header["scenes"]):
        states, length = arrays[f"{index}.states"].astype(np.float32), arrays[f"{index}.length"]
        scenes.append(
            Scene(
                str(said["words"]),
                _checked(_drawn(states, length), size),
                _numbers(arrays[f"{index}.categories"], length),
                str(said["judge"]),
            )
        )
    if header["bad"] is not None:
        parts: Any = [arrays[f"bad.{name}"] for name in (*STEPS, "length")]
        category, harmless = int(header["bad"]["category"]), float(header["bad"]["harmless"])
        bad = Bad(_checked(Trajectory(*parts), size), category, harmless)
    if not scenes:
        raise ValueError("no trajectories")
    return Kept(model, str(header["rule"]), scenes, bad)


def _drawn(states: np.ndarray, length: np.ndarray) -> Trajectory:
    """Of drawn trajectories only the states are kept."""
    count, time = states.shape[:2]
    parts: Any = (states, np.zeros((count, time, 0)), np.zeros((count, time)), length)
    return Trajectory(*parts)


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


def _small(trajectory: Trajectory) -> np.ndarray:
    """States without padding; in a byte an entry where that loses nothing, as with one-hot states."""
    states = np.where(np.asarray(trajectory.mask)[..., None], np.asarray(trajectory.states), 0.0)
    states = states[:, : int(np.max(trajectory.length))]
    whole = states.clip(0, 255).astype(np.uint8)
    return whole if np.array_equal(whole, states) else states.astype(np.float32)


def _describe(model: Any) -> dict[str, Any]:
    spec = model.spec
    return {
        "name": spec.name,
        "family": spec.family,
        "notes": list(spec.notes),
        "map": list(model.map) if spec.family in DOMAINS else None,
        "state": [
            {"name": v.name, "kind": v.kind, "size": v.size, "labels": list(v.labels)} for v in spec.state.variables
        ],
    }


def _described(said: dict[str, Any]) -> Described:
    variables = tuple(
        Variable(str(v["name"]), v["kind"], int(v["size"]), labels=tuple(map(str, v["labels"]))) for v in said["state"]
    )
    nothing = Space(())
    spec = Spec(
        str(said["name"]),
        Space(variables),
        nothing,
        1,
        notes=tuple(map(str, said["notes"])),
        family=str(said["family"]),
    )
    rows = None
    if spec.family in DOMAINS:
        rows = parse_map("\n".join(map(str, said["map"])), kind=spec.family, place="its map")
    return Described(spec, rows)
