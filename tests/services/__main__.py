"""`make services`: a Kafka broker and a PostgreSQL server on loopback, until Ctrl-C."""

from __future__ import annotations

import signal
import tempfile
import threading
from pathlib import Path

from tests.services.kafka import VERSION, Broker
from tests.services.postgres import running


def main() -> None:
    over = threading.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: over.set())
    server = running()
    try:
        print(f'PostgreSQL: dsn="{server.dsn}"', flush=True)
        with tempfile.TemporaryDirectory() as folder:
            broker = Broker(Path(folder))
            print(f'Kafka {VERSION}: servers="{broker.servers}"; Ctrl-C ends both', flush=True)
            over.wait()
            broker.kill()
    finally:
        server.remove()


if __name__ == "__main__":
    main()
