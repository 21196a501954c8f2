"""RDDL text and where things stand in it, so that an error can name its file and line."""

import contextlib
import difflib
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pyRDDLGym.core.parser.parser import RDDLlex

from sidestep.core.errors import InputError
from sidestep.runtime.files import read_bytes

_COMMENT = re.compile(r"//[^\n]*")
REPLACED = "\ufffd"  # what stands in decoded text for bytes that are not UTF-8


@dataclass(frozen=True)
class RddlText:
    """The text of one or two files, joined; a line of the whole is a line of one of them."""

    parts: tuple[tuple[str, str], ...]  # (name of the file, its text)

    @classmethod
    def read(cls, domain: Path, instance: Path | None = None) -> "RddlText":
        return cls(
            tuple((str(path), _decoded(read_bytes(path), str(path))) for path in (domain, instance) if path is not None)
        )

    @cached_property
    def whole(self) -> str:
        return "\n".join(text for _, text in self.parts)

    @cached_property
    def bare(self) -> str:
        """The whole with blanks in place of comments: the same characters at the same positions otherwise."""
        return _COMMENT.sub(lambda comment: " " * len(comment[0]), self.whole)

    def line_at(self, position: int) -> int:
        """The line of the whole, counted from 1, on which this position lies."""
        return self.whole.count("\n", 0, position) + 1

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
        found = self._find(word)
        return self.parts[0][0] if found is None else self.place(self.line_at(found))

    def line_of_block(self, block: str) -> int | None:
        """The line on which the block `domain name {`, `instance name {`, ... begins."""
        found = re.search(rf"(?<![\w-]){block}\s+[\w-]+\s*\{{", self.bare)
        return None if found is None else self.line_at(found.start())

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
            message = re.sub(r"\x1b\[\d+m", "", str(error)) or type(error).__name__
            raise InputError(self._sentence(message), place=self.place_of_error(message)) from error

    def place_of_error(self, message: str) -> str:
        """Where an error of the RDDL tools lies, by what its message quotes: expression, formula, section, names.

        The tools do not keep positions, so we look for the quoted things in the text, the most telling first.
        """
        formula = re.search(r"CPFs? \{?<?([\w-]+'?)", message)
        start, end = self._formula(formula[1]) if formula else (0, len(self.bare))
        quoted = re.search(r">> (.*)", message)
        names = re.findall(r"<([\w'?-]+)>", message) + re.findall(r"'([\w-]+)'", message.partition(" must be ")[0])
        positions = []
        if quoted and quoted[1]:
            positions.append(self._find_expression(quoted[1], start, end))
        if formula and end < len(self.bare):
            positions += [self._find(name, start, end) for name in names if name != formula[1]] + [start]
        for section in ("init-state", "non-fluents", "objects"):
            if section in message or "nitial value" in message or "in the instance" in message:
                positions += [self._find(name, *self._section(section)) for name in reversed(names)]
        last = "has the same name" in message
        for section in ("types", "pvariables"):
            positions += [self._find(name, *self._section(section), last=last) for name in names]
        positions += [self._find(name.rstrip("'")) for name in names]
        found = next((position for position in positions if position is not None), None)
        return self.parts[0][0] if found is None else self.place(self.line_at(found))

    def _sentence(self, message: str) -> str:
        unknown = re.match(r"Variable <([\w-]+)> is not defined", message)
        function = re.match(r"func operator (\w+) is not supported: must be one of ([\w,]+)", message)
        if unknown:
            words = set(re.findall(r"[A-Za-z][\w-]*", self.bare)) - {unknown[1]} | _distributions()
            hint = did_you_mean(unknown[1], words) or "declare it in pvariables"
            return f"there is no variable or distribution '{unknown[1]}'; {hint}"
        if function:
            known = sorted(function[2].split(","))
            hint = did_you_mean(function[1], known) or f"there are {', '.join(known)}"
            return f"there is no function '{function[1]}[...]'; {hint}"
        return re.sub(r"\.?\s*>> ", ", in ", message).replace("Please check expression for", "of").rstrip(" .")

    def _find(self, word: str, start: int = 0, end: int | None = None, last: bool = False) -> int | None:
        found = re.compile(rf"(?<![\w-]){re.escape(word)}(?![\w-])").finditer(
            self.bare, start, len(self.bare) if end is None else end
        )
        positions = [match.start() for match in found]
        return None if not positions else positions[-1 if last else 0]

    def _formula(self, name: str) -> tuple[int, int]:
        """From where to where `name(...) = ...;` reaches; everything when there is no such formula."""
        found = re.search(rf"(?<![\w-]){re.escape(name)}\s*(\([^()]*\))?\s*=[^=]", self.bare)
        return (found.start(), (self.bare + ";").find(";", found.end())) if found else (0, len(self.bare))

    def _section(self, name: str) -> tuple[int, int]:
        """From where to where `name { ... };` reaches; nowhere when there is no such section."""
        found = re.search(rf"(?<![\w-]){name}\s*\{{", self.bare)
        if not found:
            return 0, 0
        depth, end = 1, found.end()
        while depth and end < len(self.bare):
            depth += {"{": 1, "}": -1}.get(self.bare[end], 0)
            end += 1
        return found.end(), end

    def _find_expression(self, expression: str, start: int, end: int) -> int | None:
        """An expression that the tools print in their own spacing and with parentheses of their own."""
        insignificant = " \t\n()"
        wanted = "".join(character for character in expression if character not in insignificant)
        kept = [i for i in range(start, end) if self.bare[i] not in insignificant]
        found = "".join(self.bare[i] for i in kept).find(wanted)
        return None if found < 0 else kept[found]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The question, when one of the known names is near; nothing otherwise."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean '{near[0]}'?" if near else ""


def _distributions() -> set[str]:
    return {word for word in RDDLlex().reserved if word[0].isupper()}


def _decoded(content: bytes, name: str) -> str:
    """UTF-8 text with \\n between its lines; in comments other bytes are let pass, since nobody reads them."""
    text = content.decode("utf-8-sig", errors="replace").replace("\r\n", "\n").replace("\r", "\n")
    read = _COMMENT.sub("", text)
    if REPLACED in read:
        line = read.count("\n", 0, read.index(REPLACED)) + 1
        raise InputError("expected UTF-8 text and found something else on this line", place=f"{name}:{line}")
    return text
