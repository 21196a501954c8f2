"""Text maps of grid domains: reading and checking."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path

from sidestep.core.errors import InputError

Cell = tuple[int, int]


@dataclass(frozen=True)
class MapKind:
    """What the maps of a grid domain are made of."""

    domain: str
    wall: str
    surfaces: str  # where a side effect is none, mild, severe
    once: Mapping[str, str]  # characters of which there is exactly one, with their meaning; S is the start

    @property
    def characters(self) -> str:
        return self.surfaces + self.wall + "".join(self.once)


def parse_map(text: str, *, kind: MapKind, place: str = "map") -> tuple[str, ...]:
    """The rows of a map that is known to be sound; `place` is the file's name for the messages."""
    rows = tuple(line.removesuffix("\r") for line in text.rstrip("\r\n").split("\n"))
    if not rows[0] and len(rows) == 1:
        raise InputError(f"expected a {kind.domain} map but found nothing; draw its rows as text", place=f"{place}:1:1")
    _check_characters(rows, kind, place)
    _check_rectangle(rows, place)
    _check_once(rows, kind, place)
    _check_connected(rows, kind, place)
    return rows


def read_text(path: Path | Traversable) -> str:
    """The text of a map's file."""
    try:
        content = path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"the map cannot be read ({reason}); check the path", place=str(path)) from None
    return _decode(content, str(path))


def find(rows: tuple[str, ...], character: str) -> Iterator[Cell]:
    """The cells that hold this character, as (row, column) from 0."""
    return ((r, c) for r, row in enumerate(rows) for c, found in enumerate(row) if found == character)


def _decode(content: bytes, place: str) -> str:
    content = content.removeprefix(b"\xef\xbb\xbf")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        before = content[: error.start]
        line, column = before.count(b"\n") + 1, len(before.rpartition(b"\n")[2]) + 1
        raise InputError(
            f"expected UTF-8 text but found the byte {content[error.start]:#04x}; save the map as plain text",
            place=f"{place}:{line}:{column}",
        ) from None


def _check_characters(rows: tuple[str, ...], kind: MapKind, place: str) -> None:
    known = kind.characters
    for r, row in enumerate(rows):
        for c, character in enumerate(row):
            if character not in known:
                hint = next((k for k in known if k.lower() == character.lower()), None)
                advice = f"did you mean '{hint}'?" if hint else "replace it"
                raise InputError(
                    f"unknown character {character!r}, a {kind.domain} map is made of {' '.join(known)}; {advice}",
                    place=f"{place}:{r + 1}:{c + 1}",
                )


def _check_rectangle(rows: tuple[str, ...], place: str) -> None:
    width = len(rows[0])
    for r, row in enumerate(rows):
        if len(row) != width or not row:
            raise InputError(
                f"this row has {len(row)} cells and the first has {width}; make all rows equally long",
                place=f"{place}:{r + 1}:{min(len(row), width) + 1}",
            )


def _check_once(rows: tuple[str, ...], kind: MapKind, place: str) -> None:
    for character, what in kind.once.items():
        cells = list(find(rows, character))
        if not cells:
            raise InputError(f"expected one {what} '{character}' but found none; draw one", place=f"{place}:1:1")
        if len(cells) > 1:
            (first_row, first_column), (row, column) = cells[:2]
            raise InputError(
                f"expected one {what} '{character}' but this is a second one, after that at line {first_row + 1}, "
                f"column {first_column + 1}; remove one",
                place=f"{place}:{row + 1}:{column + 1}",
            )


def _check_connected(rows: tuple[str, ...], kind: MapKind, place: str) -> None:
    """Moves can be undone, so what the start can reach can also reach one another."""
    (start,) = find(rows, "S")
    reached, frontier = {start}, [start]
    while frontier:
        r, c = frontier.pop()
        for row, column in ((r - 1, c), (r + 1, c), (r, c - 1), (r, c + 1)):
            inside = 0 <= row < len(rows) and 0 <= column < len(rows[0])
            if inside and rows[row][column] != kind.wall and (row, column) not in reached:
                reached.add((row, column))
                frontier.append((row, column))
    for character, what in kind.once.items():
        ((row, column),) = find(rows, character)
        if (row, column) not in reached:
            raise InputError(
                f"the {what} '{character}' cannot be reached from the start at line {start[0] + 1}, "
                f"column {start[1] + 1}; open a way through the walls '{kind.wall}'",
                place=f"{place}:{row + 1}:{column + 1}",
            )
