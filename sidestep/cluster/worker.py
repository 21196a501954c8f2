"""What a worker does with a job: unpack what it reads, do it, and pack what it wrote. One job at a time."""

import tempfile
import threading
from importlib import import_module
from pathlib import Path

from sidestep.cluster.jobs import Figures, Job, Jobs, telling
from sidestep.core.errors import DiskFull, InputError
from sidestep.core.records import from_json

ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"
TOPIC = "sidestep"  # under which workers tell of their progress
_one_at_a_time = threading.Lock()  # where a worker has several threads
_group = ""  # of the last job, whose compiled programs are still there


def do_job(
    name: str, kind: str, settings: Figures, files: dict[str, bytes], about: tuple[str, str, str]
) -> tuple[str, dict[str, bytes]]:
    """The worker's address, and the job's files. `about`: the command, the job's address, and its group."""
    from distributed import get_worker  # the extra is optional

    worker = get_worker()
    command, address, group = about
    with _one_at_a_time, tempfile.TemporaryDirectory(prefix="sidestep-") as folder:
        _begin_group(group or name)
        module, _, kept = kind.partition(":")
        job = Job(name, from_json(getattr(import_module(module), kept), settings, name))
        jobs = Jobs(Path(folder), command)
        jobs.take(files)
        with telling(lambda text: worker.log_event(TOPIC, (name, f"[{worker.address}] {text}"))):
            try:
                jobs.do(job, address)
            except DiskFull as full:
                raise InputError(f"on the worker {worker.address}: {full}") from None
        return worker.address, jobs.outputs(job)


def _begin_group(group: str) -> None:
    """Compiled programs of one group serve no other, and together take gigabytes."""
    global _group
    if _group and group != _group:
        import jax  # a worker that never ran a job should not load it

        jax.clear_caches()
    _group = group
