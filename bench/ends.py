"""From Kafka through one computation to Kafka and to PostgreSQL, beside bare loops of the same clients in one process.

A program writes 200 records/s to a topic. How long until a record is committed at the other end: by a run, and by a loop that
consumes, counts and commits what there is, with a transaction for each step. In turns, with the same broker and server, which syncs
its commits as a user's does.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import millstream as ms
from bench.goals import Rounds, at_most
from bench.latency import Count, Event, percentile

RATE = 200  # records a second
WARM_UP = 15.0  # seconds
PARTITIONS = 2


class Timed(ms.Target):
    """A target, and when what it was given was committed there."""

    transactional = True

    def __init__(self, inner: ms.Target, seen: list[tuple[float, float]]) -> None:
        self._inner, self._seen = inner, seen

    def describe(self) -> str:
        return self._inner.describe()

    def check(self, context: ms.DeliveryContext) -> None:
        self._inner.check(context)

    def open(self, context: ms.DeliveryContext) -> ms.Sink:
        return TimedSink(self._inner.open(context), self._seen)


class TimedSink(ms.Sink):
    def __init__(self, inner: ms.Sink, seen: list[tuple[float, float]]) -> None:
        self._inner, self._seen = inner, seen

    def last_step(self) -> ms.Step | None:
        return self._inner.last_step()

    def write(self, step: ms.Step, records: Sequence[ms.Record[Any]]) -> None:
        self._inner.write(step, records)
        note(self._seen, [record.value.at for record in records])

    def close(self) -> None:
        self._inner.close()


def note(seen: list[tuple[float, float]], made: Sequence[int]) -> None:
    now = time.time_ns() // 1000
    seen.extend((now / 1e6, (now - at) / 1000) for at in made)


def generate(servers: str, topic: str, seconds: float) -> None:
    """At its rate; each value says when it was made."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 0})
    n, began = 0, time.time()
    while (elapsed := time.time() - began) < seconds:
        while n < int(elapsed * RATE):
            value = json.dumps({"key": f"k{n % 1000}", "at": time.time_ns() // 1000, "n": n})
            producer.produce(topic, value, f"k{n % 1000}")
            n += 1
        producer.poll(0.001)
    producer.flush()


def ours(base: Path, servers: str, dsn: str, topic: str, out: str, seconds: float) -> dict[str, list[tuple[float, float]]]:
    to_kafka, to_postgres = list[tuple[float, float]](), list[tuple[float, float]]()
    topology, count = ms.Topology("ends"), Count()
    stream = topology.inject(
        "in",
        ms.kafka(topic, Event, servers=servers),
        key=lambda event: event.key,
        timestamp=lambda event: ms.Timestamp(event.at),
        low_watermark=ms.BoundedDisorder(ms.SECOND),
    )
    topology.compute("count", count).reads(stream)
    topology.deliver("kafka", count.out, Timed(ms.to_kafka(out, servers=servers), to_kafka))
    topology.deliver("postgres", count.out, Timed(ms.to_postgres(out.replace("-", "_"), dsn=dsn, key="record_key"), to_postgres))
    with ms.start(topology, at=base / "mill") as run:
        while run.status().epoch < 2:
            time.sleep(0.1)
        command = [sys.executable, "-m", "bench.ends", "generate", servers, topic, str(WARM_UP + seconds)]
        subprocess.run(command, check=True)
        time.sleep(1.0)
    return {"kafka": to_kafka, "postgres": to_postgres}


def bare(servers: str, topic: str, seconds: float, commit: Callable[[list[Event], Consumer], None]) -> list[tuple[float, float]]:
    """One process, one thread: consume what there is, count it, commit it."""
    settings = {"bootstrap.servers": servers, "group.id": f"bare-{topic}", "isolation.level": "read_committed", "enable.auto.commit": False}
    consumer, seen, counts = Consumer({**settings, "auto.offset.reset": "earliest"}), list[tuple[float, float]](), Counter[str]()
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    end = time.time() + WARM_UP + seconds + 1.0
    while time.time() < end:
        first = consumer.poll(0.1)
        if first is None:
            continue
        messages = [message for message in (first, *consumer.consume(1000, 0)) if message.error() is None]
        events = [Event(**json.loads(message.value() or b"")) for message in messages]
        counts.update(event.key for event in events)
        commit(events, consumer)
        note(seen, [event.at for event in events])
    consumer.close()
    return seen


def bare_kafka(servers: str, topic: str, out: str, seconds: float) -> list[tuple[float, float]]:
    producer = Producer({"bootstrap.servers": servers, "transactional.id": f"bare-{topic}", "retry.backoff.ms": 1})
    producer.init_transactions()

    def commit(events: list[Event], consumer: Consumer) -> None:
        producer.begin_transaction()
        for event in events:
            producer.produce(out, json.dumps({"key": event.key, "at": event.at, "n": event.n}), event.key)
        places = consumer.position([TopicPartition(topic, number) for number in range(PARTITIONS)])
        producer.send_offsets_to_transaction([place for place in places if place.offset >= 0], consumer.consumer_group_metadata())
        producer.commit_transaction()

    return bare(servers, topic, seconds, commit)


def bare_postgres(servers: str, topic: str, table: str, seconds: float, dsn: str) -> list[tuple[float, float]]:
    with psycopg.connect(dsn) as connection:
        connection.execute(f'CREATE TABLE "{table}" (key text, at bigint, n bigint)')
        connection.commit()

        def commit(events: list[Event], consumer: Consumer) -> None:
            with connection.cursor() as cursor:
                cursor.executemany(f'INSERT INTO "{table}" VALUES (%s, %s, %s)', [(e.key, e.at, e.n) for e in events])
            connection.commit()

        return bare(servers, topic, seconds, commit)


def beside(servers: str, topic: str, seconds: float, loop: Callable[[], list[tuple[float, float]]]) -> list[tuple[float, float]]:
    """A loop, while another process writes."""
    command = [sys.executable, "-m", "bench.ends", "generate", servers, topic, str(WARM_UP + seconds)]
    with subprocess.Popen(command) as writer:
        found = loop()
        writer.wait(60)
    return found


def main(*, seconds: float = 60.0, rounds: int = 3) -> None:
    from tests.services import both

    with tempfile.TemporaryDirectory(prefix="millstream-bench-") as folder, both(Path(folder), durable=True) as (dsn, servers):
        admin, held = AdminClient({"bootstrap.servers": servers}), Rounds()
        for number in range(rounds):
            names = [f"{what}-{number}" for what in ("in", "out", "in-bare", "out-bare", "in-table")]
            for future in admin.create_topics([NewTopic(name, PARTITIONS) for name in names]).values():
                future.result(60)
            base = Path(folder, str(number))
            got = _in_a_process(base, servers, dsn, names[0], names[1], seconds)
            bare_to_kafka = beside(servers, names[2], seconds, lambda names=names: bare_kafka(servers, names[2], names[3], seconds))
            to_table = beside(servers, names[4], seconds, lambda names=names: bare_postgres(servers, names[4], names[3], seconds, dsn))
            for what, mine, other in (("Kafka", got["kafka"], bare_to_kafka), ("PostgreSQL", got["postgres"], to_table)):
                _tell(number, what, mine, other, held)
        held.tell()


def _in_a_process(base: Path, *arguments: object) -> dict[str, list[tuple[float, float]]]:
    base.mkdir(parents=True)
    command = [sys.executable, "-m", "bench.ends", "ours", str(base), *map(str, arguments)]
    subprocess.run(command, check=True)
    found: dict[str, list[tuple[float, float]]] = json.loads((base / "found.json").read_text())
    return found


def _tell(number: int, what: str, mine: list[tuple[float, float]], other: list[tuple[float, float]], held: Rounds) -> None:
    found, bare_ = _counted(mine), _counted(other)
    print(f"round {number + 1}, from Kafka to {what}: {len(found):,} records", flush=True)
    for percent, bound in ((50, 2.0), (95, 3.0)):
        here, there = percentile(found, percent), percentile(bare_, percent)
        holds = at_most(f"p{percent}, {here:.1f} ms against {there:.1f} by the bare loop", here / there, bound)
        held.add(f"to {what}: p{percent}", holds)


def _counted(seen: list[tuple[float, float]]) -> list[float]:
    begin = min(when for when, _ in seen) + WARM_UP
    return sorted(wait for when, wait in seen if when >= begin)


def _command() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("ours", "generate"))
    parser.add_argument("more", nargs="*")
    given = parser.parse_args()
    if given.what == "generate":
        servers, topic, seconds = given.more
        generate(servers, topic, float(seconds))
        return
    base, servers, dsn, topic, out, seconds = given.more
    found = ours(Path(base), servers, dsn, topic, out, float(seconds))
    Path(base, "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    _command()
