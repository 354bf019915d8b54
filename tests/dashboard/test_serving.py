"""The server as a process: when its address is told, how it ends, and what it does not say."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit

import pytest

from millstream.command.beside import beside
from millstream.dashboard.server import serve
from tests.dashboard.made import Made

TIMEOUT = 60.0


class Told(Exception):
    """The address is told."""


def test_whoever_is_told_the_address_can_connect(made: Made) -> None:
    def ready(address: str) -> None:
        parts = urlsplit(address)
        assert parts.hostname is not None
        socket.create_connection((parts.hostname, parts.port or 0), TIMEOUT).close()
        raise Told

    with pytest.raises(Told):
        serve(made.folder.path, host="127.0.0.1", port=0, token=None, ready=ready)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_while_a_page_is_open(made: Made, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "millstream.command.main", "dashboard", str(made.folder.path), "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        found = re.search(r"http://\S+", process.stderr.readline())
        assert found is not None
        with urllib.request.urlopen(found.group() + "api/events", timeout=TIMEOUT) as stream:
            assert stream.readline().startswith(b"data: ")
            process.send_signal(number)
            process.wait(TIMEOUT)  # raises if it does not end
        assert "Traceback" not in process.stderr.read()
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_a_token_is_not_printed_beside_a_run(made: Made, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("MILLSTREAM_TOKEN", "hush")
    said = ""
    with beside(made.folder.path):
        end = time.monotonic() + TIMEOUT
        while (found := re.search(r"http://\S+", said)) is None and time.monotonic() < end:
            time.sleep(0.05)
            said += capfd.readouterr().err
        assert found is not None
        address = found.group()
        with pytest.raises(HTTPError, match="401"):
            urllib.request.urlopen(address + "api/state", timeout=TIMEOUT)
        request = urllib.request.Request(address + "api/state", headers={"Authorization": "Bearer hush"})
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            assert answer.status == 200
    assert "hush" not in said + capfd.readouterr().err


def test_a_port_that_is_taken_is_named(made: Made, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "millstream.command.main", "dashboard", str(tmp_path), "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.returncode == 1
    assert f"nothing can be served at 127.0.0.1:{port}" in done.stderr
