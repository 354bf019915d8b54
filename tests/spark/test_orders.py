"""The example of the shop: from PostgreSQL through computations to Kafka and PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from examples.orders.__main__ import run
from tests.services.kafka import Broker
from tests.services.postgres import PostgresServer
from tests.targets.test_kafka import headers


def test_the_shop_runs_and_every_writer_sees_its_own_write(
    spark: SparkSession, postgres: PostgresServer, kafka: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(postgres.dsn, kafka.servers, tmp_path / "mill", orders=20, spark=spark)
    assert "20 writes, each seen in the view by its writer" in capsys.readouterr().out
    in_time = sorted(kafka.read("orders-enriched"), key=lambda message: int(headers(message)["millstream-timestamp"]))
    sent = [msgspec.json.decode(message.value() or b"") for message in in_time]  # an order may go from one partition to another
    with postgres.connect() as connection:
        orders = dict(connection.execute("SELECT id, cents FROM orders").fetchall())
        connection.execute("DROP TABLE orders")
    newest = {row["id"]: row["cents"] for row in sent}
    assert {id_: newest[id_] for id_ in orders} == orders, "the last word on each order that there is"
