"""Which rule labels a model's trajectories: one of its domain's, or a function of the user's."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from sidestep.core.constraints import Scale
from sidestep.core.errors import InputError
from sidestep.core.model import Model, Trajectory, require_finite
from sidestep.core.rules import Categories, Rule
from sidestep.models.domains import find_domain
from sidestep.models.python_model import load_object
from sidestep.models.trust import GIVEN, Files
from sidestep.models.user_code import FAULTS, in_words, users_line

__all__ = ["Rule", "RuleLike", "find_rule", "load_rule", "scale_of"]

RuleLike = str | Rule | Callable  # a rule's name or reference, a rule, or a function of trajectories


def find_rule(reference: RuleLike | None, model: Model, files: Files = GIVEN) -> Rule | None:
    """The rule as `load_rule` gives it; None when no rule is named and the model's domain has none."""
    return load_rule(reference, model, files) if reference or _rules_of(model) else None


def load_rule(reference: RuleLike | None, model: Model, files: Files = GIVEN) -> Rule:
    """The rule of this name for this model, the model's own when there is no name, `file.py:function`, or the function.

    `files` says where the file is that it names; the rule's name is what `reference` says, wherever that is.
    """
    if isinstance(reference, Rule):
        return reference
    if reference is not None and not isinstance(reference, str):
        name = getattr(reference, "__name__", None) or type(reference).__name__
        return _finite_only(_function_rule(reference, name, model), model)
    if reference and (".py:" in reference or reference.endswith(".py")):
        return _finite_only(_function_rule(load_object(reference, "rule", files), reference, model), model)
    rules = _rules_of(model)
    if not rules:
        raise InputError(
            f"there is no built-in rule for the model '{model.spec.name}'; give yours as --rule file.py:function"
        )
    name = reference or next(iter(rules))
    if name not in rules:
        raise InputError(f"expected {', '.join(rules)} or file.py:function", place=f"--rule {name}")
    return _finite_only(rules[name](model), model)


def _rules_of(model: Model) -> Mapping[str, Callable[[Model], Rule]]:
    domain = find_domain(model.spec.family)
    return domain.rules if domain else {}


def _finite_only(rule: Rule, model: Model) -> Rule:
    """The same rule, which is never asked about a trajectory that is not finite."""

    def label(trajectory: Trajectory) -> Categories:
        inside_jit = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(trajectory))
        return rule.label(trajectory if inside_jit else require_finite(model.spec, trajectory))

    return replace(rule, label=label)


def scale_of(reference: str | None, model: Model) -> Scale:
    """The categories that the rule of this name gives; none < mild < severe where a model has no rule yet."""
    rule = find_rule(reference, model)
    return rule.scale if rule else Scale()


def _function_rule(function: object, reference: str, model: Model) -> Rule:
    """`function(trajectory)` or `function(trajectory, model)`, one category (number or name) for each trajectory.

    Its scale is `function.categories`, best first; none < mild < severe without it.
    """
    if not callable(function):
        raise InputError(f"a rule is a function, and this is a {type(function).__name__}", place=reference)
    scale = _scale_of(function, reference)
    arguments = _required_arguments(function)
    if arguments not in (1, 2):
        raise InputError(
            f"a rule takes (trajectory) or (trajectory, model), not {arguments} arguments", place=reference
        )

    def label(trajectory: Trajectory) -> Categories:
        plain = jax.tree.map(np.asarray, trajectory)
        try:
            given = np.asarray(function(plain) if arguments == 1 else function(plain, model))
        except FAULTS as error:
            where = users_line(error) or reference
            raise InputError(f"the rule failed: {in_words(error)}", place=where) from error
        return jnp.asarray(_as_categories(given, scale, len(trajectory), reference))

    return Rule(reference, scale, label, jittable=False)


def _scale_of(function: object, place: str) -> Scale:
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
            f"the rule must give one category for each trajectory, shape ({batch},), not {given.shape}", place=place
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
