"""Orders change in a table of PostgreSQL. Each change goes out to a Kafka topic together with what its customer has ordered so far,
and a table beside it has one row for each customer."""

from dataclasses import dataclass

import millstream as ms


@dataclass(frozen=True)
class Order:
    """A row of the table `orders`."""

    id: int
    customer: str
    cents: int
    status: str


@dataclass(frozen=True)
class EnrichedOrder:
    """What the topic carries."""

    id: int
    status: str
    cents: int
    customer: str
    customer_orders: int
    customer_cents: int


@dataclass(frozen=True)
class Customer:
    """A row of the view."""

    orders: int
    cents: int


def customers_of(change: ms.Change[Order]) -> list[str]:
    """Whom it concerns: an order that goes to another customer concerns two."""
    return sorted({row.customer for row in (change.before, change.after) if row is not None})


def if_of(customer: str, row: Order | None) -> Order | None:
    return row if row is not None and row.customer == customer else None


class Customers(ms.Computation[Customer | None]):
    """All orders of one customer: the row before a change is taken off, the row after it is put on, if they are this customer's."""

    enriched: ms.Output[EnrichedOrder]
    view: ms.Output[Customer | None]

    def process_record(self, record: ms.Record[ms.Change[Order]]) -> None:
        before, after = if_of(record.key, record.value.before), if_of(record.key, record.value.after)
        known = self.state or Customer(0, 0)
        orders = known.orders - (before is not None) + (after is not None)
        cents = known.cents - (before.cents if before else 0) + (after.cents if after else 0)
        self.state = Customer(orders, cents) if orders else None
        self.view.produce(self.state, timestamp=record.timestamp)  # None takes the row out of the table
        if after is not None:
            row = EnrichedOrder(after.id, after.status, after.cents, after.customer, orders, cents)
            self.enriched.produce(row, timestamp=record.timestamp)


def shop(dsn: str | ms.Secret, servers: str) -> ms.Topology:
    """The whole of it, between a database and a Kafka cluster."""
    topology, customers = ms.Topology("shop"), Customers()
    orders = topology.inject(
        "orders",
        ms.postgres_changes("orders", Order, dsn=dsn),
        key="key",
        timestamp="commit_time",
        low_watermark=ms.BoundedDisorder(ms.SECOND),
    )
    topology.compute("customers", customers).reads(orders.by_each(customers_of))
    topology.deliver("enriched", customers.enriched, ms.to_kafka("orders-enriched", servers=servers, create_partitions=2))
    topology.deliver("view", customers.view, ms.to_postgres("customers", dsn=dsn, mode=ms.Mode.UPSERT))
    return topology
