"""Strictness for every test: arrays have the shapes that signatures say, nothing is broadcast or promoted silently, no
warnings (see pyproject), deterministic hypothesis.

Tests compile far more than they compute, so that programs are compiled without optimisation, which takes half the time.
"""

import atexit
import contextlib
import ctypes
import gc
import os
import shutil
import tempfile
from importlib.metadata import version

os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0"  # and the older code generator where jaxlib still has it
    + " --xla_cpu_use_fusion_emitters=false" * (tuple(map(int, version("jaxlib").split(".")[:3])) < (0, 11, 1)),
)
os.environ.setdefault("XDG_STATE_HOME", tempfile.mkdtemp(prefix="sidestep-"))  # what tests run is no user's choice

import jax
import optax.tree
import pytest
from hypothesis import settings
from jaxtyping import install_import_hook

install_import_hook("sidestep", "shapes.check")
jax.config.update("jax_numpy_rank_promotion", "raise")
# optax mixes its integer counter with floats here; every other line of what we run is strict.
PROMOTION = "strict"
jax.config.update("jax_numpy_dtype_promotion", PROMOTION)
optax.tree.bias_correction = jax.numpy_dtype_promotion("standard")(optax.tree.bias_correction)

# Many tests run campaigns of the same small models, whose programs are the same. Every process keeps those that it
# compiled in a folder of its own: one that two shared could hand over half an entry.
PROGRAMS = tempfile.mkdtemp(prefix="sidestep-programs-")
atexit.register(shutil.rmtree, PROGRAMS, ignore_errors=True)
jax.config.update("jax_compilation_cache_dir", PROGRAMS)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

settings.register_profile("sidestep", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("sidestep")


# Files that take long, the longest first: they begin first, so that no process is left with one of them at the end, and
# their tests are marked `slow`.
SLOW = (
    "test_reproduce_all",
    "test_campaign",
    "test_planning",
    "test_every_option",
    "test_kills",
    "test_fuzz",
    "test_fuzz_runs",
    "test_new_domain",
    "test_lookahead",
    "test_full_disk",
)


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.stem in SLOW:
            item.add_marker("slow")
    items.sort(key=lambda item: SLOW.index(item.path.stem) if item.path.stem in SLOW else len(SLOW))


@pytest.fixture(autouse=True)
def promotion(request):
    """Types may be mixed in a test with this marker, which says why. For all threads, hence not a context."""
    if request.node.get_closest_marker("mixes_types"):
        jax.config.update("jax_numpy_dtype_promotion", "standard")
    yield
    jax.config.update("jax_numpy_dtype_promotion", PROMOTION)


@pytest.fixture(scope="session")
def postgres():
    """A PostgreSQL server that all tests of this process share, each with stores of its own."""
    from postgres_helpers import start_server  # most tests need none

    server = start_server()
    yield server
    server.remove()


@pytest.fixture
def key():
    return jax.random.key(0)


MOST_MEMORY, GROWTH = 2**30, 2**28  # bytes of a process beyond which it forgets its compiled programs, and again


@pytest.fixture(autouse=True, scope="module")
def memory_limit():
    """The memory at which a test is followed by forgetting. Programs of one file serve no other."""
    limit = {"bytes": MOST_MEMORY}
    yield limit
    forget_programs()


@pytest.fixture(autouse=True)
def stay_small(memory_limit):
    """Some files compile so many programs that they have to be forgotten in between."""
    yield
    if resident() > memory_limit["bytes"]:
        forget_programs()
        memory_limit["bytes"] = max(MOST_MEMORY, resident() + GROWTH)


def forget_programs():
    """Compiled programs take gigabytes; what is freed goes back to the system, where that can be asked for."""
    jax.clear_caches()
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def resident():
    """Bytes in memory; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    except OSError:
        return 0
