"""Damaged and made-up files of a run: every command ends with an exit status and one sentence, whatever it finds.

The files are those of runs that the product wrote; each input changes one of them (see `fuzz_helpers`).
"""

import json
import os
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from fuzz_helpers import command, fuzz
from run_helpers import write_plan, write_run

ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 3, 10**9, 10**18, 2**63, 10**30, 0.5, -0.5, 1e308, float("nan"), float("inf"), "", "x",
    "none", "../../x", "\0", "\x1b[31m", "é" * 300, [], [[]], {}, [1, "x"], {"file": 1}, [None], ["none", "none"],
)  # fmt: skip
EDGES = (b"", b"\0", b"\xff\xfe", b"[" * 3000, b"{}", b"[]", b"null", b"7", b'{"a": 1, "a": 2}', b"\xef\xbb\xbf{}")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder with two finished runs: a campaign and a plan."""
    folder = tmp_path_factory.mktemp("fuzz")
    write_run(folder)
    write_plan(folder)
    return folder


def changed(chance: random.Random, value: Any) -> Any:
    """A JSON value with one place of it changed."""
    if isinstance(value, dict | list) and value and chance.random() < 0.85:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = chance.choice(keys)
        copy = dict(value) if isinstance(value, dict) else list(value)
        kind = chance.random()
        if kind < 0.12:
            del copy[key]
        elif kind < 0.2 and isinstance(copy, list):
            copy.insert(key, value[key])
        elif kind < 0.2:
            copy[str(chance.choice(ODD))] = value[key]
        else:
            copy[key] = changed(chance, value[key])
        return copy
    if isinstance(value, str) and value and chance.random() < 0.3:
        place = chance.randrange(len(value))
        return value[:place] + chance.choice(["", "/", ":", "?", "\0", "é", "..", "%s", "{}"]) + value[place + 1 :]
    if isinstance(value, int | float) and not isinstance(value, bool) and chance.random() < 0.3:
        return chance.choice([-value, value + 1, value * 1e9, float(value), str(value)])
    return chance.choice(ODD)


def damaged(chance: random.Random, content: bytes) -> bytes:
    """Bytes of a file as a bad disk or a bad hand leaves them."""
    kind = chance.random()
    if kind < 0.2:
        return chance.choice(EDGES)
    if kind < 0.5:
        return content[: chance.randrange(len(content) + 1)]
    if kind < 0.6:
        return content + content[: chance.randrange(len(content) + 1)]
    changes = bytearray(content)
    for _ in range(chance.choice([1, 1, 3, 30])):
        if changes:
            changes[chance.randrange(len(changes))] = chance.randrange(256)
    return bytes(changes)


def in_json(chance: random.Random, content: bytes) -> bytes:
    if chance.random() < 0.2:
        return damaged(chance, content)
    return json.dumps(changed(chance, json.loads(content))).encode()


def in_lines(chance: random.Random, content: bytes) -> bytes:
    if chance.random() < 0.2:
        return damaged(chance, content)
    lines = content.decode().splitlines()
    place = chance.randrange(len(lines))
    kind = chance.random()
    if kind < 0.1:
        del lines[place]
    elif kind < 0.2:
        lines.insert(place, lines[place])
    else:
        lines[place] = json.dumps(changed(chance, json.loads(lines[place])))
    return "".join(line + "\n" for line in lines).encode()


def in_safetensors(chance: random.Random, content: bytes) -> bytes:
    """The format's own header, our header inside it, or the numbers."""
    kind = chance.random()
    if kind < 0.15:
        return damaged(chance, content)
    (size,) = struct.unpack("<Q", content[:8])
    header, numbers = json.loads(content[8 : 8 + size]), content[8 + size :]
    if kind < 0.25:
        return struct.pack("<Q", chance.choice([0, 1, size + 1, 2**31, 2**63])) + content[8:]
    if kind < 0.35:
        return content[: 8 + size] + b"\xff\xff\xff\x7f" * (len(numbers) // 4)  # every float is not a number
    if kind < 0.5:
        header = changed(chance, header)
    else:
        ours = json.loads(header["__metadata__"]["sidestep"])
        header["__metadata__"]["sidestep"] = json.dumps(changed(chance, ours))
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + numbers


def strange(chance: random.Random, file: Path) -> None:
    """Something else in the place of a file."""
    file.unlink()
    kind = chance.choice(["gone", "folder", "pipe", "loop", "nowhere"])
    if kind == "folder":
        file.mkdir()
    if kind == "pipe":
        os.mkfifo(file)
    if kind == "loop":
        file.symlink_to(file)
    if kind == "nowhere":
        file.symlink_to(file.parent / "nowhere")


Change = Callable[[random.Random, bytes], bytes]
EXPORT, REPORT = ["export", "RUN", "OUT"], ["report", "RUN"]
CERTIFY, RESUME = ["certify", "RUN", "--rollouts", "100"], ["resume", "RUN", "--quiet"]
DRAWN = ("scenes.safetensors", "policy.safetensors", "before.safetensors", "safety.safetensors", "labels.store")


class Case(NamedTuple):
    """Which file of which run is changed how, which commands meet it, and how many in a thousand inputs are such."""

    run: str
    file: str
    change: Change
    commands: list[list[str]]
    per_thousand: int
    left_out: tuple[str, ...] = ()  # of a report, to save time


CASES = {
    "config": Case("run", "config.json", in_json, [EXPORT, EXPORT, EXPORT, EXPORT, CERTIFY, RESUME], 15),
    "table": Case("run", "policy.safetensors", in_safetensors, [EXPORT, EXPORT, EXPORT, CERTIFY], 18),
    "share": Case("run", "safety.safetensors", in_safetensors, [EXPORT], 18),
    "scenes": Case("run", "scenes.safetensors", in_safetensors, [REPORT], 3, DRAWN[3:]),
    "result": Case("run", "result.json", in_json, [CERTIFY, REPORT], 3, DRAWN),
    "audits": Case("run", "audits.json", in_json, [CERTIFY, RESUME, REPORT], 4, DRAWN),
    "rounds": Case("run", "rounds.jsonl", in_lines, [REPORT], 3, DRAWN),
    "metrics": Case("run", "metrics.jsonl", in_lines, [REPORT], 3, DRAWN),
    "state": Case("run", "state.safetensors", in_safetensors, [RESUME], 3),
    "network": Case("plan", "policy.safetensors", in_safetensors, [EXPORT], 8),
    "hazard": Case("plan", "safety.safetensors", in_safetensors, [EXPORT], 8),
    "learner": Case("plan", "state.safetensors", in_safetensors, [RESUME], 1),
    "tests": Case("plan", "metrics.jsonl", in_lines, [RESUME], 1),
}


def try_one(case: Case, chance: random.Random, written: Path, folder: Path) -> int:
    words = chance.choice(case.commands)
    run = folder / "run"
    shutil.copytree(written / case.run, run)
    file = run / case.file
    if chance.random() < 0.06:
        strange(chance, file)
    else:
        file.write_bytes(case.change(chance, file.read_bytes()))
    for other in case.left_out if words == REPORT else ():
        (run / other).unlink(missing_ok=True)
    try:
        return command(*({"RUN": str(run), "OUT": str(folder / "policy.py")}.get(word, word) for word in words))
    finally:
        shutil.rmtree(run)


@pytest.mark.parametrize("name", CASES)
def test_files_of_a_run(name, written, tmp_path):
    case = CASES[name]
    fuzz(f"{case.file} of a {case.run}", case.per_thousand, lambda chance: try_one(case, chance, written, tmp_path))
