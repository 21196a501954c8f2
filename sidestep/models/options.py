"""Options behind a model's name: `hvac?rooms=24&horizon=60`."""

import contextlib
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import parse_qsl

from sidestep.core.errors import InputError

D = TypeVar("D")
T = TypeVar("T")


class Options:
    """The `key=value` pairs of one reference, each taken once; what nobody took is a mistake of the user's."""

    def __init__(self, query: str, place: str) -> None:
        self.place = place
        pairs = parse_qsl(query, keep_blank_values=True)
        self._values = dict(pairs)
        if len(self._values) < len(pairs):
            raise InputError("the same option is given twice; keep one of them", place=place)
        self._known: list[str] = []

    def integer(self, name: str, default: int | None, low: int, high: int = 10**6) -> int | None:
        expected = f"a whole number from {low} to {high}"
        return self._take(name, default, int, expected, lambda value: low <= value <= high)

    def whole_range(self, name: str) -> tuple[int, int] | None:
        """Two whole numbers, the first below the second, written as 0..20."""

        def read(word: str) -> tuple[int, int]:
            low, _, high = word.partition("..")
            return int(low), int(high)

        return self._take(name, None, read, "a range of whole numbers like 0..20", lambda ends: ends[0] < ends[1])

    def flag(self, name: str) -> bool:
        words = {"": True, "1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
        return self._take(name, False, lambda word: words[word.lower()], "true or false")

    def text(self, name: str, default: str) -> str:
        return self._take(name, default, str, "text")

    def finish(self) -> None:
        """Refuse what is left over."""
        for name in self._values:
            raise InputError(f"there is no option '{name}' here; there are {', '.join(self._known)}", place=self.place)

    def _take(
        self,
        name: str,
        default: D,
        read: Callable[[str], T],
        expected: str,
        accepts: Callable[[T], bool] = lambda value: True,
    ) -> T | D:
        self._known.append(name)
        word = self._values.pop(name, None)
        if word is None:
            return default
        with contextlib.suppress(ValueError, KeyError):
            value = read(word)
            if accepts(value):
                return value
        raise InputError(f"option '{name}' is {expected}, not '{word}'", place=self.place)
