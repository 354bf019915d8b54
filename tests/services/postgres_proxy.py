"""A way to a server that can be cut at a moment of the protocol."""

from __future__ import annotations

import enum
import socket
import threading
from contextlib import suppress

TIMEOUT = 60.0  # seconds; a bound, never an expectation
COMMIT = b"COMMIT\0"  # as a client of PostgreSQL sends it, and nothing else that it sends


class Cut(enum.Enum):
    """Who never hears of the commit at which the connection is cut."""

    SERVER = "server"
    CLIENT = "client"


class Proxy:
    """Forwards what comes to `port`. Once armed, it cuts the connection at the next commit, and counts that in `fired`."""

    def __init__(self, to: int) -> None:
        self._to = to
        self._armed: Cut | None = None
        self.fired = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def arm(self, cut: Cut) -> None:
        self._armed = cut

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join(TIMEOUT)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        deaf, answered = threading.Event(), threading.Event()

        def back() -> None:
            with suppress(OSError):
                while answer := server.recv(65536):
                    if deaf.is_set():
                        answered.set()
                    else:
                        client.sendall(answer)
            _shut(client)

        with client, socket.create_connection(("127.0.0.1", self._to)) as server:
            answering = threading.Thread(target=back, daemon=True)
            answering.start()
            with suppress(OSError):
                while said := client.recv(65536):
                    cut = self._armed if COMMIT in said else None
                    if cut is Cut.CLIENT:
                        deaf.set()  # the client waits, so the next answer is the one to the commit
                    if cut is not Cut.SERVER:
                        server.sendall(said)
                    if cut is not None:
                        self._armed = None
                        self.fired += cut is Cut.SERVER or answered.wait(TIMEOUT)
                        break
            _shut(client)
            _shut(server)
            answering.join(TIMEOUT)


def _shut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
