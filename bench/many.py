"""A topology with four sources and four deliveries of Kafka's against one with one each: threads, memory, start, and what it costs
while nothing happens; all processes together."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import millstream as ms
from bench.goals import at_most
from bench.idle import used
from bench.latency import Count, Event

SETTLE, WATCH = 20.0, 20.0  # seconds


def run(servers: str, ends: int, base: Path) -> dict[str, float]:
    topology, seen = ms.Topology("many"), list[float]()
    for number in range(ends):
        count = Count()
        stream = topology.inject(
            f"in{number}",
            ms.kafka(f"many-in-{number}", Event, servers=servers),
            key=lambda event: event.key,
            timestamp=lambda event: ms.Timestamp(event.at),
            low_watermark=ms.BoundedDisorder(ms.SECOND),
        )
        topology.compute(f"count{number}", count).reads(stream)
        topology.deliver(f"out{number}", count.out, ms.to_kafka(f"many-out-{number}", servers=servers))
    topology.deliver("seen", count.out, ms.function(lambda step, records: seen.append(time.monotonic())))
    began = time.monotonic()
    with ms.start(topology, at=base / "mill"):
        producer = Producer({"bootstrap.servers": servers})
        for number in range(ends):
            producer.produce(f"many-in-{number}", json.dumps({"key": "k", "at": time.time_ns() // 1000, "n": 1}))
        producer.flush()
        while not seen:
            time.sleep(0.01)
        time.sleep(SETTLE)
        family = [psutil.Process(), *psutil.Process().children(recursive=True)]
        threads, memory = sum(p.num_threads() for p in family), sum(p.memory_full_info().pss for p in family)
        before = used()
        time.sleep(WATCH)
        return {"start": seen[0] - began, "threads": threads, "memory": memory, "idle": (used() - before) / WATCH}


def main(rounds: int = 3) -> None:
    from tests.services import both

    with tempfile.TemporaryDirectory(prefix="millstream-bench-") as folder, both(Path(folder)) as (_, servers):
        admin = AdminClient({"bootstrap.servers": servers})
        for future in admin.create_topics([NewTopic(f"many-{way}-{n}", 2) for n in range(4) for way in ("in", "out")]).values():
            future.result(60)
        found: dict[int, list[dict[str, float]]] = {1: [], 4: []}
        for number in range(rounds):
            for ends, those in found.items():
                base = Path(folder, f"{ends}-{number}")
                base.mkdir()
                command = [sys.executable, "-m", "bench.many", servers, str(ends), str(base)]
                out = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
                those.append(json.loads(out.splitlines()[-1]))
        print("four sources and four deliveries, against one each", flush=True)
        for what in ("threads", "memory", "start"):
            one, four = (statistics.median(each[what] for each in found[ends]) for ends in (1, 4))
            shown = f"{four / 2**20:,.0f} MB against {one / 2**20:,.0f}" if what == "memory" else f"{four:,.1f} against {one:,.1f}"
            at_most(f"{what}, {shown}", four / one, 1.3)
        idle = statistics.median(each["idle"] for each in found[4])
        at_most("idle", 100 * idle, 3.0, "% of a core")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("servers")
    parser.add_argument("ends", type=int)
    parser.add_argument("base", type=Path)
    given = parser.parse_args()
    print(json.dumps(run(given.servers, given.ends, given.base)))
