"""Marks: the step at which a trajectory first reached each severity, where its annotator said so.

A trajectory that turned mild at step 12 and severe at step 20 has the marks (("mild", 12), ("severe", 20)). Severities
are the categories above the first. A mark may be missing; steps count from 0.
"""

import json
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Int

from sidestep.core.constraints import Scale
from sidestep.core.errors import InputError

Marks = tuple[tuple[str, int], ...]  # (name of the severity, step), in the order of the scale
MarksArray = Int[np.ndarray, "trajectories severities"]  # -1 where there is no mark

NO_MARK = -1


def marks_of(given: Mapping[str, object] | Sequence[int] | None, scale: Scale) -> Marks:
    """Marks by the names of severities, or by a row of steps with -1 for none; their steps are not looked at yet."""
    if given is None:
        return ()
    if not isinstance(given, Mapping):
        row = list(given)
        if len(row) != len(scale) - 1:
            raise InputError(f"marks are one step for each of {', '.join(scale.categories[1:])}, not {len(row)}")
        given = {name: step for name, step in zip(scale.categories[1:], row, strict=True) if step != NO_MARK}
    named = {name: _whole(step, name) for name, step in given.items()}
    for name in named:
        if name not in scale.categories[1:]:
            raise InputError(f"'{name}' cannot be marked; severities of this scale: {', '.join(scale.categories[1:])}")
    return tuple((name, named[name]) for name in scale.categories[1:] if name in named)


def marks_fault(marks: Marks, category: int | None, length: int, scale: Scale) -> str | None:
    """What is wrong with the marks of a trajectory of this category and length; None if nothing."""
    before = ("", 0)
    for name, step in marks:
        if category is None or scale.categories.index(name) > category:
            said = "cannot tell" if category is None else f"'{scale.categories[category]}'"
            return f"'{name}' is marked where the label is {said}; mark severities up to the label's"
        if not 0 <= step < length:
            return f"'{name}' is marked at step {step}, and the trajectory has steps 0 to {length - 1}"
        if step < before[1]:
            return f"'{name}' is marked at step {step}, before '{before[0]}' at step {before[1]}"
        before = name, step
    return None


def median_marks(marks: Sequence[Marks], scale: Scale) -> Marks:
    """Of several annotators: the median step of each severity, the earlier one of two in the middle.

    Not before the step of a milder severity, which others of them may have marked.
    """
    latest, found = 0, []
    for name in scale.categories[1:]:
        steps = sorted(dict(one)[name] for one in marks if name in dict(one))
        if steps:
            latest = max(latest, steps[(len(steps) - 1) // 2])
            found.append((name, latest))
    return tuple(found)


def marks_array(marks: Sequence[Marks], scale: Scale) -> MarksArray:
    """One row of steps for each trajectory, one column for each severity, -1 where there is no mark."""
    rows = [[dict(one).get(name, NO_MARK) for name in scale.categories[1:]] for one in marks]
    return np.array(rows, np.int32).reshape(len(marks), len(scale) - 1)


def marks_text(marks: Marks) -> str | None:
    """Marks as the store keeps them; None for none."""
    return json.dumps(dict(marks)) if marks else None


def marks_from_text(text: object, scale: Scale) -> Marks:
    """Marks from the store; raises InputError where they are not what `marks_text` wrote."""
    if text is None:
        return ()
    try:
        found = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not found:
        raise InputError(f"its marks are {text!r}, not severities with their steps")
    return marks_of(found, scale)


def _whole(step: object, name: str) -> int:
    if isinstance(step, np.integer):
        step = step.item()
    if type(step) is not int:
        raise InputError(f"'{name}' is marked at {step!r}, which is not a step")
    return step
