"""Servers that tests and examples need: started on loopback, stopped by process id."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def both(folder: Path, *, durable: bool = False) -> Iterator[tuple[str, str]]:
    """A PostgreSQL server and a Kafka broker: the dsn of one, and where the other is."""
    from tests.services.kafka import Broker
    from tests.services.postgres import running

    server = running(durable=durable)
    try:
        kept = folder / "kafka"
        kept.mkdir(parents=True)
        broker = Broker(kept)
        try:
            yield server.dsn, broker.servers
        finally:
            broker.kill()
    finally:
        server.remove()
