"""The channel between planner and lanes: who gets in, what is taken, what a stranger can do."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from millstream.mill import channel as channels
from millstream.mill.channel import HELLO_TIMEOUT, LARGEST, Channel, Closed, Listener, admit, connect

SECRET = b"s" * 32


@pytest.fixture(params=["unix", "tcp"])
def listener(request: pytest.FixtureRequest) -> Iterator[Listener]:
    made = Listener(None if request.param == "unix" else "127.0.0.1")
    assert made.address.startswith(request.param)
    yield made
    made.close()


@pytest.fixture
def pair() -> Iterator[tuple[Channel, Channel]]:
    here, there = (Channel(end) for end in socket.socketpair())
    yield here, there
    here.close()
    there.close()


def admitted(listener: Listener, secret: bytes = SECRET) -> tuple[threading.Thread, list[Channel | None]]:
    """Admits the next who comes, beside the test."""
    found: list[Channel | None] = []

    def work() -> None:
        channel = listener.accept()
        assert channel is not None
        if admit(channel, secret):
            found.append(channel)
        else:
            channel.close()
            found.append(None)

    thread = threading.Thread(target=work)
    thread.start()
    return thread, found


def test_both_know_the_secret_and_talk(listener: Listener) -> None:
    thread, found = admitted(listener)
    lane = connect(listener.address, SECRET)
    thread.join()
    (planner,) = found
    assert planner is not None
    lane.send(b"x" * 100_000)  # more than a stranger may say
    assert planner.receive(10.0) == b"x" * 100_000
    planner.send(b"")
    assert lane.receive(10.0) == b""
    lane.close()
    with pytest.raises(Closed):
        planner.receive(10.0)
    planner.close()


def test_rule_5_a_lane_of_another_fence_is_not_let_in(listener: Listener) -> None:
    thread, found = admitted(listener)
    with pytest.raises(Closed):
        connect(listener.address, b"o" * 32)
    thread.join()
    assert found == [None]


def test_a_lane_does_not_talk_to_somebody_else_at_the_planners_address(listener: Listener) -> None:
    def pretend() -> None:
        channel = listener.accept()
        assert channel is not None
        channel.send(b"n" * 32)
        channel.receive(10.0)
        channel.send(b"m" * 32)  # cannot sign what the lane made up

    thread = threading.Thread(target=pretend)
    thread.start()
    with pytest.raises(Closed, match="is not the planner of this run"):
        connect(listener.address, SECRET)
    thread.join()


def test_the_answer_to_one_challenge_opens_nothing_the_next_time(listener: Listener) -> None:
    """Each time something else is to be signed."""
    challenges = []
    for _ in range(2):
        thread, found = admitted(listener)
        stranger = Channel(channels.connected_to(listener.address))
        challenges.append(stranger.receive(10.0))
        stranger.send(channels._signed(SECRET, b"lane", challenges[0] or b"") + b"o" * 32)
        thread.join()
        stranger.close()
    assert challenges[0] != challenges[1]
    assert found == [None]


def test_a_stranger_cannot_fill_the_memory(listener: Listener) -> None:
    thread, found = admitted(listener)
    stranger = channels.connected_to(listener.address)
    stranger.sendall(struct.pack("<I", 65))
    thread.join(HELLO_TIMEOUT / 2)  # it is refused by what it says it will send
    assert found == [None]
    stranger.close()


def test_a_silent_stranger_is_given_up_and_keeps_nobody_out(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "HELLO_TIMEOUT", 1.0)
    silent_thread, silent = admitted(listener)
    stranger = Channel(channels.connected_to(listener.address))
    assert stranger.receive(10.0) is not None  # it is the one whom the first waits for
    thread, found = admitted(listener)
    lane = connect(listener.address, SECRET)
    thread.join()
    assert found[0] is not None
    silent_thread.join()
    assert silent == [None]
    for each in (stranger, lane, found[0]):
        each.close()


def test_a_message_that_is_too_long_ends_the_connection(pair: tuple[Channel, Channel]) -> None:
    here, there = pair
    there.socket.sendall(struct.pack("<I", LARGEST + 1))
    with pytest.raises(Closed, match="a message of 1073741825 bytes is none of ours"):
        here.receive(10.0)


def test_messages_come_whole_and_one_by_one_however_they_were_cut(pair: tuple[Channel, Channel]) -> None:
    here, there = pair
    whole = b"".join(struct.pack("<I", len(message)) + message for message in (b"one", b"", b"three"))
    there.socket.sendall(whole[:5])
    assert here.take() == []
    there.socket.sendall(whole[5:])
    assert here.take() == [b"one", b"", b"three"]
    assert here.receive(0.01) is None
    there.close()
    with pytest.raises(Closed):
        here.take()


def test_who_takes_nothing_counts_as_lost_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planner that waited for a process that is stopped would hang with it."""
    monkeypatch.setattr(channels, "SEND_TIMEOUT", 1)
    listener = Listener()
    stopped = channels.connected_to(listener.address)
    planner = listener.accept()
    assert planner is not None
    with pytest.raises(Closed):
        planner.send(bytes(50 << 20))
    planner.close()
    stopped.close()
    listener.close()


def test_nobody_is_there() -> None:
    listener = Listener()
    listener.close()
    with pytest.raises(Closed, match="cannot be reached"):
        connect(listener.address, SECRET)
    assert listener.accept() is None
