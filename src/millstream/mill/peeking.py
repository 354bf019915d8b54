"""Looking at what a lane keeps: the state and timers of a key, or the key that holds a low watermark back.

A lane may have run an epoch that is not committed, so it is asked between two epochs only: what it then has is what the newest
commit says, once it has redone what the question names (rule 7).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec

from millstream.core.codec import StateCodec
from millstream.core.graph import Graph
from millstream.core.lanes import Lanes
from millstream.core.row import END, HeldRow, state_of, timers_of
from millstream.mill.actions import Action, Send
from millstream.mill.held import Held
from millstream.mill.messages import KeptKey, KeptKeyTimer, Peek, PeekFor
from millstream.mill.seats import Seat

MOST_WAITING = 100  # questions; who asks more is answered later, or not at all
MOST_TIMERS = 1_000  # that are shown
LARGEST = 1 << 20  # bytes of a state that are shown

_to_json = msgspec.json.Encoder().encode


class Peeks:
    """Of the planner: questions that wait for a moment between two epochs, and for their lane to be there."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._waiting: deque[PeekFor] = deque(maxlen=MOST_WAITING)

    def add(self, question: PeekFor) -> None:
        self._waiting.append(question)

    def send(self, seats: Sequence[Seat], committed: int) -> list[Action]:
        """To lanes that are in no epoch. Those that are away are asked when they are back."""
        actions: list[Action] = []
        for question in [self._waiting.popleft() for _ in range(len(self._waiting))]:
            seat = seats[self._lanes.of_bucket[question.bucket]]
            if seat.here and seat.connection is not None:
                actions.append(Send(seat.connection, Peek(question, committed, seat.behind(committed))))
            else:
                self._waiting.append(question)
        return actions


class KeyLooker:
    """Of a lane: what it keeps, in words that anybody can read."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._codecs: dict[str, StateCodec] = {}

    def look(self, held: Held, asked: PeekFor, epoch: int) -> KeptKey:
        if asked.computation not in self._graph.nodes:
            return KeptKey(asked.computation, asked.key or "", epoch, problem=f"there is no computation {asked.computation!r}")
        key = asked.key
        if key is None:
            found = holder_of(held, asked.bucket, asked.computation)
            if found is None:
                return KeptKey(asked.computation, "", epoch, problem="nothing holds it back any more")
            return KeptKey(asked.computation, found[0], epoch, waits=found[1], found=True)
        row = held.rows(asked.bucket, asked.computation).get(key)
        state = state_of(row)
        shown, problem = ("", "") if state is None else self._shown(asked.computation, state)
        return in_words(KeptKey(asked.computation, key, epoch, found=row is not None, problem=problem), row, shown)

    def _shown(self, computation: str, state: bytes) -> tuple[str, str]:
        """As JSON text; or, where that cannot be, why."""
        if len(state) > LARGEST:
            return "", f"its state has {len(state):,} bytes, which are too many to be shown"
        if computation not in self._codecs:
            self._codecs[computation] = StateCodec(self._graph.nodes[computation].computation)
        try:
            return _to_json(self._codecs[computation].decode(state)).decode(), ""
        except Exception as error:  # of a class that JSON cannot spell, or code of the user's
            return raw_state(state), f"shown as it is kept: {type(error).__name__}: {error}"


def in_words(kept: KeptKey, row: HeldRow | None, state: str) -> KeptKey:
    """With state and timers."""
    timers = sorted(timers_of(row).values(), key=lambda timer: timer.at)
    kept.state, kept.timers = state, [KeptKeyTimer(timer.tag, timer.at, timer.wall, timer.hold) for timer in timers[:MOST_TIMERS]]
    if len(timers) > MOST_TIMERS:
        kept.problem = "; ".join(filter(None, [kept.problem, f"of {len(timers):,} timers the first {MOST_TIMERS:,} are shown"]))
    return kept


def raw_state(state: bytes) -> str:
    """A state without the code that it belongs to: as msgpack says, or as bytes."""
    try:
        decoded: Any = msgspec.msgpack.decode(state)
        return _to_json(decoded).decode()
    except (msgspec.MsgspecError, TypeError, ValueError):
        return _to_json(state.hex()).decode()


def holder_of(held: Held, bucket: int, computation: str) -> tuple[str, bool] | None:
    """A key that holds the low watermark of a computation's readers back furthest; and whether by a record that waits."""
    of_key, of_record = held.rows(bucket, computation).holder(), held.waiting(bucket, computation).holder()
    if of_record is not None and (of_key is None or of_record[1] < of_key[1]):
        *_, length, rest = of_record[0].split("/", 5)
        return rest[int(length) :], True
    return None if of_key is None or of_key[1] == END else (of_key[0], False)
