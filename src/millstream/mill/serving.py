"""The loop of a lane: it joins the planner and does what it is told until it is told to return."""

from __future__ import annotations

import threading
from collections.abc import Callable

from millstream.errors import MillstreamError
from millstream.mill.channel import Channel
from millstream.mill.lane import Lane
from millstream.mill.messages import Busy, Failed, FromLane, decode_to_lane, encode_message

SAY_EVERY = 1.0  # seconds; what is at hand, while an epoch runs
IDLE_WAIT = 0.001  # seconds that an idle lane waits for a message before it writes back a few more pages


class LaneFailed(MillstreamError):
    """An epoch cannot be run. The planner has been told; the task fails, so that nothing of it stays."""


def serve(lane: Lane, channel: Channel, *, attempt: int, process: str) -> None:
    """Until the lane is told to checkpoint or to go away. Raises if the planner is lost: the task must fail then (rule 6)."""
    speaking = threading.Lock()
    over = threading.Event()

    def say(message: FromLane) -> None:
        with speaking:
            channel.send(encode_message(message))

    say(lane.join(attempt, process))
    talker = threading.Thread(target=_say_what_is_at_hand, args=(lane, say, over), name="millstream says what is at hand", daemon=True)
    talker.start()
    try:
        while not lane.finished:
            message = channel.receive(IDLE_WAIT if lane.rest() else None)
            if message is None:
                continue
            answer = lane.hear(decode_to_lane(message))
            if answer is not None:
                say(answer)
            if isinstance(answer, Failed):
                raise LaneFailed(answer.message)
    finally:
        over.set()
        talker.join()  # the process is used again
        channel.close()


def _say_what_is_at_hand(lane: Lane, say: Callable[[FromLane], None], over: threading.Event) -> None:
    while not over.wait(SAY_EVERY):
        found = lane.at_hand
        if found is not None:
            try:
                say(Busy(*found))
            except ConnectionError:
                return  # the loop finds out by itself
