"""The page's server: what it tells of a folder, and whom it tells nothing."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

import millstream as ms
from millstream.core.low_watermark import LowWatermark
from millstream.dashboard.holding import Hold, with_key
from millstream.dashboard.server import POLICY, READERS, application, is_loopback
from millstream.log.reading import StreamReader
from millstream.mill.messages import KeptKey
from tests.dashboard.conftest import client
from tests.dashboard.made import NOON, SECOND, Made


def test_state_follows_the_commits(made: Made) -> None:
    page = client(made.folder.path)
    seen = page.get("/api/state").json()
    assert (seen["problem"], seen["status"]["epoch"], seen["status"]["streams"]["clicks"]["records"]) == ("", 2, 10)
    made.epoch(injected=5, at=NOON + 9 * SECOND)
    seen = page.get("/api/state").json()
    assert (seen["status"]["epoch"], seen["status"]["streams"]["clicks"]["records"]) == (3, 15)
    assert seen["status"]["computations"]["count"]["low_watermark"] == NOON + 9 * SECOND
    assert seen["status"]["running"] is False


def test_the_graph_goes_from_left_to_right_and_knows_its_cycle(made: Made) -> None:
    picture = client(made.folder.path).get("/api/state").json()["picture"]
    column = {node["id"]: node["column"] for node in picture["nodes"]}
    assert column == {
        "injector clicks": 0,
        "injector users": 0,
        "computation count": 1,
        "computation join": 2,
        "computation again": 3,
        "delivery out": 3,
    }
    assert [(edge["stream"], edge["target"]) for edge in picture["edges"] if edge["back"]] == [("again.back", "computation join")]
    assert len(picture["edges"]) == 6
    places = [(node["column"], node["row"]) for node in picture["nodes"]]
    assert len(set(places)) == len(places)


def test_a_line_leaves_room_for_itself_in_the_columns_that_it_passes(made: Made) -> None:
    picture = client(made.folder.path).get("/api/state").json()["picture"]
    [users] = [edge for edge in picture["edges"] if edge["stream"] == "users"]
    [slot] = users["via"]
    assert slot["column"] == 1
    assert slot["row"] not in [node["row"] for node in picture["nodes"] if node["column"] == 1]


def test_streams_that_nobody_reads_are_in_the_graph_too(made: Made) -> None:
    page = client(made.folder.path)
    before = page.get("/api/state").json()["picture"]
    made.records("count.rejected", ("a", 1))
    made.records("dead letters", ("a", 1))
    picture = page.get("/api/state").json()["picture"]
    unread = [(edge["source"], edge["stream"]) for edge in picture["edges"] if edge["target"] is None]
    assert unread == [("computation count", "count.rejected"), ("stream dead letters", "dead letters")]
    assert {node["id"] for node in picture["nodes"]} - {node["id"] for node in before["nodes"]} == {"stream dead letters"}


def test_what_holds_a_computation_back_is_named(made: Made) -> None:
    page = client(made.folder.path)
    made.commit(promises={"users": ms.Timestamp(NOON + 9 * SECOND)})
    made.epoch(injected=2, at=NOON + 5 * SECOND)
    seen = page.get("/api/state").json()
    found = seen["held_back"]
    words = "2024-06-01T12:00:05Z, because partition 'p0' of injector 'clicks' is there"
    assert found["count"] == {"words": words, "by": "injector clicks"}
    assert found["join"] == found["again"] == found["count"], "also round a cycle"
    made.epoch(injected=2, at=NOON + 6 * SECOND, held=NOON + SECOND)
    seen = page.get("/api/state").json()
    words = "2024-06-01T12:00:01Z, because a key of 'count' has a timer or a waiting record there"
    assert seen["held_back"]["join"] == {"words": words, "by": "computation count", "holder": "count"}
    hold = Hold(words, "computation count", "count")
    assert with_key(hold, KeptKey("count", "ann", 1)).words == "2024-06-01T12:00:01Z, because key 'ann' of 'count' has a timer there"
    assert with_key(hold, KeptKey("count", "b", 1, waits=True)).words.endswith("because key 'b' of 'count' has a record that waits there")
    assert seen["furthest"] == "join"
    made.commit(promises={"users": ms.Timestamp(NOON)}, low_watermarks={"join": LowWatermark(ms.Timestamp(NOON), ms.Timestamp(NOON))})
    found = page.get("/api/state").json()["held_back"]
    assert found["join"] == {"words": "2024-06-01T12:00:00Z, because injector 'users' promises no more", "by": "injector users"}


def test_what_is_kept_for_a_key_is_read_where_no_run_is_on(made: Made) -> None:
    """By another process; what that says is said here."""
    found = client(made.folder.path).get("/api/kept?computation=elsewhere&key=a").json()
    assert found == {"problem": "nothing is kept of a computation 'elsewhere'; there is something of 'count'"}


def test_a_record_that_waits_holds_who_is_to_take_it(made: Made) -> None:
    made.epoch(injected=2, at=NOON, waits=True)
    seen = client(made.folder.path).get("/api/state").json()
    words = "2024-06-01T12:00:00Z, because a record of that time waits for 'count'"
    assert seen["held_back"]["count"] == {"words": words, "by": "computation count"}


def test_whoever_is_at_the_end_of_time_is_held_by_nobody(made: Made) -> None:
    end = LowWatermark(ms.END_OF_TIME, ms.END_OF_TIME)
    made.commit(low_watermarks={"count": end, "join": end, "again": end})
    seen = client(made.folder.path).get("/api/state").json()
    assert (seen["held_back"], seen["furthest"]) == ({}, "")


def test_metrics_say_what_the_status_says(made: Made) -> None:
    answer = client(made.folder.path).get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    assert found["millstream_up",] == 1
    assert found["millstream_running",] == 0
    assert found["millstream_epochs_total",] == 2
    assert found["millstream_injected_total", "clicks"] == 10
    assert found["millstream_stream_records_total", "clicks"] == 10
    assert found["millstream_computation_received_total", "count"] == 10
    assert found["millstream_computation_records_total", "count", "applied"] == 9
    assert found["millstream_computation_late_total", "count"] == 1
    assert found["millstream_computation_records_total", "count", "dead"] == 1
    assert found["millstream_computation_produced_total", "count"] == 3
    assert found["millstream_keys", "count"] == 7
    assert found["millstream_timers", "count"] == 2
    assert found["millstream_delivery_behind_epochs", "out"] == 0
    assert found["millstream_low_watermark_lag_seconds", "count"] > 0


def test_sizes_on_the_disk_are_measured_once_a_minute(made: Made) -> None:
    page = client(made.folder.path)

    def files() -> float:
        families = text_string_to_metric_families(page.get("/metrics").text)
        return next(family.samples[0].value for family in families if family.name == "millstream_journal_files")

    before = files()
    assert before == len([path for path in made.folder.journal.rglob("*") if path.is_file()]) > 0
    made.epoch(injected=1, at=NOON)
    assert files() == before


def test_every_metric_is_in_the_guide(made: Made) -> None:
    made.commit(sources={})
    guide = (Path(__file__).parents[2] / "docs" / "guide" / "watching.md").read_text()
    families = list(text_string_to_metric_families(client(made.folder.path).get("/metrics").text))
    missing = [family.name for family in families if f"`{family.name}" not in guide]
    assert (missing, len(families) > 15) == ([], True)


@pytest.mark.parametrize("what", ["nothing", "no run", "damaged", "not json"])
def test_a_folder_that_shows_nothing_says_why(tmp_path: Path, what: str) -> None:
    at = tmp_path / "mill"
    if what != "nothing":
        at.mkdir()
    if what == "damaged":
        made = Made(at)
        [path] = (made.folder.journal / "commits").iterdir()
        path.write_bytes(path.read_bytes()[:-3])
    if what == "not json":
        (at / "topology.json").write_text("{")
    seen = client(at).get("/api/state").json()
    assert seen["status"] is None
    assert str(at) in seen["problem"]
    assert client(at).get("/metrics").text.endswith("millstream_up 0.0\n")


def test_a_folder_that_is_mended_is_shown(tmp_path: Path) -> None:
    page = client(tmp_path / "mill")
    assert page.get("/api/state").json()["status"] is None
    Made(tmp_path / "mill").epoch(injected=1, at=NOON)
    assert page.get("/api/state").json()["status"]["epoch"] == 2


def test_nothing_can_be_loaded_from_elsewhere(made: Made) -> None:
    page = client(made.folder.path)
    for path in ("/", "/assets/page.js", "/api/state", "/metrics", "/nowhere"):
        answer = page.get(path)
        assert answer.headers["content-security-policy"] == POLICY, path
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert "script-src 'self'" in POLICY
    assert page.get("/assets/../server.py").status_code == 404
    assert page.get("/assets/server.py").status_code == 404


def test_another_name_for_this_machine_is_refused(made: Made) -> None:
    """Or a page of another site could ask under a name of its own that leads here."""
    stranger = TestClient(application(made.folder.path), base_url="http://evil.example:8270")
    assert stranger.get("/api/state").status_code == 403
    assert "clicks" not in stranger.get("/api/state").text


@pytest.mark.parametrize("path", ["/api/state", "/api/history", "/api/events", "/api/records?stream=clicks", "/metrics"])
@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_pages_of_other_sites_cannot_make_it_read(made: Made, path: str, site: str) -> None:
    page = client(made.folder.path)
    assert page.get(path, headers={"sec-fetch-site": site}).status_code == 403
    assert page.get("/", headers={"sec-fetch-site": site}).status_code == 200, "a link may lead here"


@pytest.mark.parametrize("site", ["same-origin", "none"])
def test_the_page_itself_can(made: Made, site: str) -> None:
    assert client(made.folder.path).get("/api/state", headers={"sec-fetch-site": site}).status_code == 200


def test_few_read_records_at_once(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    made.records("count.counts", ("a", 1))
    lock, under_way, most = threading.Lock(), 0, 0
    newest = StreamReader.newest

    def counted(*args: object, **settings: object) -> object:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        try:
            return newest(*args, **settings)  # type: ignore[arg-type]
        finally:
            with lock:
                under_way -= 1

    async def ask_all() -> list[int]:
        transport = httpx2.ASGITransport(application(made.folder.path))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as page:
            answers = await asyncio.gather(*(page.get(f"/api/records?stream=count.counts&last={n}") for n in range(1, 20)))
            return [answer.status_code for answer in answers]

    monkeypatch.setattr(StreamReader, "newest", counted)
    assert asyncio.run(ask_all()) == [200] * 19
    assert 1 <= most <= READERS


def test_it_is_read_only(made: Made) -> None:
    page = client(made.folder.path)
    before = sorted(str(path) for path in made.folder.path.rglob("*"))
    for path in ("/", "/api/state", "/api/history", "/api/records?stream=clicks", "/metrics"):
        page.get(path)
        assert page.post(path).status_code == 405
    assert sorted(str(path) for path in made.folder.path.rglob("*")) == before


class TestToken:
    def test_another_address_needs_one(self, made: Made) -> None:
        with pytest.raises(ms.TopologyError, match=r"others can reach this address; give a token"):
            application(made.folder.path, host="0.0.0.0")

    def test_whoever_does_not_know_it_sees_nothing(self, made: Made) -> None:
        page = TestClient(application(made.folder.path, host="0.0.0.0", token="right"), base_url="http://mill.example")
        for path in ("/", "/api/state", "/metrics", "/?token=wrong", "/api/state?token=right"):
            answer = page.get(path)
            assert answer.status_code == 401, path
            assert "clicks" not in answer.text
        assert page.get("/metrics", headers={"authorization": "Bearer wrong"}).status_code == 401

    def test_whoever_knows_it_sees_all(self, made: Made) -> None:
        page = TestClient(application(made.folder.path, host="0.0.0.0", token="right"), base_url="http://mill.example")
        assert page.get("/metrics", headers={"authorization": "Bearer right"}).status_code == 200
        answer = page.get("/?token=right", follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        assert "httponly" in answer.headers["set-cookie"].lower()
        assert page.get("/api/state").json()["status"]["epoch"] == 2


@pytest.mark.parametrize(
    ("host", "local"), [("localhost", True), ("127.0.0.1", True), ("::1", True), ("10.0.0.1", False), ("x.org", False)]
)
def test_what_is_this_machine(host: str, local: bool) -> None:
    assert is_loopback(host) is local
