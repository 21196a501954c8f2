"""The same compiled program for every part of a stack, parts in parallel on the cores.

One program for one part, called from several threads, is as fast on a CPU as a program for several parts at once, is
compiled sooner, and gives a part the same result however many run together, to the last bit.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

_workers = ThreadPoolExecutor(os.cpu_count())


def map_stack(run: Callable[[Any], Any], stack: Any, *, compiled: bool) -> Any:
    """`run` of the parts of `stack`, which its arrays hold along their first axis; results are stacked again.

    Unless the program is `compiled`, one part goes first: several at once would compile it several times. A worker
    waits for its part: more parts at work than cores get in each other's way, and take up to twice as long.
    """
    parts = _parts(stack)
    done = [] if compiled else [run(parts[0])]
    return _stacked(*done, *_workers.map(lambda part: jax.block_until_ready(run(part)), parts[len(done) :]))


def blank_part(stack: Callable[[], Any]) -> Any:
    """A part as `run` is called with, without its content: for compiling. `stack` is traced and never computed."""

    def blank(leaf: Any) -> Any:
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.key(0)
        return np.zeros(leaf.shape[1:], leaf.dtype)

    return jax.tree.map(blank, eqx.filter_eval_shape(stack))


def picked(stacks: Sequence[Any], picks: np.ndarray) -> Any:
    """These parts of several stacks, counted through, as one stack."""
    parts = [part for stack in stacks for part in _parts(stack)]
    return _stacked(*(parts[pick] for pick in picks))


def _parts(stack: Any) -> tuple[Any, ...]:
    return tuple(_part(stack, index) for index in range(len(jax.tree.leaves(eqx.filter(stack, eqx.is_array))[0])))


def _part(stack: Any, index: int) -> Any:
    return jax.tree.map(lambda leaf: _plain(leaf)[index] if eqx.is_array(leaf) else leaf, stack)


def _stacked(*parts: Any) -> Any:
    return jax.tree.map(lambda *leaves: _joined(leaves) if eqx.is_array(leaves[0]) else leaves[0], *parts)


def _joined(leaves: tuple[Any, ...]) -> Any:
    return np.stack(leaves) if isinstance(_plain(leaves[0]), np.ndarray) else jnp.stack(leaves)


def _plain(leaf: Any) -> Any:
    """As NumPy's, which need not compile how to take a part; keys stay what they are."""
    return leaf if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else np.asarray(leaf)
