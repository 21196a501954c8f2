"""For programs that run a few times at most, on little: compiled without optimisation, in a third of the time."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import equinox as eqx
import jax

F = TypeVar("F", bound=Callable[..., Any])
QUICKLY = {"xla_backend_optimization_level": 0}


def run_once(function: F) -> F:
    """`function`, compiled quickly; inside another program it is a part of that one, and compiled as that one is."""
    compiled: Any = eqx.filter_jit(function, compiler_options=QUICKLY)  # type: ignore[call-overload]

    @wraps(function)
    def run(*arguments: Any, **options: Any) -> Any:
        inside = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((arguments, options)))
        return (function if inside else compiled)(*arguments, **options)

    return run  # type: ignore[return-value]
