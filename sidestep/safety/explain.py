"""Which steps of a trajectory carry the blame: by their hazards, by their probabilities, or by gradient times input."""

from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Explanation:
    """What a safety model sees in one trajectory."""

    categories: tuple[str, ...]
    probabilities: np.ndarray  # (K,)
    severity: int  # the category, or worse, that the shares are about
    shares: np.ndarray  # (T,)
    states: np.ndarray  # (T, state)

    def lines(self, names: Sequence[str]) -> list[str]:
        """In words: the probabilities, then the steps that carry most of the blame."""
        odds = ", ".join(f"{name} {p:.3f}" for name, p in zip(self.categories, self.probabilities, strict=True))
        worst = self.categories[self.severity]
        lines = [f"the safety model says: {odds}", f"blame for '{worst}' or worse:"]
        for step in np.argsort(-self.shares)[:LISTED]:
            state = ", ".join(
                f"{name} {value:.3g}" for name, value in list(zip(names, self.states[step], strict=True))[:6]
            )
            lines.append(f"  step {step:3d}  {self.shares[step]:6.1%}  {state}")
        return lines


def explanation(model: SafetyModel, one: Trajectory, categories: tuple[str, ...]) -> Explanation:
    """Of a batch of one; about the likeliest category, or about the mildest side effect where that is the best one."""
    parts = (one.states[0], one.actions[0], jnp.asarray(one.length)[0])
    probabilities = predict(model, one)[0]
    severity = max(int(probabilities.argmax()), 1)
    steps = int(one.length[0])
    shares = np.asarray(blame(model, *parts, severity))[:steps]
    return Explanation(categories, probabilities, severity, shares, np.asarray(one.states[0])[:steps])
