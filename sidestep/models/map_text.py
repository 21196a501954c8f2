"""Text maps of the grid domains: reading, checking, and the maps that come with the package."""

from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Literal

from sidestep.errors import InputError

Domain = Literal["boxpushing", "driving"]

SUFFIXES: dict[str, Domain] = {".bp": "boxpushing", ".nav": "driving"}
WALL = {"boxpushing": "x", "driving": "X"}
ONCE = {"boxpushing": "SBG", "driving": "SG"}  # the cells of which there is exactly one
SURFACES = {"boxpushing": ".F@", "driving": ".@H"}  # none, mild, severe
MEANING = {"S": "start", "G": "goal", "B": "box"}

Cell = tuple[int, int]


def parse_map(text: str, *, kind: Domain, place: str = "map") -> tuple[str, ...]:
    """The rows of a map that is known to be sound; `place` is the file's name for the messages."""
    rows = tuple(line.removesuffix("\r") for line in text.rstrip("\r\n").split("\n"))
    if not rows[0] and len(rows) == 1:
        raise InputError(f"expected a {kind} map but found nothing; draw its rows as text", place=f"{place}:1:1")
    _check_characters(rows, kind, place)
    _check_rectangle(rows, place)
    _check_once(rows, kind, place)
    _check_connected(rows, kind, place)
    return rows


def read_map(path: str | Path | Traversable) -> tuple[tuple[str, ...], Domain]:
    """The rows of the map in a `.bp` or `.nav` file, and the domain that its name's ending tells."""
    source = Path(path) if isinstance(path, str) else path
    ending = next((ending for ending in SUFFIXES if source.name.lower().endswith(ending)), None)
    if ending is None:
        raise InputError("a map's name must end in .bp (boxpushing) or .nav (driving); rename it", place=str(path))
    try:
        content = source.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"the map cannot be read ({reason}); check the path", place=str(path)) from None
    kind = SUFFIXES[ending]
    return parse_map(_decode(content, str(path)), kind=kind, place=str(path)), kind


def find(rows: tuple[str, ...], character: str) -> Iterator[Cell]:
    """The cells that hold this character, as (row, column) from 0."""
    return ((r, c) for r, row in enumerate(rows) for c, found in enumerate(row) if found == character)


def builtin_maps(domain: str) -> tuple[str, ...]:
    """The names of the maps that come with the package: '1' to '5', and the large '40'."""
    names = (map_file.name.partition("-") for map_file in _folder().iterdir())
    return tuple(sorted((name.rpartition(".")[0] for of, _, name in names if of == domain), key=lambda n: (len(n), n)))


def builtin_map(domain: str, name: str | int = "1") -> Traversable:
    """The file of a map that comes with the package; `read_map` and `load_grid` take it."""
    available = builtin_maps(domain)
    if str(name) not in available:
        known = f"{domain} has the maps {', '.join(available)}" if available else f"'{domain}' is no grid domain"
        raise InputError(f"no map '{name}': {known}")
    suffix = next(suffix for suffix, of in SUFFIXES.items() if of == domain)
    return _folder() / f"{domain}-{name}{suffix}"


def _folder() -> Traversable:
    return resources.files("sidestep.models") / "maps"


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


def _check_characters(rows: tuple[str, ...], kind: Domain, place: str) -> None:
    known = SURFACES[kind] + WALL[kind] + ONCE[kind]
    for r, row in enumerate(rows):
        for c, character in enumerate(row):
            if character not in known:
                hint = next((k for k in known if k.lower() == character.lower()), None)
                advice = f"did you mean '{hint}'?" if hint else "replace it"
                raise InputError(
                    f"unknown character {character!r}, a {kind} map is made of {' '.join(known)}; {advice}",
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


def _check_once(rows: tuple[str, ...], kind: Domain, place: str) -> None:
    for character in ONCE[kind]:
        cells = list(find(rows, character))
        what = MEANING[character]
        if not cells:
            raise InputError(f"expected one {what} '{character}' but found none; draw one", place=f"{place}:1:1")
        if len(cells) > 1:
            (first_row, first_column), (row, column) = cells[:2]
            raise InputError(
                f"expected one {what} '{character}' but this is a second one, after that at line {first_row + 1}, "
                f"column {first_column + 1}; remove one",
                place=f"{place}:{row + 1}:{column + 1}",
            )


def _check_connected(rows: tuple[str, ...], kind: Domain, place: str) -> None:
    """Moves can be undone, so what the start can reach can also reach one another."""
    (start,) = find(rows, "S")
    reached, frontier = {start}, [start]
    while frontier:
        r, c = frontier.pop()
        for row, column in ((r - 1, c), (r + 1, c), (r, c - 1), (r, c + 1)):
            inside = 0 <= row < len(rows) and 0 <= column < len(rows[0])
            if inside and rows[row][column] != WALL[kind] and (row, column) not in reached:
                reached.add((row, column))
                frontier.append((row, column))
    for character in ONCE[kind]:
        ((row, column),) = find(rows, character)
        if (row, column) not in reached:
            raise InputError(
                f"the {MEANING[character]} '{character}' cannot be reached from the start at line {start[0] + 1}, "
                f"column {start[1] + 1}; open a way through the walls '{WALL[kind]}'",
                place=f"{place}:{row + 1}:{column + 1}",
            )
