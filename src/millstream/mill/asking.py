"""Asking a run that is on what its lanes keep: from another process of the same user on the same machine.

The run listens at a Unix socket in a folder that only its user can enter; where that is, its own folder says (`Now.asked_at`).
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

import msgspec

from millstream.errors import MillstreamError
from millstream.mill.channel import Channel, Closed, Listener, connected_to
from millstream.mill.messages import KeptKey

log = logging.getLogger("millstream")

ANSWER_TIMEOUT = 12.0  # seconds: longer than the run waits for its lane
QUESTION_TIMEOUT = 2.0
LARGEST_QUESTION = 1 << 16  # bytes
LARGEST_ANSWER = 1 << 24


class KeyQuestion(msgspec.Struct, frozen=True):
    """What is kept for a key; without a key, for the one that holds the low watermark of a computation's readers back."""

    computation: str
    key: str | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode_question = msgspec.msgpack.Decoder(KeyQuestion).decode
_decode_answer = msgspec.msgpack.Decoder(KeptKey).decode


class CannotAsk(MillstreamError):
    """No run is on that can be asked from here, or it does not answer."""


def ask_at(address: str, question: KeyQuestion, *, timeout: float = ANSWER_TIMEOUT) -> KeptKey:
    """The answer of a run."""
    if not address.startswith("unix:"):
        raise CannotAsk("no run is on that could be asked")
    try:
        channel = Channel(connected_to(address), largest=LARGEST_ANSWER)
    except Closed as error:
        raise CannotAsk("the run cannot be asked from here: ask on its machine, as its user") from error
    try:
        channel.send(_encode(question))
        answer = channel.receive(timeout)
    except Closed as error:
        raise CannotAsk("the run has ended meanwhile") from error
    finally:
        channel.close()
    if answer is None:
        raise CannotAsk(f"the run has not answered within {timeout:.0f} s")
    return _decode_answer(answer)


def _is_gone(channel: Channel) -> bool:
    """Whether the other side has given up: its questions may have piled up in a long epoch."""
    try:
        return channel.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False


class Answering:
    """The run's side: one question a connection, one connection after the other."""

    def __init__(self, answer: Callable[[KeyQuestion], KeptKey]) -> None:
        self._answer, self._listener = answer, Listener()
        self.address = self._listener.address
        self._thread = threading.Thread(target=self._serve, name="millstream answers", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Whoever is being answered is answered still, for a while."""
        self._listener.close()
        self._thread.join(QUESTION_TIMEOUT)

    def _serve(self) -> None:
        while (channel := self._listener.accept()) is not None:
            channel.largest = LARGEST_QUESTION
            with suppress(Closed):  # whoever asked is gone
                self._hear(channel)
            channel.close()

    def _hear(self, channel: Channel) -> None:
        message = channel.receive(QUESTION_TIMEOUT)
        if message is None:
            return
        try:
            question = _decode_question(message)
        except msgspec.DecodeError as error:
            log.warning("somebody asked what cannot be read: %s", error)
            return
        if _is_gone(channel):
            return
        try:
            kept = self._answer(question)
        except Exception as error:  # a lane that is away or in a long epoch, a run that ends: whoever asked is told
            why = "its lane is in an epoch, or away; ask again" if isinstance(error, TimeoutError) else str(error)
            kept = KeptKey(question.computation, question.key or "", 0, problem=f"the run has no answer: {why}")
        channel.send(_encode(kept))
