"""Dask carries jobs to its workers: processes on this machine, or wherever the user's own scheduler has them.

A job travels as data: the name of its task's class, its fields, and the content of the files that it reads. Its files
come back the same way, so that workers need no common disk. A worker that dies costs the job that it had: Dask gives it
to another one, which begins it anew from the same data.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sidestep.cluster.jobs import Job, Jobs, Say, ready
from sidestep.cluster.worker import ONE_THREAD, TOPIC, do_job
from sidestep.core.errors import InputError, LabelsNeeded
from sidestep.core.records import to_json

if TYPE_CHECKING:
    from distributed import Client, Future

LOCAL = "local"
PATIENCE = "15s"  # for a scheduler to answer
TRIES = 3  # workers that a job may lose before it is taken to be at fault


class Cluster:
    """An open cluster."""

    def __init__(self, client: "Client") -> None:
        self.client = client

    @property
    def workers(self) -> int:
        return len(self.client.scheduler_info(n_workers=-1)["workers"])

    def run(
        self, jobs: Jobs, every: Sequence[Job], waiting: list[list[Job]], addresses: Mapping[str, str], say: Say
    ) -> None:
        """Do the waiting groups. The jobs of a group follow each other, on the same worker unless it has died."""
        from distributed import as_completed  # the extra is optional

        by_name = {job.name: job for job in every}
        rest: dict[Future, list[Job]] = {}
        going = as_completed()

        def submit(group: list[Job], workers: list[str] | None = None) -> None:
            job = group[0]
            future = self.client.submit(
                do_job,
                job.name,
                job.kind,
                to_json(job.task),
                jobs.inputs(job, by_name),
                (jobs.command, addresses[job.name], job.group),
                key=f"sidestep-{job.name}-{addresses[job.name][:16]}",
                workers=workers,
                allow_other_workers=workers is not None,
            )
            rest[future] = group
            going.add(future)

        def fill() -> None:
            for group in ready(waiting, [*waiting, *rest.values()]):
                waiting.remove(group)
                submit(group)

        def heard(event: tuple[float, tuple[str, str]]) -> None:
            _, (name, text) = event
            jobs.tell(name, text, say)

        self.client.subscribe_topic(TOPIC, heard)
        try:
            fill()
            for future in going:
                group = rest.pop(future)
                worker, files = _result(future, group[0])
                future.release()
                jobs.take(files)
                say(f"done: {group[0].name}")
                if group[1:]:
                    submit(group[1:], [worker])
                fill()
            assert not waiting, "jobs need one another in a circle"
        finally:
            self.client.cancel(list(rest))
            self.client.unsubscribe_topic(TOPIC)


def _result(future: "Future", job: Job) -> tuple[str, dict[str, bytes]]:
    """What the job found. Its failure is ours: bad input in one sentence, anything else with its traceback."""
    from distributed.scheduler import KilledWorker  # the extra is optional

    try:
        return future.result()
    except KilledWorker as error:
        raise InputError(
            f"{TRIES} workers died of it, most likely for lack of memory; give the workers more, or ask for less",
            place=f"job {job.name}",
        ) from error
    except (InputError, LabelsNeeded):
        raise
    except Exception as error:
        raise RuntimeError(f"the job {job.name} failed: {error}") from error


@contextmanager
def open_cluster(where: str | None, workers: int | None = None) -> Iterator[Cluster | None]:
    """`local`: processes on this machine, one per core or `workers` of them; else the address of a scheduler.

    None without either, or with one worker: then the jobs are done in this process.
    """
    if where is None and (workers is None or workers == 1):
        yield None
        return
    if where not in (None, LOCAL) and workers is not None:
        raise InputError(f"the cluster at {where} has workers of its own; leave --workers out", place="--workers")
    try:
        import dask
        from distributed import Client, LocalCluster
    except ImportError:
        raise InputError(
            "needs Dask, which is not installed; install it with: pip install 'sidestep[cluster]'",
            place="--cluster",
        ) from None
    with dask.config.set({"distributed.scheduler.allowed-failures": TRIES - 1}):
        if where in (None, LOCAL):
            with (
                LocalCluster(
                    n_workers=workers or os.cpu_count(),
                    threads_per_worker=1,
                    dashboard_address=None,
                    memory_limit=None,
                    env={"XLA_FLAGS": one_thread_flags()},
                ) as local,
                Client(local) as client,
            ):
                yield Cluster(client)
            return
        assert where is not None
        try:
            client = Client(where, timeout=PATIENCE)
        except (OSError, TimeoutError, ValueError) as error:
            raise InputError(
                f"no Dask scheduler answers at '{where}' ({error}); write local, or an address such as "
                "tcp://host:8786 where one runs",
                place="--cluster",
            ) from None
        with client:
            yield Cluster(client)


def one_thread_flags() -> str:
    """Workers share the cores by jobs, not by threads."""
    return f"{os.environ.get('XLA_FLAGS', '')} {ONE_THREAD}".strip()
