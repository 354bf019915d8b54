"""The demo with its page: its graph, its low watermarks, and a spike that is found. With SCREENSHOTS=1 the docs' pictures are made."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.dashboard.opened import WAIT, Opened
from tests.services.browser import browser

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
SLOW = 180_000.0  # milliseconds


@pytest.mark.spark
def test_the_demo_is_seen_from_its_beginning_to_the_spikes_that_are_found(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "millstream.command.main", "demo", "--at", str(tmp_path / "demo"), "--dashboard"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stderr is not None
    try:
        with browser() as found:
            line = process.stderr.readline()
            while (address := re.search(r"http://\S+", line)) is None:
                line = process.stderr.readline()
                assert line, "the page was not announced"
            seen = Opened(found.new_page(viewport={"width": 1200, "height": 1500}), address.group())
            page = seen.page
            page.locator("#graph .node.computation", has_text="detector").wait_for(timeout=SLOW)
            assert page.locator("#graph .node").count() == 6
            page.locator("#low-watermarks canvas").wait_for(timeout=WAIT)
            first = page.locator("body").get_attribute("data-epoch")
            page.wait_for_function("before => document.body.dataset.epoch !== before", arg=first, timeout=SLOW)
            page.select_option("#stream", "detector.findings", timeout=SLOW)
            page.locator("#records td", has_text="spike").first.wait_for(timeout=SLOW)
            if os.environ.get("SCREENSHOTS"):
                page.screenshot(path=PICTURES / "dashboard.png")
            page.select_option("#stream", "detector.comparisons")
            page.select_option("#shape", "chart")
            page.locator("#values canvas").wait_for(timeout=WAIT)
            page.locator("#summary", has_text="no run is on").wait_for(timeout=SLOW)
            if os.environ.get("SCREENSHOTS"):
                page.locator("#values").screenshot(path=PICTURES / "dashboard-values.png")
            seen.check()
        out, _ = process.communicate("\n", timeout=60)
        assert process.returncode == 0
        assert "Precision 1.00, recall 1.00" in out
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
