"""The noun of tables: a change, and one key of several parts."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

import millstream as ms
from millstream.change import deleted, inserted, updated


def test_what_comes_changes_and_goes() -> None:
    assert inserted(1) == ms.Change(None, 1)
    assert updated(1, 2) == ms.Change(1, 2)
    assert deleted(2) == ms.Change(2, None)
    with pytest.raises(ValueError, match="a change has a before, an after or both"):
        ms.Change[int]()


def test_a_row_that_is_false_is_a_row() -> None:
    assert inserted(0) == ms.Change(None, 0)
    assert deleted("").before == ""


PARTS: list[str | int] = ["", "a", "b", "ab", '"', ",", "1", '["a"]', "a,b", '"a","b"', "é", "null", 1, -1, 11]


def test_no_two_lists_of_parts_share_a_key() -> None:
    lists = [parts for length in range(3) for parts in itertools.product(PARTS, repeat=length)]
    assert len({ms.key(*parts) for parts in lists}) == len(lists)
    assert all(json.loads(ms.key(*parts)) == list(parts) for parts in lists)


def test_a_key_reads_like_its_parts() -> None:
    assert ms.key("zürich", 8001) == '["zürich",8001]'


@pytest.mark.parametrize("part", [None, 1.5, b"a", ("a",)])
def test_what_has_no_one_spelling_is_refused(part: Any) -> None:
    with pytest.raises(ms.TopologyError, match=r"neither text nor a whole number; write it as text, with str\(\.\.\.\)"):
        ms.key("a", part)
