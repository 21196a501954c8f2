"""Thousands of odd inputs of every kind, each of which must end well or in one sentence: counts in results/fuzz.md.

python benchmarks/fuzz.py [--inputs 10000] [--seed 19]
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from runner import parser, results

from sidestep.cluster.jobs import Figures, Job
from sidestep.reproduce.tables import heading, write_table

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Fuzz:
    """The tests of odd inputs, with so many of them; every input follows from the seed, its kind and its number."""

    inputs: int
    seed: int

    def run(self, out: Path) -> Figures:
        counts = (out / "counts.jsonl").resolve()
        counts.unlink(missing_ok=True)
        given = {"SIDESTEP_FUZZ": self.inputs, "SIDESTEP_FUZZ_SEED": self.seed, "SIDESTEP_FUZZ_COUNTS": counts}
        environment = os.environ | {name: str(value) for name, value in given.items()}
        tests = sorted(str(path) for path in (ROOT / "tests").glob("test_fuzz*.py"))
        done = subprocess.run([sys.executable, "-m", "pytest", "-n", "0", "-s", *tests], cwd=ROOT, env=environment)
        rows = [json.loads(line) for line in counts.read_text(encoding="utf-8").splitlines()]
        return {"status": done.returncode, "rows": [shown(row) for row in rows]}


def shown(row: Figures) -> Figures:
    found = row["outcomes"]
    refused = found.get("refused in one sentence", 0) + found.get("exit status 2", 0)
    tracebacks = found.get("traceback", 0)
    accepted = row["inputs"] - refused - tracebacks
    counts = {"inputs": row["inputs"], "accepted": accepted, "refused": refused, "tracebacks": tracebacks}
    return {"kind": row["kind"], **counts}


def main() -> int:
    made = parser(__doc__, "fuzz")
    made.add_argument("--inputs", type=int, default=10_000, help="of all kinds together, at least")
    made.add_argument("--seed", type=int, default=19)
    options = made.parse_args()
    (found,) = results([Job("fuzz", Fuzz(options.inputs, options.seed))], options)
    rows = found["rows"]
    about = heading("Odd inputs of every kind", [options.seed]) | {
        "inputs": f"{sum(row['inputs'] for row in rows):,}",
        "tracebacks": sum(row["tracebacks"] for row in rows),
        "refused": "one sentence and exit status 2, or an InputError from Python",
        "accepted": "the change did no harm, or the input was a good one all the same",
    }
    write_table(options.out, "fuzz", rows, about, shown=rows)
    return found["status"]


if __name__ == "__main__":
    sys.exit(main())
