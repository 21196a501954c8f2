"""Is a model usable, differentiable, and if not, why: what `sidestep check` finds out by running it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from sidestep.core.errors import InputError
from sidestep.core.model import (
    FinitePart,
    Model,
    OpenLoopPolicy,
    Policy,
    Trajectory,
    UniformPolicy,
    allowed_of,
    forbidden,
    require_finite,
    rollout,
    rules_of,
    sample_uniform_action,
    within_rules,
)
from sidestep.models.user_code import FAULTS, in_words, users_line

TRAJECTORIES = 200
DIRECTIONS = 32
STEP_SIZES = (1e-5, 1e-6, 1e-7, 1e-8)  # of central differences, in float64; the later ones for wild models
TOLERANCE = 1e-4  # relative disagreement that still counts as agreement
CHECKED_STEPS = 40  # of long horizons only the first steps are differentiated


NOT_KEPT = "nothing can be certified, since "


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: `good`, `bad` (the model cannot be used) or `note` (usable, but know this)."""

    what: str
    verdict: Literal["good", "bad", "note"]
    found: str


Look = Callable[[Model, PRNGKeyArray], Iterator[Finding]]


def check_model(model: Model, key: PRNGKeyArray, in_double: Callable[[], Model] | None = None) -> list[Finding]:
    """Everything that can be said of the model by running it; stops at the first thing that makes the rest moot.

    `in_double` builds the same model for float64, in which derivatives are compared with differences.
    """
    findings = _looked(
        model, key, (*QUICK_LOOKS, ("the gradient of a rollout", partial(_gradients, in_double=in_double)))
    )
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


def _looked(model: Model, key: PRNGKeyArray, looks: Sequence[tuple[str, Look]]) -> list[Finding]:
    """What these looks find, up to the first that makes the rest moot."""
    findings: list[Finding] = []
    for tried, look in looks:
        try:
            findings += look(model, key)
        except FAULTS as error:  # whatever a user's model may raise
            line = users_line(error)
            findings.append(Finding("runs", "bad", f"{tried} failed{f' at {line}' if line else ''}: {in_words(error)}"))
        if any(finding.verdict == "bad" for finding in findings):
            break
    return findings


def usable_methods(model: Model) -> str:
    """Which planning methods work on this model, in words."""
    ways = []
    if hasattr(model, "finite"):
        ways.append("exact (finite tables)")
    if model.spec.gradient != "none":
        ways.append(f"pathwise ({model.spec.gradient} gradient)")
    ways.append("PPO and score function (no gradient of the model needed)")
    return "; ".join(ways)


def _first_step(model: Model, key: PRNGKeyArray) -> Any:
    state = model.reset(key)
    action = sample_uniform_action(model, state, key)
    return state, model.step(state, action if allowed_of(model) is None else within_rules(model, state, action), key)


def _shapes(model: Model, key: PRNGKeyArray) -> Iterator[Finding]:
    size = model.spec.state.size
    first = jnp.asarray(model.reset(key))
    if first.shape != (size,) or not jnp.issubdtype(first.dtype, jnp.floating):
        yield Finding(
            "shapes",
            "bad",
            f"reset's state is {first.dtype} of shape {first.shape}, expected floats of shape {(size,)}",
        )
        return
    _, result = _first_step(model, key)
    if not isinstance(result, tuple) or len(result) != 3:
        yield Finding("shapes", "bad", f"step must return (state, reward, done), found a {type(result).__name__}")
        return
    next_state, reward, done = (jnp.asarray(part) for part in result)
    expected = (
        ("step's state", next_state.shape, (size,)),
        ("step's reward", reward.shape, ()),
        ("step's done", done.shape, ()),
    )
    wrong = [f"{name} has shape {found}, expected {wanted}" for name, found, wanted in expected if found != wanted]
    if first.dtype != next_state.dtype:
        wrong.append(f"states must keep one float type, found {first.dtype} then {next_state.dtype}")
    if done.dtype != jnp.bool_:
        wrong.append(f"done must be a boolean, found {done.dtype}")
    if wrong:
        yield Finding("shapes", "bad", "; ".join(wrong))
    else:
        yield Finding("shapes", "good", f"state {size}, action {model.spec.action.size}, horizon {model.spec.horizon}")


def _bounds(model: Model, key: PRNGKeyArray) -> Iterator[Finding]:
    low, high = (np.asarray(side) for side in model.action_bounds(model.reset(key)))
    size = model.spec.action.size
    if low.shape != (size,) or high.shape != (size,):
        yield Finding(
            "bounds", "bad", f"action_bounds must give two vectors of {size}, found {low.shape} and {high.shape}"
        )
    elif np.any(np.isnan(low) | np.isnan(high)):
        yield Finding("bounds", "bad", "a bound is not a number")
    elif np.any(low > high):
        name = model.spec.action.names[int(np.argmax(low > high))]
        yield Finding("bounds", "bad", f"the lower bound of '{name}' lies above its upper bound")
    else:
        stated = np.array_equal(low, model.spec.action.low) and np.array_equal(high, model.spec.action.high)
        unbounded = int(np.sum(~np.isfinite(low) | ~np.isfinite(high)))
        text = "fixed" if stated else "depend on the state"
        yield Finding("bounds", "good", text + (f"; {unbounded} action entries are unbounded" if unbounded else ""))


def _purity(model: Model, key: PRNGKeyArray) -> Iterator[Finding]:
    first, again = (jax.tree.leaves(_first_step(model, key)) for _ in range(2))
    compiled = jax.tree.leaves(eqx.filter_jit(_first_step)(model, key))
    if not all(np.array_equal(a, b, equal_nan=True) for a, b in zip(first, again, strict=True)):
        yield Finding("purity", "bad", "the same key gave two different results; take all randomness from the key")
    elif not all(np.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True) for a, b in zip(first, compiled, strict=True)):
        yield Finding(
            "purity", "bad", "compiled and plain results differ; step must be a pure function of its arguments"
        )
    else:
        yield Finding("purity", "good", "same key, same result; compiled or not")


def _values(model: Model, key: PRNGKeyArray) -> Iterator[Finding]:
    try:
        trajectory = require_finite(model.spec, rollout(model, UniformPolicy(model), key, TRAJECTORIES))
    except InputError as error:
        yield Finding("values", "bad", str(error))
        return
    returns, length = np.asarray(trajectory.returns()), np.asarray(trajectory.length)
    yield Finding(
        "values",
        "good",
        f"finite on {TRAJECTORIES} random trajectories of {length.min()}-{length.max()} steps; "
        f"return {returns.mean():.4g} +- {returns.std():.3g}",
    )
    yield from _rules(model, trajectory)


def _rules(model: Model, trajectory: Trajectory) -> Iterator[Finding]:
    """Do the actions that are taken keep what the model forbids?"""
    broken, rules = forbidden(model, trajectory), rules_of(model)
    not_kept = [*model.spec.unenforced, *([broken] if broken else [])]
    for sentence in dict.fromkeys(not_kept):
        yield Finding("rules", "note", NOT_KEPT + sentence)
    if rules and not not_kept:
        yield Finding("rules", "good", f"all {len(rules)} kept on these trajectories")


def _gradients(model: Model, key: PRNGKeyArray, in_double: Callable[[], Model] | None) -> Iterator[Finding]:
    if model.spec.gradient == "none":
        yield Finding("gradient", "note", "none; use a method that needs no gradient of the model")
        return
    if model.spec.gradient == "straight-through":
        yield from _straight_through(model, key)
        return
    with jax.enable_x64(True):
        exact = model if in_double is None else in_double()
        if exact.reset(key).dtype != jnp.float64:
            yield Finding("gradient", "note", "not compared: this model computes in float32 only")
            return
        analytic, numeric = directional_derivatives(exact, key)
    if not np.isfinite(analytic).all():
        yield Finding("gradient", "bad", f"not finite in {np.sum(~np.isfinite(analytic))} of {DIRECTIONS} directions")
        return
    yield from _compared(analytic, numeric)


def _compared(analytic: np.ndarray, differences: np.ndarray) -> Iterator[Finding]:
    """Of derivatives (directions,) and differences (directions, step sizes).

    Where the return bends within a step of 1e-5, and its derivative is therefore large, differences tell the slope
    only when their steps are smaller.
    """
    numeric = differences[:, 0]
    scale = np.maximum(np.abs(differences), 1e-3 * np.abs(differences).max(axis=0) + 1e-12)
    errors = np.abs(analytic[:, None] - differences) / scale
    error = errors[:, 0]
    wild = np.sum(error <= TOLERANCE) < DIRECTIONS * 3 // 4
    error = errors.min(axis=1) if wild else error
    agree = int(np.sum(error <= TOLERANCE))
    if not np.abs(analytic).max() > 0 and not np.abs(numeric).max() > 0:
        yield Finding("gradient", "note", "zero, as are the differences: the reward is made of steps; use PPO")
    elif not np.abs(analytic).max() > 0:
        yield Finding("gradient", "bad", "zero in every direction; the return does not depend on the actions smoothly")
    elif agree < DIRECTIONS * 3 // 4:
        yield Finding(
            "gradient", "bad", f"disagrees with central differences in {DIRECTIONS - agree} of {DIRECTIONS} directions"
        )
    else:
        text = f"d(return)/d(actions) agrees with central differences in {agree} of {DIRECTIONS} directions"
        yield Finding("gradient", "good", f"{text}, median relative error {np.median(error):.1e}")
        if wild:
            yield Finding(
                "gradient",
                "note",
                f"steps of {STEP_SIZES[0]:g} are too long for differences here, and down to {STEP_SIZES[-1]:g} were "
                f"needed: the return depends wildly on the actions (derivatives up to {np.abs(analytic).max():.0e}), "
                "so gradients over many steps are exact but of little use",
            )


def directional_derivatives(model: Model, key: Any) -> tuple[np.ndarray, np.ndarray]:
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


def _tables(model: Any, key: PRNGKeyArray) -> Iterator[Finding]:
    """Of a finite model: exact methods read its table, which must be that of a `FiniteModel`."""
    finite = getattr(model, "finite", None)
    if finite is None:
        return
    from sidestep.models.finite_model import FiniteModel

    if not isinstance(finite, FinitePart) or not isinstance(model, FiniteModel):
        yield Finding("table", "bad", "it has an attribute 'finite' and is not a FiniteModel; rename the attribute")


class _OpenLoopLogits(Policy):
    """One-hot actions drawn from a fixed sequence of logits, with the straight-through gradient."""

    logits: jax.Array

    def act(self, state, clock, memory, key):
        soft = jax.nn.softmax(self.logits[clock])
        hard = jax.nn.one_hot(jax.random.categorical(key, self.logits[clock]), soft.shape[0], dtype=soft.dtype)
        return hard + soft - jax.lax.stop_gradient(soft), memory


def _straight_through(model: Model, key: PRNGKeyArray) -> Iterator[Finding]:
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
        yield Finding("gradient", "bad", "straight-through, but not finite")
    elif not np.abs(of_probe).max() > 0:
        yield Finding("gradient", "bad", "straight-through, but zero everywhere: no state depends on the actions")
    elif not np.abs(of_return).max() > 1e-6:
        yield Finding("gradient", "note", "straight-through and finite; random actions come to no differing reward")
    else:
        yield Finding("gradient", "good", f"straight-through: finite, norm {np.linalg.norm(of_return):.3g}")


QUICK_LOOKS: tuple[tuple[str, Look], ...] = (
    ("a first step", _shapes),
    ("action_bounds", _bounds),
    ("a compiled step", _purity),
    ("a batch of rollouts", _values),
    ("its table", _tables),
)
