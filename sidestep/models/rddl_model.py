"""Models written in RDDL, compiled to JAX by pyRDDLGym-jax.

The compiled program is exact: the numbers and their derivatives are those of the text, except that
sqrt(x) is sqrt(x + 1e-14), which keeps the derivative of a distance finite at distance zero. The relaxed
program, by option, lets gradients pass through comparisons, logic and discrete noise as if these were smooth; some
of its values are those of the smooth surrogates too.
"""

import contextlib
import io
from collections.abc import Callable, Iterator
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, PRNGKeyArray, PyTree
from pyRDDLGym.core.compiler.model import RDDLLiftedModel
from pyRDDLGym.core.parser.expr import Expression
from pyRDDLGym_jax.core.compiler import JaxRDDLCompiler
from pyRDDLGym_jax.core.logic import DefaultJaxRDDLCompilerWithGrad

from sidestep.core.errors import InputError
from sidestep.core.model import Kind, Space, Spec, Variable, within_rules
from sidestep.models.gamma_noise import gamma_from_normal
from sidestep.models.rddl_preconditions import Preconditions, Values
from sidestep.models.rddl_syntax import parse_rddl
from sidestep.models.rddl_text import RddlText
from sidestep.models.rddl_traits import gradient_traits

SQRT_SHIFT = 1e-14
Sampler = Callable[[Values, Values, PyTree, PRNGKeyArray], tuple[Array, PRNGKeyArray, ArrayLike, PyTree]]


class ExactCompiler(JaxRDDLCompiler):
    """pyRDDLGym-jax's exact compiler with a square root that can be differentiated at zero, and quick Gamma noise."""

    def _jax_sqrt(self, expr: Expression, aux: PyTree) -> Sampler:
        return self._jax_unary_helper(expr, aux, lambda x: jnp.sqrt(x + SQRT_SHIFT), at_least_int=True)

    def _jax_gamma(self, expr: Expression, aux: PyTree) -> Sampler:
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

        def sample(
            fluents: Values, non_fluents: Values, parameters: PyTree, key: PRNGKeyArray
        ) -> tuple[Array, PRNGKeyArray, ArrayLike, PyTree]:
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
    ) -> None:
        self._text, self._relaxed = text, relaxed
        self._real = np.dtype(np.float64 if double else np.float32)
        with text.errors_as_input_errors(), _quiet_and_in_width(double):
            self.rddl = RDDLLiftedModel(parse_rddl(text, horizon))  # public for pyRDDLGym's own tools
            _check_that_there_is_something_to_decide(self.rddl, text)
            self._compiler = self._compiled(DefaultJaxRDDLCompilerWithGrad if relaxed else ExactCompiler)
            self._transition = self._compiled_transition()
            state = Space(tuple(self._variable(fluent) for fluent in self.rddl.state_fluents))
            self._first_state = self._flatten(self._first_fluents, state)
            self._preconditions, action = self._read_preconditions(integers)
        self.rules = tuple(self._preconditions.words)
        self.ways = self._preconditions.ways  # by which the rules are kept
        self.allowed = jax.jit(self._nearest_allowed) if self._preconditions.more_than_bounds else None
        self.broken = jax.jit(self._broken)
        gradient, notes = gradient_traits(self.rddl)
        notes += tuple(f"gradients do not see how {words} limits the actions" for words in self._preconditions.unseen)
        if relaxed:
            gradient = "straight-through"
            notes = ("relaxed: gradients, and some values, are those of smooth surrogates and not the model's own",)
        self.spec = Spec(
            name=name or self.rddl.domain_name,
            state=state,
            action=action,
            horizon=self.rddl.horizon,
            discount=float(self.rddl.discount),
            gradient=gradient,
            notes=notes,
            description=description,
            ends=bool(self.rddl.terminations),
        )
        self._check_that_it_runs()

    def _compiled(self, kind: type[JaxRDDLCompiler]) -> JaxRDDLCompiler:
        compiler = kind(self.rddl, use64bit=self._real == np.float64)
        compiler.compile()
        return compiler

    def _compiled_transition(self) -> Callable[[PRNGKeyArray, Values, Values], tuple[Values, Values]]:
        """From (key, actions, fluents) to the next fluents and a log with reward and termination."""
        transition = self._compiler.compile_transition(check_constraints=bool(self.rddl.terminations))
        fluents, non_fluents = self._compiler.split_fluent_nonfluent(self._compiler.init_values)
        parameters = self._compiler.model_aux["params"]
        self._first_fluents: Values = jax.tree.map(np.asarray, fluents)

        @jax.jit  # also where the caller is not compiled: the tools' own casts misuse NumPy on concrete arrays
        def run(key: PRNGKeyArray, actions: Values, fluents: Values) -> tuple[Values, Values]:
            with jax.numpy_dtype_promotion("standard"):  # the tools mix types, as RDDL does
                return transition(key, actions, fluents, non_fluents, parameters)[:2]

        return run

    def _read_preconditions(self, integers: tuple[int, int] | None) -> tuple[Preconditions, Space]:
        """What is forbidden, and the action variables with the bounds that follow from it."""
        action = Space(tuple(self._variable(fluent) for fluent in self.rddl.action_fluents))
        # Preconditions hold or do not hold, in a relaxed model too.
        compiler = self._compiled(ExactCompiler) if self._relaxed else self._compiler
        preconditions = Preconditions(
            compiler, action, self._compiler.init_values, lambda vector: self._exact_fluents(vector, action)
        )
        return preconditions, self._with_whole_bounds(preconditions, action, integers)

    def reset(self, key: PRNGKeyArray | None) -> Float[Array, " state"]:
        return jnp.asarray(self._first_state)

    def step(
        self, state: Float[Array, " state"], action: Float[Array, " action"], key: PRNGKeyArray
    ) -> tuple[Float[Array, " state"], Float[Array, ""], Bool[Array, ""]]:
        fluents = self._first_fluents | self._unflatten(state, self.spec.state)
        fluents, log = self._transition(key, self._unflatten(action, self.spec.action), fluents)
        return (
            self._flatten(fluents, self.spec.state),
            log["reward"].astype(self._real),
            log["termination"].astype(self._real) > 0.5,
        )

    def action_bounds(self, state: Float[Array, " state"]) -> tuple[Float[Array, " action"], Float[Array, " action"]]:
        low = jnp.asarray(self.spec.action.low, self._real)
        high = jnp.asarray(self.spec.action.high, self._real)
        if not self._preconditions.bound_by_state:
            return low, high
        return self._preconditions.narrow(self._exact_fluents(state, self.spec.state), low, high)

    def _broken(self, state: Array, action: Array) -> Array:
        """Which of `rules` this action breaks in this state."""
        return self._preconditions.broken(self._exact_fluents(state, self.spec.state), action)

    def _nearest_allowed(self, state: Array, action: Array) -> Array:
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

    def _with_whole_bounds(self, rules: Preconditions, action: Space, integers: tuple[int, int] | None) -> Space:
        """The actions with bounds on both sides of every integer: the model's, those that follow, those asked for."""
        if not np.all(np.isfinite([action.low, action.high])):
            implied = rules.implied(action.low, action.high)
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

    def _flatten(self, fluents: Values, space: Space) -> Array:
        library = np if all(isinstance(fluents[v.name], np.ndarray) for v in space.variables) else jnp
        return library.concatenate([library.ravel(fluents[v.name]).astype(self._real) for v in space.variables])

    def _exact_fluents(self, vector: Array, space: Space) -> Values:
        return self._unflatten(vector, space, relaxed=False)

    def _unflatten(self, vector: Array, space: Space, relaxed: bool | None = None) -> Values:
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


def _bounded(variable: Variable, low: ArrayLike, high: ArrayLike) -> Variable:
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
    """The compiler prints its progress, sets jax_enable_x64 for the whole process, and mixes types as RDDL does."""
    of_process = jax.enable_x64.get_global()
    try:
        with (
            jax.enable_x64(double),
            jax.numpy_dtype_promotion("standard"),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            yield
    finally:
        jax.config.update("jax_enable_x64", of_process)
