"""`make services`: a Kafka broker and a PostgreSQL server on loopback, until Ctrl-C."""

from __future__ import annotations

import signal
import tempfile
import threading
from pathlib import Path

from tests.services import both
from tests.services.kafka import VERSION


def main() -> None:
    over = threading.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: over.set())
    with tempfile.TemporaryDirectory() as folder, both(Path(folder)) as (dsn, servers):
        print(f'PostgreSQL: dsn="{dsn}"', flush=True)
        print(f'Kafka {VERSION}: servers="{servers}"; Ctrl-C ends both', flush=True)
        over.wait()


if __name__ == "__main__":
    main()
