"""The same compiled program for every part of a stack, parts beside each other on the cores.

One program for one part, called from several threads, is as fast on a CPU as a program for several parts at once, is
compiled sooner, and gives a part the same result in any company, to the last bit.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

_workers = ThreadPoolExecutor(os.cpu_count())


def each(run: Callable[[Any], Any], stack: Any, *, compiled: bool) -> Any:
    """`run` of the parts of `stack`, which its arrays hold along their first axis; results are stacked again.

    Unless the program is `compiled`, one part goes first: several at once would compile it several times.
    """
    parts = _parts(stack)
    done = [] if compiled else [run(parts[0])]
    return _stacked(*done, *_workers.map(run, parts[len(done) :]))


@eqx.filter_jit
def first_part(stack: Any) -> Any:
    """What `run` is called with first."""
    return _part(stack, 0)


@eqx.filter_jit
def _parts(stack: Any) -> tuple[Any, ...]:
    return tuple(_part(stack, index) for index in range(len(jax.tree.leaves(eqx.filter(stack, eqx.is_array))[0])))


def _part(stack: Any, index: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[index] if eqx.is_array(leaf) else leaf, stack)


@eqx.filter_jit
def _stacked(*parts: Any) -> Any:
    arrays = [eqx.filter(part, eqx.is_array) for part in parts]
    rest = eqx.filter(parts[0], eqx.is_array, inverse=True)
    return eqx.combine(jax.tree.map(lambda *leaves: jnp.stack(leaves), *arrays), rest)
