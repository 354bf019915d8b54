"""One real broker for all tests that need one: Apache Kafka in KRaft mode, from its jars. `python -m tests.services.kafka` runs one."""

from __future__ import annotations

import base64
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyspark
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from tests.waiting import wait_until

VERSION = "4.3.1"
LOGGING = "org.slf4j#slf4j-simple;1.7.36"
POM = Path(__file__).parent / "pom.xml"
JAVA = ["java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
CLUSTER = base64.urlsafe_b64encode(b"millstream-tests").decode()[:22]
USER, PASSWORD = "alice", "canary-of-the-broker"
START_TIMEOUT = 90.0  # seconds; a bound, never an expectation

PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{plain},CONTROLLER://127.0.0.1:{controller},LOGIN://127.0.0.1:{login},BEHIND://127.0.0.1:{behind}
advertised.listeners=PLAINTEXT://127.0.0.1:{plain},LOGIN://127.0.0.1:{login},BEHIND://127.0.0.1:{proxy}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,LOGIN:SASL_PLAINTEXT,BEHIND:PLAINTEXT
listener.name.login.sasl.enabled.mechanisms=PLAIN
listener.name.login.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required user_{user}="{password}";
log.dirs=data
num.partitions=2
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=true
num.network.threads=1
num.io.threads=2
log.cleaner.dedupe.buffer.size=8388608
log.retention.ms=-1
broker.session.timeout.ms=2000
broker.heartbeat.interval.ms=300
"""


class NoJars(Exception):
    """They are not there and cannot be had."""


def jars() -> Path:
    """Of the pinned version, from the cache of the user; filled at the first call."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "millstream"
    found = cache / f"kafka-{VERSION}"
    if found.is_dir():
        return found
    if shutil.which("java") is None:
        raise NoJars("there is no java")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as aside:
        made = Path(aside) / "jars"
        made.mkdir()
        command = _by_maven(made) if shutil.which("mvn") else _by_ivy(made, Path(aside))
        done = subprocess.run(command, cwd=aside, capture_output=True, text=True, timeout=600)
        if done.returncode or not list(made.glob(f"kafka_2.13-{VERSION}.jar")):
            raise NoJars(f"{command[0]}: {(done.stdout + done.stderr).strip()[-300:]}")
        if not found.exists():  # another may have been faster
            made.rename(found)
    return found


def _by_maven(to: Path) -> list[str]:
    return ["mvn", "-q", "-B", "-f", str(POM), "dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={to}"]


def _by_ivy(to: Path, aside: Path) -> list[str]:
    """With the Ivy that PySpark brings."""
    (ivy,) = (Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar")
    organisation, _, rest = LOGGING.partition("#")
    name, _, version = rest.partition(";")
    module = aside / "ivy.xml"
    module.write_text(
        f'<ivy-module version="2.0"><info organisation="millstream" module="broker"/><dependencies>'
        f'<dependency org="org.apache.kafka" name="kafka_2.13" rev="{VERSION}" conf="default->master,runtime"/>'
        f'<dependency org="{organisation}" name="{name}" rev="{version}" conf="default->master,runtime"/></dependencies></ivy-module>'
    )
    return [
        *("java", "-cp", str(ivy), "org.apache.ivy.Main", "-cache", str(aside / "cache"), "-ivy", str(module)),
        *("-retrieve", f"{to}/[artifact]-[revision](-[classifier]).[ext]", "-types", "jar", "bundle"),
    ]


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


class Broker:
    """On loopback, with its data in `folder`. It may be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._classes = folder, ["-cp", f"{jars()}/*"]
        plain, controller, login, self.behind, self.proxy = free_ports(5)
        self.servers, self.login_servers, self.proxied = (f"127.0.0.1:{port}" for port in (plain, login, self.proxy))
        text = PROPERTIES.format(
            plain=plain, controller=controller, login=login, behind=self.behind, proxy=self.proxy, user=USER, password=PASSWORD
        )
        (folder / "server.properties").write_text(text)
        command = [*JAVA, *self._classes, "kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", "server.properties"]
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=START_TIMEOUT)
        self._process: subprocess.Popen[bytes] | None = None
        self._admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0, "error_cb": lambda error: None})
        self.start()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Returns when it answers."""
        assert self._process is None
        command = [*JAVA, "-Xms64m", "-Xmx256m", *self._classes, "kafka.Kafka", "server.properties"]
        with (self._folder / "broker.log").open("ab") as lines:
            self._process = subprocess.Popen(command, cwd=self._folder, stdout=lines, stderr=lines, start_new_session=True)
        wait_until(self._answers, START_TIMEOUT)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "broker.log").read_text()[-2000:]
        try:
            self._admin.list_topics(timeout=1)
        except KafkaException:
            return False
        return True

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.wait(START_TIMEOUT)

    def create_topic(self, partitions: int = 1, *, name: str | None = None, **config: Any) -> str:
        """A new one, by its name."""
        name = name or f"topic-{uuid.uuid4().hex[:12]}"
        settings = {key.replace("_", "."): str(value) for key, value in config.items()}
        self._admin.create_topics([NewTopic(name, partitions, config=settings)])[name].result(START_TIMEOUT)
        wait_until(lambda: name in self.topics(), START_TIMEOUT)
        return name

    def remove_topics(self, *names: str) -> None:
        """Those of them that are there."""
        there = [name for name in names if name in self.topics()]
        for future in self._admin.delete_topics(there).values() if there else ():
            future.result(START_TIMEOUT)
        wait_until(lambda: not self.topics() & set(there), START_TIMEOUT)

    def topics(self) -> set[str]:
        return set(self._admin.list_topics(timeout=START_TIMEOUT).topics)

    def read(self, topic: str, *, committed: bool = True) -> list[Message]:
        """All that is there, partition by partition in order; if `committed`, once no transaction is open there."""
        level = "read_committed" if committed else "read_uncommitted"
        ends, found = self._ends(topic), []
        left = set(ends)
        with closing(self._consumer(level)) as consumer:
            consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in ends])

            def all_read() -> bool:
                for message in consumer.consume(1000, 0.05):
                    error = message.error()
                    if error is None:
                        found.append(message)
                    elif error.code() == KafkaError._PARTITION_EOF and message.offset() >= ends[message.partition()]:
                        left.discard(message.partition())
                return not left

            wait_until(all_read, START_TIMEOUT)
        return sorted(found, key=lambda message: (message.partition(), message.offset()))

    def _ends(self, topic: str) -> dict[int, int]:
        """Where the partitions end, open transactions included."""
        numbers = self._admin.list_topics(timeout=START_TIMEOUT).topics[topic].partitions
        asked = {TopicPartition(topic, number): OffsetSpec.latest() for number in numbers}
        return {each.partition: future.result(START_TIMEOUT).offset for each, future in self._admin.list_offsets(asked).items()}

    def _consumer(self, level: str) -> Consumer:
        settings = {"bootstrap.servers": self.servers, "group.id": uuid.uuid4().hex, "isolation.level": level, "log_level": 0}
        return Consumer({**settings, "enable.auto.commit": False, "enable.partition.eof": True, "fetch.wait.max.ms": 10})


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The broker of this session."""
    try:
        jars()
    except (NoJars, OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"no Kafka broker: {error}")
    broker = Broker(tmp_path_factory.mktemp("kafka"))
    yield broker
    broker.kill()


def main() -> None:
    over = threading.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: over.set())
    with tempfile.TemporaryDirectory() as folder:
        broker = Broker(Path(folder))
        print(f"Kafka {VERSION} is at {broker.servers}, process {broker.pid}; Ctrl-C ends it", flush=True)
        over.wait()
        broker.kill()


if __name__ == "__main__":
    main()
