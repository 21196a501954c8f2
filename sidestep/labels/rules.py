"""Rules that label whole trajectories: the paper's for the models that we ship, and the user's own.

A rule plays the expert. The learner sees the categories that it gives and never looks inside it.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from sidestep.constraints import Scale
from sidestep.errors import InputError
from sidestep.model import Model, Trajectory, require_finite
from sidestep.trust import GIVEN, Files

DIRTY_X, DIRTY_Y = (2.0, 4.5), (0.0, 10.0)  # the zone that Navigation's reward knows nothing of
SERVER_ROOM, SERVER_LIMIT = "temp[r2]", 21.0
UNBALANCED = 0.5  # widest allowed gap between the fullest and the emptiest reservoir, as shares of capacity
UNSAFE_SHARE = 10  # a grid trajectory is unsafe when at least one step in ten is dangerous


@dataclass(frozen=True, eq=False)
class Rule:
    """Categories of trajectories; for side effects of single steps (Markovian ones) also categories of steps."""

    name: str
    scale: Scale
    label: Callable[[Trajectory], Int[Array, " batch"]]
    step_categories: Callable[[Trajectory], Int[Array, "batch time"]] | None = None
    penalties: tuple[float, ...] = ()  # of a step of each category, where the paper gives numbers
    markovian: bool = False  # a trajectory is as bad as its worst step, so that single steps can be labelled
    usual: str = ""  # the constraint that is meant when none is given; 0.95 for the best category without it
    compiled: bool = True  # may be called inside jit; a user's rule may be plain NumPy and is called outside

    def penalty(self, trajectory: Trajectory) -> Array:
        """Sum of the step penalties of each trajectory."""
        assert self.step_categories is not None
        steps = jnp.asarray(self.penalties)[self.step_categories(trajectory)]
        return jnp.sum(jnp.where(trajectory.mask, steps, 0.0), axis=1)


def load_rule(reference: str | None, model: Model, files: Files = GIVEN) -> Rule:
    """The rule of this name for this model, the model's own when there is no name, or `file.py:function`.

    `files` says where the file is that it names; the rule's name is what `reference` says, wherever that is.
    """
    if reference and (".py:" in reference or reference.endswith(".py")):
        return _finite_only(_user_rule(reference, model, files), model)
    rules = _RULES.get(model.spec.family, {})
    if not rules:
        raise InputError(f"no rule of ours fits the model '{model.spec.name}'; give yours as --rule file.py:function")
    name = reference or next(iter(rules))
    if name not in rules:
        raise InputError(f"expected one of {', '.join(rules)} or file.py:function", place=f"--rule {name}")
    return _finite_only(rules[name](model), model)


def _finite_only(rule: Rule, model: Model) -> Rule:
    """The same rule, which is never asked about a trajectory that is not finite."""

    def label(trajectory: Trajectory) -> Int[Array, " batch"]:
        inside_jit = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(trajectory))
        return rule.label(trajectory if inside_jit else require_finite(model.spec, trajectory))

    return replace(rule, label=label)


def scale_of(reference: str | None, model: Model) -> Scale:
    """The categories that the rule of this name gives; none < mild < severe where a model has no rule yet."""
    if reference is None and model.spec.family not in _RULES:
        return Scale()
    return load_rule(reference, model).scale


def count_category(count: Int[Array, " batch"]) -> Int[Array, " batch"]:
    """0-1 none, 2-3 mild, 4 and more severe: the paper's thresholds on a number of steps."""
    return (count >= 2).astype(int) + (count >= 4).astype(int)


@jax.jit
def longest_run(flags: Bool[Array, "batch time"]) -> Int[Array, " batch"]:
    """Length of the longest stretch of consecutive flagged steps."""
    step = jnp.broadcast_to(jnp.arange(flags.shape[1])[None, :], flags.shape)
    last_unflagged = jax.lax.cummax(jnp.where(flags, -1, step), axis=1)
    return jnp.max(step - last_unflagged, axis=1)


def _navigation(model: Model) -> Rule:
    def in_dirty_zone(trajectory: Trajectory) -> Bool[Array, "batch time"]:
        x, y = trajectory.states[..., 0], trajectory.states[..., 1]
        inside = (x >= DIRTY_X[0]) & (x <= DIRTY_X[1]) & (y >= DIRTY_Y[0]) & (y <= DIRTY_Y[1])
        return inside & trajectory.mask

    return Rule("navigation", Scale(), lambda trajectory: count_category(in_dirty_zone(trajectory).sum(axis=1)))


def _hvac(model: Model) -> Rule:
    def label(trajectory: Trajectory) -> Int[Array, " batch"]:
        hot = model.spec.state.take(trajectory.states, SERVER_ROOM) >= SERVER_LIMIT
        return count_category(longest_run(hot & trajectory.mask))

    return Rule("hvac", Scale(), label)


def _reservoir(model: Model) -> Rule:
    from sidestep.models.builtin import RESERVOIRS

    capacity = np.array([RESERVOIRS[i % len(RESERVOIRS)][3] for i in range(model.spec.state.size)])

    def label(trajectory: Trajectory) -> Int[Array, " batch"]:
        share = trajectory.states / jnp.asarray(capacity, trajectory.states.dtype)[None, None, :]
        gap = jnp.max(share, axis=2) - jnp.min(share, axis=2)
        return count_category(longest_run((gap >= UNBALANCED) & trajectory.mask))

    return Rule("reservoir", Scale(), label, usual="none>=0.8")


def _grid_steps(model: Any) -> Callable[[Trajectory], Int[Array, "batch time"]]:
    def step_categories(trajectory: Trajectory) -> Int[Array, "batch time"]:
        state, action = model.indices(trajectory.states), model.action_indices(trajectory.actions)
        return jnp.where(trajectory.mask, jnp.asarray(model.side_effect)[state, action], 0)

    return step_categories


def _grid_markov(model: Any) -> Rule:
    """A trajectory is as bad as its worst step."""
    from sidestep.models.grids import PENALTIES

    steps = _grid_steps(model)
    return Rule("markov", Scale(), lambda trajectory: jnp.max(steps(trajectory), axis=1), steps, PENALTIES, True)


def _grid_share(model: Any) -> Rule:
    """The supplement's rule: unsafe when at least a tenth of the steps before the end are dangerous."""
    steps = _grid_steps(model)
    tells_completion = model.spec.family == "boxpushing"
    scale = Scale(
        ("safe", "safe-incomplete", "unsafe", "unsafe-incomplete") if tells_completion else ("safe", "unsafe")
    )

    def label(trajectory: Trajectory) -> Int[Array, " batch"]:
        unsafe = (UNSAFE_SHARE * jnp.sum(steps(trajectory) > 0, axis=1) >= trajectory.length).astype(int)
        if not tells_completion:
            return unsafe
        at_goal = jnp.asarray(model.completed)[model.indices(trajectory.states)] & trajectory.mask
        return 2 * unsafe + (~jnp.any(at_goal, axis=1)).astype(int)

    return Rule("share", scale, label, steps)


_RULES: dict[str, dict[str, Callable[[Any], Rule]]] = {
    "navigation": {"paper": _navigation},
    "hvac": {"paper": _hvac},
    "reservoir": {"paper": _reservoir},
    "boxpushing": {"paper": _grid_markov, "share": _grid_share},
    "driving": {"paper": _grid_markov, "share": _grid_share},
}


def _user_rule(reference: str, model: Model, files: Files) -> Rule:
    """`function(trajectory)` or `function(trajectory, model)`, giving one category (number or name) a trajectory.

    Its scale is `function.categories`, best first; none < mild < severe without it.
    """
    from sidestep.models.python_model import load_object
    from sidestep.models.user_code import FAULTS, in_words, users_line

    function = load_object(reference, "rule", files)
    if not callable(function):
        raise InputError(f"a rule is a function, and this is a {type(function).__name__}", place=reference)
    scale = _scale_of(function, reference)
    arguments = _required_arguments(function)
    if arguments not in (1, 2):
        raise InputError(
            f"a rule takes (trajectory) or (trajectory, model), not {arguments} arguments", place=reference
        )

    def label(trajectory: Trajectory) -> Int[Array, " batch"]:
        plain = jax.tree.map(np.asarray, trajectory)
        try:
            given = np.asarray(function(plain) if arguments == 1 else function(plain, model))
        except FAULTS as error:
            where = users_line(error) or reference
            raise InputError(f"the rule failed: {in_words(error)}", place=where) from error
        return jnp.asarray(_as_categories(given, scale, len(trajectory), reference))

    return Rule(reference, scale, label, compiled=False)


def _scale_of(function: Any, place: str) -> Scale:
    categories = getattr(function, "categories", None)
    try:
        if isinstance(categories, str):
            return Scale.parse(categories)
        return Scale() if categories is None else Scale(tuple(categories))
    except (InputError, TypeError) as error:
        raise InputError(f"its categories make no scale: {error}", place=place) from error


def _required_arguments(function: Callable) -> int:
    """How many arguments must be given; those with a default of their own are the function's business."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some built-in functions do not say
        return 1
    return sum(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)


def _as_categories(given: np.ndarray, scale: Scale, batch: int, place: str) -> np.ndarray:
    if given.shape != (batch,):
        raise InputError(
            f"the rule must give one category a trajectory, shape ({batch},), not {given.shape}", place=place
        )
    if given.dtype.kind in "US":
        unknown = sorted(set(given.tolist()) - set(scale.categories))
        if unknown:
            raise InputError(f"the rule gave '{unknown[0]}'; its categories are {scale}", place=place)
        return np.array([scale.categories.index(name) for name in given.tolist()])
    allowed = np.arange(len(scale.categories))
    if given.dtype.kind not in "biuf" or not np.isin(given, allowed).all():
        raise InputError(
            f"the rule must give whole numbers from 0 to {allowed[-1]} or names of categories, not {given.tolist()[0]}",
            place=place,
        )
    return given.astype(int)
