"""Trajectories as bytes and back: the real steps alone, each as (state, action, reward) in little-endian float32."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from sidestep.core.errors import InputError

if TYPE_CHECKING:
    from sidestep.core.model import FinitePart, Trajectory

BLOCK = 10_000  # states whose pairs are labelled at once


def pack(trajectories: "Trajectory", state_names: Sequence[str], action_names: Sequence[str]) -> list[bytes]:
    """The bytes of each trajectory; refuses shapes other than the model's, and numbers that are not finite."""
    length = np.asarray(trajectories.length)
    rewards = np.asarray(trajectories.rewards, "<f4")
    parts = [np.asarray(trajectories.states, "<f4"), np.asarray(trajectories.actions, "<f4"), rewards[..., None]]
    sizes = [len(state_names), len(action_names), 1]
    expected = [(*rewards.shape, size) for size in sizes]
    if rewards.ndim != 2 or length.shape != rewards.shape[:1] or [part.shape for part in parts] != expected:
        raise InputError(
            f"trajectories have states (batch, time, {sizes[0]}), actions (batch, time, {sizes[1]}), rewards (batch, "
            f"time) and length (batch), not {np.shape(trajectories.states)}, {np.shape(trajectories.actions)}, "
            f"{rewards.shape} and {length.shape}"
        )
    time = rewards.shape[1]
    if not np.issubdtype(length.dtype, np.integer) or np.any((length < 1) | (length > time)):
        raise InputError(f"the length of a trajectory must be a whole number from 1 to {time} here")
    steps = np.concatenate(parts, axis=2)
    wrong = np.argwhere(~np.isfinite(steps) & (np.arange(time)[None, :] < length[:, None])[..., None])
    if wrong.size:
        row, step, column = wrong[0].tolist()
        name = (*state_names, *action_names, "reward")[column]
        raise InputError(f"{name} is {steps[row, step, column]} in trajectory {row} of these (from 0), step {step}")
    data, step_bytes = steps.tobytes(), 4 * sum(sizes)
    starts = range(0, len(data), max(time, 1) * step_bytes)
    return [data[start : start + n * step_bytes] for start, n in zip(starts, length.tolist(), strict=True)]


def unpack(blobs: Sequence[bytes], lengths: Sequence[int], state_size: int, action_size: int) -> "Trajectory":
    """The trajectories of these bytes, padded with zeros to the longest."""
    length = np.array(lengths, np.int32)
    flat = np.frombuffer(b"".join(blobs), "<f4").reshape(-1, state_size + action_size + 1)
    real = np.arange(length.max(initial=0))[None, :] < length[:, None]

    def padded(columns: np.ndarray) -> np.ndarray:
        whole = np.zeros((*real.shape, *columns.shape[1:]), np.float32)
        whole[real] = columns
        return whole

    states, actions, rewards = np.split(flat, [state_size, state_size + action_size], axis=1)
    return trajectory(padded(states), padded(actions), padded(rewards[:, 0]), length)


def single_steps(states: ArrayLike, actions: ArrayLike, rewards: ArrayLike) -> "Trajectory":
    """State-action pairs as trajectories of one step, from states (batch, state), actions (batch, action), rewards."""
    state, action, reward = (np.asarray(part, np.float32)[:, None] for part in (states, actions, rewards))
    return trajectory(state, action, reward, np.ones(len(reward), np.int32))


def category_table(finite: "FinitePart", label: Callable[["Trajectory"], ArrayLike]) -> np.ndarray:
    """What `label` says of every pair (N, A), in blocks of states: all pairs at once can take gigabytes."""
    actions = finite.reward.shape[1]
    blocks = []
    for start in range(0, len(finite.reward), BLOCK):
        part = slice(start, start + BLOCK)
        states, rewards = finite.encoding[part], finite.reward[part]
        choices = np.tile(np.eye(actions), (len(states), 1))
        found = label(single_steps(np.repeat(states, actions, axis=0), choices, rewards.ravel()))
        blocks.append(np.asarray(found).reshape(rewards.shape))
    return np.concatenate(blocks)


def trajectory(states: np.ndarray, actions: np.ndarray, rewards: np.ndarray, length: np.ndarray) -> "Trajectory":
    """A `Trajectory` of NumPy arrays."""
    # Imported here, since it loads JAX, and a writer of labels needs none.
    from sidestep.core.model import Trajectory

    return Trajectory(states, actions, rewards, length)  # type: ignore[arg-type]  # NumPy's do as well
