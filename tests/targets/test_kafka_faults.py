"""A Kafka topic as a target when something dies, or comes too late: readers of committed records see each record once."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

import millstream as ms
from millstream.targets import connection
from millstream.targets import kafka as kafka_target
from millstream.targets.driver import DeliveryThread
from millstream.targets.kafka_cluster import Cluster
from millstream.targets.kafka_sink import FENCED, PURGED, TransactionalKafkaSink
from tests.services.kafka import Broker
from tests.services.kafka_proxy import Moment, Proxy
from tests.targets.fakes import TIMEOUT, FakeJournal, deliver_all, delivery
from tests.targets.test_kafka import context, record, values
from tests.waiting import wait_until

IDENTITY = "f" * 32


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(connection, "LONGEST_PAUSE", 0.1)


@pytest.fixture
def met(monkeypatch: pytest.MonkeyPatch) -> list[KafkaError]:
    """What sinks with transactions hear from librdkafka."""
    found: list[KafkaError] = []
    explain = TransactionalKafkaSink._explain

    def listening(self: TransactionalKafkaSink, error: KafkaError, records: Any) -> ms.MillstreamError:
        found.append(error)
        return explain(self, error, records)

    monkeypatch.setattr(TransactionalKafkaSink, "_explain", listening)
    return found


def test_a_second_run_fences_the_first_at_the_broker(kafka: Broker, met: list[KafkaError]) -> None:
    topic = kafka.create_topic()
    target = ms.to_kafka(topic, servers=kafka.servers)
    with closing(target.open(context(identity=IDENTITY))) as old:
        old.write(ms.Step(0, 0, 1), [record("a", 1)])
        with closing(target.open(context(identity=IDENTITY, fence=2))) as new:
            with pytest.raises(ms.Fenced, match=r"run 2 delivers to topic .*, and this is run 1"):
                old.write(ms.Step(1, 1, 2), [record("a", 2)])
            assert [error.code() in FENCED | PURGED for error in met] == [True]
            new.write(ms.Step(1, 1, 2), [record("a", 3)])
    assert values(kafka, topic) == [1, 3]


def test_a_run_that_opens_late_does_not_stop_the_newer_one(kafka: Broker, met: list[KafkaError]) -> None:
    topic = kafka.create_topic()
    target = ms.to_kafka(topic, servers=kafka.servers)
    with closing(target.open(context(identity=IDENTITY, fence=7))) as new:
        with pytest.raises(ms.Fenced, match="run 7 delivers"):
            target.open(context(identity=IDENTITY, fence=3))
        new.write(ms.Step(0, 0, 1), [record("a", 1)])
    assert (values(kafka, topic), met) == ([1], [])


def test_a_newer_run_that_was_fenced_by_an_older_one_opens_anew(
    kafka: Broker, tmp_path: Path, met: list[KafkaError], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, journal = kafka.create_topic(), FakeJournal()
    thread = delivery(journal, ms.to_kafka(topic, servers=kafka.servers), tmp_path, fence=7)
    identity = thread._connection._context.identity
    look = Cluster.committed

    def too_early(self: Cluster, group: str, *, stable: bool) -> Any:
        return look(self, group, stable=stable) if stable else None

    with monkeypatch.context() as patched:
        patched.setattr(Cluster, "committed", too_early)
        with pytest.raises(ms.Fenced, match="run 7 delivers"):
            ms.to_kafka(topic, servers=kafka.servers).open(context(identity=identity, fence=3))
    journal.commit(1)
    thread.start()
    thread.notify(1, journal.places(1))
    thread.stop(1, TIMEOUT)
    assert (thread.error, thread.overtaken, values(kafka, topic)) == (None, False, [1])
    assert met[0].code() in FENCED | PURGED


def open_sink(thread: DeliveryThread) -> TransactionalKafkaSink:
    sink = thread._connection._sink
    assert isinstance(sink, TransactionalKafkaSink)
    return sink


def test_a_transaction_that_does_not_end_is_waited_for_and_named(kafka: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, identity = kafka.create_topic(), "e" * 32
    target = ms.to_kafka(topic, servers=kafka.servers)
    target.open(context(identity=identity)).close()
    other = Producer({"bootstrap.servers": kafka.servers, "transactional.id": topic, "log_level": 0})
    with closing(Consumer({"bootstrap.servers": kafka.servers, "group.id": f"millstream-{identity}", "log_level": 0})) as consumer:
        group = consumer.consumer_group_metadata()
    other.init_transactions(TIMEOUT)
    other.begin_transaction()
    other.send_offsets_to_transaction([TopicPartition(topic, 0, 9)], group, TIMEOUT)
    monkeypatch.setattr(kafka_target, "ANSWER_TIMEOUT", 3.0)
    with pytest.raises(ms.Unreachable, match=r"has not ended for 3 s; .*kafka-transactions\.sh"):
        target.open(context(identity=identity, fence=2))
    other.abort_transaction(TIMEOUT)
    target.open(context(identity=identity, fence=2)).close()


PROGRAM = """
import signal, sys, uuid
import millstream as ms
from millstream.targets.kafka_sink import FENCED, PURGED, TransactionalKafkaSink
from tests.targets.test_kafka import context, record

topic, servers, identity = sys.argv[1:]
sink = ms.to_kafka(topic, servers=servers).open(context(identity=identity))
sink.write(ms.Step(0, 0, 1), [record("a", 1)])
send = TransactionalKafkaSink._send

def send_and_stay(self, records):
    send(self, records)
    print("sent", flush=True)
    signal.pause()

TransactionalKafkaSink._send = send_and_stay
sink.write(ms.Step(1, 1, 2), [record("a", 2), record("b", 3)])
"""


def test_a_process_that_is_killed_in_a_transaction_leaves_nothing_of_it(kafka: Broker) -> None:
    topic = kafka.create_topic()
    root = Path(__file__).parent.parent.parent
    command = [sys.executable, "-c", PROGRAM, topic, kafka.servers, IDENTITY[:-1]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as child:
        watchdog = threading.Timer(TIMEOUT, child.kill)
        watchdog.start()
        assert child.stdout is not None
        assert child.stdout.readline() == "sent\n"
        watchdog.cancel()
        os.kill(child.pid, signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    assert values(kafka, topic, committed=False) == [1, 2, 3]  # it was in the middle of it
    with closing(ms.to_kafka(topic, servers=kafka.servers).open(context(identity=IDENTITY[:-1], fence=2))) as sink:
        assert sink.last_step() == ms.Step(0, 0, 1)
        sink.write(ms.Step(1, 1, 2), [record("a", 2), record("b", 3)])
    assert values(kafka, topic) == [1, 2, 3]
    assert values(kafka, topic, committed=False) == [1, 2, 3, 2, 3]


def kill_when(kafka: Broker, topic: str, seen: list[int]) -> None:
    """When readers have seen this much. A lone broker that dies between the two halves of a commit may leave it so: that is Kafka's."""
    if seen:
        wait_until(lambda: values(kafka, topic) == seen, TIMEOUT)
    kafka.kill()


@pytest.mark.parametrize("moment", Moment)
def test_a_broker_that_is_killed_in_a_commit_is_asked_whether_the_step_went_in(
    kafka: Broker, tmp_path: Path, moment: Moment, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "millstream")
    topic, journal = kafka.create_topic(), FakeJournal()
    with closing(Proxy(kafka.proxy, kafka.behind)) as proxy:
        target = ms.to_kafka(topic, servers=kafka.proxied)
        journal.commit(1)
        thread = delivery(journal, target, tmp_path)
        thread.start()
        assert thread.wait_for(1, TIMEOUT)
        seen = [1, 2, 3] if moment is Moment.ANSWER else []
        proxy.arm(moment, lambda: kill_when(kafka, topic, seen))
        open_sink(thread)._cluster.timeout = 1.0
        thread.notify(*journal.commit(2, 3))
        assert proxy.fired.wait(TIMEOUT)
        assert kafka.pid is None
        wait_until(lambda: thread.trouble is not None)
        kafka.start()
        thread.notify(*journal.commit(4))
        assert thread.wait_for(3, TIMEOUT), thread.trouble
        thread.stop(3, TIMEOUT)
    assert thread.error is None
    assert values(kafka, topic) == [1, 2, 3, 4]
    sent = values(kafka, topic, committed=False)
    assert sent == ([1, 2, 3, 4] if moment is Moment.ANSWER else [1, 2, 3, 2, 3, 4])
    said = [each.getMessage() for each in caplog.records]
    assert len(said) == 2
    assert said[0].startswith(f"delivery 'out' waits: Kafka topic '{topic}' at {kafka.proxied} cannot be reached: ")
    assert said[1] == f"delivery 'out': Kafka topic '{topic}' at {kafka.proxied} is reached again"


def test_a_short_absence_of_the_broker_is_not_even_noticed(kafka: Broker, tmp_path: Path) -> None:
    topic, journal = kafka.create_topic(), FakeJournal()
    with closing(Proxy(kafka.proxy, kafka.behind)) as proxy:
        proxy.arm(Moment.ANSWER, lambda: None)  # the connection is cut, and the broker is there
        journal.commit(1)
        thread = deliver_all(journal, ms.to_kafka(topic, servers=kafka.proxied), tmp_path)
    assert proxy.fired.is_set()
    assert (thread.error, values(kafka, topic)) == (None, [1])
