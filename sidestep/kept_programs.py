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
from pathlib import Path

ENTRY, OWN = "*-cache", "run-"
DAY = 86_400.0  # seconds after which the folder of a process that was killed goes


def keep_compiled_programs() -> None:
    """For this process and its children; JAX's own variable goes first. Without a place to write, none are kept."""
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    kept = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sidestep" / "programs"
    try:
        kept.mkdir(parents=True, exist_ok=True)
        own = Path(tempfile.mkdtemp(prefix=OWN, dir=kept))
        for entry in kept.glob(ENTRY):
            os.link(entry, own / entry.name)
    except OSError:
        return
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(own)
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES", "none")  # they would put the folder into the key
    atexit.register(_hand_over, own, kept)


def _hand_over(own: Path, kept: Path) -> None:
    for entry in own.glob(ENTRY):
        if not (kept / entry.name).exists():
            os.replace(entry, kept / entry.name)
    shutil.rmtree(own, ignore_errors=True)
    for left in kept.glob(f"{OWN}*"):
        if left.stat().st_mtime < time.time() - DAY:
            shutil.rmtree(left, ignore_errors=True)
