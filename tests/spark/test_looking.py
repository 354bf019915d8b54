"""What is kept for a key: asked of a run that is on, and read from a folder without one."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import millstream as ms
from millstream.command.looking import kept_at
from millstream.core.pages import bucket_of
from millstream.core.row import state_of, timers_of
from millstream.log.folder import Folder
from millstream.spark.stored import _checkpointed
from tests.spark.clicks import Click, T, click
from tests.waiting import wait_until

pytestmark = pytest.mark.spark

USERS = 40


class Pages(ms.Computation[dict[str, int]]):
    """Counts the pages of a user, and waits a minute after each."""

    def process_record(self, record: ms.Record[Click]) -> None:
        page = record.value.page
        self.state[page] = self.state.get(page, 0) + 1
        self.set_timer(page, at=record.timestamp + ms.MINUTE)


def test_a_key_is_looked_at_while_a_run_is_on_and_after_it(tmp_path: Path, at: Path, started: Callable[..., ms.Run]) -> None:
    coming: queue.Queue[Click | None] = queue.Queue()

    def clicks(taken: int) -> Iterator[Click]:
        while (found := coming.get()) is not None:
            yield found

    def topology() -> ms.Topology:
        made = ms.Topology("looking")
        stream = made.inject(
            "clicks",
            ms.values(clicks, Click),
            key=lambda c: c.user,
            timestamp=lambda c: c.at,
            low_watermark=ms.BoundedDisorder(ms.SECOND),
        )
        made.compute("pages", Pages()).reads(stream)
        return made

    run = started(topology(), lanes=2)
    for n in range(2 * USERS):
        coming.put(click(f"u{n % USERS}", n, page="/a"))
    wait_until(lambda: run.status().computations["pages"].tally.received == 2 * USERS)
    wait_until((at / "run" / "now.json").exists)
    found = kept_at(at, "pages", "u3")
    assert (found.state, found.problem) == ('{"/a":2}', "")
    assert [(timer.tag, timer.at) for timer in found.timers] == [("/a", T + (USERS + 3) * ms.SECOND + ms.MINUTE)]
    assert kept_at(at, "pages", "nobody").found is False
    coming.put(None)
    run.stop()

    for user in ("u3", "u17"):
        found = kept_at(at, "pages", user)  # the journal has it still
        assert (found.found, found.state, len(found.timers)) == (True, '{"/a":2}', 1)
    with pytest.raises(ms.LogError, match="nothing is kept of a computation 'page'; there is something of 'pages'"):
        kept_at(at, "page", "u3")

    # And what only Spark's checkpoint has: whichever lane a user is on.
    for user in ("u3", "u17", "u18", "u19"):
        bucket = bucket_of(user, 4)
        rows = [_checkpointed(Folder(at), lane, f"{bucket}/pages/", user) for lane in (0, 1)]
        [row] = [row for row in rows if row is not None]
        assert state_of(row) == b"\x81\xa2/a\x02"
        assert list(timers_of(row)) == ["/a"]
