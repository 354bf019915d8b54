"""Between a client and a broker: passes everything on, until the request to end a transaction goes by."""

from __future__ import annotations

import enum
import socket
import threading
from collections.abc import Callable
from contextlib import closing, suppress

END_TXN = 26  # the key of the request by which a transaction is committed or aborted


class Moment(enum.Enum):
    """When the fault is to happen."""

    REQUEST = "the broker never sees the request"
    ANSWER = "the broker has done it, and the client does not hear"


class Proxy:
    """On one port of loopback, to another. `arm` makes the next commit a fault: every connection is cut while `fault` is called."""

    def __init__(self, port: int, to: int) -> None:
        self._to = to
        self._listening = socket.create_server(("127.0.0.1", port))
        self._moment: Moment | None = None
        self._fault: Callable[[], None] = lambda: None
        self._cut = False
        self.fired = threading.Event()
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def arm(self, moment: Moment, fault: Callable[[], None]) -> None:
        self._moment, self._fault = moment, fault

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)  # wakes who waits for a client
        self._listening.close()

    def _accept(self) -> None:
        with suppress(OSError):  # it is closed
            while True:
                client, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(client,), name="proxied", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with closing(client), suppress(OSError), closing(socket.create_connection(("127.0.0.1", self._to))) as broker:
            doomed: list[bytes] = []  # the correlation id of the request whose answer is not passed on
            back = threading.Thread(target=self._answers, args=(broker, client, doomed), name="proxied back", daemon=True)
            back.start()
            while not self._cut and (frame := _frame(client)) is not None:
                if self._moment is not None and int.from_bytes(frame[4:6]) == END_TXN:
                    moment, self._moment = self._moment, None
                    if moment is Moment.REQUEST:
                        self._fire()
                        return
                    doomed.append(frame[8:12])
                broker.sendall(frame)

    def _answers(self, broker: socket.socket, client: socket.socket, doomed: list[bytes]) -> None:
        with suppress(OSError):
            while not self._cut and (frame := _frame(broker)) is not None:
                if frame[4:8] in doomed:
                    self._fire()
                    break
                client.sendall(frame)
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)

    def _fire(self) -> None:
        self._cut = True
        self._fault()
        self._cut = False
        self.fired.set()


def _frame(connection: socket.socket) -> bytes | None:
    """A request or an answer, with its length in front; None at the end."""
    head = _exactly(connection, 4)
    body = None if head is None else _exactly(connection, int.from_bytes(head))
    return None if head is None or body is None else head + body


def _exactly(connection: socket.socket, count: int) -> bytes | None:
    found = b""
    while len(found) < count:
        piece = connection.recv(count - len(found))
        if not piece:
            return None
        found += piece
    return found
