"""Work on a stack in two halves at the same time.

What one thread starts, XLA runs in turn; what a second thread starts runs beside it. A stack of even size is halved on
any machine, so that results do not hang on the number of its cores.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

_beside = ThreadPoolExecutor(1)


def in_halves(run: Callable[[Any], Any], stack: Any) -> Any:
    """`run`, a compiled program, of all arrays of `stack` along their first axis."""
    halves = _split(stack)
    if len(halves) == 1:
        return run(stack)
    first = run(halves[0])  # returns when it is compiled and started, not when it is done
    return _joined(first, _beside.submit(run, halves[1]).result())


def first_half(stack: Any) -> Any:
    """What `run` is called with."""
    return _split(stack)[0]


@eqx.filter_jit
def _split(stack: Any) -> tuple[Any, ...]:
    arrays, rest = eqx.partition(stack, eqx.is_array)
    count = len(jax.tree.leaves(arrays)[0])
    if count % 2:
        return (stack,)
    parts = (jax.tree.map(lambda leaf, at=at: leaf[at], arrays) for at in (slice(count // 2), slice(count // 2, None)))
    return tuple(eqx.combine(part, rest) for part in parts)


@eqx.filter_jit
def _joined(first: Any, second: Any) -> Any:
    arrays, rest = eqx.partition(first, eqx.is_array)
    others = eqx.filter(second, eqx.is_array)
    return eqx.combine(jax.tree.map(lambda a, b: jnp.concatenate([a, b]), arrays, others), rest)
