"""Looks at a cluster again and again, beside the thread that reads: so that no question makes a record wait."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from millstream.errors import Unreachable
from millstream.sources.kafka_survey import Survey, Surveyor

LOOK_EVERY = 1.0  # seconds
SILENCE = 8.0  # seconds without an answer, after which the cluster counts as unreachable


@dataclass
class ScoutState:
    """What the thread of a scout has found, for others to see."""

    latest: Survey
    heard: float  # when, by the monotonic clock
    begun: int = 0  # surveys
    asked: int = 0  # the number of the survey that somebody waits for
    closed: bool = False
    unheard: Unreachable | None = None  # since the last answer
    error: BaseException | None = None
    news: threading.Condition = field(default_factory=threading.Condition)


class Scout:
    """A thread with the newest survey. It ends soon after `close`."""

    def __init__(self, surveyor: Surveyor, first: Survey) -> None:
        self._known = ScoutState(first, time.monotonic(), first.number)
        threading.Thread(target=_look, args=(surveyor, self._known), name="millstream looks at Kafka", daemon=True).start()

    @property
    def latest(self) -> Survey:
        return self._known.latest

    @property
    def trouble(self) -> str | None:
        unheard = self._known.unheard
        return None if unheard is None else str(unheard)

    def check(self) -> None:
        """Raises what the thread has met: at once what will not change, `ms.Unreachable` after some seconds without an answer."""
        known = self._known
        if known.error is not None:
            raise known.error
        if known.unheard is not None and time.monotonic() - known.heard > SILENCE:
            raise known.unheard

    def ask(self) -> int:
        """For a survey that begins after now, soon; returns its number."""
        known = self._known
        with known.news:
            known.asked = max(known.asked, known.begun + 1)
            known.news.notify_all()
            return known.asked

    def wait(self, number: int, timeout: float) -> None:
        """Until there is a survey of this number, or so many seconds."""
        known = self._known
        with known.news:
            known.news.wait_for(lambda: known.latest.number >= number or known.error is not None or known.closed, timeout)

    def close(self) -> None:
        """Does not wait: a question that is under way has its own bound."""
        with self._known.news:
            self._known.closed = True
            self._known.news.notify_all()


def _look(surveyor: Surveyor, known: ScoutState) -> None:
    while True:
        with known.news:
            known.news.wait_for(lambda: known.closed or known.asked > known.begun, LOOK_EVERY)
            if known.closed:
                return
            known.begun += 1
            number = known.begun
        try:
            found = surveyor.survey(number)
        except Unreachable as error:
            known.unheard = error
        except BaseException as error:  # whoever polls raises it
            with known.news:
                known.error = error
                known.news.notify_all()
            return
        else:
            with known.news:
                known.latest, known.heard, known.unheard = found, time.monotonic(), None
                known.news.notify_all()
