"""What epochs spent their time on."""

from __future__ import annotations

from millstream.core.epoch import EPOCH_BOUNDS
from millstream.mill.messages import Spent
from millstream.mill.spending import RECENT, Meter


def test_epochs_are_counted_by_how_long_they_took() -> None:
    meter = Meter()
    meter.reported(Spent(0.25, 0.5, 0.125))
    meter.reported(Spent(0.25, 0.0, 0.125))
    meter.committed(2, began=100.0, ran=0.75, wrote=0.25, lanes=2)
    meter.committed(3, began=101.0, ran=0.0, wrote=0.5, lanes=0)
    meter.committed(4, began=102.0, ran=100.0, wrote=0.0, lanes=1)
    total = meter.spending
    assert (total.reading, total.running, total.writing, total.committing) == (0.5, 0.5, 0.25, 0.75)
    assert (total.epochs, total.seconds) == (2, 101.0), "one without lanes is none that took its time"
    counted = {n: count for n, count in enumerate(total.within) if count}
    assert counted == {EPOCH_BOUNDS.index(1.0): 1, len(EPOCH_BOUNDS): 1}, "a bound is in its own; and longer than all"


def test_each_of_the_newest_is_told_once() -> None:
    meter = Meter()
    for number in range(RECENT + 10):
        meter.committed(number, began=float(number), ran=0.5, wrote=0.25, lanes=1)
    spans = meter.take_spans()
    assert [span.number for span in spans] == list(range(10, RECENT + 10))
    assert (spans[0].began, spans[0].ran, spans[0].wrote, spans[0].lanes) == (10.0, 0.5, 0.25, 1)
    assert meter.take_spans() == []
