"""How far log and deliveries are behind, as the commits say."""

from __future__ import annotations

from millstream.core.epoch import Summary, Tally
from millstream.core.ledger import Commit, Ledger, Plant
from millstream.core.parts import NO_LANE, Frame, Part
from millstream.log.status import Status, status_from
from millstream.timestamp import Timestamp

NOW = Timestamp(0)


class Told:
    """A folder with one delivery, as commits tell of it. The computation that reads the stream is called as that is."""

    def __init__(self, *, unkept: bool = False) -> None:
        self.ledger, self.unkept = Ledger(), ["s"] if unkept else []
        self.commit(plant=self.plant(since=0))

    def plant(self, *, since: int) -> Plant:
        return Plant(computations=["s"], injectors=["s"], deliveries={"out": "s"}, unkept=self.unkept, since={"out": since})

    def commit(self, records: int = 0, *, delivered: int | None = None, logged: int | None = None, plant: Plant | None = None) -> None:
        """The next epoch, in which the computation always has something to do."""
        number = self.ledger.number + 1
        commit = Commit(number, f"{number}", f"{number - 1}", 1, NOW, plant=plant, logged=logged)
        commit.summaries = [Summary(0, {}, {"s": Tally()})]
        if records:
            commit.frames = [Frame(f"values-{number}", NO_LANE, [Part(0, 1, 0, 0, "s", "", "s", number, records, NOW)])]
        if delivered is not None:
            commit.delivered = {"out": delivered}
        self.ledger.apply(commit)

    @property
    def status(self) -> Status:
        return status_from(self.ledger, "t", running=False, now=NOW)

    @property
    def behind(self) -> tuple[int, int]:
        return self.status.deliveries["out"], self.status.log


def test_what_has_everything_is_not_behind_whatever_other_epochs_come() -> None:
    told = Told()
    assert told.behind == (0, 0)
    told.commit(records=2)
    told.commit()
    assert told.behind == (2, 2)
    told.commit(delivered=2, logged=2)
    assert told.behind == (0, 0)
    for _ in range(5):
        told.commit()
    assert told.behind == (0, 0)
    assert told.status.computations["s"].epoch == told.ledger.number
    told.commit(records=1)
    assert told.behind == (told.ledger.number - 2, told.ledger.number - 2)


def test_what_was_gone_before_a_delivery_came_is_not_waited_for() -> None:
    """A stream that is not kept has no history: a delivery that comes later begins with the present."""
    told = Told(unkept=True)
    told.commit(records=2)
    told.commit(plant=told.plant(since=3))
    assert told.behind == (0, 0)
    told.commit(records=2)
    assert told.behind == (1, 0)
