"""Values of a Python iterable on their way in: written to files by a thread, so that a restart neither loses nor repeats one."""

from __future__ import annotations

import itertools
import os
import queue
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from millstream.core.codec import encode_value
from millstream.errors import RecordError, TopologyError
from millstream.injector import ValueSource
from millstream.log.folder import read_json, write_json

VALUES_A_FILE = 20_000
SECONDS_A_FILE = 0.2
AHEAD = 1_000  # values taken from the iterable and not spooled yet, at most


_used: list[Iterator[Any]] = []  # iterators that a run of this process has begun: they cannot be gone through again


class Taken(msgspec.Struct):
    """How many values have been spooled, and whether there are no more."""

    values: int = 0
    ended: bool = False


class _End:
    """What follows the last value: nothing, or what the iterable raised."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error


class Feeder(threading.Thread):
    """Spools values in files that appear whole. A thread of its own takes them, for an iterable may be silent for long."""

    def __init__(self, name: str, source: ValueSource[Any], spool: Path, owned: Callable[[], object]) -> None:
        super().__init__(name=f"millstream feeds {name}", daemon=True)
        self._injector, self._source, self._spool, self._owned = name, source, spool, owned
        self._stopped = threading.Event()
        self._coming: queue.Queue[bytes | _End] = queue.Queue(AHEAD)
        self.error: Exception | None = None
        spool.mkdir(parents=True, exist_ok=True)
        self.taken = read_json(spool / "taken.json", Taken) or Taken()
        for file in spool.glob("*.jsonl"):  # one may have appeared after the last count was kept
            self.taken.values = max(self.taken.values, int(file.stem.split("-")[1]))

    @property
    def ended(self) -> bool:
        return self.taken.ended

    def stop(self) -> None:
        """No more values; what was taken is spooled. Does not wait for an iterable that is silent."""
        self._stopped.set()

    def run(self) -> None:
        if self.taken.ended:
            return
        threading.Thread(target=self._take, name=f"{self.name}: takes", daemon=True).start()
        try:
            self._spool_all()
        except Exception as error:  # the run watches for it: a thread has nobody to raise to
            self.error = error

    def _take(self) -> None:
        try:
            for value in self._values():
                self._coming.put(encode_value(value))
                if self._stopped.is_set():
                    return
            self._coming.put(_End())
        except Exception as error:
            self._coming.put(_End(error))

    def _values(self) -> Iterator[Any]:
        of = self._source.values
        if isinstance(of, Iterator) and any(of is used for used in _used):
            raise TopologyError("this iterator was used by an earlier run; give a list, or a function of the number of values taken")
        if isinstance(of, Iterator):
            _used.append(of)
        if callable(of):
            resume: Callable[[int], Iterator[Any]] = of
            return iter(resume(self.taken.values))
        return itertools.islice(iter(of), self.taken.values, None)

    def _spool_all(self) -> None:
        while True:
            lines, end = self._some()
            self._write(lines, ended=end is not None and end.error is None)
            if end is not None and end.error is not None:
                trace = "".join(traceback.format_exception(end.error)).rstrip()
                raise RecordError(f"injector {self._injector!r}", f"its values: {type(end.error).__name__}: {end.error}", trace)
            if end is not None or (self._stopped.is_set() and not lines):
                return

    def _some(self) -> tuple[list[bytes], _End | None]:
        """What comes within a moment, up to a file full."""
        lines: list[bytes] = []
        wait: float = SECONDS_A_FILE
        while len(lines) < VALUES_A_FILE:
            try:
                value = self._coming.get(timeout=wait)
            except queue.Empty:
                break
            if isinstance(value, _End):
                return lines, value
            lines.append(value)
            wait = SECONDS_A_FILE / 10  # what follows close upon it goes into the same file
        return lines, None

    def _write(self, lines: list[bytes], *, ended: bool) -> None:
        first, last = self.taken.values, self.taken.values + len(lines)
        if lines or ended:
            self._owned()  # a run that was overtaken must not take what the newer one takes
        if lines:
            final = self._spool / f"{first:015d}-{last:015d}.jsonl"
            temporary = self._spool / f".{final.name}.tmp"
            with temporary.open("wb") as file:
                file.write(b"\n".join(lines) + b"\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, final)
        if lines or ended:
            self.taken = Taken(last, ended)
            write_json(self._spool / "taken.json", self.taken)
