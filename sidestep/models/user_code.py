"""What a user's own Python file does wrong, in one sentence that names its line. Light on purpose: imports no JAX."""

import dis
import sysconfig
import traceback
from pathlib import Path
from types import TracebackType

from sidestep.core.errors import InputError

FILES: set[str] = set()  # that were run in this process because a user named them

FAULTS = (Exception, SystemExit)  # what a user's code may raise; Ctrl-C is not its fault


def users_line(error: BaseException) -> str | None:
    """`file:line`, the innermost line of the traceback that is neither ours nor of an installed package."""
    if isinstance(error, SyntaxError) and error.filename in FILES and error.lineno:
        return f"{error.filename}:{error.lineno}"
    others = (str(Path(__file__).parents[1]), sysconfig.get_paths()["stdlib"], sysconfig.get_paths()["purelib"], "<")
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [f"{frame.filename}:{frame.lineno}" for frame in frames if not frame.filename.startswith(others)]
    return theirs[-1] if theirs else None


def in_words(error: BaseException) -> str:
    """The kind of an error and the first paragraph of what it says."""
    try:
        first = str(error).strip().split("\n\n")[0]
    except Exception:  # its own __str__ fails
        first = ""
    said = " ".join(first.split())[:300]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def users_fault(error: BaseException) -> InputError | None:
    """The error as bad input, where code of a user's file raised it; None where it is nobody's fault but ours.

    A KeyboardInterrupt counts where a `raise` made it: then it was not Ctrl-C.
    """
    if isinstance(error, KeyboardInterrupt) and not _raised_by_statement(error.__traceback__):
        return None
    ran = {frame.filename for frame in traceback.extract_tb(error.__traceback__)}
    if not ran & FILES:
        return None
    return InputError(f"this line failed: {in_words(error)}", place=users_line(error))


def _raised_by_statement(trace: TracebackType | None) -> bool:
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or trace.tb_lasti < 0:
        return False
    return trace.tb_frame.f_code.co_code[trace.tb_lasti] == dis.opmap["RAISE_VARARGS"]
