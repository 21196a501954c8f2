"""A team's store under trouble: writers on a PostgreSQL server that is restarted under way.

    python benchmarks/team_store.py [--writers 8] [--labels 1000] [--restarts 3]

Each writer is a process that appends its labels one by one. Meanwhile the server is stopped as by a power cut and begun
again. At the end every label must be there, once, in the order in which its writer gave it. Writes team_store.json and
team_store.md. It starts a server of its own from PostgreSQL's programs, as the tests do.
"""

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from growth import walks
from runner import parser, results

from sidestep.cluster.jobs import Figures, Job
from sidestep.labels.store import Store
from sidestep.reproduce.tables import heading, write_table

TESTS = Path(__file__).parents[1] / "tests"
TRAJECTORIES = 200
WRITER = """
import sys
from sidestep.labels.store import Store
url, annotator, labels = sys.argv[1], sys.argv[2], int(sys.argv[3])
with Store.open(url) as store:
    trajectories = len(store)
    print("ready", flush=True)
    for label in range(labels):
        store.label([label % trajectories + 1], [label % 3], annotator)
        print(label, flush=True)
"""


@dataclass(frozen=True)
class Trouble:
    writers: int
    labels: int
    restarts: int

    def run(self, out: Path) -> Figures:
        sys.path.append(str(TESTS))
        from postgres_helpers import start_server  # the tests' server

        server = start_server()
        try:
            return self._on(server)
        finally:
            server.remove()

    def _on(self, server) -> Figures:
        spec, trajectories = walks(TRAJECTORIES, 5)
        with Store.create(server.url, spec) as store:
            store.add(trajectories, policy="random")
            begun = time.perf_counter()
            command = [sys.executable, "-c", WRITER, server.url]
            children = [
                subprocess.Popen([*command, f"writer {i}", str(self.labels)], stdout=subprocess.PIPE, text=True)
                for i in range(self.writers)
            ]
            self._restart_under_way(children[0], server)
            ended = [child.wait() for child in children]
            seconds = time.perf_counter() - begun
            log = store.log()
        return self._judged(ended, log) | {"seconds": seconds}

    def _restart_under_way(self, first: subprocess.Popen, server) -> None:
        assert first.stdout is not None
        first.stdout.readline()
        for _ in range(self.restarts):
            for _ in range(self.labels // (self.restarts + 1)):
                first.stdout.readline()
            server.restart()
        for _ in first.stdout:
            pass

    def _judged(self, ended: list[int], log: list) -> Figures:
        """How many labels are missing, how many are there more than once, and who is out of order."""
        missing = doubled = disordered = 0
        expected = [label % TRAJECTORIES + 1 for label in range(self.labels)]
        for writer in range(self.writers):
            mine = [one.trajectory for one in log if one.annotator == f"writer {writer}"]
            counts, wanted = np.bincount(mine, minlength=TRAJECTORIES + 1), np.bincount(expected)
            missing += int(np.maximum(wanted - counts, 0).sum())
            doubled += int(np.maximum(counts - wanted, 0).sum())
            disordered += mine != expected
        return {
            "writers": self.writers,
            "labels each": self.labels,
            "restarts": self.restarts,
            "writers that failed": sum(status != 0 for status in ended),
            "labels in the store": len(log),
            "missing": missing,
            "doubled": doubled,
            "writers out of order": disordered,
        }


def main() -> None:
    made = parser(__doc__, "team_store")
    made.add_argument("--writers", type=int, default=8)
    made.add_argument("--labels", type=int, default=1000)
    made.add_argument("--restarts", type=int, default=3)
    options = made.parse_args()
    task = Trouble(options.writers, options.labels, options.restarts)
    rows = results([Job("trouble", task)], options)
    write_table(options.out, "team_store", rows, heading("A team's store on a server that is restarted", [0]))


if __name__ == "__main__":
    main()
