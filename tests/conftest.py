"""Strictness for every test: no silent broadcasting, no warnings (see pyproject), deterministic hypothesis."""

import os
from pathlib import Path

# Programs that several tests and processes compile are compiled once; set before JAX is imported.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "compiled"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.5")

import jax
import pytest
from hypothesis import settings

jax.config.update("jax_numpy_rank_promotion", "raise")

settings.register_profile("sidestep", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("sidestep")


@pytest.fixture
def key():
    return jax.random.key(0)
