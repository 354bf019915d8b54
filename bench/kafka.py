"""A million records from a Kafka topic of 12 partitions, read by the lanes, against the same records from files: in turns."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import millstream as ms
from bench.goals import at_least
from bench.traffic import write_queries

PARTITIONS = 12
KEYS = 100_000


@dataclass(frozen=True)
class Query:
    text: str
    at: datetime


class Running(ms.Computation[int]):
    """A running count, which lets go of most of what it is told: reading is what is measured."""

    counts: ms.Output[int]

    def process_record(self, record: ms.Record[Query]) -> None:
        self.state += 1
        if self.state % 100 == 0:
            self.counts.produce(self.state, timestamp=record.timestamp)


def run(source: ms.Source[Query], base: Path) -> dict[str, float]:
    """From the first record that a commit has to the last one that is delivered: without the start of Spark, lanes and clients."""
    topology, running = ms.Topology("kafka"), Running()
    queries = topology.inject(
        "queries",
        source,
        key=lambda query: query.text,
        timestamp=lambda query: query.at,
        low_watermark=ms.BoundedDisorder(2 * ms.SECOND),
    )
    topology.compute("running", running).reads(queries)
    topology.deliver("counts", running.counts, ms.delta(base / "counts"))
    began, first, seconds = 0.0, 0, 0.0
    with ms.start(topology, at=base / "mill", until=ms.DRAINED) as started:
        while not started.wait(0.02):
            injected = started.status().injectors["queries"].injected
            if not began and injected:
                began, first = time.monotonic(), injected
        seconds = time.monotonic() - began
        return {"seconds": seconds, "records": started.status().injectors["queries"].injected - first}


def fill(servers: str, topic: str, folder: Path) -> None:
    """The lines of the files, dealt to the partitions one by one: each is in order for itself."""
    admin = AdminClient({"bootstrap.servers": servers})  # kept until it has answered
    admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result(60)
    producer = Producer({"bootstrap.servers": servers, "queue.buffering.max.messages": 1_000_000, "linger.ms": 50})
    number = 0
    for path in sorted(folder.iterdir()):
        for line in path.read_bytes().splitlines():
            while True:
                try:
                    producer.produce(topic, line, partition=number % PARTITIONS)
                    break
                except BufferError:
                    producer.poll(0.1)
            number += 1
    producer.flush()


def measure(what: str, where: str, base: Path) -> float:
    """In a process of its own, in records a second."""
    command = [sys.executable, "-m", "bench.kafka", what, where, str(base)]
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.splitlines()[-1])
    return float(found["records"] / found["seconds"])


def main(records: int = 1_000_000, rounds: int = 3) -> None:
    from tests.services import both

    with tempfile.TemporaryDirectory(prefix="millstream-bench-") as folder, both(Path(folder)) as (_, servers):
        queries = Path(folder, "queries")
        write_queries(queries, records=records, keys=KEYS)
        fill(servers, "queries", queries)
        rates: dict[str, list[float]] = {"files": [], "kafka": []}
        for number in range(rounds):
            for what, where in (("files", str(queries)), ("kafka", f"{servers} queries")):
                base = Path(folder, f"{what}-{number}")
                base.mkdir()
                rates[what].append(measure(what, where, base))
        files, kafka = statistics.median(rates["files"]), statistics.median(rates["kafka"])
        print(
            f"{records:,} records, {PARTITIONS} partitions, {KEYS:,} keys: from Kafka {kafka / 1000:,.0f}k records/s, from files "
            f"{files / 1000:,.0f}k; all rounds {_shown(rates)}",
            flush=True,
        )
        at_least("from Kafka against from files", kafka / files, 1.0, "times as fast")


def _shown(rates: dict[str, list[float]]) -> str:
    return ", ".join(f"{what} {' '.join(f'{rate / 1000:,.0f}k' for rate in those)}" for what, those in rates.items())


def _command() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("files", "kafka"))
    parser.add_argument("where")
    parser.add_argument("base", type=Path)
    given = parser.parse_args()
    if given.what == "files":
        source = ms.files(f"{given.where}/*.jsonl", Query, bounded=True)
    else:
        servers, topic = given.where.split()
        source = ms.kafka(topic, Query, servers=servers, bounded=True)
    print(json.dumps(run(source, given.base)))


if __name__ == "__main__":
    _command()
