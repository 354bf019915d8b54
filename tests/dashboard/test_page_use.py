"""The page as it is used: by the keyboard, over a day, and with what is hard to show."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.dashboard.made import NOON, SECOND, Made, letter, sampled_day
from tests.dashboard.opened import WAIT, opened
from tests.dashboard.test_watching import unreadable_samples

TRACEBACK = 'ValueError: no\nTraceback (most recent call last):\n  File "shop.py", line 12, in process_record\n    raise ValueError("no")'
LARGE = "12345678901234567890"


@pytest.fixture
def mill(tmp_path: Path) -> Made:
    made = Made(tmp_path / "mill")
    made.epoch(injected=10, at=NOON)
    made.records("count.counts", ("a", b'{"id":%s}' % LARGE.encode()), ("", b'"nobody"'), at=NOON)
    made.records("dead letters", ("a", letter("count", reason=TRACEBACK)), ("b", letter("join", reason="another")), at=NOON)
    return made


def since(page: Page, chart: str) -> float:
    """The first moment that a chart shows, in seconds."""
    page.locator(f"#{chart} canvas").wait_for(timeout=WAIT)
    found: float = page.evaluate("(id) => charts.get(id).chart.data[0][0]", chart)
    return found


def test_a_day_is_shown_and_its_length_is_chosen_by_the_keyboard(tmp_path: Path) -> None:
    made = Made(tmp_path / "mill")
    made.epoch(injected=10, at=NOON)
    end = sampled_day(made.folder, streams=[f"stream number {n}" for n in range(20)]) / SECOND
    with opened(tmp_path / "mill") as seen:
        begun = time.monotonic()
        seen.page.reload()
        assert end - 900 <= since(seen.page, "rates") <= end - 800
        assert time.monotonic() - begun < 20  # a generous bound: it takes about a second
        seen.page.get_by_label("15 minutes").focus()
        for hours, oldest in ((6, 6), (48, 24)):
            with seen.page.expect_response(lambda answer: "/api/history" in answer.url):
                seen.page.keyboard.press("ArrowRight")
            seen.page.wait_for_function(
                "(before) => charts.get('rates').chart.data[0][0] < before", arg=end - (oldest - 1) * 3600, timeout=WAIT
            )
            for chart in ("rates", "low-watermarks", "epochs", "lost"):
                assert end - oldest * 3600 <= since(seen.page, chart) <= end - oldest * 3600 + 600, f"{chart} of {hours} hours"


def test_history_that_cannot_be_read_is_said_and_the_rest_is_shown(mill: Made) -> None:
    unreadable_samples(mill.folder)
    with opened(mill.folder.path) as seen:
        seen.page.locator("#time-told", has_text="cannot be shown").wait_for(timeout=WAIT)
        seen.page.locator("#summary", has_text="no run is on").wait_for(timeout=WAIT)
        assert seen.page.locator("#graph .node").count() == 7


def test_an_answer_that_is_no_answer_is_said(mill: Made) -> None:
    with opened(mill.folder.path) as seen:
        seen.page.route("**/api/records*", lambda route: route.fulfill(status=200, json={"problem": "the disk is gone"}))
        seen.page.select_option("#stream", "clicks")
        seen.page.locator("#told", has_text="the disk is gone").wait_for(timeout=WAIT)
        seen.page.evaluate("window.fetch = async () => new Response('never\\n', { status: 500 })")
        seen.page.select_option("#stream", "users")
        seen.page.locator("#told", has_text="the dashboard answers 500: never").wait_for(timeout=WAIT)


def test_a_moment_after_2243_is_one(tmp_path: Path) -> None:
    Made(tmp_path).epoch(injected=1, at=10_413_792_000 * SECOND)
    with opened(tmp_path) as seen:
        seen.page.locator("#computations tr", has_text="2300-01-01 00:00:00").first.wait_for(timeout=WAIT)


def test_values_are_shown_as_they_were_written(mill: Made) -> None:
    with opened(mill.folder.path) as seen:
        page = seen.page
        page.locator("#records pre", has_text=LARGE).wait_for(timeout=WAIT)
        page.check("#only")
        page.locator("#told", has_text='1 newest record of key ""; 2 were searched, all there are').wait_for(timeout=WAIT)
        assert page.locator("#records pre").all_inner_texts() == ["nobody"]
        page.fill("#key", "a")
        page.press("#key", "Enter")
        page.locator("#told", has_text='1 newest record of key "a"').wait_for(timeout=WAIT)


def test_a_count_leads_to_the_dead_letters_of_its_computation(mill: Made) -> None:
    with opened(mill.folder.path) as seen:
        page = seen.page
        page.get_by_role("button", name="1: show these dead letters").first.press("Enter")
        page.locator("#told", has_text="1 newest record of computation count").wait_for(timeout=WAIT)
        [reason, _] = page.locator("#records pre").all_inner_texts()
        assert reason == TRACEBACK
        page.get_by_role("button", name="1: show when they came").click()
        expect(page.locator("#of")).to_have_value("count")


def test_streams_of_the_graph_are_read_out_and_opened_by_the_keyboard(mill: Made) -> None:
    with opened(mill.folder.path) as seen, mill.running():
        page = seen.page
        clicks = page.get_by_role("button", name="stream clicks: 0/s, 10 in all; show its records")
        clicks.wait_for(timeout=WAIT)
        assert clicks.locator("text").all_text_contents() == ["clicks", "10 in all"]
        page.get_by_role("button", name="stream dead letters").press("Enter")
        expect(page.locator("#stream")).to_have_value("dead letters")
        held = page.get_by_role("img", name="injector clicks").and_(page.locator(".holds"))
        held.wait_for(timeout=WAIT)
        assert str(held.get_attribute("aria-label")).endswith("holds the low watermark back")
        assert page.get_by_role("img", name="computation count, 10 received, 7 keys, 2 timers").is_visible()


@pytest.mark.parametrize("what", ["#graph .port", "#computations button", "#records pre[tabindex]"])
def test_what_has_the_focus_keeps_it(mill: Made, what: str) -> None:
    mill.records("count.counts", ("long", {f"field {n}": n for n in range(30)}))
    with mill.running(), opened(mill.folder.path) as seen:
        page = seen.page
        focused = page.locator(what).first
        focused.wait_for(timeout=WAIT)
        focused.focus()
        page.evaluate("window.focused = document.activeElement")
        mill.epoch(injected=5, at=NOON + SECOND)
        mill.records("count.counts", ("new", 1), at=NOON + SECOND)
        page.locator("#computations td", has_text="15").first.wait_for(timeout=WAIT)
        page.locator("#records td", has_text="new").first.wait_for(timeout=WAIT)
        assert page.evaluate("document.activeElement === window.focused && window.focused !== document.body")


NEVER_ANSWERED = """() => {
  window.questions = [];
  window.fetch = (url, { signal }) => new Promise((_, reject) => {
    questions.push(url.split("stream=")[1]);
    signal.addEventListener("abort", () => { questions.push("given up"); reject(new DOMException("", "AbortError")); });
  });
}"""


def test_one_question_is_under_way_at_a_time(mill: Made) -> None:
    with opened(mill.folder.path) as seen:
        seen.page.locator("#records pre").first.wait_for(timeout=WAIT)
        seen.page.evaluate(NEVER_ANSWERED)
        seen.page.evaluate("look(true); look(true); look(true); null")
        seen.page.select_option("#stream", "clicks")
        seen.page.evaluate("look(true); null")
        assert seen.page.evaluate("questions") == ["count.counts&last=50", "given up", "clicks&last=50"]


def test_a_run_that_is_begun_anew_takes_the_place_of_the_old_one(mill: Made) -> None:
    sampled_day(mill.folder, streams=["clicks"])
    with opened(mill.folder.path) as seen:
        assert since(seen.page, "rates") > NOON / SECOND
        shutil.rmtree(mill.folder.path)
        seen.page.locator("#problem", has_text="holds no run of Millstream yet").wait_for(timeout=WAIT)
        later = NOON + 1_000_000 * SECOND
        sampled_day(Made(mill.folder.path, id="e" * 32, topology="other").folder, streams=["clicks"], first=later)
        seen.page.locator("h1", has_text="other").wait_for(timeout=WAIT)
        seen.page.wait_for_function("(later) => charts.get('rates').chart.data[0][0] > later", arg=later / SECOND, timeout=WAIT)
        assert seen.page.locator("#problem").is_hidden()


def test_low_watermarks_at_the_ends_of_time_are_named(mill: Made) -> None:
    with opened(mill.folder.path) as seen:
        seen.page.locator("#ends tr", has_text="users").locator("td", has_text="beginning of time").wait_for(timeout=WAIT)
        assert seen.page.evaluate("[moment(2 ** 63), moment(-(2 ** 63))]") == ["end of time", "beginning of time"]
