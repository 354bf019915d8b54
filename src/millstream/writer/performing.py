"""What the writer's machine asks for, done: an output is read for, added to and committed by a thread of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from millstream.core.parts import Columns, Part
from millstream.errors import MillstreamError
from millstream.journal.disk import Disk
from millstream.journal.errors import Missing
from millstream.log.reading_history import history
from millstream.targets.lacking import InLog
from millstream.targets.output import Refused, WriterOutput
from millstream.writer.machine import WriteParts


class PartReader(Protocol):
    """The journal, as the writer sees it."""

    def part(self, segment: str, part: Part) -> Columns: ...


@dataclass(frozen=True)
class Done:
    output: str
    upto: int


@dataclass(frozen=True)
class WasRefused:
    output: str
    position: int
    why: str


@dataclass(frozen=True)
class WasMissing:
    output: str
    why: str


@dataclass(frozen=True)
class HasFailed:
    output: str
    message: str


WriteOutcome = Done | WasRefused | WasMissing | HasFailed


def perform(write: WriteParts, output: WriterOutput, reader: PartReader, log: Disk) -> WriteOutcome:
    """Content is in memory a part at a time, and what fills a file.

    Process time of a record, median of five commits of a million: 0.56, 0.61 and 0.82 µs with 65,536, 1,000 and 20 of them a part.
    (`bench/writer.py` prints the time that passes, which goes with the load of the machine, and its ratio to pyarrow alone.) Under
    a profiler, with full parts, Parquet takes a third, Arrow's columns a quarter and decoding a fifth.
    """
    try:
        to = write.to
        for piece in write.pieces:
            if isinstance(piece, InLog):
                to = _add_history(piece, write, output, log)
                continue
            for segment, part in piece.places:
                output.add(piece.number, part.stream, part.origin, part.major, reader.part(segment, part))
        return Done(write.output, output.commit(to))
    except Refused as error:
        output.drop()
        return WasRefused(write.output, output.position(), str(error))
    except Missing as error:
        output.drop()
        return WasMissing(write.output, str(error))


def _add_history(piece: InLog, write: WriteParts, output: WriterOutput, log: Disk) -> int:
    """Up to which epoch the commit goes."""
    assert output.streams is not None, "the log is not written from itself"
    records = 0
    for stream in output.streams:  # a delivery has one
        for epoch, pieces in history(log, stream, piece.after, piece.upto):
            for each in pieces:
                output.add(epoch, stream, each.origin, each.major, each.columns)
                records += len(each.columns)
            if write.at_most is not None and records >= write.at_most:
                return epoch
    return write.to


class OutputThreads:
    """A thread for each output: a slow one keeps nobody else waiting. `tell` is called by those threads."""

    def __init__(self, outputs: dict[str, WriterOutput], reader: PartReader, log: Disk, tell: Callable[[WriteOutcome], None]) -> None:
        self._outputs, self._reader, self._log, self._tell = outputs, reader, log, tell
        self._threads = {name: ThreadPoolExecutor(1, thread_name_prefix=f"writes {name}") for name in outputs}

    def write(self, write: WriteParts) -> None:
        self.run(write.output, lambda: self._tell(perform(write, self._outputs[write.output], self._reader, self._log)))

    def run(self, output: str, do: Callable[[], None]) -> Future[None]:
        """Something for the thread of an output, between its commits."""
        return self._threads[output].submit(self._guarded, output, do)

    def _guarded(self, output: str, do: Callable[[], None]) -> None:
        try:
            do()
        except MillstreamError as error:
            self._tell(HasFailed(output, str(error)))
        except OSError as error:
            self._tell(HasFailed(output, f"output {output!r} cannot be written: {error}"))
        except BaseException as error:  # a thread has nobody to raise to
            self._tell(HasFailed(output, f"output {output!r}: {type(error).__name__}: {error}"))

    def close(self) -> None:
        for thread in self._threads.values():
            thread.shutdown(wait=False, cancel_futures=True)
