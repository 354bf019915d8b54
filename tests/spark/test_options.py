"""The settings of a run, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

import millstream as ms
from millstream.log.folder import Pinned
from millstream.spark.options import agree


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"lanes": 0}, "Options(lanes=0): give a whole number, at least 1 and at most 65536, or leave it out"),
        ({"buckets": 2.5}, "Options(buckets=2.5): give a whole number"),
        ({"buckets": 2, "lanes": 4}, "Options(buckets=2, lanes=4): a lane carries a bucket at least"),
        ({"max_records_per_epoch": 0}, "Options(max_records_per_epoch=0): give a whole number, at least 1"),
        ({"max_bytes_per_epoch": -1}, "Options(max_bytes_per_epoch=-1): give a whole number, at least 1"),
        ({"lane_memory": "1g"}, "Options(lane_memory='1g'): give a whole number, at least 1"),
        ({"checkpoint_every": 0.5}, "Options(checkpoint_every=0.5): give a positive ms.Duration, such as 5 * ms.SECOND"),
        ({"lane_timeout": 0}, "Options(lane_timeout=0): give a positive ms.Duration"),
        ({"linger": -1 * ms.SECOND}, "Options(linger=-1000000): give a ms.Duration"),
        ({"channel_port": -1}, "Options(channel_port=-1): give a whole number, at least 0"),
        ({"channel_port": 70_000}, "Options(channel_port=70000): a port is at most 65535"),
        ({"retention": -1 * ms.DAY}, "Options(retention=-86400000000): give a ms.Duration"),
        ({"retention": 1.5}, "Options(retention=1.5): give a ms.Duration"),
    ],
)
def test_nonsense_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ms.TopologyError) as refused:
        ms.Options(**wrong)
    assert message in str(refused.value)


def test_what_is_fixed_for_a_folder_cannot_be_asked_for_otherwise() -> None:
    pinned = Pinned("t", "id", "/data/mill", 16, 2)
    agree(pinned, ms.Options())
    agree(pinned, ms.Options(buckets=16, lanes=2))
    for options, word in ((ms.Options(lanes=3), "2 lanes"), (ms.Options(buckets=32), "16 buckets")):
        with pytest.raises(ms.LogError, match=rf"/data/mill was begun with {word}, and its state depends on it; leave out"):
            agree(pinned, options)
