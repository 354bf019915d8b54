"""A browser that is on the machine: Debian's Chromium, or one that CHROMIUM names."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, sync_playwright

# It asks nobody for anything, and draws without a screen.
QUIETLY = ["--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"]


def executable() -> str | None:
    named = os.environ.get("CHROMIUM")
    return named or next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@contextmanager
def browser() -> Iterator[Browser]:
    path = executable()
    if path is None:
        pytest.skip("no Chromium is on this machine: apt install chromium, or name one with CHROMIUM=/path/to/it")
    with sync_playwright() as playwright:
        as_root = ["--no-sandbox"] if os.geteuid() == 0 else []
        found = playwright.chromium.launch(executable_path=path, args=[*QUIETLY, *as_root])
        try:
            yield found
        finally:
            found.close()
