"""A real Spark cluster on this machine: a master and its workers, each a process, all on loopback."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pyspark

from tests.waiting import wait_until

SPARK = Path(pyspark.__file__).parent
LOOPBACK = "127.0.0.1"
ENVIRONMENT = {**os.environ, "SPARK_HOME": str(SPARK), "SPARK_LOCAL_IP": LOOPBACK, "PYSPARK_PYTHON": sys.executable}


@contextmanager
def cluster(base: Path, *, workers: int) -> Iterator[str]:
    """The address of a master with so many workers of two cores; all are gone afterwards."""
    port = _free_port()
    url = f"spark://{LOOPBACK}:{port}"
    processes = [_start(base / "master.log", "master.Master", "--host", LOOPBACK, "--port", str(port), "--webui-port", "0")]
    try:
        wait_until(lambda: "New state: ALIVE" in (base / "master.log").read_text(), 60)
        for number in range(workers):
            options = [
                "--host",
                LOOPBACK,
                "--cores",
                "2",
                "--memory",
                "2g",
                "--webui-port",
                "0",
                "--work-dir",
                f"{base}/work-{number}",
                url,
            ]
            processes.append(_start(base / f"worker-{number}.log", "worker.Worker", *options))
        wait_until(lambda: (base / "master.log").read_text().count("Registering worker") == workers, 60)
        yield url
    finally:
        for process in processes:
            for member in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    member.kill()
            process.wait()


def submit(
    url: str, program: Path, *arguments: str, log: Path, settings: dict[str, str], environment: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """As a user does it, with a program that the workers have never seen."""
    usual = {
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        "spark.ui.enabled": "false",
        "spark.executor.memory": "1g",
        "spark.executor.cores": "2",
        "spark.task.maxFailures": "20",  # a lost executor counts against a lane's batch, which is long
    }
    options = [word for name, value in {**usual, **settings}.items() for word in ("--conf", f"{name}={value}")]
    with log.open("ab") as words:
        command = [str(SPARK / "bin" / "spark-submit"), "--master", url, *options, str(program), *arguments]
        return subprocess.Popen(command, cwd=program.parent, env={**ENVIRONMENT, **(environment or {})}, stdout=words, stderr=words)


def executors(base: Path) -> list[Path]:
    """The folders of all executors that there have been."""
    return sorted(base.glob("work-*/app-*/*"))


def live_executors(base: Path) -> list[psutil.Process]:
    """Those that run now."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            if "CoarseGrainedExecutorBackend" in " ".join(process.cmdline()) and process.cwd().startswith(str(base)):
                found.append(process)
    return found


def _start(log: Path, name: str, *arguments: str) -> subprocess.Popen[bytes]:
    with log.open("ab") as words:
        command = [str(SPARK / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
        return subprocess.Popen(command, env=ENVIRONMENT, stdout=words, stderr=words)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])
