"""Thousands of odd inputs of every kind, each of which must end well or in one sentence: counts in results/fuzz.md.

python benchmarks/fuzz.py [--inputs 10000] [--seed 19]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "benchmarks" / "results" / "fuzz.md"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000, help="of all kinds together, at least")
    parser.add_argument(
        "--seed", type=int, default=19, help="every input follows from it, from its kind and its number"
    )
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}, {arguments.inputs:,} inputs", flush=True)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        counts = Path(folder) / "counts.jsonl"
        environment = os.environ | {
            "SIDESTEP_FUZZ": str(arguments.inputs),
            "SIDESTEP_FUZZ_SEED": str(arguments.seed),
            "SIDESTEP_FUZZ_COUNTS": str(counts),
        }
        tests = sorted(str(path) for path in (ROOT / "tests").glob("test_fuzz*.py"))
        status = subprocess.run([sys.executable, "-m", "pytest", "-n", "0", "-s", *tests], cwd=ROOT, env=environment)
        rows = [json.loads(line) for line in counts.read_text(encoding="utf-8").splitlines()]
    TARGET.write_text(report(rows, arguments.seed, arguments.inputs, time.perf_counter() - began), encoding="utf-8")
    print(f"the counts are in {TARGET}")
    return status.returncode


def report(rows: list[dict], seed: int, asked: int, seconds: float) -> str:
    total = sum((Counter(row["outcomes"]) for row in rows), Counter())
    lines = [
        "# Odd inputs of every kind",
        "",
        f"`make fuzz` (`python benchmarks/fuzz.py --inputs {asked} --seed {seed}`), "
        f"{datetime.now(UTC).date().isoformat()}, "
        f"{seconds:.0f} s: {sum(row['inputs'] for row in rows):,} inputs, **tracebacks: {total['traceback']}**.",
        "",
        "Refused: one sentence and exit status 2, or an InputError from Python. Accepted: the change did no harm, or "
        "the input was a good one all the same.",
        "",
        "| kind | inputs | accepted | refused | tracebacks |",
        "|---|---:|---:|---:|---:|",
    ]
    for row in rows:
        found = row["outcomes"]
        refused = found.get("refused in one sentence", 0) + found.get("exit status 2", 0)
        accepted = row["inputs"] - refused - found.get("traceback", 0)
        lines.append(
            f"| {row['kind']} | {row['inputs']:,} | {accepted:,} | {refused:,} | {found.get('traceback', 0)} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
