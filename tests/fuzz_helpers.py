"""Odd inputs by the thousand: each follows from a seed, a kind and a number, so that one that fails can be had again.

SIDESTEP_FUZZ is the number of inputs of all kinds together (each kind has its share of them), SIDESTEP_FUZZ_SEED the
seed, SIDESTEP_FUZZ_COUNTS a file to which every kind appends what became of its inputs. `make fuzz` sets all three.
"""

import contextlib
import io
import json
import os
import random
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from sidestep.cli.main import main
from sidestep.core.errors import InputError

TOTAL = int(os.environ.get("SIDESTEP_FUZZ", "3000"))
SEED = int(os.environ.get("SIDESTEP_FUZZ_SEED", "19"))
SHOWN = 5  # failures that are spelled out

ODD_TEXTS = (
    *("", " ", "\t", "\n", "\0", "'", '"', "\\", "/", "..", ".", "~", "-", "--", "%s", "{0}", "[/b]", "[bold]", "=1+1"),
    *(
        "nan",
        "inf",
        "-inf",
        "1e999",
        "1e-999",
        "0x10",
        "1_000",
        "-1",
        "0",
        "9" * 5000,
        str(2**31),
        str(2**63),
        str(2**70),
    ),
    *(
        "ä",
        "日本",
        "\u202e",
        "\udcff",
        "\ufeff",
        "\x1b[31m",
        "x" * 300,
        "x" * 5000,
        "null",
        "None",
        "true",
        "<",
        "?",
        "&",
        ":",
    ),
)


def fuzz(kind: str, per_thousand: int, act: Callable[[random.Random], Any]) -> None:
    """Try this kind's share of all inputs: `act` makes one from the random numbers given and uses it.

    It may return an exit status from 0 to 3 or whatever else it likes, or refuse by an InputError, and nothing else.
    """
    count = max(TOTAL * per_thousand // 1000, 1)
    outcomes: Counter[str] = Counter()
    failures = []
    for number in range(count):
        try:
            outcomes[_outcome(act(random.Random(f"{SEED} {kind} {number}")))] += 1
        except InputError as error:
            outcomes["refused in one sentence"] += 1
            if "\n" in str(error):
                failures.append(f"input {number}: more than one line: {error}")
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and not error.args:
                raise
            outcomes["traceback"] += 1
            failures.append(f"input {number}: {''.join(traceback.format_exception(error)[-12:])}")
    record(kind, outcomes)
    if failures:
        pytest.fail(f"{len(failures)} of {count}, seed {SEED}:\n" + "\n".join(failures[:SHOWN]), pytrace=False)


def record(kind: str, outcomes: Counter[str]) -> None:
    """Print what became of a kind's inputs, and keep it for `benchmarks/fuzz.py`."""
    count = sum(outcomes.values())
    print(f"fuzz: {kind}: seed {SEED}, {count} inputs: {dict(outcomes)}")
    if "SIDESTEP_FUZZ_COUNTS" in os.environ:
        with open(os.environ["SIDESTEP_FUZZ_COUNTS"], "a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": kind, "seed": SEED, "inputs": count, "outcomes": outcomes}) + "\n")


def _outcome(result: Any) -> str:
    if isinstance(result, bool) or not isinstance(result, int):
        return "accepted"
    assert result in (0, 1, 2, 3), f"exit status {result}"
    return f"exit status {result}"


def command(*arguments: str) -> int:
    """The exit status of a command, known to have said what is wrong in one line where it is 2."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            status = main(list(arguments))
        except SystemExit as stop:  # --help
            status = int(stop.code or 0)
    said = errors.getvalue()
    if status == 2 and "bad" not in out.getvalue():  # `check` prints a table of what it found
        last = [line for line in said.split("\n") if line][-1:]
        assert last, f"no sentence: {arguments}"
        assert last[0].startswith("sidestep: "), f"{arguments}: {said}"
    assert "Traceback" not in said, said
    return status


def mutated(text: str, dice: random.Random, pieces: tuple[str, ...] = ODD_TEXTS, most: int = 3) -> str:
    """`text` after a few cuts, doublings, swaps and insertions."""
    for _ in range(dice.randint(0, most)):
        a, b = sorted(dice.randint(0, len(text)) for _ in range(2))
        b = min(b, a + dice.choice((1, 2, 5, 20, 200)))
        text = dice.choice(
            (
                text[:a] + text[b:],
                text[:a] + text[a:b] * 2 + text[b:],
                text[:a] + dice.choice(pieces) + text[b:],
                text[:a] + dice.choice(pieces) + text[a:],
                text[:a],
                text[:a] + chr(dice.choice((dice.randint(32, 126), dice.randint(0, 0x2FFF)))) + text[b:],
            )
        )
    return text


def flipped(data: bytes, dice: random.Random, most: int = 8) -> bytes:
    """`data` with bits flipped, bytes overwritten, cut short or made longer."""
    changed = bytearray(data)
    for _ in range(dice.randint(1, most)):
        if not changed:
            return bytes(dice.randint(0, 255) for _ in range(dice.randint(0, 50)))
        where = dice.randrange(len(changed))
        way = dice.random()
        if way < 0.5:
            changed[where] ^= 1 << dice.randrange(8)
        elif way < 0.7:
            changed[where] = dice.choice((0, 1, 127, 128, 255))
        elif way < 0.8:
            size = dice.choice((4, 16, 100))
            changed[where : where + size] = bytes(dice.randint(0, 255) for _ in range(size))
        elif way < 0.9:
            del changed[where : where + dice.choice((1, 10, 1000, len(changed)))]
        else:
            changed[where:where] = changed[: dice.choice((1, 100))]
    return bytes(changed)
