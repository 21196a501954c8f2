"""A small model's spec, random trajectories of it, and ways to look at a store from outside."""

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import sidestep
from sidestep.core.model import Space, Spec, Trajectory, Variable

SPEC = Spec(
    "walker",
    Space((Variable("place", size=2, labels=("x", "y")), Variable("step", kind="int", low=0, high=9))),
    Space((Variable("move", low=-1.0, high=1.0),)),
    horizon=5,
)
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@st.composite
def trajectories(draw, max_batch=4, max_time=5):
    batch, time = draw(st.integers(1, max_batch)), draw(st.integers(1, max_time))
    numbers = draw(arrays.arrays(np.float32, (batch, time, SPEC.state.size + SPEC.action.size + 1), elements=FLOATS))
    length = draw(arrays.arrays(np.int32, batch, elements=st.integers(1, time)))
    return from_numbers(numbers, length)


def random_trajectories(batch, seed=0, time=5):
    rng = np.random.default_rng(seed)
    numbers = rng.normal(size=(batch, time, SPEC.state.size + SPEC.action.size + 1)).astype(np.float32)
    return from_numbers(numbers, rng.integers(1, time + 1, batch).astype(np.int32))


def from_numbers(numbers, length):
    return Trajectory(numbers[..., :3], numbers[..., 3:4], numbers[..., 4], length)


def steps(trajectories):
    """The real steps of each trajectory as bytes, so that -0.0 and 0.0 differ."""
    parts = [trajectories.states, trajectories.actions, trajectories.rewards[..., None]]
    numbers = np.concatenate([np.asarray(part, np.float32) for part in parts], axis=2)
    return [numbers[i, :n].tobytes() for i, n in enumerate(np.asarray(trajectories.length))]


def files(path):
    """The bytes of a store's file and of its write-ahead log."""
    return [one.read_bytes() if one.exists() else b"" for one in (path, path.with_name(path.name + "-wal"))]


def integrity(path):
    connection = sqlite3.connect(path)
    try:
        return connection.execute("PRAGMA integrity_check").fetchall(), list(
            connection.execute("PRAGMA foreign_key_check")
        )
    finally:
        connection.close()


def start_python(code, *arguments):
    """A child that runs `code` with the package on its path; it prints to a pipe."""
    environment = os.environ | {"PYTHONPATH": str(Path(sidestep.__file__).parents[1])}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
