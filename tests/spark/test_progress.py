"""What a run shows to people who do not sit at a terminal. No Spark is needed for that."""

from __future__ import annotations

import re
from typing import cast

import pytest

import millstream as ms
from millstream.command.progress import closing_line, watch
from millstream.core.epoch import Tally
from millstream.log.status import ComputationStatus, InjectorStatus, Status
from millstream.spark.run import Run

NOON = ms.Timestamp(1_700_000_000_000_000)


def status(**deliveries: int) -> Status:
    tally = Tally(received=1_234, applied=1_229, late=5, dropped=3, dead=2)
    return Status(
        topology="[mine]",
        running=False,
        epoch=12,
        now=NOON,
        computations={"count": ComputationStatus(NOON, NOON, None, tally, 3, 1, 12)},
        streams={},
        injectors={"clicks": InjectorStatus(1_234, 1, NOON, True, 0, 12)},
        deliveries=deliveries,
        log=0,
    )


class Ended:
    """A run that has ended already, or fails at once."""

    def __init__(self, error: ms.RunFailed | None = None) -> None:
        self._error = error

    def wait(self, timeout: float | None = None) -> bool:
        if self._error is not None:
            raise self._error
        return True

    def status(self) -> Status:
        return status(counts=0)


def seen(capsys: pytest.CaptureFixture[str], *, shown: bool | None, error: ms.RunFailed | None = None) -> str:
    if error is None:
        watch(lambda: cast(Run, Ended()), shown=shown)
    else:
        with pytest.raises(ms.RunFailed):
            watch(lambda: cast(Run, Ended(error)), shown=shown)
    found = capsys.readouterr()
    assert found.out == ""
    return re.sub(r"\d+ s(\b|$)", "N s", found.err)


LINE = "[mine]: epoch 12 · 1,234 records in · all delivered · 3 dropped late · 3 dead letters · N s\n"


@pytest.mark.parametrize(("shown", "want"), [(None, LINE), (True, f"starting Spark\n{LINE}"), (False, "")])
def test_where_there_is_no_terminal_one_line_closes_a_run(shown: bool | None, want: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert seen(capsys, shown=shown) == want


@pytest.mark.parametrize(("shown", "want"), [(None, "failed after N s: the disk is full [/]\n"), (True, "starting Spark\n"), (False, "")])
def test_a_failure_is_told_in_one_line(shown: bool | None, want: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert seen(capsys, shown=shown, error=ms.RunFailed("the disk is full [/]\n\nTraceback")) == want


def test_what_is_not_delivered_is_named() -> None:
    assert " · not delivered yet: slow 1,200 epochs · " in closing_line(status(fast=0, slow=1_200), 3.0)
