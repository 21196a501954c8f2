"""The same compiled program for every part of a stack, parts in parallel on the cores.

One program for one part, called from several threads, is as fast on a CPU as a program for several parts at once, is
compiled sooner, and gives a part the same result however many run together, to the last bit.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

Tree = TypeVar("Tree")  # a PyTree
Result = TypeVar("Result")
Leaf = Array | np.ndarray
_workers = ThreadPoolExecutor(os.cpu_count())


def map_stack(run: Callable[[Tree], Result], stack: Tree, *, compiled: bool) -> Result:
    """`run` of the parts of `stack`, which its arrays hold along their first axis; results are stacked again.

    Unless the program is `compiled`, one part goes first: several at once would compile it several times. A worker
    waits for its part: more parts at work than cores get in each other's way, and take up to twice as long.
    """
    parts = _parts(stack)
    done = [] if compiled else [run(parts[0])]
    if jax.device_count() > 1:  # each part is on all of them, and programs that wait for one another must not overtake
        return _stacked(*done, *(jax.block_until_ready(run(part)) for part in parts[len(done) :]))
    return _stacked(*done, *_workers.map(lambda part: jax.block_until_ready(run(part)), parts[len(done) :]))


def blank_part(stack: Callable[[], Tree]) -> Tree:
    """A part as `run` is called with, without its content: for compiling. `stack` is traced and never computed."""

    def blank(leaf: object) -> object:
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        return jax.random.key(0) if is_key(leaf) else np.zeros(leaf.shape[1:], leaf.dtype)

    return jax.tree.map(blank, eqx.filter_eval_shape(stack))


def picked(stacks: Sequence[Tree], picks: np.ndarray) -> Tree:
    """These parts of several stacks, counted through, as one stack."""
    parts = [part for stack in stacks for part in _parts(stack)]
    return _stacked(*(parts[pick] for pick in picks))


def is_key(leaf: Leaf | jax.ShapeDtypeStruct) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _parts(stack: Tree) -> tuple[Tree, ...]:
    count = len(jax.tree.leaves(eqx.filter(stack, eqx.is_array))[0])
    # NumPy need not compile how to take a part; keys stay what they are.
    whole = jax.tree.map(lambda leaf: np.asarray(leaf) if eqx.is_array(leaf) and not is_key(leaf) else leaf, stack)
    return tuple(
        jax.tree.map(lambda leaf, at=index: leaf[at] if eqx.is_array(leaf) else leaf, whole) for index in range(count)
    )


def _stacked(*parts: Tree) -> Tree:
    def joined(*leaves: Leaf) -> Leaf:
        if not eqx.is_array(leaves[0]):
            return leaves[0]
        return jnp.stack(leaves) if is_key(leaves[0]) else np.stack(leaves)

    return jax.tree.map(joined, *parts)
