"""Orders with their payments, and what is missing: an order that nobody paid within the hour, a payment for no order."""

from dataclasses import dataclass
from datetime import datetime

import millstream as ms
from millstream.join import Join, Misses


@dataclass(frozen=True)
class Order:
    id: str
    customer: str
    price: float
    at: datetime


@dataclass(frozen=True)
class Payment:
    order: str
    amount: float
    at: datetime


topology = ms.Topology("payments")
orders = topology.inject(
    "orders",
    ms.files("orders/*.jsonl", Order),
    key=lambda order: order.id,
    timestamp=lambda order: order.at,
    low_watermark=ms.BoundedDisorder(10 * ms.SECOND),
)
payments = topology.inject(
    "payments",
    ms.files("payments/*.jsonl", Payment),
    key=lambda payment: payment.order,
    timestamp=lambda payment: payment.at,
    low_watermark=ms.BoundedDisorder(10 * ms.SECOND),
)

paid = Join(Order, Payment, before=0 * ms.SECOND, after=ms.HOUR, misses=Misses.BOTH)
topology.compute("paid", paid).reads(*paid.of(orders, payments))

topology.deliver("paid", paid.pairs, ms.delta("paid"))
topology.deliver("unpaid", paid.unmatched_left, ms.delta("unpaid"))
topology.deliver("unexpected", paid.unmatched_right, ms.delta("unexpected"))
topology.deliver("late orders", paid.late_left, ms.delta("late-orders"))
topology.deliver("late payments", paid.late_right, ms.delta("late-payments"))

if __name__ == "__main__":
    ms.run(topology, at="mill/")
