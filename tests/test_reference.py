"""The reference names everything that users may import: what `sidestep` offers, and what the documents import."""

import re
from pathlib import Path

import pytest

import sidestep

ROOT = Path(__file__).parents[1]
LISTED = set(re.findall(r"^::: sidestep\.[\w.]*?(\w+)$", (ROOT / "docs/reference/api.md").read_text(), re.MULTILINE))
IMPORT = re.compile(r"^from sidestep[\w.]* import ([\w, ]+)", re.MULTILINE)


@pytest.mark.parametrize("name", [name for name in sidestep.__all__ if name != "__version__"])
def test_every_public_name_is_in_the_reference(name):
    assert name in LISTED


def test_what_the_guide_to_own_parts_imports_is_in_the_reference():
    text = (ROOT / "docs/own-parts.md").read_text()
    imported = {name.strip() for names in IMPORT.findall(text) for name in names.split(",")}
    assert len(imported) > 10
    assert imported <= LISTED
