"""`make bench`."""

from __future__ import annotations

import argparse

from bench import counts, idle, log


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", help="counts, log, idle; all of them if none is named")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--limit", type=float, default=1_200, help="seconds that a contestant has")
    parser.add_argument("--epochs", type=int, default=10_000, help="for log; 100,000 takes three quarters of an hour")
    told = parser.parse_args()
    wanted = told.what or ["counts", "log", "idle"]
    if "counts" in wanted:
        counts.compare(records=told.records, keys=told.keys, limit=told.limit)
    if "log" in wanted:
        log.main(told.epochs)
    if "idle" in wanted:
        idle.main()


if __name__ == "__main__":
    main()
