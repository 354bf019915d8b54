"""The page of a folder in a real browser."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Page

from tests.services.browser import browser

WAIT = 30_000.0  # milliseconds


@contextmanager
def served(at: Path) -> Iterator[str]:
    """The command, as a user starts it."""
    command = [sys.executable, "-m", "millstream.command.main", "dashboard", str(at), "--port", "0", "--until-stdin-ends"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stdin is not None
    try:
        found = re.search(r"http://\S+", process.stderr.readline())
        assert found is not None
        yield found.group()
    finally:
        process.stdin.close()
        assert process.wait(20) == 0
        process.stderr.close()


class Opened:
    """A page, and all that it asked for and complained of."""

    def __init__(self, page: Page, address: str) -> None:
        self.page, self._address = page, address
        self.said: list[str] = []
        self.hosts: set[str] = set()
        page.on("console", lambda message: self.said.append(message.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))
        page.goto(address)

    def check(self) -> None:
        assert (self.said, self.hosts - {""}) == ([], {urlsplit(self._address).netloc})


@contextmanager
def opened(at: Path) -> Iterator[Opened]:
    with served(at) as address, browser() as found:
        page = Opened(found.new_page(viewport={"width": 1200, "height": 1400}), address)
        yield page
        page.check()
