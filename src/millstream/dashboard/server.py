"""The page of a run and its metrics, over HTTP: read-only, on loopback unless a token guards it."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import sys
import threading
from collections.abc import AsyncIterator, Callable
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from millstream.dashboard.metrics import CONTENT_TYPE, exposition
from millstream.dashboard.watching import LOOK_EVERY, Watched
from millstream.errors import LogError, MillstreamError, TopologyError
from millstream.log.reading import newest_records

MOST_RECORDS = 2_000
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
        Route("/metrics", page.metrics),
    ]
    return Starlette(routes=routes, middleware=[Middleware(_Guard, host=host, token=token)])


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


class _Page:
    def __init__(self, watched: Watched) -> None:
        self._watched = watched

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
        return _json(await run_in_threadpool(self._watched.history))

    async def events(self, request: Request) -> Response:
        """The state, as often as it may have changed."""

        async def told() -> AsyncIterator[bytes]:
            while not await request.is_disconnected():
                yield b"data: " + _encode(await run_in_threadpool(self._watched.look)) + b"\n\n"
                await asyncio.sleep(LOOK_EVERY)

        return StreamingResponse(told(), media_type="text/event-stream")

    async def records(self, request: Request) -> Response:
        """The newest records of a stream; those of one key among as many, if one is asked for."""
        stream, key = request.query_params.get("stream", ""), request.query_params.get("key")
        try:
            last = min(MOST_RECORDS, max(1, int(request.query_params.get("last", "50"))))
        except ValueError:
            return PlainTextResponse("last is a number\n", 400)
        try:
            found = await run_in_threadpool(lambda: list(newest_records(self._watched.folder.path, stream, MOST_RECORDS if key else last)))
        except (LogError, TopologyError) as error:
            return _json({"problem": str(error)})
        if key:
            found = [line for line in found if msgspec.json.decode(line).get("key") == key]
        return Response(b"[" + b",".join(found[-last:]) + b"]", media_type="application/json")

    async def metrics(self, request: Request) -> Response:
        seen = await run_in_threadpool(self._watched.look)
        return Response(exposition(seen), headers={"content-type": CONTENT_TYPE})


def _json(value: Any) -> Response:
    return Response(_encode(value), media_type="application/json")


def _asset(name: str) -> bytes:
    return (resources.files("millstream.dashboard") / "page" / name).read_bytes()


def serve(at: str | Path, *, host: str, port: int, token: str | None, ready: Callable[[str], None], until_stdin_ends: bool = False) -> None:
    """Until it is interrupted. `ready` is told the address once it can be asked."""
    import uvicorn

    config = uvicorn.Config(application(at, host=host, token=token), host=host, port=port, log_level="warning", access_log=False)
    server = uvicorn.Server(config)
    config.load()
    try:
        bound = config.bind_socket()
    except SystemExit as error:
        raise MillstreamError(f"nothing can be served at {host}:{port}; is something there already? Choose another --port") from error
    name = f"[{host}]" if ":" in host else host
    ready(f"http://{name}:{bound.getsockname()[1]}/" + (f"?token={token}" if token else ""))
    if until_stdin_ends:

        def wait() -> None:
            sys.stdin.buffer.read()
            server.should_exit = server.force_exit = True  # pages that are open would be waited for

        threading.Thread(target=wait, name="millstream waits for the end", daemon=True).start()
    with bound:
        server.run(sockets=[bound])
