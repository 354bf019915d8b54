"""A secret of a run is nowhere that the run writes: not in its folder, its logs, its messages, its status or on its page."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from starlette.testclient import TestClient

import millstream as ms
from millstream.dashboard.server import application
from tests.services.postgres import PostgresServer
from tests.spark.clicks import Count, click, inject
from tests.waiting import wait_until

pytestmark = pytest.mark.spark

CANARY = "canary-7f3a91c2"


class Posted(BaseHTTPRequestHandler):
    seen: list[str] = []

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.seen.append(self.headers["authorization"])
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *words: object) -> None: ...


def test_it_is_nowhere(
    tmp_path: Path,
    at: Path,
    started: Callable[..., ms.Run],
    postgres: PostgresServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("SECRET_DSN", f"{postgres.dsn} password={CANARY} application_name={CANARY}")
    monkeypatch.setenv("SECRET_HEADER", f"Bearer {CANARY}")
    monkeypatch.setattr(Posted, "seen", [])
    server = HTTPServer(("127.0.0.1", 0), Posted)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("SECRET_URL", f"http://127.0.0.1:{server.server_port}/{CANARY}")
    topology, count = ms.Topology("secrets"), Count()
    topology.compute("count", count).reads(inject(topology, [click("a", n) for n in range(10)]))
    topology.deliver("table", count.counts, ms.to_postgres("secret_counts", dsn=ms.secret(env="SECRET_DSN")))
    hook = ms.webhook(ms.secret(env="SECRET_URL"), headers={"Authorization": ms.secret(env="SECRET_HEADER")})
    topology.deliver("hook", count.counts, hook)
    try:
        run = started(topology, folder=at)
        wait_until(lambda: len(Posted.seen) == 10)
        page = TestClient(application(at), base_url="http://localhost:8270")
        shown = [page.get(path).text for path in ("/", "/api/state", "/api/history", "/metrics", "/api/records?stream=count.counts")]
        shown += [repr(run.status()), repr(topology.deliveries)]
        run.drain()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert Posted.seen == [f"Bearer {CANARY}"] * 10, "it was used"
    with postgres.connect() as connection:
        assert connection.execute("select count(*) from secret_counts").fetchone() == (10,)
        connection.execute("drop table secret_counts")
    files = [path for path in at.rglob("*") if path.is_file()]
    assert len(files) > 20
    assert [path for path in files if CANARY.encode() in path.read_bytes()] == []
    out, err = capfd.readouterr()
    for words in (*shown, caplog.text, out, err):
        assert CANARY not in words
