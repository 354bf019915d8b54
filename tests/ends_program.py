"""A program of a user's between Kafka and PostgreSQL on both sides: messages are numbered by key, and a table is mirrored.

It says when each step goes out and when the target has it, so that a test can strike in between.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import millstream as ms

SERVERS, DSN = "MILLSTREAM_TEST_SERVERS", "MILLSTREAM_TEST_DSN"
INCOMING, NUMBERED, ACCOUNTS, MIRROR = "incoming", "numbered", "accounts", "mirror"


@dataclass(frozen=True)
class Item:
    key: str
    number: int
    at: int


@dataclass(frozen=True)
class Numbered:
    number: int
    so_far: int


@dataclass(frozen=True)
class Account:
    id: int
    owner: str
    cents: int


class Number(ms.Computation[int]):
    numbered: ms.Output[Numbered]

    def process_record(self, record: ms.Record[Item]) -> None:
        self.state += 1
        self.numbered.produce(Numbered(record.value.number, self.state), timestamp=record.timestamp)


class Mirror(ms.Computation[Account | None]):
    """Each change must begin with the row that the one before it has left."""

    rows: ms.Output[Account | None]

    def process_record(self, record: ms.Record[ms.Change[Account]]) -> None:
        if record.value.before != self.state:
            raise ValueError(f"account {self.key} was {self.state}, and {record.value} says otherwise")
        self.state = record.value.after
        self.rows.produce(self.state, timestamp=record.timestamp)


class Announced(ms.Target):
    """A target with transactions, and a line in a file before and after each step."""

    transactional = True

    def __init__(self, inner: ms.Target, steps: Path) -> None:
        self._inner, self._steps = inner, steps

    def describe(self) -> str:
        return self._inner.describe()

    def check(self, context: ms.DeliveryContext) -> None:
        self._inner.check(context)

    def open(self, context: ms.DeliveryContext) -> ms.Sink:
        return AnnouncedSink(self._inner.open(context), context.delivery, self._steps)


class AnnouncedSink(ms.Sink):
    def __init__(self, inner: ms.Sink, delivery: str, steps: Path) -> None:
        self._inner, self._delivery = inner, delivery
        self._file = os.open(steps, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def last_step(self) -> ms.Step | None:
        return self._inner.last_step()

    def write(self, step: ms.Step, records: Sequence[ms.Record[Any]]) -> None:
        self._say("begins", step)
        self._inner.write(step, records)
        self._say("ends", step)

    def close(self) -> None:
        os.close(self._file)
        self._inner.close()

    def _say(self, what: str, step: ms.Step) -> None:
        os.write(self._file, f"{self._delivery} {what} {step.number}\n".encode())


def topology_of(steps: Path, *, ends: bool) -> ms.Topology:
    topology, number, mirror = ms.Topology("both ends"), Number(), Mirror()
    servers, dsn = os.environ[SERVERS], os.environ[DSN]
    items = topology.inject(
        "items",
        ms.kafka(INCOMING, Item, servers=servers, bounded=ends),
        key=lambda item: item.key,
        timestamp=lambda item: ms.Timestamp(item.at),
        low_watermark=ms.BoundedDisorder(ms.SECOND),
    )
    accounts = topology.inject(
        "accounts",
        ms.postgres_changes(ACCOUNTS, Account, dsn=dsn),
        key="key",
        timestamp="commit_time",
        low_watermark=ms.BoundedDisorder(ms.SECOND),
    )
    topology.compute("number", number).reads(items)
    topology.compute("mirror", mirror).reads(accounts)
    mirrored = ms.to_postgres(MIRROR, dsn=dsn, mode=ms.Mode.UPSERT, id="record_id")
    topology.deliver("topic", number.numbered, Announced(ms.to_kafka(NUMBERED, servers=servers, create_partitions=3), steps))
    topology.deliver("table", number.numbered, Announced(ms.to_postgres(NUMBERED, dsn=dsn), steps))
    topology.deliver("mirror", mirror.rows, Announced(mirrored, steps))
    return topology


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("base", type=Path)
    parser.add_argument("--last", action="store_true", help="to the end of what there is, and then it has ended")
    given = parser.parse_args()
    options = ms.Options(lanes=2, checkpoint_every=2 * ms.SECOND)
    topology, at = topology_of(given.base / "steps", ends=given.last), given.base / "run"
    if given.last:
        with ms.start(topology, at=at, options=options) as run:
            while not run.status().injectors["items"].finished and not run.wait(0.1):
                pass
            run.drain()
    else:
        ms.run(topology, at=at, options=options)


if __name__ == "__main__":
    main()
