"""`python -m tests.simulation --seeds 1000 --first 0`: play seeds, print those that break a law with what led to it."""

from __future__ import annotations

import argparse
import os
import sys
import time

from tests.simulation.playing import play_all


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes that play; as many as there are cores")
    parser.add_argument("--trace", action="store_true", help="print every trace, broken or not")
    parser.add_argument("--digests", action="store_true", help="print the digest of every trace")
    parser.add_argument("--lines", type=int, default=60, help="of the end of a broken trace; 0 for all")
    arguments = parser.parse_args()
    began, played, broken, lines = time.perf_counter(), 0, list[int](), 0
    with play_all(arguments) as outcomes:
        for outcome in outcomes:
            if outcome is None:
                break
            played, lines = played + 1, lines + outcome.lines
            if outcome.text:
                print(outcome.text)
            if outcome.is_broken:
                broken.append(outcome.seed)
    took = time.perf_counter() - began
    print(f"{played} seeds, {lines} lines of trace, {took:.1f} s, {played / took:.1f} seeds/s; broken: {broken or 'none'}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
