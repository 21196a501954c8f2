"""Is a model usable, differentiable, and if not, why: what `sidestep check` finds out by running it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from sidestep.core.errors import InputError
from sidestep.core.model import (
    FinitePart,
    Model,
    OpenLoopPolicy,
    Policy,
    UniformPolicy,
    allowed_of,
    forbidden,
    is_finite,
    require_finite,
    rollout,
    rules_of,
    sample_uniform_action,
    within_rules,
)
from sidestep.models.finite_model import FiniteModel
from sidestep.models.user_code import FAULTS, in_words, users_line

TRAJECTORIES = 200
DIRECTIONS = 32
STEP_SIZES = (1e-5, 1e-6, 1e-7, 1e-8)  # of central differences, in float64; the later ones for wild models
TOLERANCE = 1e-4  # relative disagreement that still counts as agreement
CHECKED_STEPS = 40  # of long horizons only the first steps are differentiated


NOT_KEPT = "nothing can be certified, since "
Verdict = Literal["good", "bad", "note"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: `good`, `bad` (the model cannot be used) or `note` (usable, but know this)."""

    what: str
    verdict: Verdict
    found: str


class Unusable(Exception):
    """What makes a model unusable, in words."""


Look = Callable[[Model, PRNGKeyArray], Iterator[tuple[Verdict, str]]]


def check_model(model: Model, key: PRNGKeyArray, in_double: Callable[[], Model] | None = None) -> list[Finding]:
    """Everything that can be said of the model by running it; stops at the first thing that makes the rest moot.

    `in_double` builds the same model for float64, in which derivatives are compared with differences.
    """
    gradients = ("gradient", "the gradient of a rollout", partial(_gradients, in_double=in_double))
    findings = _looked(model, key, (*QUICK_LOOKS, gradients))
    findings += [Finding("note", "note", note) for note in model.spec.notes]
    if not any(finding.verdict == "bad" for finding in findings):
        findings.append(Finding("methods", "good", usable_methods(model)))
    return findings


def quick_check(model: Model, place: str) -> None:
    """Refuse a model that cannot be used, by what a second or two can tell; gradients are left to `check_model`.

    A rule of the model's that random rollouts break is written into its spec as unenforced.
    """
    for finding in _looked(model, jax.random.key(0), QUICK_LOOKS):
        if finding.verdict == "bad":
            raise InputError(f"this model cannot be used: {finding.found}", place=place)
        if finding.what == "rules" and finding.verdict == "note":
            sentence = finding.found.removeprefix(NOT_KEPT)
            unenforced = tuple(dict.fromkeys([*model.spec.unenforced, sentence]))
            object.__setattr__(model, "spec", replace(model.spec, unenforced=unenforced))  # a user's may be frozen


def what_is_not_kept(model: Model) -> tuple[str, ...]:
    """What the model forbids and rollouts do all the same: as its spec says, or as random rollouts show."""
    if model.spec.unenforced or model.spec.family or not rules_of(model):
        return model.spec.unenforced
    broken = forbidden(model, rollout(model, UniformPolicy(model), jax.random.key(0), TRAJECTORIES))
    return () if broken is None else (broken,)


def _looked(model: Model, key: PRNGKeyArray, looks: Sequence[tuple[str, str, Look]]) -> list[Finding]:
    """What these looks find, up to the first that makes the rest moot."""
    findings: list[Finding] = []
    for what, tried, look in looks:
        try:
            findings += [Finding(what, *found) for found in look(model, key)]
        except Unusable as reason:
            return [*findings, Finding(what, "bad", str(reason))]
        except FAULTS as error:  # whatever a user's model may raise
            line = users_line(error)
            at = f" at {line}" if line else ""
            return [*findings, Finding("runs", "bad", f"{tried} failed{at}: {in_words(error)}")]
    return findings


def usable_methods(model: Model) -> str:
    """Which planning methods work on this model, in words."""
    ways = []
    if is_finite(model):
        ways.append("exact (finite tables)")
    if model.spec.gradient != "none":
        ways.append(f"pathwise ({model.spec.gradient} gradient)")
    ways.append("PPO and score function (no gradient of the model needed)")
    return "; ".join(ways)


def _first_step(model: Model, key: PRNGKeyArray) -> tuple[Array, tuple[Array, Array, Array]]:
    state = model.reset(key)
    action = sample_uniform_action(model, state, key)
    return state, model.step(state, action if allowed_of(model) is None else within_rules(model, state, action), key)


def _shapes(model: Model, key: PRNGKeyArray) -> Iterator[tuple[Verdict, str]]:
    size = model.spec.state.size
    first = jnp.asarray(model.reset(key))
    if first.shape != (size,) or not jnp.issubdtype(first.dtype, jnp.floating):
        raise Unusable(f"reset's state is {first.dtype} of shape {first.shape}, expected floats of shape {(size,)}")
    _, result = _first_step(model, key)
    if not isinstance(result, tuple) or len(result) != 3:
        raise Unusable(f"step must return (state, reward, done), found a {type(result).__name__}")
    next_state, reward, done = (jnp.asarray(part) for part in result)
    expected = (("state", next_state, (size,)), ("reward", reward, ()), ("done", done, ()))
    wrong = [
        f"step's {name} has shape {found.shape}, expected {wanted}"
        for name, found, wanted in expected
        if found.shape != wanted
    ]
    if first.dtype != next_state.dtype:
        wrong.append(f"states must keep one float type, found {first.dtype} then {next_state.dtype}")
    if done.dtype != jnp.bool_:
        wrong.append(f"done must be a boolean, found {done.dtype}")
    if wrong:
        raise Unusable("; ".join(wrong))
    yield "good", f"state {size}, action {model.spec.action.size}, horizon {model.spec.horizon}"


def _bounds(model: Model, key: PRNGKeyArray) -> Iterator[tuple[Verdict, str]]:
    low, high = (np.asarray(side) for side in model.action_bounds(model.reset(key)))
    action = model.spec.action
    if low.shape != (action.size,) or high.shape != (action.size,):
        raise Unusable(f"action_bounds must give two vectors of {action.size}, found {low.shape} and {high.shape}")
    if np.any(np.isnan(low) | np.isnan(high)):
        raise Unusable("a bound is not a number")
    if np.any(low > high):
        raise Unusable(f"the lower bound of '{action.names[np.argmax(low > high)]}' lies above its upper bound")
    unbounded = int(np.sum(~np.isfinite(low) | ~np.isfinite(high)))
    stated = np.array_equal(low, action.low) and np.array_equal(high, action.high)
    text = "fixed" if stated else "depend on the state"
    yield "good", text + (f"; {unbounded} action entries are unbounded" if unbounded else "")


def _purity(model: Model, key: PRNGKeyArray) -> Iterator[tuple[Verdict, str]]:
    first, again = (jax.tree.leaves(_first_step(model, key)) for _ in range(2))
    compiled = jax.tree.leaves(eqx.filter_jit(_first_step)(model, key))
    if not all(np.array_equal(a, b, equal_nan=True) for a, b in zip(first, again, strict=True)):
        raise Unusable("the same key gave two different results; take all randomness from the key")
    if not all(np.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True) for a, b in zip(first, compiled, strict=True)):
        raise Unusable("compiled and plain results differ; step must be a pure function of its arguments")
    yield "good", "same key, same result; compiled or not"


def _values(model: Model, key: PRNGKeyArray) -> Iterator[tuple[Verdict, str]]:
    try:
        trajectory = require_finite(model.spec, rollout(model, UniformPolicy(model), key, TRAJECTORIES))
    except InputError as error:
        raise Unusable(str(error)) from error
    returns, length = np.asarray(trajectory.returns()), np.asarray(trajectory.length)
    steps = f"{TRAJECTORIES} random trajectories of {length.min()}-{length.max()} steps"
    yield "good", f"finite on {steps}; return {returns.mean():.4g} +- {returns.std():.3g}"


def _rules(model: Model, key: PRNGKeyArray) -> Iterator[tuple[Verdict, str]]:
    """Do the actions that are taken keep what the model forbids?"""
    rules, not_kept = rules_of(model), list(model.spec.unenforced)
    if rules:
        broken = forbidden(model, rollout(model, UniformPolicy(model), key, TRAJECTORIES))
        not_kept += [broken] if broken else []
    for sentence in dict.fromkeys(not_kept):
        yield "note", NOT_KEPT + sentence
    if rules and not not_kept:
        yield "good", f"all {len(rules)} kept on these trajectories"


def _gradients(model: Model, key: PRNGKeyArray, in_double: Callable[[], Model] | None) -> Iterator[tuple[Verdict, str]]:
    if model.spec.gradient == "none":
        yield "note", "none; use a method that needs no gradient of the model"
        return
    if model.spec.gradient == "straight-through":
        yield _straight_through(model, key)
        return
    with jax.enable_x64(True):
        exact = model if in_double is None else in_double()
        if exact.reset(key).dtype != jnp.float64:
            yield "note", "not compared: this model computes in float32 only"
            return
        analytic, numeric = directional_derivatives(exact, key)
    if not np.isfinite(analytic).all():
        raise Unusable(f"not finite in {np.sum(~np.isfinite(analytic))} of {DIRECTIONS} directions")
    yield from _compared(analytic, numeric)


def _compared(analytic: np.ndarray, differences: np.ndarray) -> Iterator[tuple[Verdict, str]]:
    """Of derivatives (directions,) and differences (directions, step sizes).

    Where the return bends within a step of 1e-5, and its derivative is therefore large, differences tell the slope
    only when their steps are smaller.
    """
    scale = np.maximum(np.abs(differences), 1e-3 * np.abs(differences).max(axis=0) + 1e-12)
    errors = np.abs(analytic[:, None] - differences) / scale
    wild = np.sum(errors[:, 0] <= TOLERANCE) < DIRECTIONS * 3 // 4
    error = errors.min(axis=1) if wild else errors[:, 0]
    agree, largest = int(np.sum(error <= TOLERANCE)), np.abs(analytic).max()
    if not largest > 0 and not np.abs(differences[:, 0]).max() > 0:
        yield "note", "zero, as are the differences: the reward is piecewise constant; use PPO"
        return
    if not largest > 0:
        raise Unusable("zero in every direction; the return does not depend on the actions smoothly")
    if agree < DIRECTIONS * 3 // 4:
        raise Unusable(f"disagrees with central differences in {DIRECTIONS - agree} of {DIRECTIONS} directions")
    text = f"d(return)/d(actions) agrees with central differences in {agree} of {DIRECTIONS} directions"
    yield "good", f"{text}, median relative error {np.median(error):.1e}"
    if wild:
        yield (
            "note",
            f"steps of {STEP_SIZES[0]:g} are too long for differences here, and down to {STEP_SIZES[-1]:g} were "
            f"needed: the return depends wildly on the actions (derivatives up to {largest:.0e}), so gradients over "
            "many steps are exact but of little use",
        )


def directional_derivatives(model: Model, key: PRNGKeyArray) -> tuple[np.ndarray, np.ndarray]:
    """d/dx R(a + x v) at x = 0, by the chain rule and by central differences, with the noise held fixed.

    For each of DIRECTIONS draws of open-loop actions a, a unit direction v, and the noise: one derivative, and one
    difference for each of STEP_SIZES.
    """
    steps = min(model.spec.horizon, CHECKED_STEPS)

    def actions_and_direction(key):
        action_key, direction_key = jax.random.split(key)
        state = model.reset(action_key)
        draws = jax.vmap(lambda k: sample_uniform_action(model, state, k))(jax.random.split(action_key, steps))
        low, high = model.action_bounds(state)
        middle = jnp.where(jnp.isfinite(low + high), 0.5 * (low + high), 0.0)[None, :]
        direction = jax.random.normal(direction_key, draws.shape, draws.dtype)
        return middle + 0.8 * (draws - middle), direction / jnp.linalg.norm(direction)

    def rewards(x, actions, direction, key):
        return rollout(model, OpenLoopPolicy(actions + x * direction), key, 1, steps).rewards[0]

    def one(key):
        setup_key, noise_key = jax.random.split(key)
        actions, direction = actions_and_direction(setup_key)
        zero = jnp.zeros((), actions.dtype)
        analytic = jax.grad(lambda x: jnp.sum(rewards(x, actions, direction, noise_key)))(zero)
        sizes = jnp.asarray(STEP_SIZES, actions.dtype)
        ahead, behind = (jax.vmap(lambda x: rewards(x, actions, direction, noise_key))(x) for x in (sizes, -sizes))
        # Subtracting step by step keeps the digits that a large constant penalty would swallow in the sum.
        return analytic, jnp.sum(ahead - behind, axis=1) / (2 * sizes)

    analytic, numeric = jax.jit(jax.vmap(one))(jax.random.split(key, DIRECTIONS))
    return np.asarray(analytic), np.asarray(numeric)


def _tables(model: Model, key: PRNGKeyArray) -> Iterator[tuple[Verdict, str]]:
    """Exact methods read the table of a finite model, which must be that of a `FiniteModel`."""
    finite = getattr(model, "finite", None)
    if finite is not None and not (isinstance(finite, FinitePart) and isinstance(model, FiniteModel)):
        raise Unusable("it has an attribute 'finite' and is not a FiniteModel; rename the attribute")
    yield from ()


class _OpenLoopLogits(Policy):
    """One-hot actions drawn from a fixed sequence of logits, with the straight-through gradient."""

    logits: jax.Array

    def act(self, state, clock, memory, key):
        soft = jax.nn.softmax(self.logits[clock])
        hard = jax.nn.one_hot(jax.random.categorical(key, self.logits[clock]), soft.shape[0], dtype=soft.dtype)
        return hard + soft - jax.lax.stop_gradient(soft), memory


def _straight_through(model: Model, key: PRNGKeyArray) -> tuple[Verdict, str]:
    """Here values and gradients are of different functions: there are no differences to compare with.

    Gradients must be finite, and those of a random sum of the visited states must not vanish. That of the return may:
    random actions may never come to where rewards differ.
    """
    steps = model.spec.horizon
    policy: Callable[[jax.Array], Policy]
    if model.spec.action.kinds == {"one-hot"}:
        policy, parameters = _OpenLoopLogits, jnp.zeros((steps, model.spec.action.size))
    else:
        first = model.reset(key)
        policy = OpenLoopPolicy
        parameters = jax.vmap(lambda k: sample_uniform_action(model, first, k))(jax.random.split(key, steps))
    weights = jax.random.normal(key, (1, 1, model.spec.state.size))

    def return_and_probe(parameters, key):
        trajectory = rollout(model, policy(parameters), key, TRAJECTORIES, steps)
        visited = jnp.where(trajectory.mask[..., None], trajectory.states * weights, 0.0)
        return jnp.stack([jnp.mean(trajectory.returns()), jnp.sum(visited) / TRAJECTORIES])

    of_return, of_probe = np.asarray(jax.jit(jax.jacrev(return_and_probe))(parameters, key))
    if not (np.isfinite(of_return).all() and np.isfinite(of_probe).all()):
        raise Unusable("straight-through, but not finite")
    if not np.abs(of_probe).max() > 0:
        raise Unusable("straight-through, but zero everywhere: no state depends on the actions")
    if not np.abs(of_return).max() > 1e-6:
        return "note", "straight-through and finite; random actions come to no differing reward"
    return "good", f"straight-through: finite, norm {np.linalg.norm(of_return):.3g}"


QUICK_LOOKS: tuple[tuple[str, str, Look], ...] = (
    ("shapes", "a first step", _shapes),
    ("bounds", "action_bounds", _bounds),
    ("purity", "a compiled step", _purity),
    ("values", "a batch of rollouts", _values),
    ("rules", "a batch of rollouts", _rules),
    ("table", "its table", _tables),
)
