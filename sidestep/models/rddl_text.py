"""RDDL text and where things stand in it, so that an error can name its file and line."""

import contextlib
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from sidestep.errors import InputError

_COMMENT = re.compile(r"//[^\n]*")
_BLOCKS = {"domain": r"\bdomain\s+[\w-]+\s*\{", "instance": r"\binstance\s+[\w-]+\s*\{"}


@dataclass(frozen=True)
class RddlText:
    """The text of one or two files, joined; a line of the whole is a line of one of them."""

    parts: tuple[tuple[str, str], ...]  # (name of the file, its text)

    @classmethod
    def read(cls, domain: Path, instance: Path | None = None) -> "RddlText":
        return cls(tuple((str(path), _read(path)) for path in (domain, instance) if path is not None))

    @property
    def whole(self) -> str:
        return "\n".join(text for _, text in self.parts)

    def place(self, line: int) -> str:
        """`file:line` of a line of the whole, counted from 1."""
        for name, text in self.parts:
            lines = text.count("\n") + 1
            if line <= lines:
                return f"{name}:{line}"
            line -= lines
        name, text = self.parts[-1]
        return f"{name}:{text.count(chr(10)) + 1}"

    def place_of(self, word: str) -> str:
        """`file:line` where `word` stands first, outside of comments."""
        pattern = re.compile(rf"(?<![\w-]){re.escape(word)}(?![\w-])")
        for number, line in enumerate(self.whole.split("\n"), start=1):
            if pattern.search(_COMMENT.sub("", line)):
                return self.place(number)
        return self.parts[0][0]

    @contextlib.contextmanager
    def errors_as_input_errors(self) -> Iterator[None]:
        """Whatever the RDDL tools raise in here reaches the user as one sentence with its place."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        except InputError:
            raise
        except Exception as error:
            message = _one_sentence(error)
            named = re.findall(r"<([\w'-]+)>", message)
            places = [self.place_of(word) for word in named]
            place = next((place for place in places if ":" in place), self.parts[0][0])
            raise InputError(message, place=place) from error


def parse_rddl(text: RddlText) -> Any:
    """The syntax tree of the text, or an InputError at the line where it stops making sense."""
    bare = _COMMENT.sub("", text.whole)
    for block, opening in _BLOCKS.items():
        if not re.search(opening, bare):
            raise InputError(
                f"expected a block '{block} name {{ ... }}' and found none"
                + ("; name its file too, as domain.rddl:instance.rddl" if block == "instance" else ""),
                place=text.parts[-1][0],
            )
    parser = _parser()
    from pyRDDLGym.core.parser.parser import RDDLlex

    parser.lexer = RDDLlex()
    parser.lexer.build()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            tree = parser.parse(text.whole)
        except SyntaxError as error:
            raise _syntax_error(str(error), text) from error
        except AttributeError as error:  # the parser's own message needs a token, and there is none at the end
            last = text.place(text.whole.rstrip().count("\n") + 1)
            raise InputError("the text ends too early; a '}' or ';' is missing before this line", place=last) from error
    for warning in caught:
        illegal = re.search(r"illegal character (.) at line (\d+)", str(warning.message))
        if illegal:
            raise InputError(f"'{illegal[1]}' has no meaning in RDDL; remove it", place=text.place(int(illegal[2])))
    return tree


@cache
def _parser() -> Any:
    """The grammar's tables take a second to build; once a process is enough."""
    from ply.yacc import NullLogger
    from pyRDDLGym.core.parser.parser import RDDLParser

    parser = RDDLParser(lexer=None, verbose=False)
    parser.build(debug=False, write_tables=False, errorlog=NullLogger())
    return parser


def _syntax_error(message: str, text: RddlText) -> InputError:
    line = re.search(r"line (\d+)", message)
    if not line:
        return InputError(message, place=text.parts[0][0])
    number = int(line[1])
    source = text.whole.split("\n")[number - 1].strip()
    cause = message.rsplit("...\n", 1)[-1].strip().rstrip(".")
    return InputError(f"the parser stops at '{source}': {cause[0].lower()}{cause[1:]}", place=text.place(number))


def _one_sentence(error: Exception) -> str:
    message = re.sub(r"\x1b\[\d+m", "", str(error)) or type(error).__name__
    return message.replace(">> ", "in ").replace("Please check expression for", "of")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError("there is no such file", place=str(path)) from None
    except IsADirectoryError:
        raise InputError("expected a file and found a folder", place=str(path)) from None
    except UnicodeDecodeError as error:
        raise InputError(
            f"expected UTF-8 text and found something else at byte {error.start}", place=str(path)
        ) from None
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", place=str(path)) from None
