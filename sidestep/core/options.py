"""Options as fields of dataclasses: default, help text, range and flag in one line. Importable without JAX."""

import math
from dataclasses import dataclass, field, fields
from typing import TypeVar, get_type_hints

from sidestep.core.errors import InputError

T = TypeVar("T")


@dataclass(frozen=True)
class Option:
    """What a field says about itself."""

    help: str
    flag: str = ""  # its name on the command line, where it is not the field's own
    above: float | None = None  # the value must be greater than this, or
    least: float | None = None  # it must be at least this
    below: float | None = None
    most: float | None = None
    constrained: bool = False  # it has an effect only where there are constraints
    group: str = ""  # its heading in --help
    rare: bool = False  # shown by --help-all alone


def option(default: T, help: str, **more: str | float | bool | None) -> T:
    """A dataclass field with this default, described as in `Option`."""
    return field(default=default, metadata={"option": Option(help, **more)})  # type: ignore[arg-type]


def options_of(record: type) -> dict[str, tuple[object, Option]]:
    """(type, description) of every field that is an option, by the field's name."""
    hints = get_type_hints(record)
    return {f.name: (hints[f.name], f.metadata["option"]) for f in fields(record) if "option" in f.metadata}


def flag_of(name: str, told: Option) -> str:
    """The option's name on the command line, with underscores."""
    return told.flag or name


def place_of(flag: str) -> str:
    """Where an error about this option is, in words."""
    return f"option --{flag.replace('_', '-')}"


def check_ranges(record: object) -> None:
    """Refuse a value outside its option's range; a tuple's values are checked one by one."""
    for name, (_, told) in options_of(type(record)).items():
        value = getattr(record, name)
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, int | float) and not isinstance(number, bool):
                _check_range(number, told, place_of(flag_of(name, told)))


def _check_range(number: float, told: Option, place: str) -> None:
    for limit, words, holds in (
        (math.inf, "a finite number", math.isfinite(number)),
        (told.above, "greater than", told.above is None or number > told.above),
        (told.least, "at least", told.least is None or number >= told.least),
        (told.below, "less than", told.below is None or number < told.below),
        (told.most, "at most", told.most is None or number <= told.most),
    ):
        if not holds:
            what = words if limit == math.inf else f"{words} {limit:,}"
            raise InputError(f"must be {what}, not {number}", place=place)
