"""Models written in RDDL, compiled to JAX by pyRDDLGym-jax.

The compiled program is exact: the numbers and their derivatives are those of the text, except that
sqrt(x) is sqrt(x + 1e-14), which keeps the derivative of a distance finite at distance zero. The relaxed
program, by option, lets gradients pass through comparisons, logic and discrete noise as if these were smooth; some
of its values are those of the smooth surrogates too.
"""

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from pyRDDLGym.core.compiler.model import RDDLLiftedModel
from pyRDDLGym_jax.core.compiler import JaxRDDLCompiler
from pyRDDLGym_jax.core.logic import DefaultJaxRDDLCompilerWithGrad

from sidestep.errors import InputError
from sidestep.model import Kind, Space, Spec, Variable
from sidestep.models.gamma_noise import gamma_from_normal
from sidestep.models.rddl_syntax import parse_rddl
from sidestep.models.rddl_text import RddlText
from sidestep.models.rddl_traits import gradient_traits

SQRT_SHIFT = 1e-14


class ExactCompiler(JaxRDDLCompiler):
    """pyRDDLGym-jax's exact compiler with a square root that can be differentiated at zero, and quick Gamma noise."""

    def _jax_sqrt(self, expr: Any, aux: dict[str, Any]) -> Any:
        return self._jax_unary_helper(expr, aux, lambda x: jnp.sqrt(x + SQRT_SHIFT), at_least_int=True)

    def _jax_gamma(self, expr: Any, aux: dict[str, Any]) -> Any:
        """Gamma(shape, scale) noise, and the function gamma[x], which reaches the same method of the compiler."""
        if expr.etype == ("func", "gamma"):
            return self._jax_unary_helper(expr, aux, jax.scipy.special.gamma, at_least_int=True)
        if len(expr.args) != 2 or not self.rddl.is_non_fluent_expression(expr.args[0]):
            return super()._jax_gamma(expr, aux)
        shape, scale = (self._jax(arg, aux) for arg in expr.args)
        fixed_shape, *_ = shape(*self.split_fluent_nonfluent(self.init_values), aux["params"], jax.random.key(0))
        gamma = gamma_from_normal(np.asarray(fixed_shape))
        if gamma is None:
            return super()._jax_gamma(expr, aux)

        def sample(fluents: Any, non_fluents: Any, parameters: Any, key: Any) -> Any:
            factor, key, error, parameters = scale(fluents, non_fluents, parameters, key)
            key, noise_key = jax.random.split(key)
            return factor * gamma(jax.random.normal(noise_key, fixed_shape.shape, self.REAL)), key, error, parameters

        return sample


class RddlModel:
    """A model of the contract in `sidestep.model`, from RDDL text.

    Fluents are flattened, in the order of their declaration, into one state and one action vector; booleans are
    0 or 1, objects are their index. `double` compiles for float64, to be used under `jax.enable_x64(True)`.
    """

    def __init__(
        self,
        text: RddlText,
        *,
        relaxed: bool = False,
        double: bool = False,
        horizon: int | None = None,
        name: str | None = None,
        description: str = "",
        family: str = "",
    ) -> None:
        self._text = text
        with text.errors_as_input_errors(), _quiet_and_in_width(double):
            rddl = RDDLLiftedModel(parse_rddl(text, horizon))
            _check_that_there_is_something_to_decide(rddl, text)
            compiler_class = DefaultJaxRDDLCompilerWithGrad if relaxed else ExactCompiler
            self._compiler = compiler_class(rddl, use64bit=double)
            self._compiler.compile()
            transition = self._compiler.compile_transition(check_constraints=bool(rddl.terminations))
            fluents, self._non_fluents = self._compiler.split_fluent_nonfluent(self._compiler.init_values)
        self.rddl = rddl  # for pyRDDLGym's own tools
        self._relaxed = relaxed
        self._real = np.dtype(np.float64 if double else np.float32)
        self._first_fluents = {fluent: np.asarray(value) for fluent, value in fluents.items()}
        self._parameters = self._compiler.model_aux["params"]
        # Compiled also where the caller is not: the tools' own casts misuse NumPy on concrete arrays, which warns.
        self._transition = jax.jit(
            lambda key, actions, fluents: transition(key, actions, fluents, self._non_fluents, self._parameters)[:2]
        )

        state = Space(tuple(self._variable(fluent) for fluent in rddl.state_fluents))
        action = Space(tuple(self._variable(fluent) for fluent in rddl.action_fluents))
        self._first_state = self._flatten(self._first_fluents, state)
        low_sides, high_sides, ignored = self._bounds_that_depend_on_state()
        self._low_sides, self._high_sides = low_sides, high_sides
        gradient, notes = gradient_traits(rddl)
        if relaxed:
            gradient = "straight-through"
            notes = ("relaxed: gradients, and some values, are those of smooth surrogates and not the model's own",)
        self.spec = Spec(
            name=name or rddl.domain_name,
            state=state,
            action=action,
            horizon=rddl.horizon,
            discount=float(rddl.discount),
            gradient=gradient,
            notes=notes + ignored + self._limit_on_actions(),
            description=description,
            ends=bool(rddl.terminations),
            family=family,
        )
        self._check_that_it_runs()

    def reset(self, key):
        return jnp.asarray(self._first_state)

    def step(self, state, action, key):
        fluents = self._unflatten(state, self.spec.state) | {
            name: self._first_fluents[name] for name in self._first_fluents if name not in self.rddl.state_fluents
        }
        actions = self._unflatten(action, self.spec.action)
        fluents, log = self._transition(key, actions, fluents)
        return self._flatten(fluents, self.spec.state), log["reward"].astype(self._real), log["termination"] > 0.5

    def action_bounds(self, state):
        low = jnp.asarray(self.spec.action.low, self._real)
        high = jnp.asarray(self.spec.action.high, self._real)
        if not (self._low_sides or self._high_sides):
            return low, high
        fluents = self._unflatten(state, self.spec.state)
        for where, side in self._low_sides:
            low = low.at[where].max(self._side_value(side, fluents))
        for where, side in self._high_sides:
            high = high.at[where].min(self._side_value(side, fluents))
        return low, jnp.maximum(low, high)

    def _variable(self, fluent: str) -> Variable:
        rddl = self._compiler.rddl
        kind_of_range: dict[str, Kind] = {"real": "real", "int": "int", "bool": "bool"}
        values = rddl.variable_ranges[fluent]
        kind = kind_of_range.get(values, "int")
        shape = np.shape(self._compiler.init_values[fluent])
        low, high = (
            np.broadcast_to(np.asarray(b, float), shape).ravel() for b in self._compiler.constraints.bounds[fluent]
        )
        if kind == "bool":
            low, high = np.zeros_like(low), np.ones_like(high)
        elif values in rddl.type_to_objects:
            low, high = np.zeros_like(low), np.full_like(high, len(rddl.type_to_objects[values]) - 1)
        elif kind == "int" and fluent in rddl.action_fluents and not np.all(np.isfinite([low, high])):
            raise InputError(
                f"the action-fluent '{fluent}' is an integer without bounds; bound both sides in action-preconditions",
                place=self._text.place_of(fluent),
            )
        names = [",".join(objects) for objects in rddl.ground_types(rddl.variable_params[fluent])]
        labels = tuple(names) if shape else ()
        return Variable(fluent, kind, int(np.prod(shape, dtype=int)), low, high, labels)

    def _flatten(self, fluents: dict[str, Any], space: Space) -> Any:
        library: Any = np if all(isinstance(fluents[v.name], np.ndarray) for v in space.variables) else jnp
        return library.concatenate([library.ravel(fluents[v.name]).astype(self._real) for v in space.variables])

    def _unflatten(self, vector: Any, space: Space) -> dict[str, Any]:
        fluents = {}
        for variable in space.variables:
            entries = vector[space.slices[variable.name]]
            if not self._relaxed and variable.kind == "bool":
                entries = entries > 0.5
            elif not self._relaxed and variable.kind == "int":
                entries = jnp.round(entries).astype(self._compiler.INT)
            fluents[variable.name] = jnp.reshape(entries, np.shape(self._first_fluents[variable.name]))
        return fluents

    def _side_value(self, side: Any, fluents: dict[str, Any]) -> Any:
        value, *_ = side(fluents, self._non_fluents, self._parameters, jax.random.key(0))
        return jnp.ravel(value).astype(self._real)

    def _bounds_that_depend_on_state(self) -> tuple[list[Any], list[Any], tuple[str, ...]]:
        """Preconditions `action(?a, ...) <= f(state)`, which the compiler itself leaves out of its bounds."""
        low_sides: list[Any] = []
        high_sides: list[Any] = []
        ignored = []
        action = Space(tuple(self._variable(fluent) for fluent in self.rddl.action_fluents))
        for is_box, precondition in zip(
            self._compiler.constraints.is_box_preconditions, self.rddl.preconditions, strict=True
        ):
            if is_box:
                continue
            found = _bound_on_action(precondition, self.rddl)
            if found is None:
                ignored.append(
                    f"the precondition '{_in_words(precondition)}' is not a bound on one action and is not enforced"
                )
                continue
            fluent, is_upper, side = found
            compiled = self._compiler._jax(side, self._compiler.model_aux)
            (high_sides if is_upper else low_sides).append((action.slices[fluent], compiled))
        return low_sides, high_sides, tuple(ignored)

    def _limit_on_actions(self) -> tuple[str, ...]:
        limit = self.rddl.max_allowed_actions
        total = sum(self._variable(fluent).size for fluent in self.rddl.action_fluents)
        if limit >= total:
            return ()
        return (f"max-nondef-actions = {limit} of {total} is not enforced",)

    def _check_that_it_runs(self) -> None:
        """Trace one step, so that what cannot be compiled is said now and not in the middle of a run."""
        with self._text.errors_as_input_errors(), jax.enable_x64(self._real == np.float64):
            action = jnp.zeros(self.spec.action.size, self._real)
            jax.eval_shape(self.step, self.reset(None), action, jax.random.key(0))


def _check_that_there_is_something_to_decide(rddl: RDDLLiftedModel, text: RddlText) -> None:
    for kind, fluents in (("state-fluent", rddl.state_fluents), ("action-fluent", rddl.action_fluents)):
        if not fluents:
            raise InputError(
                f"the model declares no {kind}; a plan needs at least one", place=text.place_of("pvariables")
            )


def _bound_on_action(precondition: Any, rddl: RDDLLiftedModel) -> tuple[str, bool, Any] | None:
    """(action fluent, is it an upper bound, the side that bounds it), or None if it has no such form."""
    scope: list[str] = []
    while precondition.etype == ("aggregation", "forall"):
        *variables, precondition = precondition.args
        scope += [name for _, (name, _) in variables]
    kind, operator = precondition.etype
    if kind != "relational" or operator not in ("<=", "<", ">=", ">"):
        return None
    left, right = precondition.args
    for action, side, upper in ((left, right, operator in ("<=", "<")), (right, left, operator in (">=", ">"))):
        if action.etype[0] == "pvar" and action.etype[1] in rddl.action_fluents:
            fluent, parameters = action.args
            if list(parameters or []) == scope and not _mentions(side, set(rddl.action_fluents)):
                return fluent, upper, side
    return None


def _mentions(expression: Any, names: set[str]) -> bool:
    if isinstance(expression, (tuple, list)):
        return any(_mentions(part, names) for part in expression)
    if not hasattr(expression, "etype"):
        return False
    kind, name = expression.etype
    return (kind == "pvar" and name in names) or _mentions(expression.args, names)


def _in_words(expression: Any) -> str:
    from pyRDDLGym.core.debug.exception import print_stack_trace

    return " ".join(print_stack_trace(expression).removeprefix(">> ").split())


@contextlib.contextmanager
def _quiet_and_in_width(double: bool) -> Iterator[None]:
    """The compiler prints its progress and sets jax_enable_x64 for the whole process; neither is wanted."""
    of_process = jax.enable_x64.get_global()
    try:
        with jax.enable_x64(double), contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        jax.config.update("jax_enable_x64", of_process)


def load_rddl(domain: Path, instance: Path | None = None, **options: Any) -> RddlModel:
    """The model in one file, or in a domain's and an instance's file."""
    return RddlModel(RddlText.read(domain, instance), **options)
