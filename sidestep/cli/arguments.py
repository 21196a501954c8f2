"""From the words of a command line to a command: a frozen dataclass whose fields are its arguments and options.

A field says its type, its default and its help text (`core/options.py`). The parser and `--help` follow from that.
"""

import argparse
import difflib
import inspect
import math
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, field, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from sidestep.core.errors import InputError, shortened
from sidestep.core.options import Option, check_ranges

LARGEST = 2**31 - 1  # whole number that an option takes; JAX would silently cut a larger seed
C = TypeVar("C")
Given = dict[str, Any]  # options that a command hands on, by name


class Argument(NamedTuple):
    """An argument or an option of a command."""

    name: str
    kind: Any  # its type
    help: str
    metavar: str = ""  # of an argument without a flag
    default: object = MISSING
    group: str = ""  # the command's field that collects it with others

    @property
    def flag(self) -> str:
        return f"--{self.name.rstrip('_').replace('_', '-')}"


def positional(metavar: str, help: str) -> Any:
    """A field that is given without a flag."""
    return field(metadata={"option": Option(help), "metavar": metavar})


def required(help: str) -> Any:
    """A field that is an option without a default."""
    return field(metadata={"option": Option(help)})


def handed_on(title: str, options: Mapping[str, tuple[Any, str]]) -> Any:
    """A field that collects those of these options (type, help) that were given."""
    return field(metadata={"title": title, "options": options})


def arguments_of(command: type) -> list[Argument]:
    """Everything that a command takes."""
    found, hints = [], get_type_hints(command)
    for one in fields(command):
        for name, (kind, help) in one.metadata.get("options", {}).items():
            found.append(Argument(name, kind, help, default=None, group=one.name))
        if "option" in one.metadata:
            metavar, help = one.metadata.get("metavar", ""), one.metadata["option"].help
            found.append(Argument(one.name, hints[one.name], help, metavar, one.default))
    return found


def parse(command: type[C], prog: str, words: Sequence[str]) -> C:
    """The command that these words ask for; an InputError names the option that is wrong."""
    parser, arguments = _parser(command, prog), arguments_of(command)
    try:
        given, unknown = parser.parse_known_args(list(words))
    except argparse.ArgumentError as error:
        option = str(error.argument_name)
        place = f"option {option}" if option.startswith("-") else option
        raise InputError(f"{error.message}; see {prog} --help", place=place) from None
    if unknown:
        flags = [argument.flag for argument in arguments if not argument.metavar]
        close = difflib.get_close_matches(unknown[0].partition("=")[0], flags, 1)
        advice = f"did you mean {close[0]}?" if close else f"see {prog} --help"
        raise InputError(f"unknown option or argument '{shortened(unknown[0])}'; {advice}")
    values: dict[str, Any] = {one.name: {} for one in fields(command) if "options" in one.metadata}  # type: ignore[arg-type]
    for argument in arguments:
        if argument.name in given:
            value, into = getattr(given, argument.name), values[argument.group] if argument.group else values
            into[argument.name] = tuple(value) if isinstance(value, list) else value
    made = command(**values)
    check_ranges(made)
    return made


class _Parser(argparse.ArgumentParser):
    """It says what is wrong in one sentence, in place of its usage."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see {self.prog} --help")


class _Help(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=110)


def _parser(command: type, prog: str) -> _Parser:
    parser = _Parser(
        prog=prog,
        usage=f"{prog} {' '.join([*_needed(command), '[options]'])}",
        description=inspect.getdoc(command),
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        exit_on_error=False,
        formatter_class=_Help,
    )
    titles = {one.name: one.metadata["title"] for one in fields(command) if "title" in one.metadata}
    groups = {name: parser.add_argument_group(title) for name, title in titles.items()}
    for argument in arguments_of(command):
        shown = "" if any(argument.default is each for each in _UNSHOWN) else f" (default: {argument.default})"
        how = _reading(argument) | {"help": (argument.help + shown).replace("%", "%%")}
        if argument.metavar:
            parser.add_argument(argument.name, **(how | {"metavar": argument.metavar}))
        else:
            how["required"] = argument.default is MISSING
            groups.get(argument.group, parser).add_argument(argument.flag, dest=argument.name, **how)
    return parser


def _needed(command: type) -> list[str]:
    needed = [argument for argument in arguments_of(command) if argument.default is MISSING]
    return [argument.metavar or f"{argument.flag} {argument.name.upper()}" for argument in needed]


def _reading(argument: Argument) -> dict[str, Any]:
    """How argparse reads values of this argument's type."""
    kind = argument.kind
    if get_origin(kind) in (Union, types.UnionType):
        (kind,) = (part for part in get_args(kind) if part is not type(None))
    if kind is bool and argument.default is False:
        return {"action": "store_true"}
    if kind == tuple[str, ...]:
        return {"action": "extend", "nargs": 1, "type": _text, "metavar": "TEXT"}
    if get_origin(kind) is tuple:
        (part, _) = get_args(kind)
        return {"nargs": "+", "type": _READERS[part], "metavar": part.__name__.upper()}
    if get_origin(kind) is Literal or kind is bool:
        choices = {str(choice): choice for choice in (get_args(kind) or (True, False))}
        return {"type": _choice(choices), "metavar": f"{{{','.join(choices)}}}"}
    return {"type": _READERS[kind], "metavar": {str: "TEXT", Path: "PATH"}.get(kind, kind.__name__.upper())}


def _text(word: str) -> str:
    if not word:
        raise argparse.ArgumentTypeError("its value is empty; leave it out or give one")
    if "\0" in word:
        raise argparse.ArgumentTypeError("a zero byte cannot be part of an argument")
    return word


def _path(word: str) -> Path:
    return Path(_text(word))


def _whole(word: str) -> int:
    try:
        number = int(_text(word))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a whole number, not '{shortened(word)}'") from None
    if abs(number) > LARGEST:
        raise argparse.ArgumentTypeError(f"must be at most {LARGEST:,} in size, not {shortened(word)}")
    return number


def _number(word: str) -> float:
    try:
        number = float(_text(word))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number, not '{shortened(word)}'") from None
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"must be a finite number, not {shortened(word)}")
    return number


class _choice:
    def __init__(self, choices: Mapping[str, object]) -> None:
        self.choices = choices

    def __call__(self, word: str) -> object:
        if word not in self.choices:
            listed = ", ".join(sorted(self.choices))
            raise argparse.ArgumentTypeError(f"expected one of {listed}, not '{shortened(word)}'")
        return self.choices[word]


_UNSHOWN: tuple[object, ...] = (MISSING, None, False, (), "")
_READERS: dict[object, Any] = {str: _text, Path: _path, int: _whole, float: _number}
