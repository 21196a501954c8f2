"""Which steps of a trajectory carry the blame: by their hazards, by their probabilities, or by gradient times input."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from sidestep.core.model import Trajectory
from sidestep.runtime.compilation import jit_fast_compile
from sidestep.safety.base import SafetyModel, predict

LISTED = 5  # steps named in words


@jit_fast_compile
def blame(
    model: SafetyModel,
    states: Float[Array, "*batch time state"],
    actions: Float[Array, "*batch time action"],
    length: Int[Array, "*batch"],
    severity: int = 1,
) -> Float[Array, "*batch time"]:
    """Each step's share of the blame for "category `severity` or worse"; shares of a trajectory sum to 1."""
    weights = model.blame_weights(states, actions, length, severity)
    return weights / jnp.maximum(jnp.sum(weights, axis=-1, keepdims=True), 1e-30)


@jit_fast_compile
def running_risk(
    model: SafetyModel, states: Float[Array, "time state"], actions: Float[Array, "time action"]
) -> Float[Array, "time levels"]:
    """P(category k or worse) were the trajectory to end after each step."""

    def step(memory, inputs):
        memory = model.advance(memory, *inputs)
        return memory, model.risk(memory)

    return jax.lax.scan(step, model.start(), (states, actions))[1]


@dataclass(frozen=True)
class Explanation:
    """What a safety model sees in one trajectory."""

    categories: tuple[str, ...]
    probabilities: np.ndarray  # (K,)
    severity: int  # the category, or worse, that the shares are about
    shares: np.ndarray  # (T,)
    states: np.ndarray  # (T, state)
    risks: np.ndarray  # (T, K - 1): of each severity or worse, were the trajectory to end there
    marks: tuple[tuple[str, int], ...] = ()  # the step from which it has each severity, by those who labelled it

    def moments(self) -> list[str]:
        """For each severity: the step at which people saw it, beside the one from which the model is in no doubt."""
        found = []
        for name, risk in zip(self.categories[1:], self.risks.T, strict=True):
            likely = np.flatnonzero(risk > 0.5)
            said = [f"marked at step {dict(self.marks)[name]}"] if name in dict(self.marks) else []
            said += [f"by the safety model more likely than not from step {likely[0]} on"] if len(likely) else []
            found += [f"'{name}' or worse: {', '.join(said)}"] if said else []
        return found

    def lines(self, names: Sequence[str]) -> list[str]:
        """In words: the probabilities, when each severity was reached, the steps that carry most of the blame."""
        odds = ", ".join(f"{name} {p:.3f}" for name, p in zip(self.categories, self.probabilities, strict=True))
        worst = self.categories[self.severity]
        lines = [f"the safety model says: {odds}", *self.moments(), f"blame for '{worst}' or worse:"]
        for step in np.argsort(-self.shares)[:LISTED]:
            state = ", ".join(
                f"{name} {value:.3g}" for name, value in list(zip(names, self.states[step], strict=True))[:6]
            )
            marked = "".join(f"  (marked: {name})" for name, at in self.marks if at == step)
            lines.append(f"  step {step:3d}  {self.shares[step]:6.1%}  {state}{marked}")
        return lines


def explanation(
    model: SafetyModel, one: Trajectory, categories: tuple[str, ...], marks: tuple[tuple[str, int], ...] = ()
) -> Explanation:
    """Of a batch of one; about the likeliest category, or about the mildest side effect where that is the best one."""
    parts = (one.states[0], one.actions[0], jnp.asarray(one.length)[0])
    probabilities = predict(model, one)[0]
    severity = max(int(probabilities.argmax()), 1)
    steps = int(one.length[0])
    shares = np.asarray(blame(model, *parts, severity))[:steps]
    risks = np.asarray(running_risk(model, *parts[:2]))[:steps]
    return Explanation(categories, probabilities, severity, shares, np.asarray(one.states[0])[:steps], risks, marks)
