"""Pytrees of arrays in safetensors files: no pickle, written whole or not at all, read back bit for bit."""

import json
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sidestep.errors import InputError
from sidestep.files import atomic_write

HEADER = "sidestep"  # the metadata entry that holds our JSON


def save_tree(path: Path, tree: Any, header: dict[str, Any]) -> None:
    """Every array of `tree` under its place in it, and a JSON header beside them."""
    from safetensors.numpy import save

    arrays = {name: np.asarray(_plain(leaf)) for name, leaf in _named(tree)}
    atomic_write(path, save(arrays, metadata={HEADER: json.dumps(header, sort_keys=True)}))


def read_header(path: Path) -> dict[str, Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            return json.loads(file.metadata()[HEADER])
    except FileNotFoundError:
        raise InputError("there is no such file", place=str(path)) from None
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"is no file of ours, or it is damaged ({error})", place=str(path)) from None


def load_tree(path: Path, like: Any) -> Any:
    """The tree that was saved, with the structure of `like`; shapes and types must be the same.

    `like` may hold the shapes of arrays in their place (`eqx.filter_eval_shape`), which costs no computation.
    """
    from safetensors.numpy import load_file

    read_header(path)
    arrays = load_file(path)
    names = [name for name, _ in _named(like)]
    if set(names) != set(arrays):
        odd = sorted(set(names) ^ set(arrays))[0]
        raise InputError(f"does not fit: the entry '{odd}' is in the file or expected, but not both", place=str(path))
    leaves, structure = jax.tree.flatten(like)
    filled, found = [], iter(names)
    for leaf in leaves:
        if not _is_array(leaf):
            filled.append(leaf)
            continue
        name = next(found)
        array, wanted = arrays[name], _plain(leaf)
        if array.shape != wanted.shape or array.dtype != wanted.dtype:
            raise InputError(
                f"does not fit: '{name}' is {array.dtype}{array.shape}, expected {wanted.dtype}{wanted.shape}",
                place=str(path),
            )
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        filled.append(jax.random.wrap_key_data(jnp.asarray(array)) if is_key else jnp.asarray(array))
    return jax.tree.unflatten(structure, filled)


def _named(tree: Any) -> list[tuple[str, Any]]:
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in leaves if _is_array(leaf)]


def _is_array(leaf: Any) -> bool:
    return eqx.is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)


def _plain(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
