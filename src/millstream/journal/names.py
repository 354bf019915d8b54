"""Names of segments. Who makes one stands in its name: by it a run knows whether a commit may still come to name it."""

from __future__ import annotations

import re

import msgspec


class ByLane(msgspec.Struct, frozen=True):
    """An attempt of a lane, of any run."""

    lane: int


class ByThread(msgspec.Struct, frozen=True):
    """A thread of the driver: it takes values, or deals the records of a note again."""

    kind: str
    fence: int


class ByTask(msgspec.Struct, frozen=True):
    """A task of a batch of an injector's query, in any run: a batch that was not finished runs again."""

    injector: str
    batch: int


Maker = ByLane | ByThread | ByTask

VALUES, NOTED = "values", "noted"  # kinds of threads

_LANE = re.compile(r"lane(\d+)-\w+")
_THREAD = re.compile(rf"({VALUES}|{NOTED})-(\d{{6,}})-\w+")
_TASK = re.compile(r"source-(.+)-(\d{12,})-\w+")


def prefix_of(maker: Maker) -> str:
    """What its names begin with; what makes each of them new comes after it."""
    match maker:
        case ByLane(lane):
            return f"lane{lane}"
        case ByThread(kind, fence):
            return f"{kind}-{fence:06d}"
        case ByTask(injector, batch):
            return f"source-{injector}-{batch:012d}"


def maker_of(segment: str) -> Maker | None:
    """Who made a segment; None for what somebody else put there."""
    if found := _LANE.fullmatch(segment):
        return ByLane(int(found[1]))
    if found := _THREAD.fullmatch(segment):
        return ByThread(found[1], int(found[2]))
    if found := _TASK.fullmatch(segment):
        return ByTask(found[1], int(found[2]))
    return None
