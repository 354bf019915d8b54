"""Clients of a Kafka cluster: how they are made, questions with bounded waits, and what errors mean."""

from __future__ import annotations

import concurrent.futures
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from millstream.clients.kafka_options import DOCUMENTED
from millstream.errors import LogError, MillstreamError, TopologyError, Unreachable

Client = TypeVar("Client")

log = logging.getLogger("millstream")

CLOSE_TIMEOUT = 1.0  # seconds
CREDENTIALS = {KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.SASL_AUTHENTICATION_FAILED}
UNANSWERED = {KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._MSG_TIMED_OUT}


class Heard:
    """What librdkafka says by itself, without secrets. Apart from those who use its clients, so that these are freed with them."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self._secrets = secrets
        self.last: KafkaError | None = None

    def log(self, level: int, message: str, *args: Any) -> None:
        """Lines of its log, all at one level: what they mean, whoever uses the client says."""
        log.debug("librdkafka: %s", self.clean(message % args))

    def error(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # which says less than what came before it
            self.last = error

    def clean(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text


class SharedAdmin:
    """One client for the questions of all who use a cluster with the same settings: each has threads and connections of its own."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self.heard = Heard(secrets)
        self._client: AdminClient | None = None
        self._making = threading.Lock()

    def client(self, make: Callable[[], AdminClient]) -> AdminClient:
        with self._making:
            if self._client is None:  # one without events that wait for it is false
                self._client = make()
            return self._client


_shared: WeakValueDictionary[str, SharedAdmin] = WeakValueDictionary()  # by servers and settings
_sharing = threading.Lock()


def _shared_by(servers: str, settings: Mapping[str, Any], secrets: Sequence[str]) -> SharedAdmin:
    name = repr((servers, sorted(settings.items())))
    with _sharing:
        found = _shared.get(name)
        if found is None:
            found = _shared[name] = SharedAdmin(secrets)
        return found


def close_consumer(consumer: Consumer) -> None:
    """Without waiting for brokers that are gone: librdkafka does, 45 s for offsets of a group that are on their way."""
    closing = threading.Thread(target=consumer.close, name="millstream closes a Kafka consumer", daemon=True)
    closing.start()
    closing.join(CLOSE_TIMEOUT)


def bounded(call: Callable[[], None], seconds: float) -> None:
    """A call that may never return, with an end all the same: it goes on in a thread that nobody waits for, and counts as unanswered.

    0.1 ms. librdkafka 2.16 does not return from send_offsets_to_transaction, whatever its timeout, when the broker was killed at
    the wrong moment: within some dozen kills, with the producer's own threads alive and well.
    """
    raised: list[BaseException | None] = []

    def make() -> None:
        try:
            call()
            raised.append(None)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=make, name="millstream asks Kafka", daemon=True)
    thread.start()
    thread.join(seconds)
    if not raised:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
    if raised[0] is not None:
        raise raised[0]


class KafkaClients:
    """Makes clients of one cluster, with the secrets as they were then, and says what their errors mean for a run."""

    purpose = "what is asked of it"  # as it stands in messages
    refused: Mapping[int, str] = {}  # by code: what will not change by itself, with what to do

    def __init__(self, call: str, servers: str, settings: dict[str, Any], secrets: Sequence[str], timeout: float) -> None:
        """`timeout` is how many seconds each answer may take, with all that librdkafka tries again by itself."""
        self.call, self.servers, self.timeout, self._shared = call, servers, timeout, _shared_by(servers, settings, secrets)
        self._heard = self._shared.heard
        self._settings = {**settings, "bootstrap.servers": servers, "logger": self._heard, "error_cb": self._heard.error}

    def made(self, client: Callable[[dict[str, Any]], Client], settings: dict[str, Any]) -> Client:
        try:
            return client({**self._settings, **settings})
        except (KafkaException, ValueError, TypeError) as error:
            text = error.args[0].str() if isinstance(error, KafkaException) else str(error)
            raise TopologyError(f"{self.call}(options=...): {self._heard.clean(text)}; {DOCUMENTED}") from None

    def admin(self) -> AdminClient:
        """To be held on to until its answers are there."""
        return self.made(AdminClient, {})

    def shared_admin(self) -> AdminClient:
        """For those who ask again and again; it lives as long as any of them."""
        return self._shared.client(self.admin)

    # Questions.

    def answer(self, admin: AdminClient, future: concurrent.futures.Future[Any]) -> Any:
        try:
            return future.result(self.timeout + 1)  # librdkafka gives up before
        except concurrent.futures.TimeoutError:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None
        finally:
            admin.poll(0)  # for what it met by itself

    def described(self, admin: AdminClient, topics: Iterable[str]) -> dict[str, Any]:
        """What the cluster knows of each topic; without those that do not exist. Creates none, whatever the brokers' settings are."""
        found = {}
        try:
            for topic, asked in admin.describe_topics(TopicCollection(list(topics)), request_timeout=self.timeout).items():
                try:
                    found[topic] = self.answer(admin, asked)
                except KafkaException as error:
                    if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                        raise
        except KafkaException as error:
            raise self.failure(error.args[0]) from None
        return found

    # What went wrong.

    def failure(self, error: KafkaError) -> MillstreamError:
        """As the run is to hear it: what will not change by itself ends it, the rest may be tried again."""
        code, text = error.code(), self.clean(error.str())
        if code in self.refused:
            return LogError(f"Kafka at {self.servers} refuses {self.purpose}: {text}; {self.refused[code]}")
        if code in UNANSWERED:
            heard = "" if self._heard.last is None else f": {self.clean(self._heard.last.str())}"
            return Unreachable(f"no answer from {self.servers} within {self.timeout:g} s{heard}")
        return Unreachable(f"{self.servers}: {text}")

    @contextmanager
    def checking(self, where: str) -> Iterator[None]:
        """What is met before anything runs, as what is wrong with the topology: also credentials, where brokers only stay silent."""
        try:
            yield
        except LogError as error:
            raise TopologyError(f"{where}: {error}") from None
        except Unreachable:
            if (why := self.refuses_credentials) is not None:
                raise TopologyError(
                    f"{where}: {self.servers} does not accept the credentials: {why}; look at the options that begin with security., "
                    f"sasl. and ssl."
                ) from None
            raise

    def clean(self, text: str) -> str:
        return self._heard.clean(text)

    @property
    def refuses_credentials(self) -> str | None:
        """What the brokers said to them, if they were not accepted."""
        heard = self._heard.last
        return None if heard is None or heard.code() not in CREDENTIALS else self.clean(heard.str())
