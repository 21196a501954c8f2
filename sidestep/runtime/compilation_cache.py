"""Compiled programs that outlive a process, in the user's cache folder.

JAX writes into the folder that it reads from, entry by entry, and an entry that a kill cut short would stay. So every
process works in a folder of its own, which begins with links to all that is kept, and what is new in it moves over,
whole, when the process ends. Light on purpose: it runs before JAX is loaded.
"""

import atexit
import os
import shutil
import tempfile
import time
import warnings
from contextlib import suppress
from pathlib import Path

ENTRY, OWN = "*-cache", "run-"
DAY = 86_400.0  # seconds after which the folder of a process that was killed goes


def keep_compiled_programs() -> None:
    """For this process and its children; JAX's own variable goes first. Without a place to write, none are kept."""
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    try:
        kept = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sidestep" / "programs"
        kept.mkdir(parents=True, exist_ok=True)
        own = Path(tempfile.mkdtemp(prefix=OWN, dir=kept))
        for entry in kept.glob(ENTRY):
            os.link(entry, own / entry.name)
    except (OSError, RuntimeError):  # RuntimeError: nobody knows where home is
        return
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(own)
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES", "none")  # they would put the folder into the key
    atexit.register(_hand_over, own, kept, _watch_for_failures())


def _watch_for_failures() -> list[str]:
    """Entries that JAX could not write (a full disk): told here, and to nobody else, who could do nothing with it."""
    failures: list[str] = []
    show = warnings.showwarning

    def listen(message, *rest, **more):
        if str(message).startswith("Error writing persistent compilation cache"):
            failures.append(str(message))
        else:
            show(message, *rest, **more)

    warnings.showwarning = listen
    return failures


def _hand_over(own: Path, kept: Path, failures: list[str]) -> None:
    """Nothing, where an entry could not be written whole."""
    with suppress(OSError):  # a full disk, or another process that tidies up at the same time
        for entry in own.glob(ENTRY):
            if not failures and not (kept / entry.name).exists():
                os.replace(entry, kept / entry.name)
    shutil.rmtree(own, ignore_errors=True)
    with suppress(OSError):
        for left in kept.glob(f"{OWN}*"):
            if left.stat().st_mtime < time.time() - DAY:
                shutil.rmtree(left, ignore_errors=True)
