"""Pytrees of arrays in safetensors files: no pickle, written whole or not at all, read back bit for bit."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load, save

from sidestep.core.errors import InputError
from sidestep.runtime.files import JsonObject, atomic_write, read_bytes
from sidestep.runtime.parallel import is_key

Tree = TypeVar("Tree")  # a PyTree
Leaf = Array | np.ndarray  # or its shape alone
HEADER = "sidestep"  # the metadata entry that holds our JSON


def save_tree(path: Path, tree: PyTree, header: Mapping[str, object]) -> None:
    """Every array of `tree` under its place in it, and a JSON header beside them."""
    save_arrays(path, {name: np.asarray(_plain(leaf)) for name, leaf in _named(tree)}, header)


def save_arrays(path: Path, arrays: dict[str, np.ndarray], header: Mapping[str, object]) -> None:
    """Arrays under their names, and a JSON header beside them."""
    metadata = {HEADER: json.dumps(header, sort_keys=True)}
    atomic_write(path, save({name: np.asarray(array, order="C") for name, array in arrays.items()}, metadata=metadata))


def read_header(path: Path) -> JsonObject:
    """What the file says about itself, a JSON object; whoever asks knows what must stand in it."""
    if not path.is_file():
        read_bytes(path)  # says what is there instead
    try:
        with safe_open(path, framework="numpy") as file:
            header = json.loads(file.metadata()[HEADER])
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise damaged(path, error) from None
    if not isinstance(header, dict):
        raise damaged(path, "its header is not an object")
    return header


def require_room(path: Path, sizes: Iterable[int], depth: int) -> None:
    """Refuse a header that claims more than the file can hold, before anything of that size is made.

    No array has a side longer than the file has bytes, and no model has more layers than the file has arrays.
    """
    with safe_open(path, framework="numpy") as file:
        arrays = len(file.keys())
    most = path.stat().st_size
    if any(not 0 <= size <= most for size in sizes) or depth > arrays:
        raise damaged(path, "its header claims more than the file holds")


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    """All arrays of the file by name."""
    try:
        return load(read_bytes(path))
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise damaged(path, error) from None


def damaged(path: Path, error: Exception | str) -> InputError:
    return InputError(f"is not a Sidestep file, or it is damaged ({error})", place=str(path))


def load_tree(path: Path, like: Tree) -> Tree:
    """The tree that was saved, with the structure of `like`; shapes and types must be the same.

    `like` may hold the shapes of arrays in their place (`eqx.filter_eval_shape`), which costs no computation.
    """
    arrays = load_arrays(path)
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
        filled.append(jax.random.wrap_key_data(jnp.asarray(array)) if is_key(leaf) else jnp.asarray(array))
    return jax.tree.unflatten(structure, filled)


def _named(tree: PyTree) -> list[tuple[str, Leaf]]:
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in leaves if _is_array(leaf)]


def _is_array(leaf: object) -> bool:
    return eqx.is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)


def _plain(leaf: Leaf) -> Leaf:
    return jax.random.key_data(leaf) if is_key(leaf) else leaf
