"""A driver's side of the writer process, as small as can be: starts it, tells it of commits, and keeps what it says."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from millstream.core.parts import Part
from millstream.errors import LogError
from millstream.mill.channel import Channel, Closed
from millstream.writer.log_output import LOG
from millstream.writer.messages import (
    Asked,
    BeginWriting,
    Needed,
    NewCommit,
    OutputFailed,
    Positions,
    RetentionPutOff,
    StopWriting,
    TailAnswer,
    ToWriter,
    Written,
    decode_from_writer,
    encode,
)


class WriterChild:
    """One writer process. `error` is why it stopped, for the run to raise.

    `answer` says what there is for an output after an epoch, `written` is told what an output has for good; both are called by
    a thread of this class.
    """

    def __init__(self, begin: BeginWriting, *, answer: Callable[[str, int], TailAnswer], written: Callable[[str, int], None]) -> None:
        self._begin, self._answer, self._written = begin, answer, written
        self._needed_from, self._newest = begin.needed_from, begin.newest
        self._sending = threading.Lock()
        self._changed = threading.Condition()
        self.positions: dict[str, int] = {}  # of all outputs; the log's is under `LOG`
        self.kept: list[str] = []  # streams that retention was said to leave
        self.error: LogError | None = None
        self._stopping = False
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._thread: threading.Thread | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        here, there = socket.socketpair()
        with there:
            command = [sys.executable, "-m", "millstream.writer", str(there.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[there.fileno()], stdin=subprocess.DEVNULL)
        self._channel = Channel(here)
        self._send(self._begin)
        self._thread = threading.Thread(target=self._listen, name="millstream listens to its writer", daemon=True)
        self._thread.start()

    def on_commit(self, number: int, places: Sequence[tuple[str, Part]]) -> None:
        """A commit is durable, and its folder synced; these are the plain parts that it names."""
        self._send(NewCommit(number, list(places)))
        self._newest = number
        self.keep(self._needed_from)

    def keep(self, needed_from: dict[str, int]) -> None:
        """The log leaves these streams whole from these epochs on."""
        self._needed_from = needed_from
        self._send(Needed(needed_from, self._newest))

    def behind(self, epoch: int) -> list[str]:
        """The outputs that do not have everything up to this epoch."""
        names = [LOG, *(output.name for output in self._begin.outputs)]
        return [name for name in names if self.positions.get(name, -1) < epoch]

    def stop(self, at: int, timeout: float) -> list[str]:
        """Write all up to commit `at` and end. Returns the outputs that did not come so far in this time."""
        self._stopping = True
        self._send(StopWriting(at))
        deadline = time.monotonic() + timeout
        with self._changed:
            while self.behind(at) and self.error is None and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
        late = self.behind(at)
        self.end()
        return late

    def end(self) -> None:
        """At once. What was not committed is written by the next run."""
        self._stopping = True
        if self._channel is not None:
            self._channel.close()
        if self._process is not None:
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _send(self, message: ToWriter) -> None:
        """If the process is gone, the thread that listens says so."""
        assert self._channel is not None
        with self._sending, suppress(Closed):
            self._channel.send(encode(message))

    def _listen(self) -> None:
        assert self._channel is not None
        try:
            while True:
                message = self._channel.receive()
                assert message is not None
                self._handle(message)
        except Closed:
            if not self._stopping:
                self._fail("the writer process ended; start again: it goes on where it was")
        except LogError as error:
            self._fail(str(error))

    def _handle(self, message: bytes) -> None:
        match decode_from_writer(message):
            case Positions(of):
                self._move(of)
            case Written(output, upto):
                self._written(output, upto)
                self._move({output: upto})
            case Asked(output, after):
                self._send(self._answer(output, after))
            case RetentionPutOff(stream):
                self.kept.append(stream)
            case OutputFailed(output, why):
                self._fail(why if output == LOG else f"delivery {output!r}: {why}")

    def _move(self, positions: dict[str, int]) -> None:
        with self._changed:
            self.positions.update(positions)
            self._changed.notify_all()

    def _fail(self, message: str) -> None:
        with self._changed:
            if self.error is None:
                self.error = LogError(message)
            self._changed.notify_all()
