"""`python -m tests.simulation --seeds 1000 --first 0`: play seeds, print those that break a law with what led to it."""

from __future__ import annotations

import argparse
import sys
import time

from tests.simulation.play import simulate


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--trace", action="store_true", help="print every trace, broken or not")
    parser.add_argument("--digests", action="store_true", help="print the digest of every trace")
    parser.add_argument("--lines", type=int, default=60, help="of the end of a broken trace; 0 for all")
    arguments = parser.parse_args()
    began, played, broken, steps = time.perf_counter(), 0, list[int](), 0
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        if time.perf_counter() - began > arguments.seconds:
            break
        outcome = simulate(seed)
        played, steps = played + 1, steps + len(outcome.trace)
        if arguments.digests:
            print(seed, outcome.digest)
        if arguments.trace or outcome.broken is not None:
            print(f"--- seed {seed}{'' if outcome.broken is None else ' BROKEN'}, digest {outcome.digest[:12]}")
            print("\n".join(outcome.trace if arguments.trace or not arguments.lines else outcome.trace[-arguments.lines :]))
        if outcome.broken is not None:
            broken.append(seed)
    took = time.perf_counter() - began
    print(f"{played} seeds, {steps} lines of trace, {took:.1f} s, {played / took:.1f} seeds/s; broken: {broken or 'none'}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
