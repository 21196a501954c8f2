"""What a step shows beside its bare entries: sizes, differences and spreads of entries that are alike.

Entries are alike when they belong to one variable of the model: the temperatures of all rooms, the two axes of a move.
A variable is given by where it stands in (state, action), so that a safety model needs to know nothing of the model.
"""

from collections.abc import Sequence
from itertools import groupby

import jax.numpy as jnp
from jaxtyping import Array, Float

from sidestep.core.model import Spec

MOST_PAIRS = 6  # entries of a variable up to which each pair of them has its difference


def alike(spec: Spec) -> tuple[int, ...]:
    """Start and size of each variable of a model that has several real entries, one after the other."""
    groups: list[int] = []
    start = 0
    for variable in (*spec.state.variables, *spec.action.variables):
        if variable.kind == "real" and variable.size > 1:
            groups += [start, variable.size]
        start += variable.size
    return tuple(groups)


def alike_by_name(names: Sequence[str]) -> tuple[int, ...]:
    """The same from the names of entries: those of one variable are called `variable[label]`."""
    groups: list[int] = []
    start = 0
    for variable, own in groupby(names, lambda name: name.split("[")[0]):
        size = len(list(own))
        if size > 1 and "[" in names[start] and variable:
            groups += [start, size]
        start += size
    return tuple(groups)


def derive(
    entries: Float[Array, "*batch entry"], state_size: int, groups: Sequence[tuple[int, int]]
) -> Float[Array, "*batch feature"]:
    """The entries themselves, sizes of actions, squares of entries, and what the entries of each group have in common.

    The order is that of `feature_names`.
    """
    actions = entries[..., state_size:]
    parts = [entries, jnp.abs(actions), jnp.square(entries)]
    for start, size in groups:
        own = entries[..., start : start + size]
        largest, smallest = jnp.max(own, axis=-1, keepdims=True), jnp.min(own, axis=-1, keepdims=True)
        mean = jnp.mean(own, axis=-1, keepdims=True)
        norm = jnp.sqrt(jnp.sum(jnp.square(own), axis=-1, keepdims=True) + 1e-12)
        parts += [largest, smallest, mean, largest - smallest, norm]
        if size <= MOST_PAIRS:
            parts += [own[..., i : i + 1] - own[..., j : j + 1] for i, j in _pairs(size)]
    return jnp.concatenate(parts, axis=-1)


def feature_names(names: Sequence[str], state_size: int, groups: Sequence[tuple[int, int]]) -> list[str]:
    """What each feature is called, from the names of the entries."""
    found = [*names, *(f"|{name}|" for name in names[state_size:]), *(f"{name}^2" for name in names)]
    for start, size in groups:
        own = names[start : start + size]
        variable = own[0].split("[")[0]
        found += [f"{word} of {variable}" for word in ("largest", "smallest", "mean", "spread", "length")]
        if size <= MOST_PAIRS:
            found += [f"{own[i]} - {own[j]}" for i, j in _pairs(size)]
    return found


def _pairs(size: int) -> list[tuple[int, int]]:
    return [(i, j) for i in range(size) for j in range(i + 1, size)]
