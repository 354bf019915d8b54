"""Looking at what lanes keep: what is not committed is not seen, and whoever asks gets an answer or a reason."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import pytest

import millstream as ms
from millstream.core.graph import compile_topology
from millstream.core.row import KeptTimer, keep
from millstream.errors import LogError
from millstream.mill.actions import Write
from millstream.mill.asking import Answering, CannotAsk, KeyQuestion, ask_at
from millstream.mill.held import Held
from millstream.mill.messages import KeptKey, Peek, PeekFor, Work
from millstream.mill.peeking import KeyLooker, holder_of, raw_state
from millstream.testing.memory import MemoryStore
from tests.conformance.scenes import at, inject
from tests.mill.desk import Desk


def question(number: int = 1, *, key: str | None = "k", bucket: int = 0) -> PeekFor:
    return PeekFor(number, "it", bucket, key)


def peeks(desk: Desk, lane: int = 0) -> list[Peek]:
    return [said for said in desk.said.get(desk.sitting.get(lane, 0), []) if isinstance(said, Peek)]


class TestPlanner:
    def test_a_lane_that_rests_is_asked_at_once(self) -> None:
        desk = Desk()
        desk.join(0), desk.join(1)
        desk.act(desk.planner.on_peek(question(), desk.now))
        [peek] = peeks(desk)
        assert (peek.asked, peek.committed, peek.redo) == (question(), desk.number, [])
        assert peeks(desk, lane=1) == []

    def test_one_in_an_epoch_is_asked_after_its_commit_and_before_the_next_epoch(self) -> None:
        desk = Desk()
        desk.join(0), desk.join(1)
        desk.feed()
        desk.act(desk.planner.on_peek(question(), desk.now))
        assert peeks(desk) == [], "it is in an epoch"
        desk.disk_waits = True
        desk.report(0)
        assert isinstance(desk.asked[-1], Write)
        assert peeks(desk) == [], "it has run what is not committed"
        desk.feed()
        desk.act(desk.planner.on_committed(desk.now))
        said = desk.said[desk.sitting[0]]
        assert [type(each) for each in said[-2:]] == [Peek, Work]
        assert peeks(desk)[0].committed == desk.number

    def test_one_that_is_away_is_asked_when_it_is_back(self) -> None:
        desk = Desk()
        desk.join(0), desk.join(1)
        desk.lose(0)
        desk.act(desk.planner.on_peek(question(), desk.now))
        desk.join(0)
        assert [peek.asked for peek in peeks(desk)] == [question()]


@dataclass
class Seen:
    pages: list[str]


class Pages(ms.Computation[Seen | None]):
    def process_record(self, record: ms.Record[object]) -> None: ...


def held_with(**rows: object) -> Held:
    held = Held(MemoryStore(), memory=None)
    pages = held.rows(0, "it")
    for key, row in rows.items():
        pages.put(key, pages.get(key), row)  # type: ignore[arg-type]
    held.settle()
    return held


@pytest.fixture
def looker() -> KeyLooker:
    topology = ms.Topology("t")
    topology.compute("it", Pages()).reads(inject(topology))
    return KeyLooker(compile_topology(topology))


STATE = b"\x81\xa5pages\x92\xa1/\xa2/a"
TIMERS = {"b": KeptTimer("b", at(9), False, at(5)), "a": KeptTimer("a", at(7), True, None)}


class TestLane:
    def test_state_and_timers_are_told_in_words(self, looker: KeyLooker) -> None:
        found = looker.look(held_with(k=keep(STATE, TIMERS)), question(), 12)
        assert (found.state, found.epoch, found.found, found.problem) == ('{"pages":["/","/a"]}', 12, True, "")
        assert [(timer.tag, timer.at, timer.wall, timer.hold) for timer in found.timers] == [
            ("a", at(7), True, None),
            ("b", at(9), False, at(5)),
        ]

    def test_a_key_of_which_nothing_is_kept(self, looker: KeyLooker) -> None:
        found = looker.look(held_with(), question(), 12)
        assert (found.found, found.state, found.timers, found.problem) == (False, "", [], "")

    def test_what_cannot_be_read_is_shown_as_it_is(self, looker: KeyLooker) -> None:
        found = looker.look(held_with(k=b"\x01"), question(), 12)
        assert found.state == "1"
        assert found.problem.startswith("shown as it is kept: ValidationError")
        assert raw_state(b"\xc1") == '"c1"'

    def test_a_state_that_is_too_large_is_not_sent(self, looker: KeyLooker) -> None:
        found = looker.look(held_with(k=b"\x00" * (2 << 20)), question(), 12)
        assert (found.state, found.problem) == ("", "its state has 2,097,152 bytes, which are too many to be shown")

    def test_a_computation_that_is_not_there(self, looker: KeyLooker) -> None:
        assert looker.look(held_with(), PeekFor(1, "other", 0, "k"), 1).problem == "there is no computation 'other'"

    def test_the_key_that_holds_back_is_found(self, looker: KeyLooker) -> None:
        held = held_with(
            early=keep(STATE, {"t": KeptTimer("t", at(9), False, at(3))}), late=keep(STATE, {"t": KeptTimer("t", at(9), False, at(4))})
        )
        assert holder_of(held, 0, "it") == ("early", False)
        assert looker.look(held, question(key=None), 3).key == "early"
        waiting = held.waiting(0, "it")
        address = f"{int(at(2))}/events/1/2/6/eventskey/with/strokes"
        waiting.put(address, waiting.get(address), keep(b"{}", {"t": KeptTimer("t", at(2), False, at(2))}))
        held.settle()
        assert holder_of(held, 0, "it") == ("key/with/strokes", True)
        assert looker.look(held, question(key=None), 3).waits

    def test_of_very_many_timers_the_first_are_told(self, looker: KeyLooker) -> None:
        timers = {f"{n}": KeptTimer(f"{n}", at(n), False, at(n)) for n in range(1_500)}
        found = looker.look(held_with(k=keep(STATE, timers)), question(), 3)
        assert (len(found.timers), found.timers[0].tag) == (1_000, "0")
        assert found.problem == "of 1,500 timers the first 1,000 are shown"

    def test_nobody_holds_back(self, looker: KeyLooker) -> None:
        assert looker.look(held_with(k=STATE), question(key=None), 3).problem == "nothing holds it back any more"


class TestAsking:
    def test_an_answer_comes_through(self) -> None:
        answering = Answering(lambda asked: KeptKey(asked.computation, asked.key or "", 5, state="1"))
        try:
            assert ask_at(answering.address, KeyQuestion("it", "k")) == KeptKey("it", "k", 5, state="1")
            assert ask_at(answering.address, KeyQuestion("it")).key == ""
        finally:
            answering.end()
        with pytest.raises(CannotAsk, match="ask on its machine, as its user"):
            ask_at(answering.address, KeyQuestion("it", "k"))

    @pytest.mark.parametrize(
        ("error", "why"),
        [(TimeoutError("of the planner"), "its lane is in an epoch, or away; ask again"), (LogError("no such file"), "no such file")],
    )
    def test_what_the_run_meets_is_told(self, error: Exception, why: str) -> None:
        def fail(asked: KeyQuestion) -> KeptKey:
            raise error

        answering = Answering(fail)
        try:
            assert ask_at(answering.address, KeyQuestion("it", "k")).problem == f"the run has no answer: {why}"
        finally:
            answering.end()

    def test_who_has_given_up_is_not_answered(self) -> None:
        asked, gate = [], threading.Event()

        def slow(question: KeyQuestion) -> KeptKey:
            asked.append(question.key)
            gate.wait(30)
            return KeptKey("it", question.key or "", 1)

        answering = Answering(slow)
        try:
            for key in ("first", "second", "third"):
                with pytest.raises(CannotAsk, match="has not answered within"):
                    ask_at(answering.address, KeyQuestion("it", key), timeout=0.2)
            gate.set()
            assert ask_at(answering.address, KeyQuestion("it", "last")).key == "last"
        finally:
            gate.set()
            answering.end()
        assert asked == ["first", "last"]

    def test_without_a_run_there_is_nobody_to_ask(self) -> None:
        with pytest.raises(CannotAsk, match="no run is on"):
            ask_at("", KeyQuestion("it", "k"))
