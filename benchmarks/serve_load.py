"""The labelling page under load, on this machine alone: 50 annotators, 5,000 labels, and the server is killed twice.

    python benchmarks/serve_load.py

Every annotator asks for a question, looks at it for some seconds, and sends a label until the server says that it is on
disk; two people answer each question, and the owner has the overview open. Beside it, for each core that may be used,
a process that does nothing but use it keeps the machine busy (`--busy 0` for none). At a third and at two thirds of
the labels the server is killed (SIGKILL) and started again; who cannot reach it tries again after the pauses of the
page (`sendAll` in static/api.js). Afterwards every acknowledged label must be in the store once. Times are those of
answered requests, as an annotator sees them; requests while the server is down count as retries.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx2
import numpy as np

from sidestep.core.model import Space, Spec, Trajectory, Variable
from sidestep.labels.store import Store
from sidestep.runtime.files import atomic_write

RESULTS = Path(__file__).parent / "results"
STEPS = 60
SPEC = Spec("plane", Space((Variable("place", size=2, labels=("x", "y")),)), Space((Variable("move", size=2),)), STEPS)
DOWN = (httpx2.TransportError,)
OVERLAP = 2
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 8.0  # seconds before the page tries again
OVERVIEW = 5.0  # seconds between two looks of the owner's page


def make_store(path: Path, count: int) -> None:
    rng = np.random.default_rng(0)
    moves = rng.normal(size=(count, STEPS, 2)).astype(np.float32)
    lengths = np.full(count, STEPS, np.int32)
    with Store.create(path, SPEC) as store:
        store.add(Trajectory(np.cumsum(moves, axis=1), moves, moves[..., 0], lengths), policy="random walk")


class Server:
    """The page in a process of its own, which can be killed."""

    def __init__(self, store: Path, names: list[str]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        options = ["--port", str(self.port), "--annotators", ",".join(names), "--checks", "0", "--quiet"]
        options += ["--overlap", str(OVERLAP)]
        self.command = [sys.executable, "-m", "sidestep", "serve", str(store), *options]
        self.base = f"http://127.0.0.1:{self.port}"

    def start(self) -> dict[str, str]:
        """The links that it prints, by name."""
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        links = {}
        for _ in range(1 + len(self.command[self.command.index("--annotators") + 1].split(","))):
            who, _, link = self.process.stdout.readline().strip().partition(": ")
            links[who.removeprefix("for ")] = link
        return links

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def busy_cores(count: int) -> Iterator[None]:
    """So many processes at the usual priority that never rest."""
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


class Load:
    def __init__(self, server: Server, labels: int, pause: float) -> None:
        self.server, self.labels, self.pause = server, labels, pause
        self.acknowledged: list[tuple[str, int, int]] = []
        self.seconds: list[float] = []
        self.retries = 0

    async def owner(self, link: str) -> None:
        async with self.client(link) as client:
            while len(self.acknowledged) < self.labels:
                await self.ask(client, "GET", "/api/overview")
                await asyncio.sleep(OVERVIEW)

    def client(self, link: str) -> httpx2.AsyncClient:
        headers = {"origin": self.server.base, "cookie": f"sidestep-{self.server.port}={link.rpartition('/')[2]}"}
        # Reading the machine's certificates for each of 50 clients would take seconds; nothing here is encrypted.
        return httpx2.AsyncClient(base_url=self.server.base, headers=headers, timeout=60.0, verify=False)

    async def annotator(self, name: str, link: str) -> None:
        rng = random.Random(name)
        async with self.client(link) as client:
            await asyncio.sleep(rng.uniform(0, self.pause))
            while len(self.acknowledged) < self.labels:
                found = await self.ask(client, "GET", "/api/next")
                if found["question"] is None:
                    if found["done"]:
                        return
                    await asyncio.sleep(0.5)
                    continue
                trajectory, category = found["question"]["scene"]["trajectory"], rng.randrange(3)
                await asyncio.sleep(rng.uniform(0.5, 1.5) * self.pause)
                body = {"answers": [{"trajectory": trajectory, "category": category}]}
                reply = await self.ask(client, "POST", "/api/label", body)
                assert reply["saved"][0]["category"] == category
                self.acknowledged.append((name, trajectory, category))

    async def ask(self, client: httpx2.AsyncClient, method: str, path: str, body: object = None) -> dict:
        """Ask until there is an answer, as the page does."""
        pause = FIRST_PAUSE
        while True:
            began = time.perf_counter()
            try:
                answer = await client.request(method, path, json=body)
            except DOWN:
                self.retries += 1
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(1.6 * pause, LONGEST_PAUSE)
                continue
            self.seconds.append(time.perf_counter() - began)
            assert answer.status_code == 200, answer.text
            return answer.json()

    async def killer(self, kills: int) -> None:
        for number in range(1, kills + 1):
            while len(self.acknowledged) < self.labels * number / (kills + 1):
                await asyncio.sleep(0.05)
            self.server.kill()
            await asyncio.get_running_loop().run_in_executor(None, self.server.start)

    async def run(self, links: dict[str, str], kills: int) -> None:
        people = [self.annotator(name, link) for name, link in links.items() if name.startswith("p")]
        await asyncio.gather(self.killer(kills), self.owner(links["your own page"]), *people)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--people", type=int, default=50)
    parser.add_argument("--labels", type=int, default=5000)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--pause", type=float, default=3.0, help="mean seconds that somebody looks at a trajectory")
    parser.add_argument("--busy", type=int, default=len(os.sched_getaffinity(0)), help="processes that never rest")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, busy_cores(options.busy):
        store = Path(folder) / "load.store"
        make_store(store, options.labels)  # twice as many questions as are answered, by two people each
        server = Server(store, [f"p{number}" for number in range(options.people)])
        links = server.start()
        load, began, before = Load(server, options.labels, options.pause), time.perf_counter(), os.getloadavg()[0]
        try:
            asyncio.run(load.run(links, options.kills))
        finally:
            with contextlib.suppress(ProcessLookupError):
                server.kill()
        seconds = time.perf_counter() - began
        with Store.open(store) as opened:
            log = Counter((label.annotator, label.trajectory, label.category) for label in opened.log())
            faults = opened.verify().faults
    report(options, load, log, faults, seconds, (before, os.getloadavg()[0]))


def report(options, load: Load, log: Counter, faults: tuple, seconds: float, busy: tuple[float, float]) -> None:
    lost = [one for one in load.acknowledged if not log[one]]
    doubled = [one for one, count in log.items() if count > 1]
    times = np.sort(np.array(load.seconds)) * 1000
    quantiles = [round(float(np.percentile(times, share)), 1) for share in (50, 95, 99, 100)]
    asked = f"--people {options.people} --labels {options.labels} --pause {options.pause:g} --busy {options.busy}"
    found = {
        "command": f"python benchmarks/serve_load.py {asked}",
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "people": options.people,
        "people who answer each question": OVERLAP,
        "kills": options.kills,
        "acknowledged labels": len(load.acknowledged),
        "labels in the store": sum(log.values()),
        "acknowledged and lost": len(lost),
        "doubled": len(doubled),
        "faults of the store": len(faults),
        "requests": len(times),
        "retries while the server was down": load.retries,
        "milliseconds": dict(zip(("50 %", "95 %", "99 %", "longest"), quantiles, strict=True)),
        "seconds": round(seconds, 1),
        "cores for server, annotators and busy processes": len(os.sched_getaffinity(0)),
        "busy processes beside them": options.busy,
        "load average of the machine": [round(one, 1) for one in busy],
        "nice level at the end": os.nice(0),  # at 19 it waits for everything else on the machine
    }
    options.out.mkdir(parents=True, exist_ok=True)
    atomic_write(options.out / "serve_load.json", json.dumps(found, indent=1) + "\n")
    rows = "".join(f"| {name} | {value} |\n" for name, value in found.items() if name not in ("command", "date"))
    head = f"# The labelling page under load\n\n`{found['command']}`, {found['date']}\n\n| | |\n|---|---|\n"
    atomic_write(options.out / "serve_load.md", head + rows)
    print(json.dumps(found, indent=1))
    assert not lost
    assert not doubled
    assert not faults


if __name__ == "__main__":
    main()
