"""The page in a real browser, of a real run: what is seen moves, and nothing of a user's runs in it."""

from __future__ import annotations

import queue
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Page
from pyspark.sql import SparkSession

import millstream as ms
from millstream import aggregate
from millstream.window import Tumbling, Window
from tests.dashboard.made import NOON, SECOND, Made, sampled
from tests.dashboard.opened import WAIT, opened

TRIES = 10
SCRIPT = "<script>document.title='caught'</script>"


@dataclass(frozen=True)
class Click:
    user: str
    at: ms.Timestamp
    price: float


def ask(page: Page, key: str, words: str) -> None:
    """What is kept for a key; again if the run says so, for its lane may be saving what it keeps, on a Java that is cold."""
    page.fill("#kept-key", key)
    for _ in range(TRIES):
        page.click("#peek button")
        page.locator("#kept-told:not(:text('asking'))").wait_for(timeout=WAIT)
        said = page.locator("#kept-told").text_content() or ""
        if "ask again" not in said:
            break
    assert words in said


@pytest.mark.spark
def test_a_run_is_seen_moving_and_what_is_in_it_stays_text(spark: SparkSession, tmp_path: Path) -> None:
    topology = ms.Topology("clicks")
    coming: queue.Queue[Click | None] = queue.Queue()
    clicks = topology.inject(
        "clicks",
        ms.values(iter(coming.get, None), Click),
        key=lambda c: c.user,
        timestamp=lambda c: c.at,
        low_watermark=ms.BoundedDisorder(ms.SECOND),
    )
    means = Window(Click, Tumbling(ms.SECOND), aggregate.mean(lambda click: click.price))
    topology.compute("per second", means).reads(clicks)
    topology.deliver("means", means.results, ms.delta(tmp_path / "means"))
    run = ms.start(topology, at=tmp_path / "mill", spark=spark)
    try:
        for n in range(30):
            coming.put(Click(SCRIPT if n % 2 else "ann", ms.Timestamp(NOON + n * SECOND), float(n)))
        with opened(tmp_path / "mill") as seen:
            page = seen.page
            page.locator("#graph .node.computation", has_text="per second").wait_for(timeout=WAIT)
            assert page.locator("#graph .node").count() == 3
            before = page.locator("body").get_attribute("data-epoch")
            page.locator("#computations tbody tr", has_text="2024-06-01 12:00:28").wait_for(timeout=WAIT)
            page.select_option("#stream", "clicks")
            page.locator("#records td", has_text=SCRIPT).first.wait_for(timeout=WAIT)
            page.locator("#held", has_text="injector 'clicks'").wait_for(timeout=WAIT)
            coming.put(Click("bob", ms.Timestamp(NOON + 90 * SECOND), 5.0))
            page.locator("#computations tbody tr", has_text="2024-06-01 12:01:29").wait_for(timeout=WAIT)
            assert page.locator("body").get_attribute("data-epoch") != before
            ask(page, "bob", 'per second, key "bob": as of epoch')
            page.locator("#kept-timers td", has_text="2024-06-01 12:01:31").wait_for(timeout=WAIT)
            ask(page, SCRIPT, "nothing is kept")
            page.select_option("#stream", "per second.results")
            page.select_option("#shape", "chart")
            page.locator("#values canvas").wait_for(timeout=WAIT)
            page.locator("#values .u-legend", has_text="ann").wait_for(timeout=WAIT)
            assert page.title() == "clicks · Millstream"
    finally:
        coming.put(None)
        run.stop()


def test_a_folder_without_a_run_shows_what_it_is(tmp_path: Path) -> None:
    made = Made(tmp_path / "mill")
    made.epoch(injected=10, at=NOON)
    sampled(made.folder, 300)
    with opened(tmp_path / "mill") as seen:
        seen.page.locator("#summary", has_text="no run is on").wait_for(timeout=WAIT)
        assert seen.page.locator("#graph .node").count() == 6
        seen.page.locator("#rates canvas").wait_for(timeout=WAIT)
        assert seen.page.locator("#problem").is_hidden()


@pytest.mark.parametrize("damaged", [False, True])
def test_one_that_cannot_be_shown_says_why(tmp_path: Path, damaged: bool) -> None:
    if damaged:
        made = Made(tmp_path / "mill")
        [path] = (made.folder.journal / "commits").iterdir()
        path.write_bytes(path.read_bytes()[:-3])
    with opened(tmp_path / "mill") as seen:
        words = "commits/" if damaged else "holds no run of Millstream yet"
        seen.page.locator("#problem", has_text=words).wait_for(timeout=WAIT)
        assert seen.page.locator("main").is_hidden()
