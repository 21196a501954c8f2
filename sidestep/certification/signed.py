"""A signed pattern: what counts as a side effect is a rule in words, which a person has read and stands for.

For a tolerance of .001 an audit by labels needs thousands of clean ones, whatever is known. A pattern that the safety
model has learned, and that can be said in words, labels a million rollouts in seconds. The certificate is then exact
for the pattern, and says on whose signature it rests that the pattern is what is meant.
"""

from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from sidestep.core.constraints import Scale
from sidestep.core.errors import InputError
from sidestep.core.model import Trajectory
from sidestep.labels.experts import Expert
from sidestep.labels.store import Store

ROLLOUTS = 1_000_000  # of a signed audit


class SignedPattern(Expert):
    """The pattern in place of an expert; it labels fresh rollouts, and no store."""

    signed_by: str
    words: str

    def __init__(
        self, categories: Callable[[Trajectory], np.ndarray], scale: Scale, signed_by: str, words: str
    ) -> None:
        if not signed_by.strip():
            raise InputError("a signature is a name", place="--signed-by")

        def label(trajectory: Trajectory) -> Int[Array, " batch"]:
            return jnp.asarray(categories(trajectory))

        super().__init__("signed pattern", scale, label=label)
        object.__setattr__(self, "signed_by", signed_by.strip())
        object.__setattr__(self, "words", words)

    def answer(self, store: Store, ids: Sequence[int], marks: bool = False) -> dict[int, int]:
        raise NotImplementedError("a signed pattern answers no questions of a campaign")
