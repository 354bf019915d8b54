"""`make bench`."""

from __future__ import annotations

import argparse

from bench import (
    counts,
    ends,
    epoch,
    flat,
    idle,
    joins,
    kafka,
    latency,
    many,
    memory,
    operators,
    page,
    postgres,
    recovery,
    rows,
    waiting,
    writer,
)

ALL = [
    *("latency", "ends", "kafka", "many", "counts", "epoch", "rows", "waiting"),
    *("writer", "postgres", "recovery", "idle", "memory", "operators", "joins", "page"),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", help=f"{', '.join(ALL)}, flat; all but the last if none is named")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=None, help="for counts, rows and epoch: so many, in place of their own numbers")
    parser.add_argument("--limit", type=float, default=1_200, help="seconds that a contestant has")
    parser.add_argument("--epochs", type=int, default=100_000, help="for epoch: how old the old journal is")
    parser.add_argument("--seconds", type=float, default=300.0, help="for latency: of each round; for flat: in all")
    parser.add_argument("--only", default="", help="for latency: the first case, and those with this in their name, such as records/s")
    parser.add_argument("--rounds", type=int, default=3, help="for latency, ends, kafka and many")
    arguments = parser.parse_args()
    wanted = arguments.what or ALL
    if "counts" in wanted:
        counts.compare(records=arguments.records, keys=counts.KEYS if arguments.keys is None else [arguments.keys], limit=arguments.limit)
    if "rows" in wanted:
        rows.main(arguments.keys or 100_000)
    if "waiting" in wanted:
        waiting.main()
    if "writer" in wanted:
        writer.main()
    if "postgres" in wanted:
        postgres.main()
    if "epoch" in wanted:
        epoch.main(arguments.epochs, arguments.keys or 100_000)
    if "recovery" in wanted:
        recovery.main()
    if "latency" in wanted:
        cases = [name for name in latency.CASES if name == latency.PLAIN or arguments.only in name]
        latency.main(seconds=arguments.seconds, rounds=arguments.rounds, cases=cases)
    if "ends" in wanted:
        ends.main(seconds=min(60.0, arguments.seconds), rounds=arguments.rounds)
    if "kafka" in wanted:
        kafka.main(arguments.records, arguments.rounds)
    if "many" in wanted:
        many.main(arguments.rounds)
    if "idle" in wanted:
        idle.main()
    if "memory" in wanted:
        memory.main()
    if "operators" in wanted:
        operators.main()
    if "joins" in wanted:
        joins.main()
    if "page" in wanted:
        page.main()
    if "flat" in wanted:
        flat.main(arguments.seconds)


if __name__ == "__main__":
    main()
