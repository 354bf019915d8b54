"""What a user writes with joins and tables, as both checkers must accept it, without a cast."""
from dataclasses import dataclass
from datetime import datetime
from typing import assert_type

import millstream as ms
from millstream import aggregate
from millstream.change import deleted, inserted, updated
from millstream.join import AsOf, Direction, Join, Lookup, Misses, Pair
from millstream.table import Grouped, Kind, Newest, TableJoin, View
from payments import Order, Payment, orders, paid, payments, topology


@dataclass(frozen=True)
class Customer:
    id: str
    country: str
    at: datetime


customers = topology.inject(
    "customers", ms.values([], Customer), key=lambda customer: customer.id, timestamp=lambda customer: customer.at, low_watermark=ms.BoundedDisorder(ms.SECOND)
)
assert_type(paid.pairs, ms.Output[Pair[Order, Payment]])
assert_type(paid.unmatched_left, ms.Output[Order])
assert_type(paid.late_right, ms.Output[Payment])
near = Join(Payment, Payment, before=ms.MINUTE, after=-ms.SECOND, misses=Misses.NONE)
topology.compute("near", near).reads(*near.of(payments, payments))

known = Newest(Customer, gone=lambda customer: customer.country == "", remember=ms.HOUR)
topology.compute("known", known).reads(customers)
assert_type(known.changes, ms.Output[ms.Change[Customer]])
table: ms.Table[Customer] = known.changes

now = Lookup(Order, Customer)
topology.compute("now", now).reads(*now.of(orders.by(lambda order: order.customer), table=known.changes))
assert_type(now.pairs, ms.Output[Pair[Order, Customer]])
countries = now.pairs.map(lambda pair: pair.right.country)
assert_type(countries, ms.Stream[str])

then = AsOf(Order, Customer)
topology.compute("then", then).reads(*then.of(orders.by(lambda order: order.customer), versions=customers))
assert_type(then.pairs, ms.Output[Pair[Order, Customer]])
assert_type(then.late_versions, ms.Output[Customer])
nearest = AsOf(Order, Customer, direction=Direction.NEAREST, tolerance=ms.HOUR)
topology.compute("nearest", nearest).reads(*nearest.of(orders.by(lambda order: order.customer), table=known.changes))


class Totals(View[Payment, float]):
    def apply(self, row: float | None, record: ms.Record[Payment]) -> float:
        return (row or 0.0) + record.value.amount


totals = Totals()
topology.compute("totals", totals).reads(payments)
assert_type(totals.changes, ms.Output[ms.Change[float]])

placed = Newest(Order)
topology.compute("placed", placed).reads(orders)
located = TableJoin(
    Order,
    Customer,
    left_key=lambda order: order.id,
    reference=lambda order: order.customer,
    right_key=lambda customer: customer.id,
    kind=Kind.LEFT,
)
topology.compute("located", located).reads(*located.of(placed.changes, known.changes))
assert_type(located.changes, ms.Output[ms.Change[Pair[Order, Customer | None]]])



@dataclass(frozen=True)
class Parcel:
    id: str
    order: str | None


parcels = topology.inject("parcels", ms.values([], Parcel), key=lambda parcel: parcel.id, timestamp=ms.Arrival(), low_watermark=ms.Timeless())
sent = Newest(Parcel)
topology.compute("sent", sent).reads(parcels)
packed = TableJoin(Parcel, Order, left_key=lambda parcel: parcel.id, reference=lambda parcel: parcel.order, right_key=lambda order: order.id)
topology.compute("packed", packed).reads(*packed.of(sent.changes, placed.changes))
assert_type(packed.changes, ms.Output[ms.Change[Pair[Parcel, Order | None]]])
orders.by_each(lambda order: [order.id, order.customer])

assert_type(inserted(3), ms.Change[int])
assert_type(updated("a", "b"), ms.Change[str])
assert_type(deleted(3.5), ms.Change[float])
assert_type(ms.key("a", 3), str)

spent = Grouped(Order, lambda order: order.customer, aggregate.sum(lambda order: order.price))
topology.compute("spent", spent).reads(*spent.of(placed.changes))
assert_type(spent.changes, ms.Output[ms.Change[float]])
