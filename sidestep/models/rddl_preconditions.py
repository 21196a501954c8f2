"""What an RDDL text forbids: action-preconditions, state-action-constraints that mention actions, max-nondef-actions.

A precondition is taken apart into conditions that must all hold. Each is evaluated by the compiled text itself, which
is the truth. Where its form allows it, a condition also says how to keep it: as a bound on one action that may depend
on the state (a condition `fire(?x) => cold(?x)` bounds `fire` by 0 where it is not cold), or as a row of linear
inequalities.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from pyRDDLGym.core.parser.expr import Expression
from pyRDDLGym_jax.core.compiler import JaxRDDLCompiler

from sidestep.core.model import Space
from sidestep.models.allowed_actions import Entries, Rows, allowed_action
from sidestep.models.rddl_expressions import Condition, Scope, conjuncts, in_words, mentioned
from sidestep.runtime.compilation import jit_fast_compile

TOLERANCE = 1e-5  # relative: what a comparison of real actions may miss by, since it is computed in single precision
Kept = Literal["bounds", "masks", "linear", "rejection"]
Slope = Literal["free", "fixed", "moving"]
ORDER = {"<": (1.0, True), "<=": (1.0, False), ">": (-1.0, True), ">=": (-1.0, False), "==": (1.0, False)}
Values = dict[str, Array]
Formula = Callable[[Values], Array]


class Preconditions:
    """The conditions of a compiled model, and the nearest action that keeps them."""

    def __init__(
        self, compiler: JaxRDDLCompiler, action: Space, fixed: Values, as_fluents: Callable[[Array], Values]
    ) -> None:
        """`fixed` are the values of all that is not state; `as_fluents` turns an action vector into fluents."""
        self.compiler, self.rddl, self.space = compiler, compiler.rddl, action
        self._fluents, self._non_fluents = compiler.split_fluent_nonfluent(fixed)
        self._as_fluents = as_fluents
        self._actions = set(self.rddl.action_fluents)
        self.words = [f"the precondition '{in_words(p)}'" for p in self.rddl.preconditions]
        self._tests: list[tuple[Condition, Kept, Formula]] = []
        self._stricter: list[Formula] = []  # for what is not kept by fixed bounds
        self._linear: list[_Side] = []
        self._masks: list[tuple[np.ndarray, str, Formula]] = []
        for number, precondition in enumerate(self.rddl.preconditions):
            self._read(number, precondition)
        self._bounds = [side for side in self._linear if side.entry is not None]
        self._rows = [side for side in self._linear if side.entry is None]
        self.most = self.rddl.max_allowed_actions if self.rddl.max_allowed_actions < action.size else None
        if self.most is not None:
            self.words.append(f"max-nondef-actions = {self.most}")

    def _read(self, number: int, precondition: Expression) -> None:
        boxes = self.compiler.constraints.is_box_preconditions[number]
        for condition in conjuncts(Condition(number, precondition), self._actions):
            in_spec = boxes and self._is_plain_bound(condition)
            kept = "bounds" if in_spec else self._keep(condition)
            self._tests.append((condition, kept, self._truth(condition)))
            if not in_spec:
                self._stricter.append(self._truth(condition, 0.5 * TOLERANCE))

    # How a condition is kept.

    def _keep(self, condition: Condition) -> Kept:
        side = self._side(condition)
        if side is not None:
            self._linear.append(side)
            return "linear" if side.entry is None else "bounds"
        places = mentioned(condition.expression, self._actions)
        if len(places) == 1 and self.rddl.variable_ranges[places[0].etype[1]] == "bool":
            entries = self._entries(places[0], condition.scope)
            if entries is not None:
                self._masks.append((entries, places[0].etype[1], self._truth(condition)))
                return "masks"
        return "rejection"

    def _is_plain_bound(self, condition: Condition) -> bool:
        """Is it `action(?a, ...) <= constant` with its variables in the order of their scope?"""
        expression, names = condition.expression, [name for name, _ in condition.scope]
        if expression.etype[0] != "relational" or condition.guards:
            return False
        sides = [side for side in expression.args if side.etype[0] == "pvar" and side.etype[1] in self._actions]
        return len(sides) == 1 and list(sides[0].args[1] or []) == names

    def _side(self, condition: Condition) -> "_Side | None":
        """The condition as rows of linear inequalities in the actions, if it is of that kind."""
        kind, operator = condition.expression.etype
        if kind != "relational" or operator not in ORDER:
            return None
        slopes = [self._slope(side) for side in condition.expression.args]
        if None in slopes or slopes == ["free", "free"]:
            return None
        sign, strict = ORDER[operator]
        difference = self._difference(condition, sign)
        coefficients = None
        if "moving" not in slopes:
            coefficients = np.asarray(jit_fast_compile(lambda: self._probe(difference, self._fluents))(), float)
        constant = not condition.guards and not mentioned(condition.expression, set(self.rddl.state_fluents))
        by = (1.0 if self._is_whole(condition) else TOLERANCE) * strict
        return _Side(difference, self._guard(condition), coefficients, operator == "==", by, constant)

    def _slope(self, expression: Expression) -> Slope | None:
        """Is it affine in the actions, and do the coefficients depend on the state?"""
        if not mentioned(expression, self._actions):
            return "free"
        (kind, operator), parts = expression.etype, list(expression.args)
        if kind == "pvar":
            return "fixed" if all(isinstance(a, str) for a in parts[1] or []) else None
        if (kind, operator) in (("aggregation", "sum"), ("aggregation", "avg")):
            return self._slope(parts[-1])
        slopes = [self._slope(part) for part in parts]
        acting = [part for part, slope in zip(parts, slopes, strict=True) if slope != "free"]
        if kind == "arithmetic" and operator in ("*", "/"):
            if len(acting) > 1 or (operator == "/" and acting[0] is not parts[0]):
                return None
            others = [part for part in parts if part is not acting[0]]
            return self._joined(slopes, moving=not self.rddl.is_non_fluent_expression(others))
        if kind == "arithmetic":
            return self._joined(slopes, moving=False)
        if (kind, operator) == ("control", "if") and slopes[0] == "free":
            return self._joined(slopes[1:], moving=True)
        return None

    @staticmethod
    def _joined(slopes: list[Slope | None], moving: bool) -> Slope | None:
        if None in slopes:
            return None
        return "moving" if moving or "moving" in slopes else "fixed"

    def _is_whole(self, condition: Condition) -> bool:
        """Are both sides whole numbers whatever the state and action?"""
        values = jax.eval_shape(lambda: self._two_sides(condition)(self._fluents))
        return all(not jnp.issubdtype(value.dtype, jnp.floating) for value in values)

    def _entries(self, place: Expression, scope: Scope) -> np.ndarray | None:
        """For each tuple of objects in the scope the entry of the action vector that is meant; None if it is nested."""
        name, arguments = place.args[0], list(place.args[1] or [])
        if not all(isinstance(argument, str) for argument in arguments):
            return None
        shape = self._shape(scope)
        grid = dict(zip((variable for variable, _ in scope), np.indices(shape), strict=True))
        chosen = []
        for argument in arguments:
            if argument in grid:
                chosen.append(grid[argument])
            elif self.rddl.is_literal(argument):
                chosen.append(np.full(shape, self.rddl.object_to_index[self.rddl.strip_literal(argument)]))
            else:
                return None
        first = self.space.slices[name].start
        if not chosen:
            return np.full(shape, first)
        counts = self.rddl.object_counts(self.rddl.variable_params[name])
        return first + np.ravel_multi_index(tuple(chosen), counts)

    # Evaluation.

    def _shape(self, scope: Scope) -> tuple[int, ...]:
        return tuple(self.rddl.object_counts([of for _, of in scope])) if scope else ()

    def _compiled(self, expression: Expression) -> Formula:
        compiled = self.compiler._jax(expression, self.compiler.model_aux)

        def value(fluents: Values) -> Array:
            with jax.numpy_dtype_promotion("standard"):  # the tools mix types, as RDDL does
                found, *_ = compiled(fluents, self._non_fluents, self.compiler.model_aux["params"], jax.random.key(0))
            return jnp.asarray(found)

        return value

    def _two_sides(self, condition: Condition) -> Callable[[Values], tuple[Array, Array]]:
        left, right = (self._compiled(side) for side in condition.expression.args)
        shape = self._shape(condition.scope)

        def values(fluents: Values) -> tuple[Array, Array]:
            both = (jnp.broadcast_to(side(fluents), shape) for side in (left, right))
            first, second = (value.astype(int) if value.dtype == bool else value for value in both)
            return first, second

        return values

    def _difference(self, condition: Condition, sign: float) -> Formula:
        """left - right, or right - left for > and >=, one number for each tuple of objects in the scope."""
        sides = self._two_sides(condition)

        def value(fluents: Values) -> Array:
            left, right = (side.astype(self.compiler.REAL) for side in sides(fluents))
            return jnp.ravel(sign * (left - right))

        return value

    def _guard(self, condition: Condition) -> Formula | None:
        if not condition.guards:
            return None
        shape = self._shape(condition.scope)
        compiled = [(self._compiled(expression), reach, value) for expression, reach, value in condition.guards]

        def holds(fluents: Values) -> Array:
            whole = jnp.ones(shape, bool)
            for value, reach, wanted in compiled:
                found = jnp.broadcast_to(value(fluents).astype(self.compiler.REAL) > 0.5, shape[:reach]) == wanted
                whole = whole & jnp.reshape(found, shape[:reach] + (1,) * (len(shape) - reach))
            return whole

        return holds

    def _truth(self, condition: Condition, tolerance: float = TOLERANCE) -> Formula:
        """Does the condition hold, for each tuple of objects in its scope?"""
        shape, guard = self._shape(condition.scope), self._guard(condition)
        kind, operator = condition.expression.etype
        real = [p for p in mentioned(condition.expression, self._actions) if self._is_real(p.etype[1])]
        if kind == "relational" and operator in ORDER and real:
            sides = self._two_sides(condition)

            def holds(fluents: Values) -> Array:
                left, right = (side.astype(self.compiler.REAL) for side in sides(fluents))
                slack = tolerance * jnp.maximum(1.0, jnp.maximum(jnp.abs(left), jnp.abs(right)))
                if operator == "==":
                    return jnp.abs(left - right) <= slack
                return ORDER[operator][0] * (left - right) <= slack
        else:
            value = self._compiled(condition.expression)

            def holds(fluents: Values) -> Array:
                return jnp.broadcast_to(value(fluents).astype(self.compiler.REAL) > 0.5, shape)

        return holds if guard is None else lambda fluents: holds(fluents) | ~guard(fluents)

    def _is_real(self, name: str) -> bool:
        return self.rddl.variable_ranges[name] == "real"

    def _with(self, fluents: Values, action: Array) -> Values:
        return self._fluents | fluents | self._as_fluents(action)

    def _probe(self, difference: Formula, fluents: Values) -> Array:
        """The coefficients of an affine difference: what it gains when one entry goes from 0 to 1."""
        zero = jnp.zeros(self.space.size, self.compiler.REAL)
        at_zero = difference(self._with(fluents, zero))
        units = jnp.eye(self.space.size, dtype=self.compiler.REAL)
        return jax.vmap(lambda unit: difference(self._with(fluents, unit)) - at_zero)(units).T

    def implied(self, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Bounds that rows without state set to single entries, given the bounds of the others."""
        low, high = low.copy(), high.copy()
        nothing = self._with({}, jnp.zeros(self.space.size, self.compiler.REAL))
        for side in self._linear:
            if side.coefficients is None or not side.constant:
                continue
            limits = np.asarray(side.limits(nothing), float)
            for sign in (1.0, -1.0) if side.equal else (1.0,):
                slopes, limit = sign * side.coefficients, sign * limits
                with np.errstate(invalid="ignore"):  # 0 * inf, which is not looked at
                    least = np.where(slopes > 0, slopes * low, np.where(slopes < 0, slopes * high, 0.0))
                for row, entry in np.argwhere(slopes != 0):
                    bound = (limit[row] - np.delete(least[row], entry).sum()) / slopes[row, entry]
                    if np.isfinite(bound) and slopes[row, entry] > 0:
                        high[entry] = min(high[entry], bound)
                    elif np.isfinite(bound):
                        low[entry] = max(low[entry], bound)
        return low, high

    # What the model uses.

    @cached_property
    def entries(self) -> Entries:
        default = np.concatenate([np.ravel(self._fluents[v.name]).astype(float) for v in self.space.variables])
        real = np.concatenate([np.full(v.size, v.kind == "real") for v in self.space.variables])
        groups = np.zeros((len(self.space.variables), self.space.size), bool)
        for group, variable in enumerate(self.space.variables):
            groups[group, self.space.slices[variable.name]] = True
        return Entries(default, real, groups, self.most, bool(self.unseen))

    @property
    def unseen(self) -> tuple[str, ...]:
        """The preconditions on real actions that are only tried out: gradients pass them by."""
        found = [
            self.words[condition.precondition]
            for condition, kept, _ in self._tests
            if kept == "rejection"
            and any(self._is_real(place.etype[1]) for place in mentioned(condition.expression, self._actions))
        ]
        return tuple(dict.fromkeys(found))

    @property
    def bound_by_state(self) -> bool:
        return bool(self._bounds or self._masks)

    @property
    def more_than_bounds(self) -> bool:
        return bool(self._rows) or self.most is not None or any(kept == "rejection" for _, kept, _ in self._tests)

    @property
    def ways(self) -> tuple[str, ...]:
        """By which means what is forbidden is kept from happening, each once."""
        used = {kept for _, kept, _ in self._tests} | ({"count"} if self.most is not None else set())
        return tuple(way for way in (*get_args(Kept), "count") if way in used)

    def narrow(self, fluents: Values, low: Array, high: Array) -> tuple[Array, Array]:
        """The bounds of an action in this state: the given ones, and those that the conditions set."""
        fluents = self._with(fluents, jnp.zeros(self.space.size, self.compiler.REAL))
        whole = ~self.entries.real
        for side in self._bounds:
            low, high = side.narrow(fluents, low, high, whole)
        for entries, name, truth in self._masks:
            off, on = (jax.jit(truth)(fluents | {name: jnp.full_like(fluents[name], v)}) for v in (False, True))
            low = low.at[entries.ravel()].max(jnp.where(jnp.ravel(off), 0.0, 1.0).astype(low.dtype))
            high = high.at[entries.ravel()].min(jnp.where(jnp.ravel(on), 1.0, 0.0).astype(high.dtype))
        return low, jnp.maximum(low, high)

    def rows(self, fluents: Values) -> Rows:
        """All rows in this state; an equation is two."""
        fluents = self._with(fluents, jnp.zeros(self.space.size, self.compiler.REAL))
        nothing = jnp.zeros((0, self.space.size), self.compiler.REAL)
        none = (nothing, nothing[:, 0], np.zeros(0, bool))
        coefficients, limits, equal = zip(none, *(self._pieces(side, fluents) for side in self._rows), strict=True)
        return Rows(jnp.concatenate(coefficients), jnp.concatenate(limits), np.concatenate(equal))

    def _pieces(self, side: "_Side", fluents: Values) -> tuple[Array, Array, np.ndarray]:
        matrix = side.coefficients if side.coefficients is not None else self._probe(side.difference, fluents)
        matrix = jnp.asarray(matrix, self.compiler.REAL)
        limits = side.limits(fluents)
        if not side.equal:
            return matrix, limits, np.zeros(len(limits), bool)
        mirrored = jnp.where(jnp.isfinite(limits), -limits, jnp.inf)
        return jnp.concatenate([matrix, -matrix]), jnp.concatenate([limits, mirrored]), np.ones(2 * len(limits), bool)

    def holds(self, fluents: Values, action: Float[Array, " action"]) -> Bool[Array, ""]:
        """Is this action, within its bounds, allowed, and not only just?"""
        both = self._with(fluents, action)
        tests = [jnp.all(truth(both)) for truth in self._stricter]
        if self.most is not None:
            tests.append(self._count(action) <= self.most)
        return jnp.all(jnp.stack(tests)) if tests else jnp.array(True)

    def broken(self, fluents: Values, action: Float[Array, " action"]) -> Bool[Array, " rules"]:
        """Which of `words` this action breaks."""
        both = self._with(fluents, action)
        broken = [jnp.array(False)] * len(self.words)
        for condition, _, truth in self._tests:
            broken[condition.precondition] |= ~jnp.all(truth(both))
        if self.most is not None:
            broken[-1] = self._count(action) > self.most
        return jnp.stack(broken) if broken else jnp.zeros(0, bool)

    def _count(self, action: Array) -> Array:
        return jnp.sum(action != jnp.asarray(self.entries.default, action.dtype))

    def allowed(self, fluents: Values, action: Array, low: Array, high: Array) -> Array:
        return allowed_action(
            self.entries, action, low, high, self.rows(fluents), lambda tried: self.holds(fluents, tried)
        )


@dataclass(frozen=True, eq=False)
class _Side:
    """coefficients @ action + difference(no action) <= 0 (or = 0), for each tuple of objects in a scope."""

    difference: Formula
    guard: Formula | None
    coefficients: np.ndarray | None  # (rows, action); None: they depend on the state
    equal: bool
    strict: float  # by how much < is less than <=
    constant: bool  # the state plays no part

    @cached_property
    def entry(self) -> np.ndarray | None:
        """The one entry that each row is about; None if a row is about several, or about none."""
        if self.coefficients is None or not (np.count_nonzero(self.coefficients, axis=1) == 1).all():
            return None
        return np.argmax(self.coefficients != 0, axis=1)

    def limits(self, fluents_without_action: Values) -> Array:
        limits = -self.difference(fluents_without_action)
        limits = limits - self.strict if self.strict else limits
        if self.guard is None:
            return limits
        return jnp.where(jnp.ravel(self.guard(fluents_without_action)), limits, jnp.inf)

    def narrow(self, fluents: Values, low: Array, high: Array, whole: np.ndarray) -> tuple[Array, Array]:
        """The bounds of the entries that the rows are about, one row each."""
        assert self.entry is not None
        assert self.coefficients is not None
        slope = self.coefficients[np.arange(len(self.entry)), self.entry]
        limits = self.limits(fluents)
        if not np.all(slope == 1.0):
            limits = limits / jnp.asarray(slope, limits.dtype)
        inactive = ~jnp.isfinite(limits)
        is_upper, is_lower = (slope > 0) | self.equal, (slope < 0) | self.equal
        upper = jnp.where(whole[self.entry], jnp.floor(limits + TOLERANCE), limits)
        lower = jnp.where(whole[self.entry], jnp.ceil(limits - TOLERANCE), limits)
        if is_upper.any():
            top = jnp.where(is_upper & ~inactive, upper, jnp.inf)
            high = high.at[self.entry].min(top.astype(high.dtype))
        if is_lower.any():
            bottom = jnp.where(is_lower & ~inactive, lower, -jnp.inf)
            low = low.at[self.entry].max(bottom.astype(low.dtype))
        return low, high
