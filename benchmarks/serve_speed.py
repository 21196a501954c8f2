"""How long a person waits at the labelling page: a script answers at human speed, and the campaign goes on behind it.

    python benchmarks/serve_speed.py --labels 300 --seconds 6
    python benchmarks/serve_speed.py --labels 100 --seconds 6 --options "--rounds 2"

The script plays one person on the page's own interface, on this machine alone: it asks for a question, looks at it for
`--seconds`, and answers with label and marks of the model's rule until the server says that they are on disk. A wait is
the time from one answer to the next question beyond a second. The first one, in which everything is imported and
compiled, is reported apart.
"""

import argparse
import json
import os
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import httpx2
import numpy as np

from sidestep.labels.experts import RuleExpert, rule_marks
from sidestep.labels.marks import marks_of
from sidestep.labels.rules import find_rule
from sidestep.labels.store import Store
from sidestep.models import load_model
from sidestep.runtime.files import atomic_write

RESULTS = Path(__file__).parent / "results"
POLL = 0.5  # seconds between two looks for a question
NOTICED = 1.0  # seconds: what is shorter is no wait


@dataclass
class Person:
    """Answers what comes, and notes how long nothing came."""

    client: httpx2.Client
    expert: RuleExpert
    store: Path
    seconds: float  # that they look at a question
    waits: list[tuple[int, float, str]] = field(default_factory=list)  # labels before, seconds, what it was for
    labels: int = 0

    def work(self) -> None:
        """Until all is done."""
        since = time.perf_counter()
        while True:
            found = self.client.get("/api/next").raise_for_status().json()
            if found["done"]:
                self._note(since, "the result")
                return
            if found["campaign"]["state"] == "failed":
                raise SystemExit("the campaign has stopped; see the run's log")
            if found["question"] is None:
                time.sleep(POLL)
                continue
            self._note(since, found["purpose"]["purpose"])
            time.sleep(self.seconds)
            self.client.post("/api/label", json={"answers": [self._answer(found)]}).raise_for_status()
            self.labels += 1
            since = time.perf_counter()

    def _note(self, since: float, purpose: str) -> None:
        waited = time.perf_counter() - since
        if waited > NOTICED:
            self.waits.append((self.labels, round(waited, 1), purpose))
            print(f"{self.labels} labels; waited {waited:.1f} s for {purpose}", flush=True)

    def _answer(self, found: dict) -> dict:
        trajectory = found["question"]["scene"]["trajectory"]
        with Store.open(self.store) as store:
            one = store.get([trajectory])
        assert self.expert.label is not None
        category = int(np.asarray(self.expert.label(one))[0])
        marks = marks_of(rule_marks(self.expert, one)[0].tolist(), self.expert.scale)
        return {"trajectory": trajectory, "category": category, "marks": dict(marks), "comment": ""}


def serve(run: Path, options: argparse.Namespace) -> tuple[subprocess.Popen[str], str]:
    """The page of a new campaign, in a process of its own, and the owner's link."""
    command = [sys.executable, "-m", "sidestep", "plan", options.model, "--people", "--serve", "--quiet"]
    command += ["--labels", str(options.labels), "--seed", str(options.seed), "--out", str(run)]
    process = subprocess.Popen([*command, *shlex.split(options.options)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit("the page did not start")
    return process, line.split()[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="navigation", help="with a rule of its own, which plays the person")
    parser.add_argument("--labels", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=6.0, help="that the person looks at a question")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--options", default="", help="further options of `sidestep plan`")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    rule = find_rule(None, load_model(options.model))
    if rule is None:
        raise SystemExit(f"{options.model} has no rule of its own")
    with tempfile.TemporaryDirectory() as folder:
        run, began, before = Path(folder) / "run", time.perf_counter(), os.getloadavg()[0]
        process, link = serve(run, options)
        try:
            base, _, token = link.rpartition("/in/")
            headers = {"origin": base, "cookie": f"sidestep-{base.rpartition(':')[2]}={token}"}
            with httpx2.Client(base_url=base, headers=headers, timeout=60.0) as client:
                person = Person(client, RuleExpert(rule), run / "labels.store", options.seconds)
                person.work()
        finally:
            process.terminate()
            process.wait()
        seconds = time.perf_counter() - began
        result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    report(options, person, result, seconds, (before, os.getloadavg()[0]))


def _processor_seconds() -> float:
    """Of the processes that were started and have ended: what does not depend on who else uses the machine."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def report(options, person: Person, result: dict, seconds: float, busy: tuple[float, float]) -> None:
    (_, first, _), *later = person.waits
    answering = person.labels * options.seconds
    asked = f"--model {options.model} --labels {options.labels} --seconds {options.seconds:g} --seed {options.seed}"
    found = {
        "command": f"python benchmarks/serve_speed.py {asked} --options '{options.options}'",
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "seed": options.seed,
        "labels that the person gave": person.labels,
        "of these for the audit": result["audit_labels"],
        "certified": all(one["certified"] for one in result["constraints"]),
        "seconds until the first question": first,
        "longest wait after it, seconds": max((wait for _, wait, _ in later), default=0.0),
        "waits after it": [f"{wait} s after {labels} labels, for {what}" for labels, wait, what in later],
        "minutes of answering": round(answering / 60, 1),
        "minutes altogether": round(seconds / 60, 1),
        "processor minutes of page and campaign": round(_processor_seconds() / 60, 1),
        "load average of the machine (two cores)": [round(one, 1) for one in busy],
        "nice level at the end": os.nice(0),  # at 19 it waits for everything else on the machine
    }
    options.out.mkdir(parents=True, exist_ok=True)
    atomic_write(options.out / "serve_speed.json", json.dumps(found, indent=1) + "\n")
    cells = {name: "; ".join(value) if name == "waits after it" else value for name, value in found.items()}
    rows = "".join(f"| {name} | {value} |\n" for name, value in cells.items() if name not in ("command", "date"))
    head = f"# Waiting at the labelling page\n\n`{found['command']}`, {found['date']}\n\n| | |\n|---|---|\n"
    atomic_write(options.out / "serve_speed.md", head + rows)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
