"""How much to compile. XLA's optimisation pays for programs that run for minutes; many of ours run for a second."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import equinox as eqx
import jax

P = ParamSpec("P")
R = TypeVar("R")
Options = dict[str, bool | int]
OLD_GENERATOR = "xla_cpu_use_fusion_emitters"  # off: XLA's older code generator, with simpler loops, sooner there
NEW_ALONE = (0, 11, 1)  # from this jaxlib on the older one is gone, and its option refused


def has_old_generator(jaxlib: str) -> bool:
    return tuple(int(part) for part in jaxlib.split(".")[:3]) < NEW_ALONE


_PLAIN: Options = {OLD_GENERATOR: False} if has_old_generator(jax.lib.__version__) else {}
ONCE: Options = {**_PLAIN, "xla_backend_optimization_level": 0}  # a fifth of the time to compile, up to 10 times to run
SELDOM: Options = {**_PLAIN, "xla_backend_optimization_level": 1}  # half the time to compile, 1.0 to 1.4 times to run
OFTEN: Options = {}


def jit_fast_compile(function: Callable[P, R]) -> Callable[P, R]:
    """`function`, compiled in a hurry: for programs that run a few times at most, on little."""
    return _compiled(function, ONCE)


def jit_balanced(function: Callable[P, R]) -> Callable[P, R]:
    """`function`, compiled quickly: for programs that run for a few seconds altogether."""
    return _compiled(function, SELDOM)


def _compiled(function: Callable[P, R], options: Options) -> Callable[P, R]:
    """Inside another program it is a part of that one, and compiled as that one is."""
    compiled: Callable[P, R] = eqx.filter_jit(function, compiler_options=options)  # type: ignore[call-overload]

    @wraps(function)
    def run(*arguments: P.args, **keywords: P.kwargs) -> R:
        inside = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((arguments, keywords)))
        return (function if inside else compiled)(*arguments, **keywords)

    return run
