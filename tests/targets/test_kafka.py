"""A Kafka topic as a target, against a real broker: what readers of committed records see."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import Message

import millstream as ms
from millstream.targets import connection
from millstream.targets.kafka_cluster import Cluster
from millstream.testing import TargetContract, TransactionalTargetContract
from millstream.testing.contracts import NOON
from tests.services.kafka import Broker
from tests.targets.fakes import FakeJournal, deliver_all


def context(*, fence: int = 1, identity: str = "", value_type: Any = int) -> ms.DeliveryContext:
    return ms.DeliveryContext("out", "numbers", value_type, identity or uuid.uuid4().hex, fence)


def record(key: str, value: Any, n: int = 0) -> ms.Record[Any]:
    return ms.Record(key, value, NOON + n * ms.SECOND, False, "numbers/1/", n)


def values(broker: Broker, topic: str, *, committed: bool = True) -> list[Any]:
    return [msgspec.json.decode(message.value() or b"null") for message in broker.read(topic, committed=committed)]


class OnTopic:
    """A topic of a broker that can be stopped, for the contracts."""

    broker: Broker
    topic: str

    @pytest.fixture(autouse=True)
    def _topic(self, kafka: Broker) -> Iterator[None]:
        self.broker, self.topic = kafka, kafka.create_topic()
        with pytest.MonkeyPatch.context() as self.patch:
            yield
        if kafka.pid is None:
            kafka.start()

    def stored(self) -> list[tuple[str, Any]]:
        return [((m.key() or b"").decode(), msgspec.json.decode(m.value() or b"null")) for m in self.broker.read(self.topic)]

    def bad_value(self) -> str:
        return "x" * (2 << 20)

    def cut_off(self) -> None:
        """No answer will come, however long it is waited for."""
        self.patch.setattr(Cluster, "timeout", property(lambda _: 2.0, lambda *_: None), raising=False)
        self.broker.kill(signal.SIGTERM)

    def reconnect(self) -> None:
        self.broker.start()
        self.patch.undo()


class TestKafka(OnTopic, TransactionalTargetContract):
    def make(self) -> ms.Target:
        return ms.to_kafka(self.topic, servers=self.broker.servers)


class TestKafkaWithoutTransactions(OnTopic, TargetContract):
    def make(self) -> ms.Target:
        return ms.to_kafka(self.topic, servers=self.broker.servers, transactions=False)

    def test_it_says_that_it_has_no_transactions(self) -> None:
        assert not self.make().transactional

    def test_a_repeated_step_repeats_records_under_their_ids(self) -> None:
        with self._open() as sink:
            sink.write(ms.Step(0, 0, 3), self._records(0, 1))
            sink.write(ms.Step(0, 0, 3), self._records(0, 1))
        assert [headers(message)["millstream-id"] for message in self.broker.read(self.topic)] == 2 * ["numbers/1/0", "numbers/1/1"]


def headers(message: Message) -> dict[str, str]:
    return {name: value.decode() for name, value in message.headers() or [] if isinstance(value, bytes)}


# What a record becomes.


@pytest.mark.parametrize("transactions", [True, False])
def test_key_value_time_and_headers(kafka: Broker, transactions: bool) -> None:
    class Order(msgspec.Struct):
        total: float
        note: str | None = None

    topic = kafka.create_topic()
    sink = ms.to_kafka(topic, servers=kafka.servers, transactions=transactions).open(context(value_type=Order))
    old = ms.Record("früher", Order(2.5), ms.Timestamp(-5), False, "orders/7/", 1)
    sink.write(ms.Step(0, 0, 1), [record("ü", Order(1.5, "né"), 3), record("", Order(0), 4), old])
    sink.close()
    first, empty, early = kafka.read(topic)
    assert (first.key(), first.value()) == ("ü".encode(), '{"total":1.5,"note":"né"}'.encode())
    assert first.timestamp()[1] == (NOON + 3 * ms.SECOND) // 1000
    assert headers(first) == {"millstream-id": "numbers/1/3", "millstream-timestamp": str(int(NOON + 3 * ms.SECOND))}
    assert empty.key() == b""
    assert early.timestamp()[1] == 1
    assert headers(early) == {"millstream-id": "orders/7/1", "millstream-timestamp": "-5"}


def test_none_is_a_tombstone(kafka: Broker) -> None:
    topic = kafka.create_topic()  # not compacted: the end of the transaction is years younger than its records, and makes them ready for it
    sink = ms.to_kafka(topic, servers=kafka.servers).open(context(value_type=int | None))
    sink.write(ms.Step(0, 0, 1), [record("a", 1), record("a", None, 1)])
    sink.close()
    assert [message.value() for message in kafka.read(topic)] == [b"1", None]


@pytest.mark.parametrize("transactions", [True, False])
def test_a_change_that_leaves_nothing_is_a_tombstone(kafka: Broker, transactions: bool) -> None:
    """Whatever is not deleted is the change itself."""
    topic = kafka.create_topic()
    target = ms.to_kafka(topic, servers=kafka.servers, transactions=transactions)
    sink = target.open(context(value_type=ms.Change[int]))
    sink.write(ms.Step(0, 0, 1), [record("a", ms.Change(None, 1)), record("a", ms.Change(1, 2), 1), record("a", ms.Change(2, None), 2)])
    sink.close()
    messages = kafka.read(topic)
    assert [message.value() for message in messages] == [b'{"before":null,"after":1}', b'{"before":1,"after":2}', None]
    assert (messages[2].key(), messages[2].timestamp()[1]) == (b"a", (NOON + 2 * ms.SECOND) // 1000)
    assert headers(messages[2]) == {"millstream-id": "numbers/1/2", "millstream-timestamp": str(int(NOON + 2 * ms.SECOND))}


# Where it goes, and in what order.

# Hashes that Kafka's own tests have for its Java client.
HASHES = {"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536, "a-little-bit-longer-string": -1486304829}


def test_a_key_is_in_the_partition_where_java_clients_put_it(kafka: Broker) -> None:
    topic = kafka.create_topic(7)
    sink = ms.to_kafka(topic, servers=kafka.servers).open(context())
    sink.write(ms.Step(0, 0, 1), [record(key, 1) for key in HASHES])
    sink.close()
    found = {(message.key() or b"").decode(): message.partition() for message in kafka.read(topic)}
    assert found == {key: (hash & 0x7FFFFFFF) % 7 for key, hash in HASHES.items()}


def test_records_of_a_key_stay_in_order_over_steps_and_partitions(kafka: Broker) -> None:
    topic, keys, count = kafka.create_topic(3), [f"k{n}" for n in range(10)], 5000
    # Small batches, several of them on their way at a time.
    target = ms.to_kafka(topic, servers=kafka.servers, options={"batch.num.messages": 50, "queue.buffering.max.messages": 500})
    sink = target.open(context())
    for step in range(3):
        sink.write(ms.Step(step, step, step + 1), [record(keys[n % 10], step * count + n, n) for n in range(count)])
    sink.close()
    found: dict[str, list[int]] = {}
    for message in kafka.read(topic):
        found.setdefault((message.key() or b"").decode(), []).append(msgspec.json.decode(message.value() or b""))
    assert found == {key: list(range(n, 3 * count, 10)) for n, key in enumerate(keys)}
    assert len({message.partition() for message in kafka.read(topic)}) == 3


# As a delivery uses it.


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "FIRST_PAUSE", 0.001)


def test_a_start_goes_on_where_the_topic_is(kafka: Broker, tmp_path: Path) -> None:
    topic, journal = kafka.create_topic(), FakeJournal()
    journal.commit(1, 2)
    assert deliver_all(journal, ms.to_kafka(topic, servers=kafka.servers), tmp_path).error is None
    journal.commit(3)
    for _ in range(4):
        journal.commit()
    assert deliver_all(journal, ms.to_kafka(topic, servers=kafka.servers), tmp_path, fence=2).error is None
    assert deliver_all(journal, ms.to_kafka(topic, servers=kafka.servers), tmp_path, fence=3).error is None
    assert (values(kafka, topic), max(journal.said)) == ([1, 2, 3], 6)


def test_without_transactions_it_goes_on_by_the_folder(kafka: Broker, tmp_path: Path) -> None:
    topic, journal = kafka.create_topic(), FakeJournal()
    for fence in (1, 2):
        journal.commit(fence)
        assert deliver_all(journal, ms.to_kafka(topic, servers=kafka.servers, transactions=False), tmp_path, fence=fence).error is None
    assert values(kafka, topic) == [1, 2]


def test_offsets_that_have_expired_are_refused(kafka: Broker, tmp_path: Path) -> None:
    from confluent_kafka.admin import AdminClient

    topic, journal = kafka.create_topic(), FakeJournal()
    journal.commit(1)
    deliver_all(journal, ms.to_kafka(topic, servers=kafka.servers), tmp_path)
    admin = AdminClient({"bootstrap.servers": kafka.servers, "log_level": 0})
    groups = [group.group_id for group in admin.list_consumer_groups().result(30).valid if group.group_id.startswith("millstream-")]
    for future in admin.delete_consumer_groups(groups).values():  # as the broker does with those that are old
        future.result(30)
    with pytest.raises(ms.LogError, match=r"has nothing of what delivery 'out' has delivered, up to epoch 1.*--deliver-anew"):
        deliver_all(journal, ms.to_kafka(topic, servers=kafka.servers), tmp_path, fence=2)
    assert values(kafka, topic) == [1]
