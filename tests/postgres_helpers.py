"""A PostgreSQL server of its own, from PostgreSQL's own programs, in a temporary folder."""

import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest

USER = "postgres"  # the server refuses to run as root


class PostgresServer:
    def __init__(self, programs: Path) -> None:
        self.programs = programs
        self.folder = Path(tempfile.mkdtemp(prefix="sidestep-postgres-"))
        if os.getuid() == 0:
            shutil.chown(self.folder, USER)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.run("initdb", "-D", "data", "-U", "tester", "-A", "trust", "-E", "UTF8", "--no-sync", "--no-locale")
        self.start()

    @property
    def url(self) -> str:
        return f"postgresql://tester@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        options = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1 -c max_connections=40"
        self.run("pg_ctl", "-D", "data", "-w", "-l", "log.txt", "-o", options, "start")

    def restart(self) -> None:
        """As a power cut would: connections are dropped, whatever they do."""
        self.stop()
        self.start()

    def stop(self) -> None:
        self.run("pg_ctl", "-D", "data", "-w", "-m", "immediate", "stop")

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, program: str, *arguments: str) -> None:
        command = [str(self.programs / program), *arguments]
        if os.getuid() == 0:
            command = ["runuser", "-u", USER, "--", *command]
        # A server that is started keeps its output open, so that nobody may wait for its end.
        subprocess.run(command, cwd=self.folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def start_server() -> PostgresServer:
    """Skips the test, with the reason, where there is no server to start."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    found = shutil.which("initdb")
    folders = [Path(found).parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not folders:
        pytest.skip("PostgreSQL's programs (initdb, pg_ctl) are not installed")
    if os.getuid() == 0 and subprocess.run(["id", USER], capture_output=True).returncode:
        pytest.skip(f"PostgreSQL does not run as root, and there is no user '{USER}'")
    return PostgresServer(folders[-1])
