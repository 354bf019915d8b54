"""An address as a target: a real server on loopback that answers as it is told."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.targets import connection, webhook
from millstream.testing import TargetContract
from tests.targets.fakes import TIMEOUT, FakeJournal, delivery
from tests.targets.test_kafka import context, record


class Server:
    """Keeps what it is sent; answers with what is left in `answers`, and then with 204."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.answers: list[int | None] = []  # None: the connection is cut after the request was taken
        self.away = False  # the connection is cut before it
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if outer.away:
                    self.close_connection = True
                    return
                status = outer.answers.pop(0) if outer.answers else 204
                if status is None or 200 <= status < 300:
                    outer.got.append(body)
                    outer.headers.append(dict(self.headers))
                if status is None:
                    self.close_connection = True
                    return
                content = b"" if status == 204 else b"because"
                self.send_response(status)
                self.send_header("Retry-After", "0")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None:
                """Nobody reads it."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/alerts?team=a"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    with closing(Server()) as server:
        yield server


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(connection, "LONGEST_PAUSE", 0.01)


class TestContract(TargetContract):
    @pytest.fixture(autouse=True)
    def begin(self, server: Server) -> None:
        self.server = server

    def make(self) -> ms.Target:
        return ms.webhook(self.server.url)

    def stored(self) -> list[tuple[str, Any]]:
        return [(body["key"], body["value"]) for body in self.server.got]

    def bad_value(self) -> int:
        self.server.answers = [204, 400]  # to this one, which is the second
        return -1

    def cut_off(self) -> None:
        self.server.away = True

    def reconnect(self) -> None:
        self.server.away = False


def deliver(target: ms.Target, journal: FakeJournal, at: Path, epochs: int) -> Any:
    thread = delivery(journal, target, at)
    for epoch in range(1, epochs + 1):
        journal.commit(epoch)
    thread.start()
    thread.notify(epochs, journal.places(epochs))
    thread.stop(epochs, TIMEOUT)
    return thread


def test_what_is_posted(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "hush")
    target = ms.webhook(server.url, headers={"Authorization": ms.secret(env="TOKEN")})
    with closing(target.open(context())) as sink:
        sink.write(ms.Step(0, 0, 1), [record("a", 1)])
    [body], [headers] = server.got, server.headers
    assert body == {"id": body["id"], "stream": context().stream, "key": "a", "timestamp": body["timestamp"], "value": 1}
    assert (headers["Idempotency-Key"], headers["Authorization"], headers["Content-Type"]) == (body["id"], "hush", "application/json")
    assert "hush" not in repr(target) + target.describe()


def test_two_deliveries_may_share_one(server: Server) -> None:
    """Steps of both may be equal; each has its own records."""
    target, step = ms.webhook(server.url), ms.Step(0, 0, 1)
    with closing(target.open(context())) as first, closing(target.open(replace(context(), delivery="other", identity="other"))) as second:
        first.write(step, [record("a", 1), record("a", 2)])
        second.write(step, [record("b", 3), record("b", 4), record("b", 5)])
    assert [body["value"] for body in server.got] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("answer", [408, 425, 429, 500, 503])
def test_one_that_may_answer_otherwise_later_is_asked_again(server: Server, tmp_path: Path, answer: int) -> None:
    server.answers = [answer, answer, answer]
    thread = deliver(ms.webhook(server.url), FakeJournal(), tmp_path, 3)
    assert (thread.error, server.answers) == (None, [])
    assert [body["value"] for body in server.got] == [1, 2, 3]


def test_after_an_interruption_only_what_was_not_answered_is_posted_again(server: Server, tmp_path: Path) -> None:
    server.answers = [204, None]
    thread = deliver(ms.webhook(server.url), FakeJournal(), tmp_path, 3)
    assert thread.error is None
    assert [body["value"] for body in server.got] == [1, 2, 2, 3]
    assert len({body["id"] for body in server.got}) == 3


@pytest.mark.parametrize("answer", [301, 400, 404, 422])
def test_what_is_refused_for_good_is_set_aside_with_its_reason(server: Server, tmp_path: Path, answer: int) -> None:
    aside = tmp_path / "refused.jsonl"
    server.answers = [204, answer]
    thread = deliver(ms.webhook(server.url, refused=aside), FakeJournal(), tmp_path / "at", 3)
    assert thread.error is None
    assert [body["value"] for body in server.got] == [1, 3]
    [line] = map(json.loads, aside.read_text().splitlines())
    assert line["record"]["value"] == 2
    assert line["reason"].startswith(f"{answer} ")
    assert line["reason"].endswith(": because")


def test_without_such_a_file_it_ends_the_run(server: Server, tmp_path: Path) -> None:
    server.answers = [204, 400]
    thread = deliver(ms.webhook(server.url), FakeJournal(), tmp_path, 3)
    assert "refuses record" in str(thread.error)
    assert "webhook(..., refused='refused.jsonl')" in str(thread.error)
    assert [body["value"] for body in server.got] == [1]


def test_a_server_that_is_not_there_is_waited_for(tmp_path: Path) -> None:
    gone = Server()
    gone.close()
    sink = ms.webhook(gone.url).open(context())
    with pytest.raises(ms.Unreachable, match="ConnectionRefusedError"):
        sink.write(ms.Step(0, 0, 1), [record("a", 1)])


def test_one_that_asks_for_a_while_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(webhook.time, "sleep", slept.append)
    for header in ("3", "100000", "Wed, 21 Oct 2026 07:28:00 GMT", None):
        webhook._wait_as_asked(header)
    assert slept == [3.0, webhook.LONGEST_ASKED]


PATH = "/services/T00/B00/hush"


@pytest.mark.parametrize(
    ("url", "settings", "words"),
    [
        ("example.org/x", {}, "give a whole address, such as https://example.org/alerts"),
        (7, {}, "int is not an address"),
        ("https://", {}, "give a whole address"),
        ("https://[::1", {}, "give a whole address"),
        ("https://me:word@example.org/", {}, "leave the password out of the address"),
        (f"https://example.org{PATH} x", {}, "write a space as %20"),
        (f"https://example.org{PATH}\nx", {}, "a space or a line break"),
        (f"https://example.org:http{PATH}", {}, "the port in the address is not a number"),
        (f"https://example.org:70000{PATH}", {}, "the port in the address is not a number"),
        (f"https://example.org{PATH}/ä", {}, "not ASCII; write them as urllib.parse.quote does"),
        (f"https://example.org{PATH}?a=ä", {}, "not ASCII"),
        (f"https://example..org{PATH}", {}, "not a name that there can be"),
        ("https://example.org/", {"headers": {"X": 1}}, r"give texts, or ms.secret"),
        ("https://example.org/", {"headers": {"X": "hush\nY: 1"}}, "there is a line break in the value"),
        ("https://example.org/", {"headers": {"X": "hush€"}}, "a letter that no header can have"),
        ("https://example.org/", {"headers": {"X Y": "1"}}, "not the name of a header"),
        ("https://example.org/", {"headers": {"Content-length": "1"}}, "it follows from the body"),
        ("https://example.org/", {"headers": {"X": "1", "x": "2"}}, "a header is there twice"),
        ("https://example.org/", {"timeout": 3}, "timeout"),
        ("https://example.org/", {"refused": 3}, "webhook"),
    ],
)
def test_what_cannot_be_is_refused_at_once(url: Any, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ms.TopologyError, match=words) as refusal:
        ms.webhook(url, **settings)
    assert "hush" not in str(refusal.value)


def test_who_sees_where_it_is_cannot_post_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAT", f"https://hooks.example.org{PATH}")
    target = ms.webhook(f"https://hooks.example.org:8443{PATH}?key=hush", headers={"Authorization": "hush"})
    assert target.describe() == "webhook https://hooks.example.org:8443"
    assert "hush" not in repr(target)
    secret = ms.webhook(ms.secret(env="CHAT"))
    assert secret.describe() == "webhook at the address in the environment variable CHAT"
    assert "hush" not in repr(secret)


def test_an_address_that_is_a_secret_is_read_when_it_is_used(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    target = ms.webhook(ms.secret(env="CHAT"))
    with pytest.raises(ms.TopologyError, match="CHAT is not set"):
        target.check(context())
    monkeypatch.setenv("CHAT", server.url)
    target.check(context())
    with closing(target.open(context())) as sink:
        sink.write(ms.Step(0, 0, 1), [record("a", 1)])
    assert [body["value"] for body in server.got] == [1]


@pytest.mark.parametrize(
    "made", [lambda: ms.webhook(ms.secret(env="BAD")), lambda: ms.webhook("https://x.org", headers={"X": ms.secret(env="BAD")})]
)
def test_a_secret_that_cannot_be_is_refused_before_the_run(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAD", f"https://hooks.example.org{PATH}\nx")
    for use in (made().check, made().open):
        with pytest.raises(ms.TopologyError, match="line break") as refusal:
            use(context())
        assert "hush" not in str(refusal.value)


def test_a_header_of_the_user_takes_the_place_of_the_usual_one(server: Server) -> None:
    with closing(ms.webhook(server.url, headers={"content-type": "application/cloudevents+json"}).open(context())) as sink:
        sink.write(ms.Step(0, 0, 1), [record("a", 1)])
    [headers] = server.headers
    assert {name.lower(): value for name, value in headers.items()}["content-type"] == "application/cloudevents+json"
    assert sum(name.lower() == "content-type" for name in headers) == 1
