"""The side effect that greenhouse.rddl knows nothing of: mould, when the air stays humid for hours on end."""

import numpy as np

HUMID = 1.0


def rule(trajectory, model):
    """none: never humid for three hours in a row; mild: three or four; severe: five and more."""
    humid = model.spec.state.take(trajectory.states, "humidity")[..., 0] >= HUMID
    hours = np.arange(humid.shape[1])[None, :]
    humid = humid & (hours < trajectory.length[:, None])
    run, longest = np.zeros(len(humid), int), np.zeros(len(humid), int)
    for hour in range(humid.shape[1]):
        run = np.where(humid[:, hour], run + 1, 0)
        longest = np.maximum(longest, run)
    return (longest >= 3).astype(int) + (longest >= 5).astype(int)
