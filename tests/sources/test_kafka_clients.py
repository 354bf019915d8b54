"""Clients of one cluster, of which those who only ask share one. No broker: nothing is asked."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
from confluent_kafka import KafkaError, KafkaException

from millstream.clients.kafka_clients import KafkaClients, bounded

NOWHERE = "127.0.0.1:1"


def clients(*secrets: str, **settings: object) -> KafkaClients:
    return KafkaClients("kafka", NOWHERE, {"client.id": "test", **settings}, secrets, 1.0)


def test_sources_of_one_cluster_ask_by_one_client() -> None:
    assert clients().shared_admin() is not clients(retries=3).shared_admin()
    one, other = clients(), clients()
    assert one.shared_admin() is other.shared_admin()
    assert one.admin() is not one.admin(), "whoever asks once has a client for as long as that takes"


def test_the_client_goes_with_the_last_who_asks() -> None:
    one, other = clients(), clients()
    one.shared_admin()
    shared = weakref.ref(one._shared)
    del one
    gc.collect()
    assert shared() is other._shared
    del other
    gc.collect()
    assert shared() is None


def test_secrets_are_left_out_of_what_any_of_them_says() -> None:
    assert clients("canary", **{"sasl.password": "canary"}).clean("not the canary") == "not the ***"


def test_a_call_that_never_returns_counts_as_unanswered() -> None:
    over = threading.Event()
    with pytest.raises(KafkaException) as raised:
        bounded(lambda: print(over.wait()), 0.05)
    assert raised.value.args[0].code() == KafkaError._TIMED_OUT
    over.set()


def test_a_call_that_returns_or_raises_does_so_here() -> None:
    seen = list[int]()
    bounded(lambda: seen.append(1), 60)
    assert seen == [1]
    with pytest.raises(ZeroDivisionError):
        bounded(lambda: print(1 // 0), 60)
