"""An address that records are posted to: for people elsewhere, and for services that do something about what is found."""

from __future__ import annotations

import http.client
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from millstream import arguments
from millstream.core.codec import value_encoder
from millstream.errors import LogError, TopologyError, Unreachable
from millstream.record import Record
from millstream.secret import Secret
from millstream.target import DeliveryContext, Sink, Step, Target
from millstream.timestamp import SECOND, Duration

log = logging.getLogger("millstream")

# Whoever answers so may answer otherwise later; any other refusal is for good.
LATER = {http.HTTPStatus.REQUEST_TIMEOUT, http.HTTPStatus.TOO_EARLY, http.HTTPStatus.TOO_MANY_REQUESTS}
LONGEST_ASKED = 60.0  # seconds that a server may ask us to wait
SHOWN = 300  # characters of its answer


class Posted(msgspec.Struct):
    """The body of a request."""

    id: str
    stream: str
    key: str
    timestamp: Any
    value: msgspec.Raw


class SetAside(msgspec.Struct):
    """A line of the file in which lies what was refused for good."""

    reason: str
    record: Posted


class Accepted(msgspec.Struct):
    """How many records of a step the server has, while this process lives: what follows an interruption begins there."""

    step: Step | None = None
    records: int = 0


_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class WebhookTarget(Target):
    """At least once: what was under way at a crash is posted again, with the same ids. `webhook` makes one."""

    url: str
    headers: Mapping[str, str | Secret]
    refused: str | None
    timeout: Duration
    accepted: Accepted = field(default_factory=Accepted, compare=False, repr=False)

    def describe(self) -> str:
        parts = urlsplit(self.url)
        return f"webhook {parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}{parts.path}"

    def check(self, context: DeliveryContext) -> None:
        for value in self.headers.values():
            _revealed(value)
        value_encoder(context.value_type)

    def open(self, context: DeliveryContext) -> Sink:
        return WebhookSink(self, context)


class WebhookSink(Sink):
    """Posts the records of a step one by one, over one connection."""

    def __init__(self, target: WebhookTarget, context: DeliveryContext) -> None:
        self._target, self._stream, self._delivery = target, context.stream, context.delivery
        self._encode_value = value_encoder(context.value_type)
        parts = urlsplit(target.url)
        make = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = make(parts.hostname or "", parts.port, timeout=int(target.timeout) / 1e6)
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._headers = {name: _revealed(value) for name, value in target.headers.items()}

    def write(self, step: Step, records: Sequence[Record[Any]]) -> None:
        accepted = self._target.accepted
        if accepted.step != step:
            accepted.step, accepted.records = step, 0
        for record in records[accepted.records :]:
            self._post(record)
            accepted.records += 1

    def close(self) -> None:
        self._connection.close()

    def _post(self, record: Record[Any]) -> None:
        posted = Posted(record.id, self._stream, record.key, record.timestamp, msgspec.Raw(self._encode_value(record.value)))
        headers = {"Content-Type": "application/json", "Idempotency-Key": record.id, **self._headers}
        try:
            self._connection.request("POST", self._path, _encode(posted), headers)
            answer = self._connection.getresponse()
            said = answer.read(1 << 16).decode("utf-8", "replace")
            if not answer.isclosed():
                self._connection.close()  # a long answer that nobody reads
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise Unreachable(f"{type(error).__name__}: {error}") from error
        if 200 <= answer.status < 300:
            return
        why = f"{answer.status} {answer.reason}" + (f": {said[:SHOWN]}" if said else "")
        if answer.status in LATER or answer.status >= 500:
            _wait_as_asked(answer.getheader("Retry-After"))
            raise Unreachable(why)
        self._set_aside(SetAside(why, posted))

    def _set_aside(self, refused: SetAside) -> None:
        path = self._target.refused
        if path is None:
            raise LogError(
                f"delivery {self._delivery!r}: {self._target.describe()} refuses record {refused.record.id}: {refused.reason}; "
                f"repair what answers there, or have such records set aside: webhook(..., refused='refused.jsonl')"
            )
        with Path(path).open("ab") as file:
            file.write(_encode(refused) + b"\n")
        log.warning("delivery %r: record %s was refused and is in %s: %s", self._delivery, refused.record.id, path, refused.reason)


def _wait_as_asked(header: str | None) -> None:
    """As long as the server asks for, where it says so in seconds; then the usual pauses follow."""
    if header is not None and header.strip().isdigit():
        time.sleep(min(float(header), LONGEST_ASKED))


def _revealed(value: str | Secret) -> str:
    return value.reveal() if isinstance(value, Secret) else value


def webhook(
    url: str,
    *,
    headers: Mapping[str, str | Secret] | None = None,
    refused: str | PathLike[str] | None = None,
    timeout: Duration = 10 * SECOND,
) -> Target:
    """Each record is posted to an address, as JSON with id, stream, key, timestamp and value. At least once, in order.

        ms.webhook("https://example.org/alerts", headers={"Authorization": ms.secret(env="ALERTS_TOKEN")}, refused="refused.jsonl")

    The id is also the header `Idempotency-Key`: a record that is posted again, after a crash or a lost answer, has the same one.
    While the address cannot be reached, or answers with 408, 425, 429 or 5xx, the delivery waits and tries again, longer each
    time. Any other answer but 2xx is a refusal for good: such a record is appended to the file `refused` with the reason, or ends
    the run if there is no such file.
    """
    parts = urlsplit(url) if isinstance(url, str) else None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        raise TopologyError(f"webhook({url!r}): give a whole address, such as https://example.org/alerts")
    if parts.username or parts.password:
        raise TopologyError("webhook: leave the password out of the address; give headers={'Authorization': ms.secret(env=...)}")
    for name, value in (headers or {}).items():
        if not isinstance(name, str) or not isinstance(value, (str, Secret)):
            raise TopologyError(f"webhook(headers={{{name!r}: ...}}): give texts, or ms.secret(...) for what must not be written down")
    aside = None if refused is None else arguments.path("webhook", refused)
    return WebhookTarget(url, dict(headers or {}), aside, arguments.span("webhook", "timeout", timeout, least=1_000))
