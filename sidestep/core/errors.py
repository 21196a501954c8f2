"""The errors that a command expects: bad input, a full disk, labels to come, a problem without a solution."""

from pathlib import Path


def printable(text: str) -> str:
    """`text` with escapes in place of what cannot be printed: control characters, bytes of a name that is not UTF-8."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def shortened(text: str, most: int = 200) -> str:
    """`text`, cut where it is too long to be repeated in a sentence."""
    return text if len(text) <= most else f"{text[:most]}..."


class InputError(ValueError):
    """Bad input, said in one sentence: where it is, what was expected, what was found, what to do.

    The command line prints it and leaves with exit status 2; nothing is written before it is raised.
    """

    def __init__(self, message: str, *, place: str | None = None) -> None:
        one_line = printable(" ".join(message.split()))
        super().__init__(f"{printable(place)}: {one_line}" if place else one_line)
        self.place = place


class DiskFull(InputError):
    """There was no room to write `place`; what was there before is still there, whole."""

    def __init__(self, place: str, advice: str = "give the command again") -> None:
        super().__init__(f"there is no space left on the disk; free some and {advice}", place=place)


class Infeasible(InputError):
    """No policy meets the constraints: exit status 1."""


class LabelsNeeded(Exception):
    """These trajectories of the store need labels before the work can go on: exit status 3.

    In an audit, `audit` is its entry of the ledger, and `at_best` further labels decide it if all of them are clean.
    """

    def __init__(self, ids: list[int], *, audit: object = None, at_best: int = 0) -> None:
        super().__init__(f"{len(ids)} trajectories need labels")
        self.ids, self.audit, self.at_best = ids, audit, at_best
        self.store: Path | str | None = None

    def with_place(self, store: Path | str, run: Path) -> "LabelsNeeded":
        """The same, which says where the labels go and how to go on then."""
        told = LabelsNeeded(self.ids, audit=self.audit, at_best=self.at_best)
        told.store = store
        told.args = (f"{self.args[0]} in {store}; when they have them, go on with sidestep.resume({str(run)!r})",)
        return told
