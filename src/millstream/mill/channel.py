"""The channel between planner and lanes: length-prefixed messages over a socket, opened with a secret that both know.

A Unix socket in local mode, TCP on a cluster. The secret is the fence's own, travels with the shipped code, and is never
sent: each side proves that it has it by signing what the other made up.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
import tempfile
from contextlib import suppress
from pathlib import Path

LARGEST = 1 << 30  # bytes of a message; anything longer is not one of ours
HELLO_TIMEOUT = 10.0  # seconds for a stranger to prove himself
SEND_TIMEOUT = 60  # seconds until a lane that takes nothing counts as lost: the planner must not hang with it
_NONCE = 32
_LENGTH = struct.Struct("<I")


class Closed(ConnectionError):
    """The other side is gone."""


class Channel:
    """One connection. `receive` waits; `take` gives what is whole of what has come so far."""

    def __init__(self, connected: socket.socket, *, largest: int = LARGEST) -> None:
        self.socket = connected
        self.largest = largest  # bytes of a message that is taken
        self._buffer = bytearray()
        if connected.family != socket.AF_UNIX:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, message: bytes) -> None:
        try:
            self.socket.sendall(_LENGTH.pack(len(message)) + message)
        except OSError as error:
            raise Closed(str(error)) from error

    def receive(self, timeout: float | None = None) -> bytes | None:
        """The next message; None if none came in time. `Closed` if none will."""
        if timeout is None:
            while (message := self._whole()) is None:
                self._fill()
            return message
        self.socket.settimeout(timeout)
        try:
            while (message := self._whole()) is None:
                self._fill()
        except TimeoutError:
            return None
        finally:
            self.socket.settimeout(None)
        return message

    def take(self) -> list[bytes]:
        """After the socket was said to be readable: all messages that are whole."""
        self._fill()
        return self._all_whole()

    def take_if_any(self) -> list[bytes]:
        """The same of a socket that may have nothing to read: then there are none."""
        try:
            self._fill(socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        return self._all_whole()

    def _all_whole(self) -> list[bytes]:
        messages = []
        while (message := self._whole()) is not None:
            messages.append(message)
        return messages

    def close(self) -> None:
        with suppress(OSError):  # it is closed already
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def _fill(self, flags: int = 0) -> None:
        try:
            some = self.socket.recv(1 << 16, flags)
        except (TimeoutError, BlockingIOError):
            raise
        except OSError as error:
            raise Closed(str(error)) from error
        if not some:
            raise Closed("the other side closed the connection")
        self._buffer += some

    def _whole(self) -> bytes | None:
        buffer = self._buffer
        if len(buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(buffer)
        if length > self.largest:
            raise Closed(f"a message of {length} bytes is none of ours")
        end = _LENGTH.size + length
        if len(buffer) < end:
            return None
        message = bytes(buffer[_LENGTH.size : end])
        del buffer[:end]
        return message


def _signed(secret: bytes, role: bytes, nonce: bytes) -> bytes:
    return hmac.digest(secret, role + nonce, "sha256")


def admit(channel: Channel, secret: bytes) -> bool:
    """The planner's side: whether whoever connected knows the secret; it is shown that we do."""
    nonce = secrets.token_bytes(_NONCE)
    try:
        channel.send(nonce)
        answer = channel.receive(HELLO_TIMEOUT)
        if answer is None or len(answer) != 2 * _NONCE or not hmac.compare_digest(answer[:_NONCE], _signed(secret, b"lane", nonce)):
            return False
        channel.send(_signed(secret, b"planner", answer[_NONCE:]))
    except Closed:
        return False
    channel.largest = LARGEST
    return True


def connect(address: str, secret: bytes) -> Channel:
    """The lane's side."""
    channel = Channel(connected_to(address))
    nonce = channel.receive(HELLO_TIMEOUT)
    if nonce is None:
        raise Closed(f"nobody answers at {address}")
    own = secrets.token_bytes(_NONCE)
    channel.send(_signed(secret, b"lane", nonce) + own)
    answer = channel.receive(HELLO_TIMEOUT)
    if answer is None or not hmac.compare_digest(answer, _signed(secret, b"planner", own)):
        raise Closed(f"whoever answers at {address} is not the planner of this run")
    return channel


def connected_to(address: str) -> socket.socket:
    """A socket to whoever listens there."""
    kind, _, where = address.partition(":")
    try:
        if kind == "unix":
            made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            made.settimeout(HELLO_TIMEOUT)  # where many wait to be accepted it would hang
            made.connect(where)
            made.settimeout(None)
            return made
        host, _, port = where.rpartition(":")
        return socket.create_connection((host, int(port)), timeout=HELLO_TIMEOUT)
    except OSError as error:
        raise Closed(f"the planner at {address} cannot be reached: {error}") from error


class Listener:
    """Where lanes connect to."""

    def __init__(self, host: str | None = None, port: int = 0) -> None:
        """On a Unix socket, or, if a host is given, on TCP there."""
        self._folder: Path | None = None
        if host is None:
            # Not in the folder of the run: the path of a Unix socket may have some hundred characters only.
            self._folder = Path(tempfile.mkdtemp(prefix="millstream-"))
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.socket.bind(str(self._folder / "planner"))
            self.address = f"unix:{self._folder / 'planner'}"
        else:
            self.socket = socket.create_server((host, port), backlog=64)
            self.address = f"tcp:{host}:{self.socket.getsockname()[1]}"
        self.socket.listen(64)

    def accept(self) -> Channel | None:
        """The next who connects; None once this is closed. A stranger may say as much as `admit` asks of him."""
        try:
            connected, _ = self.socket.accept()
        except OSError:
            return None
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_TIMEOUT, 0))
        return Channel(connected, largest=2 * _NONCE)

    def close(self) -> None:
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)  # wakes whoever waits in accept
        self.socket.close()
        if self._folder is not None:
            (self._folder / "planner").unlink(missing_ok=True)
            self._folder.rmdir()
            self._folder = None
