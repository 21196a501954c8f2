"""The run-time checker of shapes: jaxtyping's import hook hands it every function and dataclass of the package.

Only annotations of arrays are checked. Other types are mypy's work, and tests give wrong ones on purpose.
"""

from typing import get_args

from beartype import beartype
from jaxtyping import AbstractArray


def check(function):
    hints = getattr(function, "__annotations__", {})
    arrays = {name: hint for name, hint in hints.items() if _is_of_arrays(hint)}
    if not arrays:
        return function
    function.__annotations__ = arrays
    return beartype(function)


def _is_of_arrays(hint):
    """A type with a shape, or a union or tuple of types some of which have one."""
    return (isinstance(hint, type) and issubclass(hint, AbstractArray)) or any(map(_is_of_arrays, get_args(hint)))
