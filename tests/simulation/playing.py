"""Seeds, played by several processes, and told in their order."""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from tests.simulation.play import simulate


class Played(NamedTuple):
    seed: int
    lines: int
    is_broken: bool
    text: str


def play(arguments: argparse.Namespace, until: float, seed: int) -> Played | None:
    """None when there is no time left for it."""
    if time.time() > until:
        return None
    outcome = simulate(seed)
    said = [f"{seed} {outcome.digest}"] if arguments.digests else []
    if arguments.trace or outcome.broken is not None:
        said.append(f"--- seed {seed}{'' if outcome.broken is None else ' BROKEN'}, digest {outcome.digest[:12]}")
        said += outcome.trace if arguments.trace or not arguments.lines else outcome.trace[-arguments.lines :]
    return Played(seed, len(outcome.trace), outcome.broken is not None, "\n".join(said))


@contextmanager
def play_all(arguments: argparse.Namespace) -> Iterator[Iterator[Played | None]]:
    """In the order of the seeds, however many play them."""
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    one = partial(play, arguments, time.time() + arguments.seconds)
    if arguments.jobs == 1:
        yield map(one, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(arguments.jobs) as pool:
        yield pool.imap(one, seeds, chunksize=4)
