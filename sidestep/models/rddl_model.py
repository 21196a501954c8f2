"""Models written in RDDL, compiled to JAX by pyRDDLGym-jax.

The compiled program is exact: the numbers and their derivatives are those of the text, except that
sqrt(x) is sqrt(x + 1e-14), which keeps the derivative of a distance finite at distance zero. The relaxed
program, by option, lets gradients pass through comparisons, logic and discrete noise as if these were smooth; some
of its values are those of the smooth surrogates too.
"""

import contextlib
import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from pyRDDLGym.core.compiler.model import RDDLLiftedModel
from pyRDDLGym_jax.core.compiler import JaxRDDLCompiler
from pyRDDLGym_jax.core.logic import DefaultJaxRDDLCompilerWithGrad

from sidestep.core.errors import InputError
from sidestep.core.model import Kind, Space, Spec, Variable, within_rules
from sidestep.models.gamma_noise import gamma_from_normal
from sidestep.models.rddl_preconditions import Preconditions
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
    """A model of the contract in `sidestep.core.model`, from RDDL text.

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
        integers: tuple[int, int] | None = None,
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
        with text.errors_as_input_errors(), _quiet_and_in_width(double):
            self._preconditions = Preconditions(
                self._exact_compiler(),
                action,
                self._compiler.init_values,
                lambda vector: self._exact_fluents(vector, action),
            )
            action = self._with_whole_bounds(action, integers)
        self.rules = tuple(self._preconditions.words)
        self.ways = self._preconditions.ways  # by which the rules are kept
        self.allowed = jax.jit(self._nearest_allowed) if self._preconditions.more_than_bounds else None
        self.broken = jax.jit(self._broken)
        gradient, notes = gradient_traits(rddl)
        notes += tuple(f"gradients do not see how {words} limits the actions" for words in self._preconditions.unseen)
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
            notes=notes,
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
        if not self._preconditions.bound_by_state:
            return low, high
        return self._preconditions.narrow(self._exact_fluents(state, self.spec.state), low, high)

    def _broken(self, state: Any, action: Any) -> Any:
        """Which of `rules` this action breaks in this state."""
        return self._preconditions.broken(self._exact_fluents(state, self.spec.state), action)

    def _nearest_allowed(self, state: Any, action: Any) -> Any:
        fluents = self._exact_fluents(state, self.spec.state)
        return self._preconditions.allowed(fluents, action, *self.action_bounds(state))

    def _variable(self, fluent: str) -> Variable:
        rddl = self._compiler.rddl
        kind_of_range: dict[str, Kind] = {"real": "real", "int": "int", "bool": "bool"}
        values = rddl.variable_ranges[fluent]
        kind = kind_of_range.get(values, "int")
        first = self._compiler.init_values[fluent]
        shape = np.shape(first)
        low, high = (
            np.broadcast_to(np.asarray(b, float), shape).ravel() for b in self._compiler.constraints.bounds[fluent]
        )
        if kind == "bool":
            low, high = np.zeros_like(low), np.ones_like(high)
        elif values in rddl.type_to_objects:
            low, high = np.zeros_like(low), np.full_like(high, len(rddl.type_to_objects[values]) - 1)
        elif kind == "int":
            low, high = np.ceil(low), np.floor(high)
        names = [",".join(objects) for objects in rddl.ground_types(rddl.variable_params[fluent])]
        labels = tuple(names) if shape else ()
        default = np.ravel(first).astype(float) if fluent in rddl.action_fluents else 0.0
        return Variable(fluent, kind, int(np.prod(shape, dtype=int)), low, high, labels, default)

    def _with_whole_bounds(self, action: Space, integers: tuple[int, int] | None) -> Space:
        """The actions with bounds on both sides of every integer: the model's, those that follow, those asked for."""
        if not np.all(np.isfinite([action.low, action.high])):
            implied = self._preconditions.implied(action.low, action.high)
            action = Space(
                tuple(_bounded(v, *(side[action.slices[v.name]] for side in implied)) for v in action.variables)
            )
        if integers is not None:
            action = Space(tuple(_bounded(v, *integers) for v in action.variables))
        for variable in action.variables:
            if variable.kind == "int" and not np.all(np.isfinite(np.asarray([variable.low, variable.high]))):
                raise InputError(
                    f"the action-fluent '{variable.name}' is an integer without bounds; bound both sides in "
                    "action-preconditions, or say behind the model's name in which range such actions lie: "
                    "?integers=0..20",
                    place=self._text.place_of(variable.name),
                )
        return action

    def _flatten(self, fluents: dict[str, Any], space: Space) -> Any:
        library: Any = np if all(isinstance(fluents[v.name], np.ndarray) for v in space.variables) else jnp
        return library.concatenate([library.ravel(fluents[v.name]).astype(self._real) for v in space.variables])

    def _exact_compiler(self) -> ExactCompiler:
        """A compiler for preconditions: they hold or do not hold, in a relaxed model too."""
        if not self._relaxed:
            return self._compiler
        compiler = ExactCompiler(self.rddl, use64bit=self._real == np.float64)
        compiler.compile()
        return compiler

    def _exact_fluents(self, vector: Any, space: Space) -> dict[str, Any]:
        return self._unflatten(vector, space, relaxed=False)

    def _unflatten(self, vector: Any, space: Space, relaxed: bool | None = None) -> dict[str, Any]:
        relaxed = self._relaxed if relaxed is None else relaxed
        fluents = {}
        for variable in space.variables:
            entries = vector[space.slices[variable.name]]
            if not relaxed and variable.kind == "bool":
                entries = entries > 0.5
            elif not relaxed and variable.kind == "int":
                entries = jnp.round(entries).astype(self._compiler.INT)
            fluents[variable.name] = jnp.reshape(entries, np.shape(self._first_fluents[variable.name]))
        return fluents

    def _check_that_it_runs(self) -> None:
        """Trace one step, so that what cannot be compiled is said now and not in the middle of a run."""
        with self._text.errors_as_input_errors(), jax.enable_x64(self._real == np.float64):
            state, action = self.reset(None), jnp.zeros(self.spec.action.size, self._real)
            jax.eval_shape(self.step, state, action, jax.random.key(0))
            jax.eval_shape(lambda: within_rules(self, state, action))
            jax.eval_shape(self.broken, state, action)


def _check_that_there_is_something_to_decide(rddl: RDDLLiftedModel, text: RddlText) -> None:
    for kind, fluents in (("state-fluent", rddl.state_fluents), ("action-fluent", rddl.action_fluents)):
        if not fluents:
            raise InputError(
                f"the model declares no {kind}; a plan needs at least one", place=text.place_of("pvariables")
            )


def _bounded(variable: Variable, low: Any, high: Any) -> Variable:
    """An integer variable with these bounds where it has none of its own; any other as it is."""
    if variable.kind != "int":
        return variable
    own_low, own_high = (np.broadcast_to(bound, variable.size) for bound in (variable.low, variable.high))
    low, high = (np.broadcast_to(np.asarray(bound, float), variable.size) for bound in (low, high))
    return replace(
        variable,
        low=np.where(np.isfinite(own_low), own_low, np.ceil(low)),
        high=np.where(np.isfinite(own_high), own_high, np.floor(high)),
    )


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
