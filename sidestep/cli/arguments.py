"""From the words of a command line to a command: a frozen dataclass whose fields are its arguments and options.

A field says its type, its default and its help text (`core/options.py`). The parser and `--help` follow from that.
"""

import argparse
import difflib
import inspect
import math
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, field, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from sidestep.cli.options_file import read_options
from sidestep.core.errors import InputError, shortened
from sidestep.core.options import Option, check_ranges
from sidestep.core.records import told_with

LARGEST = 2**31 - 1  # whole number that an option takes; JAX would silently cut a larger seed
C = TypeVar("C")
CONFIG = "--config"  # the option that names a file with others
Given = dict[str, Any]  # options that a command hands on, by name


class Argument(NamedTuple):
    """An argument or an option of a command."""

    name: str
    kind: Any  # its type
    help: str
    metavar: str = ""  # of an argument without a flag
    default: object = MISSING
    group: str = ""  # the command's field that collects it with others
    heading: str = "options"  # under which --help shows it
    rare: bool = False  # shown by --help-all alone

    @property
    def flag(self) -> str:
        return f"--{self.name.rstrip('_').replace('_', '-')}"


def positional(metavar: str, help: str) -> Any:
    """A field that is given without a flag."""
    return field(metadata={"option": Option(help), "metavar": metavar})


def required(help: str) -> Any:
    """A field that is an option without a default."""
    return field(metadata={"option": Option(help)})


def handed_on(title: str, options: Mapping[str, tuple[Any, Option]]) -> Any:
    """A field that collects those of these options that were given; under this title where they have no other."""
    return field(metadata={"title": title, "options": options})


def arguments_of(command: type) -> list[Argument]:
    """Everything that a command takes."""
    found, hints = [], get_type_hints(command)
    for one in fields(command):
        for name, (kind, told) in one.metadata.get("options", {}).items():
            heading = told.group or one.metadata["title"]
            found.append(Argument(name, kind, told.help, "", None, one.name, heading, told.rare))
        if "option" in one.metadata:
            told, metavar = one.metadata["option"], one.metadata.get("metavar", "")
            heading = told.group or Argument.heading
            found.append(Argument(one.name, hints[one.name], told.help, metavar, one.default, "", heading, told.rare))
    return found


def parse(command: type[C], prog: str, words: Sequence[str]) -> C:
    """The command that these words ask for; an InputError names the option that is wrong."""
    arguments = arguments_of(command)
    if any(word.partition("=")[0] == CONFIG for word in words) and hasattr(command, "config"):
        given = _with_file(command, prog, words)
    else:
        given = _read_words(command, prog, words)
    values: dict[str, Any] = {one.name: {} for one in fields(command) if "options" in one.metadata}  # type: ignore[arg-type]
    for argument in arguments:
        if argument.name in given:
            value, into = given[argument.name], values[argument.group] if argument.group else values
            into[argument.name] = tuple(value) if isinstance(value, list) else value
    made = command(**values)
    check_ranges(made)
    return made


def _with_file(command: type, prog: str, words: Sequence[str]) -> Given:
    """What these words give, and what the file of --config gives beside them."""
    arguments = arguments_of(command)
    given = _read_words(command, prog, words, optional=True)
    file = given["config"]
    said = [more for name, more in words_in_file(file, arguments).items() if name not in given]
    with told_with(str(file)):
        given = {**_read_words(command, prog, [word for more in said for word in more], optional=True), **given}
    missing = [one.metavar or one.flag for one in arguments if one.default is MISSING and one.name not in given]
    if missing:
        raise InputError(f"the following arguments are required: {', '.join(missing)}; see {prog} --help")
    return given


def words_in_file(file: Path, arguments: Sequence[Argument]) -> dict[str, list[str]]:
    """What stands in a file of options (see `cli/options_file.py`) as the words that would say it."""
    known = {argument.name.rstrip("_"): argument for argument in arguments}
    found = {}
    for key, value in read_options(file).items():
        name = key.replace("-", "_")
        if name not in known or name == "config":
            close = difflib.get_close_matches(name, known, 1)
            advice = f"did you mean '{close[0]}'?" if close else "the names are those of the command line"
            raise InputError(f"there is no option '{key}'; {advice}", place=str(file))
        found[known[name].name] = _words(known[name], value, str(file))
    return found


def _words(argument: Argument, value: object, place: str) -> list[str]:
    """The words of a command line that give an argument this value."""
    values = value if isinstance(value, list) else [value]
    if not values or not all(isinstance(one, str | int | float) for one in values):
        raise InputError(f"'{argument.name}' must be a number, a text, true or false, or a list of these", place=place)
    texts = [str(one) for one in values]
    if argument.metavar:
        return texts
    if isinstance(value, bool) and argument.kind == bool | None:
        return [argument.flag if value else f"--no-{argument.flag[2:]}"]
    if isinstance(value, bool) and argument.default is False:
        return [argument.flag] if value else []
    if get_origin(argument.kind) is tuple and argument.kind != tuple[str, ...]:
        return [argument.flag, *texts]
    return [f"{argument.flag}={text}" for text in texts]


def _read_words(command: type, prog: str, words: Sequence[str], *, optional: bool = False) -> Given:
    """What these words give, by the name of the argument; with `optional` nothing need be given."""
    parser, arguments = _parser(command, prog, optional=optional), arguments_of(command)
    read = parser.parse_known_intermixed_args if optional else parser.parse_known_args
    try:
        given, unknown = read(list(words))
    except argparse.ArgumentError as error:
        option = str(error.argument_name)
        place = f"option {option}" if option.startswith("-") else option
        raise InputError(f"{error.message}; see {prog} --help", place=place) from None
    if unknown:
        flags = [argument.flag for argument in arguments if not argument.metavar]
        close = difflib.get_close_matches(unknown[0].partition("=")[0], flags, 1)
        advice = f"did you mean {close[0]}?" if close else f"see {prog} --help"
        raise InputError(f"unknown option or argument '{shortened(unknown[0])}'; {advice}")
    return vars(given)


class _Parser(argparse.ArgumentParser):
    """It says what is wrong in one sentence, in place of its usage."""

    show_all: Callable[[], "_Parser"]

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see {self.prog} --help")


class _Help(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=110)


class _HelpAll(argparse.Action):
    """--help-all: every option."""

    def __init__(self, option_strings: Sequence[str], dest: str, **more: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, help="show every option and exit")

    def __call__(self, parser: argparse.ArgumentParser, *rest: object) -> NoReturn:
        assert isinstance(parser, _Parser)
        parser.show_all().print_help()
        raise SystemExit(0)


def _parser(command: type, prog: str, *, show_all: bool = False, optional: bool = False) -> _Parser:
    parser = _Parser(
        prog=prog,
        usage=f"{prog} {' '.join([*_needed(command), '[options]'])}",
        description=inspect.getdoc(command),
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        exit_on_error=False,
        formatter_class=_Help,
    )
    parser.show_all = lambda: _parser(command, prog, show_all=True)
    arguments = arguments_of(command)
    rare = sum(argument.rare for argument in arguments)
    if rare:
        parser.add_argument("--help-all", action=_HelpAll)
        if not show_all:
            parser.epilog = f"`{prog} --help-all` shows {rare} more options."
    groups = {
        heading: parser.add_argument_group(heading) if heading != Argument.heading else parser
        for heading in dict.fromkeys(argument.heading for argument in arguments if not argument.metavar)
    }
    for argument in arguments:
        shown = "" if any(argument.default is each for each in _UNSHOWN) else f" (default: {argument.default})"
        how = _reading(argument) | {"help": (argument.help + shown).replace("%", "%%")}
        if argument.rare and not show_all:
            how["help"] = argparse.SUPPRESS
        if argument.metavar:
            if optional:
                how["nargs"] = "?"
            parser.add_argument(argument.name, **(how | {"metavar": argument.metavar}))
        else:
            how["required"] = argument.default is MISSING and not optional
            groups[argument.heading].add_argument(argument.flag, dest=argument.name, **how)
    return parser


def _needed(command: type) -> list[str]:
    needed = [argument for argument in arguments_of(command) if argument.default is MISSING]
    return [argument.metavar or f"{argument.flag} {argument.name.upper()}" for argument in needed]


def _reading(argument: Argument) -> dict[str, Any]:
    """How argparse reads values of this argument's type."""
    kind = argument.kind
    if kind == bool | None:
        return {"action": argparse.BooleanOptionalAction}
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
