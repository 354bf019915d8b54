"""Messages of pgoutput as batches, without a server: transactions that are cut, come again, or come no more."""

from __future__ import annotations

import pytest

import millstream as ms
from millstream.sources import postgres_assembly
from millstream.sources.postgres_assembly import Assembly, PendingChange
from millstream.sources.postgres_pgoutput import (
    Cell,
    Decoded,
    Relation,
    RelationColumn,
    RowChange,
    TransactionBegin,
    TransactionEnd,
    Truncated,
)
from millstream.sources.postgres_place import Cut, SnapshotPlace, WalPlace, lsn_of, lsn_text
from millstream.sources.postgres_rows import RowEncoder
from millstream.sources.postgres_values import ServerType

TABLE = Relation(5, "public", "t", b"f", (RelationColumn("id", 20, -1),))
ENCODER = RowEncoder({"id": int}, [("id", ServerType("bigint", "int8"))], ["id"])
NOON = ms.Timestamp(1_700_000_000_000_000)


def assembly(place: WalPlace, **options: bool) -> Assembly:
    found = Assembly(place, lambda relation: ENCODER if relation.oid == TABLE.oid else None, frozenset(), **options)
    found.take(TABLE)
    return found


def transaction(commit: int, *ids: int) -> list[Decoded]:
    rows = [RowChange(TABLE.oid, ord("I"), None, [b"%d" % each]) for each in ids]
    return [TransactionBegin(commit, NOON), *rows, TransactionEnd(commit, commit + 48)]


def feed(to: Assembly, *messages: Decoded) -> None:
    for message in messages:
        to.take(message)


def values(batches: list[ms.Batch]) -> list[bytes]:
    return [value.removeprefix(b'{"before":null,"after":{"id":').removesuffix(b"}}") for batch in batches for value in batch.values]


def test_whole_transactions_are_given_and_the_open_one_waits() -> None:
    found = assembly(WalPlace(100))
    feed(found, *transaction(200, 1, 2), *transaction(300, 3)[:-1])
    (batch,) = found.batches(3)
    assert (values([batch]), batch.positions[""], batch.positions["transaction"]) == ([b"1", b"2"], 248, "")
    assert list(batch.numbers) == [200 << 31, (200 << 31) + 2]
    assert found.batches(3) == []
    found.take(TransactionEnd(300, 348))
    assert values(found.batches(3)) == [b"3"]


@pytest.mark.parametrize("cut", range(1, 5))
def test_one_that_is_cut_comes_again_and_is_given_once(cut: int) -> None:
    """Whatever the server says before it comes again."""
    whole = transaction(200, 1, 2, 3, 4)
    first = assembly(WalPlace(100))
    feed(first, *whole[: cut + 1])
    (batch,) = first.batches(cut)
    assert batch.positions == {"": 100, "transaction": f"0/C8 {cut}", "snapshot": ""}
    place = WalPlace.of(batch.positions)
    assert place is not None
    again = assembly(place)
    for lsn in (50, 150, 200):
        again.advance(lsn)
    feed(again, *whole)
    given = again.batches(100)
    assert values([batch, *given]) == [b"1", b"2", b"3", b"4"]
    assert [number for each in (batch, *given) for number in each.numbers] == [(200 << 31) + 2 * n for n in range(4)]
    assert again.place == WalPlace(248)


def test_one_that_is_cut_and_comes_no_more_is_refused() -> None:
    missing = "the transaction at 0/C8 was half read, and is not sent any more"
    with pytest.raises(ms.LogError, match=missing):
        feed(assembly(WalPlace(100, 200, 2)), *transaction(300, 5))
    with pytest.raises(ms.LogError, match=missing):
        assembly(WalPlace(100, 200, 2)).advance(300)


def test_what_was_read_is_passed_over() -> None:
    found = assembly(WalPlace(248))
    feed(found, *transaction(100, 1), *transaction(200, 2), TransactionBegin(200, NOON), Truncated((TABLE.oid,)), TransactionEnd(200, 248))
    assert found.batches(1) == []
    assert found.place == WalPlace(248)
    feed(found, *transaction(248, 3))
    assert values(found.batches(1)) == [b"3"]


def test_a_batch_has_one_upper_half_of_the_numbers() -> None:
    high = (1 << 32) - 48
    found = assembly(WalPlace(high))
    feed(found, *transaction(high, 1, 2), *transaction(1 << 32, 3), *transaction((1 << 32) + 100, 4))
    first, second = found.batches(100)
    assert (values([first]), first.major, first.positions[""]) == ([b"1", b"2"], 0, 1 << 32)
    assert (values([second]), second.major, second.positions[""]) == ([b"3", b"4"], 1, (1 << 32) + 148)
    assert max(first.numbers) < 1 << 63
    assert list(second.numbers) == [0, 100 << 31]


def test_rows_of_other_tables_count_and_are_not_given() -> None:
    found = assembly(WalPlace(100))
    other = RowChange(9, ord("I"), None, [b"1"])
    feed(found, TransactionBegin(200, NOON), other, *transaction(200, 1)[1:])
    (batch,) = found.batches(10)
    assert list(batch.numbers) == [(200 << 31) + 2]
    feed(found, TransactionBegin(300, NOON), other, TransactionEnd(300, 348))
    assert (found.batches(10), found.place) == ([], WalPlace(348))


def test_what_the_server_says_moves_the_place_between_transactions_only() -> None:
    found = assembly(WalPlace(100))
    feed(found, *transaction(200, 1), TransactionBegin(300, NOON))
    found.advance(290)
    assert found.place.lsn == 248
    feed(found, TransactionEnd(300, 348))
    found.advance(400)
    (batch,) = found.batches(10)
    assert batch.positions[""] == 400


def test_a_truncated_table() -> None:
    found = assembly(WalPlace(100))
    feed(found, TransactionBegin(200, NOON))
    found.take(Truncated((9,)))
    with pytest.raises(ms.LogError, match=r"table public.t was truncated, in the transaction at 0/C8"):
        found.take(Truncated((9, TABLE.oid)))
    lenient = assembly(WalPlace(100), ignore_truncates=True)
    feed(lenient, TransactionBegin(200, NOON), Truncated((TABLE.oid,)))
    assert lenient.truncated == "public.t"


def row(kind: str, before: list[Cell] | None, after: list[Cell] | None, *, whole: bool = True) -> RowChange:
    return RowChange(TABLE.oid, ord(kind), before, after, whole)


def test_rows_that_lack_something_are_refused() -> None:
    from millstream.sources.postgres_pgoutput import UNCHANGED

    for wrong, message in (
        (row("U", None, [b"1"], whole=False), "what a row was before a change was not sent"),
        (row("D", [b"1"], None, whole=False), "what a row was before a change was not sent"),
        (row("U", [UNCHANGED], [UNCHANGED]), "a value of column 'id' was not sent"),
        (row("I", None, [UNCHANGED]), "a value of column 'id' was not sent"),
    ):
        found = assembly(WalPlace(100))
        feed(found, *transaction(200, 7)[:-1])
        with pytest.raises(ms.LogError, match=message):
            found.take(wrong)
        assert found.place == WalPlace(100, 200, 1)  # it is not counted as taken


def test_more_than_there_are_numbers_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_assembly, "MAX_MESSAGES", 2)
    found = assembly(WalPlace(100))
    with pytest.raises(ms.LogError, match="has more than 2 changes"):
        feed(found, *transaction(200, 1, 2, 3))


def test_changes_that_are_left_out_move_the_place_all_the_same() -> None:
    def odd(changes: object) -> list[PendingChange]:
        return [change for change in changes if int(change.key[0]) % 2]  # type: ignore[attr-defined]

    snapshot = SnapshotPlace(100, 300, NOON, 5, None, (), True)
    found = Assembly(WalPlace(100, snapshot=snapshot), lambda _: ENCODER, frozenset(), keep=odd)
    feed(found, TABLE, *transaction(200, 2, 4))
    (batch,) = found.batches(10)
    assert (batch.values, batch.positions[""]) == ([], 248)
    assert WalPlace.of(batch.positions) == WalPlace(248, snapshot=snapshot)
    feed(found, *transaction(250, 5, 6))
    found.advance(300)
    (batch,) = found.batches(10)
    assert (values([batch]), batch.positions) == ([b"5"], {"": 300, "transaction": "", "snapshot": ""})


def test_places_are_written_and_read() -> None:
    snapshot = SnapshotPlace(100, 300, NOON, 5, Cut("a.b", ("1", "x")), (), False).resumed(400).resumed(500)
    for place in (WalPlace(5), WalPlace(5, 6, 7), WalPlace(5, 6, 7, snapshot)):
        found = WalPlace.of(place.positions())
        assert found is not None
        assert found.positions() == place.positions()
    assert [each.point for each in snapshot.stretches] == [300, 400]
    assert WalPlace.of({}) is None
    for lsn in (0, 1, (1 << 32) - 1, 1 << 32, 0xABCDEF0123456789):
        assert lsn_of(lsn_text(lsn)) == lsn
    assert lsn_text(0x16_0B37_4812) == "16/B374812"
