"""Held rows against a plain dictionary: evictions, checkpoints, crashes and redo, whatever the layout of the pages."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from millstream.core import apart, minima, pages
from millstream.core.row import END, Changes, HeldRow, Row, least, minima_of, timers_of
from millstream.mill.held import Held, decode_changes
from tests.core.shelf import Shelf, row, timer

PLACES = [(0, "one"), (0, "other"), (3, "one")]
Model = dict[tuple[int, str], dict[str, HeldRow]]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few keys are enough to split, merge, begin new chunks and live apart."""
    monkeypatch.setattr(pages, "ROWS_PER_PAGE", 3)
    monkeypatch.setattr(pages, "ROWS_TO_MERGE", 1)
    monkeypatch.setattr(pages, "ROWS_PER_REDO", 4)
    monkeypatch.setattr(minima, "PAGES_PER_CHUNK", 3)
    monkeypatch.setattr(apart, "LARGE", 60)


def put(held: Held, place: tuple[int, str], key: str, new: HeldRow | None) -> None:
    it = held.rows(*place)
    it.put(key, it.get(key), new)


def any_row(rnd: random.Random) -> HeldRow | None:
    state = rnd.choice([b"", b"s", b"t" * 20, b"l" * rnd.choice([61, 500])])
    # Few times, so that many rows tie for the least of a page and of all.
    timers = [timer(tag, rnd.randrange(4), wall=rnd.random() < 0.5, hold=rnd.choice([None, 0, 1])) for tag in "ab"[: rnd.randrange(3)]]
    expiring = Row(state, None, 0, rnd.randrange(4), END, END)
    return rnd.choice([None, row(state), row(state, *timers), row(None, timer("t", rnd.randrange(9))), expiring])


def check(held: Held, model: Model, clock: int) -> None:
    """After `settle`: counts, minima and due keys are those of the model; and so is every row."""
    for place, rows in model.items():
        it = held.rows(*place)
        report = it.report()
        assert (report.rows, report.timers) == (len(rows), sum(len(timers_of(each)) for each in rows.values()))
        assert report.minima == least([minima_of(each) for each in rows.values()])
        assert it.due(clock, clock) == sorted(key for key, each in rows.items() if minima_of(each).due(clock, clock))  # type: ignore[arg-type]
    held.settle()


def check_rows(held: Held, model: Model, keys: list[str]) -> None:
    for place, rows in model.items():
        it = held.rows(*place)
        assert {key: it.get(key) for key in keys} == {key: rows.get(key) for key in keys}
    held.settle()


class Session:
    """A lane over a store whose uncommitted part goes with it, as Spark's does; the journal since the checkpoint; a model."""

    def __init__(self, seed: int, memory: int | None) -> None:
        self.rnd, self.memory = random.Random(seed), memory
        self.keys = [f"k{number}" for number in range(60)]
        self.shelf, self.committed = Shelf(), dict[str, bytes]()
        self.held = Held(self.shelf, memory=memory)
        self.model: Model = {place: {} for place in PLACES}
        self.journal: list[bytes] = []

    def epoch(self, *, fails: bool = False) -> None:
        # Grows and shrinks by turns, so that pages are split and merged.
        gone = self.rnd.random() < 0.3
        model = {place: dict(rows) for place, rows in self.model.items()}
        for _ in range(self.rnd.choice([0, 1, 5, 60])):
            place, key = self.rnd.choice(PLACES), self.rnd.choice(self.keys)
            new = None if gone else any_row(self.rnd)
            put(self.held, place, key, new)
            model[place].pop(key, None)
            if new is not None:
                model[place][key] = new
        if fails:
            self.crash()
            return
        changes = self.held.settle()
        assert changes.rows == sum(len(of) for bucket in changes.changed.values() for of in bucket.values())
        self.model = model
        if changes.rows:
            self.journal.append(changes.encode())

    def checkpoint(self) -> None:
        self.held.checkpoint(b"it")
        assert self.held.dirty_pages == 0
        self.committed, self.journal = dict(self.shelf.kept), []

    def crash(self) -> None:
        """Memory and what was written back since the checkpoint are gone; the journal is not."""
        self.shelf.kept = dict(self.committed)
        self.held.forget()
        assert self.held.resident == 0
        self.held.redo(decode_changes(part) for part in self.journal)


@pytest.mark.parametrize("memory", [None, 1, 4_000, 20_000])
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.usefixtures("small")
def test_rows_are_as_in_a_dictionary_whatever_happens(seed: int, memory: int | None) -> None:
    it = Session(seed, memory)
    for _ in range(60):
        it.epoch(fails=it.rnd.random() < 0.1)
        check(it.held, it.model, it.rnd.randrange(5))
        match it.rnd.randrange(8):
            case 0:
                it.checkpoint()
            case 1:
                it.crash()
            case 2:
                it.held.write_back(it.rnd.choice([1, 3, None]))
            case 3:
                check_rows(it.held, it.model, it.keys)
        if memory is not None and memory > 10_000:
            assert it.held.resident <= memory
    it.crash()
    check(it.held, it.model, 9)
    check_rows(it.held, it.model, it.keys)
    it.checkpoint()
    again = Held(it.shelf, memory=None)
    check(again, it.model, 9)
    check_rows(again, it.model, it.keys)


# One thing each.


def lane(memory: int | None = None) -> tuple[Shelf, Held]:
    shelf = Shelf()
    return shelf, Held(shelf, memory=memory)


def test_a_key_made_and_deleted_in_one_epoch_is_a_row_that_is_gone() -> None:
    _, held = lane()
    put(held, (0, "it"), "k", row(b"s", timer("t", 5)))
    put(held, (0, "it"), "k", None)
    changes = held.settle()
    assert changes.changed == {0: {"it": {"k": None}}}
    assert (held.rows(0, "it").rows, held.rows(0, "it").timers) == (0, 0)
    _, other = lane()
    other.redo([decode_changes(changes.encode())])
    assert other.rows(0, "it").report() == held.rows(0, "it").report()


def test_the_last_image_of_a_row_wins() -> None:
    _, held = lane()
    held.redo([Changes({0: {"it": {"k": b"1", "gone": b"1"}}}, 2), Changes({0: {"it": {"k": b"2", "gone": None}}}, 2)])
    assert [held.rows(0, "it").get(key) for key in ("k", "gone")] == [b"2", None]
    assert held.settle().changed == {}
    assert held.rows(0, "it").rows == 1


def test_what_was_redone_is_dirty_and_goes_into_the_next_checkpoint() -> None:
    shelf, held = lane()
    held.redo([Changes({0: {"it": {"k": b"1"}}}, 1)])
    assert held.dirty_pages == 1
    held.checkpoint(b"")
    assert Held(shelf, memory=None).rows(0, "it").get("k") == b"1"


def test_ties_at_the_root_are_resolved_one_page_after_the_other() -> None:
    _, held = lane()
    for number in range(500):
        put(held, (0, "it"), str(number), row(b"", timer("t", 7, wall=True)))
    held.settle()
    for number in range(500):
        assert held.rows(0, "it").report().minima.wall == 7
        put(held, (0, "it"), str(number), row(b"", timer("t", 9, wall=True)))
        held.settle()
    assert held.rows(0, "it").report().minima.wall == 9


def loosened(held: Held) -> None:
    """A page that is loose and does not decide: another one has an earlier timer."""
    for number in range(200):
        put(held, (0, "it"), str(number), row(b"", timer("t", 10 + number)))
    held.settle()
    put(held, (0, "it"), "early", row(b"", timer("t", 1)))
    for number in range(1, 20):
        put(held, (0, "it"), str(number), row(b"", timer("t", 900)))
    held.settle()
    assert any(held.rows(0, "it").minima.loose)


@pytest.mark.parametrize("how", ["evicted", "merged", "split", "checkpointed"])
def test_a_loose_page_does_not_hold_anything_back(how: str) -> None:
    shelf, held = lane(10**9)
    loosened(held)
    it = held.rows(0, "it")
    numbers = set(map(str, range(200)))
    match how:
        case "evicted":
            held._room.limit = 1
            held.settle()
            held._make_room()
            assert not it.decoded
        case "merged":
            for number in range(20, 200):
                put(held, (0, "it"), str(number), None)
            numbers = set(map(str, range(20)))
        case "split":
            for number in range(200, 900):
                put(held, (0, "it"), str(number), row(b"", timer("t", 5_000)))
            numbers |= set(map(str, range(200, 900)))
        case "checkpointed":
            held.checkpoint(b"")
            held = Held(shelf, memory=None)
            it = held.rows(0, "it")
    put(held, (0, "it"), "0", None)
    put(held, (0, "it"), "early", None)
    held.settle()
    rows = [held.rows(0, "it").get(key) for key in numbers - {"0"}]
    assert it.report().minima.low_watermark == min(each.low for each in rows if isinstance(each, Row))


def test_pages_written_back_and_gone_with_the_uncommitted_store_come_back_by_redo() -> None:
    shelf, held = lane()
    put(held, (0, "it"), "k", b"1")
    frames = [held.settle().encode()]
    held.checkpoint(b"first")
    committed, frames = dict(shelf.kept), []
    put(held, (0, "it"), "k", b"2")
    frames.append(held.settle().encode())
    assert held.write_back() == 1
    shelf.kept = committed
    held.forget()
    assert held.rows(0, "it").get("k") == b"1"
    held.redo(decode_changes(frame) for frame in frames)
    assert held.rows(0, "it").get("k") == b"2"


def test_a_failed_epoch_leaves_nothing() -> None:
    _, held = lane()
    put(held, (0, "it"), "k", b"1")
    held.forget()
    assert held.settle().changed == {}
    assert held.rows(0, "it").get("k") is None
    assert (held.dirty_pages, held.rows(0, "it").rows) == (0, 0)


def test_the_identity_is_that_of_the_last_checkpoint() -> None:
    shelf, held = lane()
    assert held.identity() is None
    held.checkpoint(b"first")
    assert held.identity() == Held(shelf, memory=None).identity() == b"first"
    held.checkpoint(b"second")
    assert held.identity() == b"second"


def test_what_is_held_goes_on_over_another_handle_of_the_same_state() -> None:
    shelf, held = lane()
    put(held, (0, "it"), "k", b"1")
    put(held, (0, "it"), "large", b"l" * 20_000)
    held.settle()
    other = Shelf()
    other.kept = shelf.kept
    held.attach(other)
    held.checkpoint(b"")
    assert shelf.trips() == (1, 0, 0)
    assert other.trips() == (0, 4, 0)


# Memory.


def counted(keys: int, memory: int) -> Iterator[tuple[Shelf, Held]]:
    shelf, held = lane(memory)
    for start in range(0, keys, 1_000):
        for number in range(start, start + 1_000):
            put(held, (0, "it"), f"k{number}", b"7")
        held.settle()
        yield shelf, held


def test_the_bound_is_kept_and_what_does_not_fit_is_in_the_store() -> None:
    for _, held in counted(20_000, 300_000):
        assert held.resident <= 300_000
    assert 0 < held._room.encoded <= 225_000
    assert all(held.rows(0, "it").get(f"k{number}") == b"7" for number in range(0, 20_000, 7))


def test_the_bound_is_kept_inside_an_epoch_too() -> None:
    _, held = lane(300_000)
    most = 0
    for number in range(20_000):
        put(held, (0, "it"), f"k{number}", b"7")
        most = max(most, held.resident)
    assert most <= 300_000 + 12_000  # the page that is fetched comes on top, until the next one


def test_large_rows_are_let_go_too() -> None:
    shelf, held = lane(1_000_000)
    for number in range(200):
        put(held, (0, "it"), f"k{number}", b"%03d" % number + b"l" * 20_000)
    held.settle()
    assert held.resident <= 1_000_000
    assert len(shelf.kept) > 100
    for number in range(200):
        found = held.rows(0, "it").get(f"k{number}")
        assert isinstance(found, bytes)
        assert found[:3] == b"%03d" % number


def test_a_page_let_go_is_had_back_without_a_round_trip_while_its_bytes_fit() -> None:
    shelf, held = lane(1_500_000)  # decoded, the rows take twice that; as bytes, a tenth
    for number in range(20_000):
        put(held, (0, "it"), f"k{number}", b"7")
    held.settle()
    shelf.trips()
    for number in range(20_000):
        held.rows(0, "it").get(f"k{number}")
    held.settle()
    assert sum(shelf.trips()) == 0
    assert held.resident <= 1_500_000
