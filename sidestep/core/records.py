"""Records as JSON and back: frozen dataclasses, validated field by field when they are read.

A field may be a number, text, a Literal, another record, a tuple or a dict of these, or None where its type says so.
Where a field may hold one of several records, each class has a `kind`, which is written with it and chooses it.
What a file has and the record does not know is left out, so that a newer version's files can be read; what the record
needs and the file lacks, or has in another form, is said in one sentence.
"""

import math
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NewType,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

from sidestep.core.errors import InputError, shortened
from sidestep.runtime.files import Json, JsonObject

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Number: TypeAlias = float
else:
    Number = NewType("Number", float)  # any number, also one that is not finite

T = TypeVar("T")


@overload
def to_json(value: "DataclassInstance") -> JsonObject: ...
@overload
def to_json(value: object) -> Json: ...
def to_json(value: object) -> Json:
    """A record, and what it is made of, as dictionaries, lists and plain values."""
    if is_dataclass(value) and not isinstance(value, type):
        plain = {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
        kind = getattr(type(value), "kind", None)
        return {"kind": kind, **plain} if isinstance(kind, str) else plain
    if isinstance(value, tuple | list):
        return [to_json(part) for part in value]
    if isinstance(value, dict):
        return {name: to_json(part) for name, part in value.items()}
    return cast(Json, value)


def from_json(record: type[T], data: object, place: str) -> T:
    """The record that `to_json` wrote; `place` says in an error which file it came from."""
    if not isinstance(data, dict):
        raise InputError(f"expected the fields of a {_name(record)}, not {shortened(repr(data), 40)}", place=place)
    assert is_dataclass(record)
    values: dict[str, object] = {}
    hints = get_type_hints(record)
    for field in fields(record):
        if field.name in data:
            values[field.name] = _read(hints[field.name], data[field.name], f"'{field.name}'", place)
        elif field.default is MISSING and field.default_factory is MISSING:
            raise InputError(f"the {_name(record)} has no '{field.name}'", place=place)
    return record(**values)


def _read(kind: object, value: object, what: str, place: str) -> object:
    """`value` as this kind of thing."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in parts:
            return None
        one = _one_of([part for part in parts if part is not type(None)], value, what, place)
        return _read(one, value, what, place)
    if kind in (Any, object):
        return value
    if isinstance(kind, type) and is_dataclass(kind):
        return from_json(kind, value, f"{place}, {what}")
    if origin in (tuple, list) and isinstance(value, list):
        return origin(_read(parts[0], part, what, place) for part in value)
    if origin is dict and isinstance(value, dict):
        return {name: _read(parts[1], part, what, place) for name, part in value.items()}
    if origin is Literal and value in parts:
        return value
    if kind in _PLAIN and _PLAIN[kind](value):
        return float(cast(float, value)) if kind in (float, Number) else value
    raise InputError(f"{what} must be {_in_words(kind)}, not {shortened(repr(value), 40)}", place=place)


def _one_of(parts: list[type], value: object, what: str, place: str) -> type:
    """The one of several types that `value` is: the only one, or the record of its kind."""
    if len(parts) == 1:
        return parts[0]
    kinds = {getattr(part, "kind", ""): part for part in parts}
    kind = value.get("kind") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in kinds:
        raise InputError(f"{what} must have a 'kind', one of {', '.join(kinds)}", place=place)
    return kinds[kind]


LARGEST = 2**63  # what a whole number is below; a larger one is a mistake, and too large to compute with
_PLAIN: dict[object, Callable[[object], bool]] = {
    bool: lambda value: isinstance(value, bool),
    int: lambda value: isinstance(value, int) and not isinstance(value, bool) and abs(value) < LARGEST,
    Number: lambda value: isinstance(value, float) or _PLAIN[int](value),
    float: lambda value: _PLAIN[Number](value) and math.isfinite(cast(float, value)),
    str: lambda value: isinstance(value, str),
}
_WORDS: dict[object, str] = {bool: "true or false", int: "a whole number", float: "a number", Number: "a number"}
_WORDS.update({str: "text", tuple: "a list", list: "a list", dict: "an object"})


def _in_words(kind: object) -> str:
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    return _WORDS.get(get_origin(kind) or kind, "a value of its kind")


def _name(record: type) -> str:
    return record.__name__.lower()


def checked(kind: type[T], data: object, place: str) -> T:
    """`data` as this record; whatever is wrong with it is said with its place."""
    with told_with(place):
        return from_json(kind, data, place)


@contextmanager
def told_with(place: str) -> Iterator[None]:
    """Whatever is wrong with what is read here is said with its place."""
    try:
        yield
    except InputError as error:
        if str(error).startswith(place):
            raise
        raise InputError(str(error), place=place) from None
    except (OverflowError, RecursionError, TypeError) as error:
        raise InputError(f"holds what no run writes ({error})", place=place) from None
