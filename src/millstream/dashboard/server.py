"""The page of a run and its metrics, over HTTP: read-only, on loopback unless a token guards it."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import socket
import sys
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from millstream.dashboard.metrics import CONTENT_TYPE, exposition
from millstream.dashboard.picture import COMPUTATION
from millstream.dashboard.watching import LOOK_EVERY, Watched
from millstream.errors import MillstreamError, TopologyError
from millstream.log.reading import StreamReader
from millstream.log.samples import SECOND

MOST_RECORDS = 2_000
MOST_TEXT = 4 << 20  # characters of their values
LINE = 120  # characters; a longer value is shown on several lines
LONGEST_SPAN = 172_800  # seconds of history
READERS = 2  # requests that read records or history at once; others wait
ANSWERS_KEPT = 8
STOP_TIMEOUT = 1  # seconds that a request may take to end
ELSEWHERE = ("cross-site", "same-site")  # what a browser says of requests that a page of another origin makes
COOKIE = "millstream-token"
# Nothing is loaded from elsewhere, nothing runs that is not a file of ours, and nobody may frame the page.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
ASSETS = {
    "page.js": "text/javascript",
    "draw.js": "text/javascript",
    "tables.js": "text/javascript",
    "inside.js": "text/javascript",
    "page.css": "text/css",
    "uPlot.iife.min.js": "text/javascript",
    "uPlot.min.css": "text/css",
}

_encode = msgspec.json.Encoder().encode


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_address(host: str, token: str | None) -> None:
    """Refuse to show a run to a network without a token."""
    if not is_loopback(host) and not token:
        raise TopologyError(f"dashboard(host={host!r}): others can reach this address; give a token that they must know, with --token")


def application(at: str | Path, *, host: str = "127.0.0.1", token: str | None = None) -> Starlette:
    """The ASGI application of one folder."""
    check_address(host, token)
    page = _Page(Watched(at))
    routes = [
        Route("/", page.html),
        Route("/assets/{name}", page.asset),
        Route("/api/state", page.state),
        Route("/api/history", page.history),
        Route("/api/events", page.events),
        Route("/api/records", page.records),
        Route("/api/kept", page.kept),
        Route("/metrics", page.metrics),
    ]
    app = Starlette(routes=routes, middleware=[Middleware(_Guard, host=host, token=token)])
    app.state.ending = page.ending
    return app


class _Guard:
    """Whoever may not look is told so; on loopback, a page of another site may not ask under a name of its own either."""

    def __init__(self, app: ASGIApp, *, host: str, token: str | None) -> None:
        self._app, self._token, self._local = app, token, is_loopback(host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        if scope["type"] != "http":
            await self._app(scope, receive, send)
        else:
            await (self._refusal(Request(scope)) or self._app)(scope, receive, safely)

    def _refusal(self, request: Request) -> Response | None:
        if self._local and not is_loopback(request.url.hostname or ""):
            return PlainTextResponse("this page is for this machine only: ask for localhost\n", 403)
        if request.headers.get("sec-fetch-site") in ELSEWHERE and request.url.path.startswith(("/api/", "/metrics")):
            return PlainTextResponse("this is not for pages of other sites\n", 403)
        if self._token is None:
            return None
        given = request.query_params.get("token")
        if given is not None and request.url.path == "/" and self._knows(given):
            answer = RedirectResponse("/", 303)  # so that it stays in no history and no referrer
            answer.set_cookie(COOKIE, given, httponly=True, samesite="strict")
            return answer
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        if self._knows(request.cookies.get(COOKIE, "")) or self._knows(bearer):
            return None
        return PlainTextResponse("open /?token=..., or send it as 'Authorization: Bearer ...'\n", 401)

    def _knows(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), (self._token or "").encode())


class RecordsQuestion(msgspec.Struct, frozen=True):
    """Which records of a stream are asked for: the last of them, of one key or of all. `sender` is who sent a dead letter, as the
    picture names it. `rows`: of a change, the row that it leaves."""

    stream: str
    last: int
    key: str | None = None
    sender: str = ""
    rows: bool = False

    @classmethod
    def of(cls, request: Request) -> RecordsQuestion:
        asked = request.query_params
        last = min(MOST_RECORDS, max(1, int(asked.get("last", "50"))))
        return cls(asked.get("stream", ""), last, asked.get("key"), asked.get("sender", ""), "rows" in asked)


class ShownRecord(msgspec.Struct):
    """A record; its value is text, as it was written: a browser would round large numbers. None for a row that is gone."""

    key: str
    timestamp: int
    id: str
    text: str | None


class ShownRecords(msgspec.Struct):
    """The records that were found, newest last. `searched` were looked at, back to epoch `since`, or all there are if that is None.
    `left_off` are the oldest, where all would be too much text."""

    records: list[ShownRecord]
    searched: int
    since: int | None
    left_off: int = 0


class _Letter(msgspec.Struct):
    stream: str
    computation: str | None


class _Change(msgspec.Struct):
    after: msgspec.Raw


_decode_letter = msgspec.json.Decoder(_Letter).decode
_decode_change = msgspec.json.Decoder(_Change).decode


def _keep(question: RecordsQuestion) -> Callable[[pa.Table], pa.Table] | None:
    """What is asked for, of a table of records."""
    if question.sender:
        kind, _, name = question.sender.partition(" ")

        def is_sent(letter: _Letter) -> bool:
            return letter.computation == name if kind == COMPUTATION else letter == _Letter(name, None)

        return lambda table: table.filter(pa.array([is_sent(_decode_letter(value)) for value in table["value"].to_pylist()], pa.bool_()))
    return None if question.key is None else lambda table: table.filter(pc.equal(table["key"], question.key))


def _shown(table: pa.Table, *, rows: bool) -> list[ShownRecord]:
    """Newest first."""
    found, size = list[ShownRecord](), 0
    table = table.set_column(table.schema.get_field_index("timestamp"), "timestamp", table["timestamp"].cast(pa.int64()))
    for row in reversed(table.to_pylist()):
        text = _row(row["value"]) if rows else _text(row["value"])
        size += len(text or "")
        if found and size > MOST_TEXT:
            break
        found.append(ShownRecord(row["key"], row["timestamp"], f"{row['origin']}/{row['major']}/{row['minor']}", text))
    return found


def _text(value: str) -> str:
    line = msgspec.json.format(value, indent=0)
    return line if len(line) <= LINE else msgspec.json.format(value, indent=2)


def _row(value: str) -> str | None:
    """The row that a change leaves; None if it is gone. What is not a change is a row itself."""
    with suppress(msgspec.ValidationError):
        after = bytes(_decode_change(value).after).decode()
        return None if after == "null" else _text(after)
    return _text(value)


class _Page:
    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self.ending = asyncio.Event()
        self._readers = asyncio.Semaphore(READERS)
        self._answers: OrderedDict[tuple[StreamReader, str, RecordsQuestion], bytes] = OrderedDict()

    async def html(self, request: Request) -> Response:
        return Response(_asset("page.html"), media_type="text/html; charset=utf-8")

    async def asset(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in ASSETS:
            return PlainTextResponse("there is no such file\n", 404)
        return Response(_asset(name), media_type=f"{ASSETS[name]}; charset=utf-8")

    async def state(self, request: Request) -> Response:
        return _json(await run_in_threadpool(self._watched.look))

    async def history(self, request: Request) -> Response:
        """Of the last `seconds`; `of` is the computation whose late, dropped and dead records are asked for."""
        try:
            seconds = min(LONGEST_SPAN, max(60, int(request.query_params.get("seconds", "900"))))
        except ValueError:
            return PlainTextResponse("seconds is a number\n", 400)
        of = request.query_params.get("of", "")
        return await self._read(request, lambda: _encode(self._watched.history(seconds * SECOND, of)))

    async def events(self, request: Request) -> Response:
        """The state, as often as it may have changed, until the server ends."""

        async def states() -> AsyncIterator[bytes]:
            while not self.ending.is_set() and not await request.is_disconnected():
                yield b"data: " + _encode(await run_in_threadpool(self._watched.look)) + b"\n\n"
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.ending.wait(), LOOK_EVERY)

        return StreamingResponse(states(), media_type="text/event-stream")

    async def records(self, request: Request) -> Response:
        try:
            question = RecordsQuestion.of(request)
        except ValueError:
            return PlainTextResponse("last is a number\n", 400)
        return await self._read(request, lambda: self._answer(question))

    async def kept(self, request: Request) -> Response:
        """State and timers of a key."""
        computation, key = request.query_params.get("computation", ""), request.query_params.get("key", "")
        return await self._read(request, lambda: _encode({"kept": self._watched.kept(computation, key)}))

    async def _read(self, request: Request, answer: Callable[[], bytes]) -> Response:
        """What costs reading, for few at once and for nobody who has gone. What keeps from it is said to who asked."""
        async with self._readers:
            if await request.is_disconnected():
                return Response(status_code=204)
            try:
                return Response(await run_in_threadpool(answer), media_type="application/json")
            except Exception as error:
                return _json({"problem": self._watched.problem(error)})

    def _answer(self, question: RecordsQuestion) -> bytes:
        """Kept as long as no commit comes: the same is asked for again and again."""
        reader, ledger = self._watched.reading(question.stream)
        kept = self._answers.get((reader, ledger.id, question))
        if kept is None:
            found = reader.newest(ledger, question.stream, question.last, _keep(question))
            shown = _shown(found.records, rows=question.rows)
            kept = _encode(ShownRecords(shown[::-1], found.searched, found.since, found.records.num_rows - len(shown)))
            self._answers[reader, ledger.id, question] = kept
            while len(self._answers) > ANSWERS_KEPT:
                self._answers.popitem(last=False)
        return kept

    async def metrics(self, request: Request) -> Response:
        seen = await run_in_threadpool(self._watched.look)
        sizes = await run_in_threadpool(self._watched.sizes)
        return Response(exposition(seen, sizes), headers={"content-type": CONTENT_TYPE})


def _json(value: Any) -> Response:
    return Response(_encode(value), media_type="application/json")


def _asset(name: str) -> bytes:
    return (resources.files("millstream.dashboard") / "page" / name).read_bytes()


class _Server(uvicorn.Server):
    """Ends what does not end by itself: it would wait for pages that are open."""

    def __init__(self, config: uvicorn.Config, ending: asyncio.Event) -> None:
        super().__init__(config)
        self._ending = ending

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._ending.set()
        await super().shutdown(sockets)


def serve(at: str | Path, *, host: str, port: int, token: str | None, ready: Callable[[str], None], until_stdin_ends: bool = False) -> None:
    """Until it is interrupted. `ready` is told the address once it can be asked; without the token, for that is written to logs."""
    app = application(at, host=host, token=token)
    config = uvicorn.Config(
        app, host=host, port=port, log_level="warning", access_log=False, timeout_graceful_shutdown=STOP_TIMEOUT, lifespan="off"
    )
    server = _Server(config, app.state.ending)
    try:
        bound = config.bind_socket()
        bound.listen(config.backlog)
    except (SystemExit, OSError) as error:
        raise MillstreamError(f"nothing can be served at {host}:{port}; is something there already? Choose another --port") from error
    with bound:
        ready(f"http://{f'[{host}]' if ':' in host else host}:{bound.getsockname()[1]}/")
        if until_stdin_ends:

            def wait() -> None:
                sys.stdin.buffer.read()
                server.should_exit = True

            threading.Thread(target=wait, name="millstream waits for the end", daemon=True).start()
        server.run(sockets=[bound])
