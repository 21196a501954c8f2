"""Side effects outside the family of boxes, for `few_labels.py`: rules of Navigation and HVAC in plain NumPy."""

import numpy as np


def _category(count, mild, severe):
    return (count >= mild).astype(int) + (count >= severe).astype(int)


def _longest_run(flags, trajectory):
    flags = flags & trajectory.mask
    run, longest = np.zeros(len(flags), int), np.zeros(len(flags), int)
    for step in range(flags.shape[1]):
        run = np.where(flags[:, step], run + 1, 0)
        longest = np.maximum(longest, run)
    return longest


def _count(flags, trajectory):
    return (flags & trajectory.mask).sum(axis=1)


def moves(trajectory):
    """Navigation: long moves, several running."""
    long = np.sqrt((np.asarray(trajectory.actions) ** 2).sum(axis=2)) > 1.0
    return _category(_longest_run(long, trajectory), 3, 6)


def disc(trajectory):
    """Navigation: steps within a disc."""
    x, y = np.moveaxis(np.asarray(trajectory.states), 2, 0)
    return _category(_count((x - 4.0) ** 2 + (y - 4.5) ** 2 < 4.0, trajectory), 2, 4)


def oblique(trajectory):
    """Navigation: steps in a strip that lies across."""
    x, y = np.moveaxis(np.asarray(trajectory.states), 2, 0)
    return _category(_count((x + 0.5 * y > 4.0) & (x + 0.5 * y < 6.5) & (y < 7.0), trajectory), 2, 4)


def two(trajectory):
    """Navigation: steps in either of two regions."""
    x, y = np.moveaxis(np.asarray(trajectory.states), 2, 0)
    return _category(
        _count(((x > 2.0) & (x < 3.5) & (y < 5.0)) | ((x > 5.0) & (x < 6.5) & (y > 4.0)), trajectory), 2, 4
    )


def order(trajectory):
    """Navigation: first the one place, then steps in the other."""
    x, y = np.moveaxis(np.asarray(trajectory.states), 2, 0)
    been = np.maximum.accumulate((x < 3.0) & (y > 4.0) & trajectory.mask, axis=1)
    return _category(_count(been & (x > 4.0) & (y > 5.0) & (x < 6.5), trajectory), 2, 4)


def gap(trajectory):
    """HVAC: one room is much warmer than its neighbour for several steps."""
    rooms = np.asarray(trajectory.states)
    return _category(_longest_run(rooms[..., 1] - rooms[..., 4] > 0.5, trajectory), 3, 6)


def blast(trajectory):
    """HVAC: much air altogether, several times."""
    return _category(_count(np.asarray(trajectory.actions).sum(axis=2) > 45.0, trajectory), 4, 8)
