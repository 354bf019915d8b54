"""A delivery that is slower than the log: the journal lets go of what it knew, and the log has it."""

from __future__ import annotations

from pathlib import Path

from millstream.core.parts import Columns, Part
from millstream.journal.errors import Missing
from tests.targets.fakes import TIMEOUT, Called, FakeJournal, delivery


class Forgetting(FakeJournal):
    """Lets go of segments as the journal does; `lost` of them are gone and not in the log."""

    lost: int = 0
    missed: int = 0

    def read_part(self, segment: str, part: Part) -> Columns:
        if int(segment.split()[1]) <= max(self.logged, self.lost):
            self.missed += 1
            raise Missing(f"{segment} is missing, and a commit names it; restore it from a copy")
        return super().read_part(segment, part)


def test_what_the_journal_let_go_while_a_target_was_slow_is_read_from_the_log(tmp_path: Path) -> None:
    journal, target = Forgetting(), Called()
    thread = delivery(journal, target, tmp_path)
    for value in range(1, 5):  # it knows where all of these lie
        thread.notify(*journal.commit(value))
    journal.logged = 3
    thread.start()
    assert thread.wait_for(4, TIMEOUT), thread.error
    assert thread.stop(journal.newest, TIMEOUT)
    assert [value for _, values in target.calls for value in values] == [1, 2, 3, 4]
    assert journal.missed == 1
    assert journal.histories[0][:2] == (0, 3)


def test_what_is_gone_and_not_in_the_log_is_damage(tmp_path: Path) -> None:
    journal, target = Forgetting(), Called()
    thread = delivery(journal, target, tmp_path)
    thread.notify(*journal.commit(1))
    journal.lost = 1
    thread.start()
    thread.join(TIMEOUT)
    assert thread.error is not None
    assert "segment 1 is missing" in str(thread.error)
    assert (target.calls, journal.missed) == ([], 2)  # looked for once more


def test_of_a_run_that_was_overtaken_nothing_is_damaged(tmp_path: Path) -> None:
    """Rule 12."""
    journal, target = Forgetting(owner=False), Called()
    thread = delivery(journal, target, tmp_path)
    thread.notify(*journal.commit(1))
    journal.lost = 1
    thread.start()
    thread.join(TIMEOUT)
    assert (thread.overtaken, thread.error, target.calls) == (True, None, [])
