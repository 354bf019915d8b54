"""Records as users have them in their hands."""

from __future__ import annotations

import pickle

import msgspec
import pytest

import millstream as ms

RECORD = ms.Record("anna", 7, ms.Timestamp(3), late=True)


def test_a_changed_copy_is_made_as_of_any_struct() -> None:
    changed: ms.Record[int] = msgspec.structs.replace(RECORD, value=8)
    assert (changed.key, changed.value, changed.timestamp, changed.late) == ("anna", 8, 3, True)
    assert RECORD.value == 7
    assert RECORD.__replace__(value=8) == changed  # type: ignore[attr-defined]  # what copy.replace calls from Python 3.13 on


def test_a_record_does_not_change_and_is_equal_by_what_it_says() -> None:
    with pytest.raises(AttributeError):
        RECORD.value = 8  # type: ignore[misc]
    same = ms.Record("anna", 7, ms.Timestamp(3))
    assert same == RECORD
    assert hash(same) == hash(RECORD)
    assert same != ms.Record("anna", 7, ms.Timestamp(4))
    assert pickle.loads(pickle.dumps(RECORD)) == RECORD
