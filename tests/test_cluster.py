"""Jobs on a cluster: the same results as in this process, whoever dies; and one sentence for what cannot be."""

import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from sidestep.cli.main import main
from sidestep.cluster.engine import open_cluster
from sidestep.cluster.jobs import LOG, Figures, Job, Jobs
from sidestep.core.errors import InputError

pytestmark = pytest.mark.filterwarnings("default")  # Dask warns of what happens here on purpose


@dataclass(frozen=True)
class Square:
    """Notes every time that it is begun, in a folder that all workers of this machine see; kills its worker `deaths`
    times."""

    number: int
    begun: str
    deaths: int = 0

    def run(self, out: Path) -> Figures:
        notes = Path(self.begun) / str(self.number)
        with notes.open("a") as file:
            file.write("x")
        if notes.stat().st_size <= self.deaths:
            os.kill(os.getpid(), signal.SIGKILL)
        LOG.info("squaring %d", self.number)
        (out / f"{self.number}.txt").write_text(str(self.number**2))
        return {"square": self.number**2, "files": [f"{self.number}.txt"]}


@dataclass(frozen=True)
class Total:
    """Adds up what other jobs wrote, and a number from a file of the user's."""

    numbers: tuple[int, ...]

    def run(self, out: Path) -> Figures:
        written = [int((out / f"{number}.txt").read_text()) for number in self.numbers]
        return {"total": sum(written) + int((out / "given.txt").read_text())}


def jobs_of(folder, deaths=0):
    (folder / "begun").mkdir(parents=True)
    (folder / "given.txt").write_text("100")
    squares = [Job(f"square-{n}", Square(n, str(folder / "begun"), deaths if n == 1 else 0)) for n in range(4)]
    total = Job("total", Total((0, 1, 2, 3)), needs=tuple(job.name for job in squares), reads=("given.txt",))
    return [*squares, total]


def test_a_worker_that_dies_costs_its_own_job_only(tmp_path):
    there, here = Jobs(tmp_path / "there"), Jobs(tmp_path / "here")
    jobs, said = jobs_of(there.out, deaths=1), []
    with open_cluster("local", 2) as cluster:
        assert cluster.workers == 2
        there.run(jobs, said.append, cluster)
    begun = {file.name: file.stat().st_size for file in (there.out / "begun").iterdir()}
    assert begun == {"0": 1, "1": 2, "2": 1, "3": 1}
    alone = jobs_of(here.out)
    here.run(alone, said.append)
    assert [there.result(job) for job in jobs] == [here.result(job) for job in alone]
    assert there.result(jobs[-1]) == {"total": 0 + 1 + 4 + 9 + 100}
    assert there.log.read_text().count("squaring") == here.log.read_text().count("squaring") == 4
    there.run(jobs, said.append)
    assert said[-1] == "0 jobs to do, 5 found done"


def test_a_job_that_kills_every_worker_is_named(tmp_path):
    jobs = jobs_of(tmp_path, deaths=100)[1:2]
    with open_cluster("local", 1) as cluster, pytest.raises(InputError, match="job square-1: 3 workers died of it"):
        Jobs(tmp_path).run(jobs, lambda text: None, cluster)


def test_the_address_of_a_job_follows_from_its_task_and_from_all_that_it_reads(tmp_path):
    runner, jobs = Jobs(tmp_path), jobs_of(tmp_path)
    runner.run(jobs, lambda text: None)
    first = runner.addresses(jobs)
    (tmp_path / "given.txt").write_text("200")
    assert {name for name, address in runner.addresses(jobs).items() if address != first[name]} == {"total"}
    runner.run(jobs, lambda text: None)
    assert runner.result(jobs[-1])["total"] == 214
    other = [Job("square-0", Square(0, str(tmp_path / "begun"), deaths=0), reads=("given.txt",)), *jobs[1:]]
    changed = {name for name, address in runner.addresses(other).items() if address != runner.addresses(jobs)[name]}
    assert changed == {"square-0", "total"}
    assert json.loads(runner.file("total").read_text())["address"] == runner.addresses(jobs)["total"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--cluster", "tcp://127.0.0.1:9"], "no Dask scheduler answers at 'tcp://127.0.0.1:9'"),
        (["--cluster", "nonsense"], "no Dask scheduler answers at 'nonsense'"),
        (["--cluster", "tcp://127.0.0.1:9", "--workers", "2"], "has workers of its own; leave --workers out"),
    ],
)
def test_a_cluster_that_is_not_there_is_told_in_a_sentence(options, sentence, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sidestep.cluster.engine.PATIENCE", "1s")
    assert main(["reproduce", "table1", "--quick", "--out", str(tmp_path), *options, "--quiet"]) == 2
    assert sentence in capsys.readouterr().err


def test_without_dask_the_command_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match=r"pip install 'sidestep\[cluster\]'"), open_cluster("local"):
        pass
