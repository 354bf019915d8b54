"""A second Python process, which knows nothing of the user's modules: what went through it is what other processes get to see.

It is started once and waits; each thing that is sent through it is loaded and sent back by a fork of it, so nothing stays there.
"""

from __future__ import annotations

import atexit
import os
import pickle
import struct
import subprocess
import sys
import threading
from typing import IO, Any

from millstream.errors import TopologyError

_LENGTH = struct.Struct("<cQ")
_FINE, _FAILED = b"+", b"-"


class SecondProcess:
    """From the side of whoever sends something through it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._using = threading.Lock()

    def through(self, content: bytes) -> bytes:
        """What is pickled, loaded there, and pickled again."""
        with self._using:
            process = self._process
            if process is None or process.poll() is not None:
                process = self._process = self._start()
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                _write(process.stdin, _FINE, content)
                how, answer = _read(process.stdout)
            except BaseException as error:  # an interrupt too: the next one must not get the answer of this one
                process.kill()
                self._process = None
                if not isinstance(error, EOFError | BrokenPipeError):
                    raise
                raise TopologyError("another process died when this topology was put together there; ship=False leaves that out") from None
        if how == _FAILED:
            raise TopologyError(f"the topology cannot be put together again in another process: {answer.decode()}")
        return answer

    def _start(self) -> subprocess.Popen[bytes]:
        paths = os.pathsep.join(entry for entry in sys.path if entry)
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "millstream.shipping"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": paths},
        )
        atexit.register(process.kill)
        return process


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """The life of the second process."""
    while True:
        try:
            _, content = _read(requests)
        except EOFError:
            return
        child = os.fork()
        if child == 0:
            _write(answers, *_answer(content))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status != 0:
            return  # whoever waits for the answer sees the end


def _answer(content: bytes) -> tuple[bytes, bytes]:
    from millstream.shipping.pickler import forget_where_classes_came_from, pickled

    try:
        what: Any = pickle.loads(content)  # noqa: S301  (from the process that started this one)
        forget_where_classes_came_from()
        return _FINE, pickled(what)
    except BaseException as error:
        return _FAILED, f"{type(error).__name__}: {error}".encode()


def _write(to: IO[bytes], how: bytes, content: bytes) -> None:
    to.write(_LENGTH.pack(how, len(content)) + content)
    to.flush()


def _read(of: IO[bytes]) -> tuple[bytes, bytes]:
    head = of.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    how, length = _LENGTH.unpack(head)
    content = of.read(length)
    if len(content) < length:
        raise EOFError
    return how, content


second = SecondProcess()
