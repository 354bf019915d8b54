"""An address that records are posted to: for people elsewhere, and for services that do something about what is found."""

from __future__ import annotations

import http.client
import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

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
OURS = {"content-length", "transfer-encoding"}  # headers that follow from the body

_WHOLE = "give a whole address, such as https://example.org/alerts"
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # of a header
_UNFIT = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]|[^\x00-\xff]")  # in the value of one


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


@dataclass(frozen=True, repr=False)
class WebhookTarget(Target):
    """At least once: what was under way at a crash is posted again, with the same ids. `webhook` makes one."""

    url: str | Secret
    headers: Mapping[str, str | Secret]
    refused: str | None
    timeout: Duration
    accepted: dict[str, Accepted] = field(default_factory=dict, compare=False)  # by the identity of each delivery to it

    def __repr__(self) -> str:
        return f"<{self.describe()}>"

    def describe(self) -> str:
        """Without the path: whoever knows that of some services may post there."""
        if isinstance(self.url, Secret):
            return f"webhook at the address in {self.url.file or f'the environment variable {self.url.env}'}"
        parts = urlsplit(self.url)
        return f"webhook {parts.scheme}://{parts.netloc}"

    def check(self, context: DeliveryContext) -> None:
        self.address()
        self.revealed_headers()
        value_encoder(context.value_type)

    def address(self) -> SplitResult:
        """As it is now, if a secret says it."""
        return _checked_address(_revealed(self.url))

    def revealed_headers(self) -> dict[str, str]:
        return {name: _checked_header(name, _revealed(value)) for name, value in self.headers.items()}

    def open(self, context: DeliveryContext) -> Sink:
        return WebhookSink(self, context)


class WebhookSink(Sink):
    """Posts the records of a step one by one, over one connection."""

    def __init__(self, target: WebhookTarget, context: DeliveryContext) -> None:
        self._target, self._stream, self._delivery = target, context.stream, context.delivery
        self._accepted = target.accepted.setdefault(context.identity, Accepted())
        self._encode_value = value_encoder(context.value_type)
        parts = target.address()
        make = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = make(parts.hostname or "", parts.port or make.default_port, timeout=int(target.timeout) / 1e6)
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._headers = target.revealed_headers()
        self._named = {name.lower() for name in self._headers}

    def write(self, step: Step, records: Sequence[Record[Any]]) -> None:
        accepted = self._accepted
        if accepted.step != step:
            accepted.step, accepted.records = step, 0
        for record in records[accepted.records :]:
            self._post(record)
            accepted.records += 1

    def close(self) -> None:
        self._connection.close()

    def _post(self, record: Record[Any]) -> None:
        posted = Posted(record.id, self._stream, record.key, record.timestamp, msgspec.Raw(self._encode_value(record.value)))
        usual = {"Content-Type": "application/json", "Idempotency-Key": record.id}
        headers = {name: value for name, value in usual.items() if name.lower() not in self._named} | self._headers
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


def _checked_address(url: Any) -> SplitResult:
    """Refuse what no request could be sent to. No message repeats it: its path may be a secret."""
    if not isinstance(url, str):
        raise TopologyError(f"webhook: {type(url).__name__} is not an address; give text, or ms.secret(...) for one that is secret")
    if re.search(r"[\x00-\x20\x7f]", url):
        raise TopologyError("webhook: there is a space or a line break in the address; leave it out, or write a space as %20")
    try:
        parts = urlsplit(url)
    except ValueError:
        raise TopologyError(f"webhook: the address cannot be read; {_WHOLE}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise TopologyError(f"webhook: {_WHOLE}")
    if parts.username is not None or parts.password is not None:
        raise TopologyError("webhook: leave the password out of the address; give headers={'Authorization': ms.secret(env=...)}")
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise TopologyError("webhook: the port in the address is not a number from 1 to 65535")
    if not (parts.path + parts.query).isascii():
        raise TopologyError(
            "webhook: there are letters in the path of the address that are not ASCII; write them as urllib.parse.quote does"
        )
    try:
        parts.hostname.encode("idna")
    except UnicodeError:
        raise TopologyError("webhook: the host in the address is not a name that there can be") from None
    return parts


def _checked_header(name: str, value: str) -> str:
    """The value may be a secret, and is not repeated."""
    if _UNFIT.search(value):
        raise TopologyError(f"webhook(headers={{{name!r}: ...}}): there is a line break in the value, or a letter that no header can have")
    return value


def _check_header_names(headers: Mapping[Any, Any]) -> None:
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, (str, Secret)):
            raise TopologyError(f"webhook(headers={{{name!r}: ...}}): give texts, or ms.secret(...) for what must not be written down")
        if not _NAME.fullmatch(name):
            raise TopologyError(f"webhook(headers={{{name!r}: ...}}): that is not the name of a header")
        if name.lower() in OURS:
            raise TopologyError(f"webhook(headers={{{name!r}: ...}}): leave it out; it follows from the body")
    if len({name.lower() for name in headers}) < len(headers):
        raise TopologyError("webhook(headers=...): a header is there twice; large and small letters are the same in its name")


def webhook(
    url: str | Secret,
    *,
    headers: Mapping[str, str | Secret] | None = None,
    refused: str | PathLike[str] | None = None,
    timeout: Duration = 10 * SECOND,
) -> Target:
    """Each record is posted to an address, as JSON with id, stream, key, timestamp and value. At least once, in order.

        ms.webhook("https://example.org/alerts", headers={"Authorization": ms.secret(env="ALERTS_TOKEN")}, refused="refused.jsonl")

    An address that is a secret itself, as that of a chat is, is given as `ms.secret(env="ALERTS_URL")`; of any other, messages name
    scheme and host only.
    The id is also the header `Idempotency-Key`: a record that is posted again, after a crash or a lost answer, has the same one.
    While the address cannot be reached, or answers with 408, 425, 429 or 5xx, the delivery waits and tries again, longer each
    time. Any other answer but 2xx is a refusal for good: such a record is appended to the file `refused` with the reason, or ends
    the run if there is no such file.
    """
    if not isinstance(url, Secret):
        _checked_address(url)
    _check_header_names(headers or {})
    for name, value in (headers or {}).items():
        if isinstance(value, str):
            _checked_header(name, value)
    aside = None if refused is None else arguments.path("webhook", refused)
    return WebhookTarget(url, dict(headers or {}), aside, arguments.span("webhook", "timeout", timeout, least=1_000))
