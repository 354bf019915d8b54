"""The page of a run in a process of its own: what it does, the run does not feel."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from millstream.errors import MillstreamError

NEEDED = ("starlette", "uvicorn", "prometheus_client")
LAST_WORD = 5.0  # seconds


def has_dashboard() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in NEEDED)


def need_dashboard() -> None:
    if not has_dashboard():
        raise MillstreamError("the dashboard is an extra that is not installed: pip install 'millstream[dashboard]'")


@contextmanager
def beside(at: str | Path) -> Iterator[None]:
    """Serve the page of a folder at any free port, and say where, until the end. It ends with this process, however that ends."""
    need_dashboard()
    paths = os.pathsep.join(dict.fromkeys(entry or os.getcwd() for entry in sys.path))
    command = [sys.executable, "-P", "-m", "millstream.command.main", "dashboard", str(at), "--port", "0", "--until-stdin-ends"]
    page = subprocess.Popen(command, stdin=subprocess.PIPE, env={**os.environ, "PYTHONPATH": paths})
    assert page.stdin is not None
    try:
        yield
    finally:
        page.stdin.close()
        try:
            page.wait(LAST_WORD)
        except subprocess.TimeoutExpired:
            page.kill()
            page.wait()
