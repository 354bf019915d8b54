"""A lane and a source that a test speaks for, with real sockets and a real journal."""

from __future__ import annotations

import uuid

from millstream.core.graph import Graph
from millstream.core.lanes import Lanes
from millstream.core.ledger import Checkpoint
from millstream.core.parts import NO_LANE, Columns
from millstream.core.route import Dealer
from millstream.journal.disk import Disk
from millstream.journal.segments import SegmentWriter
from millstream.mill.actions import Fed
from millstream.mill.channel import Channel, connect
from millstream.mill.messages import Joining, ToLane, decode_to_lane, encode_message
from tests.conformance.scenes import at

TIMEOUT = 30.0
BUCKETS = 2


def join(address: str, secret: bytes, *, attempt: int = 1, state: Checkpoint | None = None) -> Channel:
    """The only lane joins."""
    channel = connect(address, secret)
    channel.send(encode_message(Joining(0, attempt, state or Checkpoint(), "here")))
    return channel


def hear(channel: Channel) -> ToLane:
    message = channel.receive(TIMEOUT)
    assert message is not None
    return decode_to_lane(message)


def fed_of(disk: Disk, graph: Graph, position: int = 1) -> Fed:
    """One value of the source `events`, in a frame."""
    writer = SegmentWriter(disk, "values", lambda: uuid.uuid4().hex)
    columns = Columns(["k"], [b"{}"], [at(1)], [position])
    dealt = Dealer(graph, Lanes(BUCKETS, 1)).deal("events", "events", 0, columns, lane=NO_LANE)
    frame = writer.append(dealt, lane=NO_LANE)
    writer.close()
    return Fed("events", [frame], {}, 1, positions={"": position})
