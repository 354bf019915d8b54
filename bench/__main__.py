"""`make bench`."""

from __future__ import annotations

import argparse

from bench import counts, epoch, flat, idle, latency, memory, recovery, rows, writer

ALL = ["latency", "counts", "epoch", "rows", "writer", "recovery", "idle", "memory"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", help=f"{', '.join(ALL)}, flat; all but the last if none is named")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=None, help="for counts, rows and epoch: so many, in place of their own numbers")
    parser.add_argument("--limit", type=float, default=1_200, help="seconds that a contestant has")
    parser.add_argument("--epochs", type=int, default=100_000, help="for epoch: how old the old journal is")
    parser.add_argument("--seconds", type=float, default=300.0, help="for latency: of each of three rounds; for flat: in all")
    told = parser.parse_args()
    wanted = told.what or ALL
    if "counts" in wanted:
        counts.compare(records=told.records, keys=counts.KEYS if told.keys is None else [told.keys], limit=told.limit)
    if "rows" in wanted:
        rows.main(told.keys or 100_000)
    if "writer" in wanted:
        writer.main()
    if "epoch" in wanted:
        epoch.main(told.epochs, told.keys or 100_000)
    if "recovery" in wanted:
        recovery.main()
    if "latency" in wanted:
        latency.main(seconds=told.seconds)
    if "idle" in wanted:
        idle.main()
    if "memory" in wanted:
        memory.main()
    if "flat" in wanted:
        flat.main(told.seconds)


if __name__ == "__main__":
    main()
