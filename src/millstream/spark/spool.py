"""Values of a Python iterable on their way in: written to files by a thread, so that a restart neither loses nor repeats one."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from millstream.core.codec import encode_value
from millstream.errors import RecordError
from millstream.injector import ValueSource
from millstream.log.folder import read_json, write_json

VALUES_A_FILE = 20_000
SECONDS_A_FILE = 0.2


class Taken(msgspec.Struct):
    """How many values have been spooled, and whether there are no more."""

    values: int = 0
    ended: bool = False


class Feeder(threading.Thread):
    """Takes values one by one as they come, and spools them in files that appear whole."""

    def __init__(self, name: str, source: ValueSource[Any], spool: Path) -> None:
        super().__init__(name=f"millstream feeds {name}", daemon=True)
        self._injector, self._source, self._spool = name, source, spool
        self._stopped = threading.Event()
        self.error: BaseException | None = None
        spool.mkdir(parents=True, exist_ok=True)
        self.taken = read_json(spool / "taken.json", Taken) or Taken()
        for file in spool.glob("*.jsonl"):  # one may have appeared after the last count was kept
            self.taken.values = max(self.taken.values, int(file.name.split("-")[1].split(".")[0]))

    @property
    def ended(self) -> bool:
        return self.taken.ended

    def stop(self) -> None:
        """No more values; what was taken is spooled."""
        self._stopped.set()

    def run(self) -> None:
        try:
            if not self.taken.ended:
                self._feed(self._values())
        except BaseException as error:  # the run watches for it: a thread has nobody to raise to
            self.error = error

    def _values(self) -> Iterator[Any]:
        of = self._source.values
        if callable(of):
            resume: Callable[[int], Iterator[Any]] = of
            return iter(resume(self.taken.values))
        return itertools.islice(iter(of), self.taken.values, None)

    def _feed(self, values: Iterator[Any]) -> None:
        lines: list[bytes] = []
        since = time.monotonic()
        while not self._stopped.is_set():
            try:
                value = next(values)
            except StopIteration:
                self._write(lines, ended=True)
                return
            except Exception as error:
                self._write(lines, ended=False)
                raise RecordError(f"injector {self._injector!r}", f"its iterable raised {type(error).__name__}: {error}") from error
            lines.append(encode_value(value))
            if len(lines) >= VALUES_A_FILE or time.monotonic() - since >= SECONDS_A_FILE:
                self._write(lines, ended=False)
                lines, since = [], time.monotonic()
        self._write(lines, ended=False)

    def _write(self, lines: list[bytes], *, ended: bool) -> None:
        first, last = self.taken.values, self.taken.values + len(lines)
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
