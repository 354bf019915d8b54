"""Mistakes with joins and tables. Every line marked here must be refused by both checkers; an unused mark is an error too."""
import millstream as ms
from joins import Customer, Totals, customers, known, located, now, placed, spent, then
from millstream import aggregate
from millstream.join import AsOf, Join, Lookup
from millstream.table import Grouped, Kind, Newest, TableJoin, View
from payments import Order, Payment, orders, paid, payments

topology = ms.Topology("wrong")

Join(Order, Payment, before=0, after=ms.HOUR)  # type: ignore[arg-type]  # pyright: ignore
Join(Order, Payment, before=ms.HOUR, after=ms.HOUR, misses="left")  # type: ignore[arg-type]  # pyright: ignore
Join(Order, Payment, before=ms.HOUR)  # type: ignore[call-arg]  # pyright: ignore
paid.of(payments, orders)  # type: ignore[arg-type]  # pyright: ignore
paid.of(orders)  # type: ignore[call-arg]  # pyright: ignore
topology.compute("e", paid).reads(orders, payments)  # type: ignore[arg-type]  # pyright: ignore
topology.compute("f", paid).reads(*paid.of(orders, payments), late=ms.Divert(paid.late_left))  # type: ignore[arg-type]  # pyright: ignore
paid.pairs.map(lambda pair: pair.right.price)  # type: ignore[attr-defined]  # pyright: ignore

Lookup(Order, Customer).of(orders, table=placed.changes)  # type: ignore[arg-type]  # pyright: ignore
Lookup(Order, Customer).of(orders, table=customers)  # type: ignore[arg-type]  # pyright: ignore
Lookup(Order, Customer).of(orders, known.changes)  # type: ignore[call-arg]  # pyright: ignore
topology.compute("g", now).reads(orders, known.changes)  # type: ignore[arg-type]  # pyright: ignore

then.of(orders)  # type: ignore[call-overload]  # pyright: ignore
then.of(orders, table=customers)  # type: ignore[arg-type]  # pyright: ignore
then.of(orders, versions=known.changes)  # type: ignore[arg-type]  # pyright: ignore
AsOf(Order, Customer, direction="backward")  # type: ignore[arg-type]  # pyright: ignore
AsOf(Order, Customer, tolerance=60)  # type: ignore[arg-type]  # pyright: ignore


class Balances(View[Payment, int]):
    def apply(self, row: str | None, record: ms.Record[Payment]) -> int: return 0  # type: ignore[override]  # pyright: ignore


class NoRule(View[Payment, int]): ...


NoRule()  # type: ignore[abstract]  # pyright: ignore
topology.compute("j", Totals()).reads(orders)  # type: ignore[arg-type]  # pyright: ignore
Newest(Customer, gone=lambda customer: customer.country)  # type: ignore[arg-type,return-value]  # pyright: ignore
Newest(Customer, remember=60)  # type: ignore[arg-type]  # pyright: ignore
topology.compute("h", Newest(Customer)).reads(orders)  # type: ignore[arg-type]  # pyright: ignore
topology.compute("i", Newest(Customer)).reads(known.changes)  # type: ignore[arg-type]  # pyright: ignore
TableJoin(Order, Customer, reference=lambda order: order.at, left_key=lambda order: order.id, right_key=lambda customer: customer.id)  # type: ignore[arg-type,return-value]  # pyright: ignore
TableJoin(Order, Customer, reference=lambda order: order.customer, left_key=lambda order: order.id)  # type: ignore[call-arg]  # pyright: ignore
TableJoin(Order, Customer, reference=lambda order: order.customer, left_key=lambda order: order.id, right_key=lambda customer: customer.id, kind="left")  # type: ignore[arg-type]  # pyright: ignore
located.of(known.changes, placed.changes)  # type: ignore[arg-type]  # pyright: ignore
located.changes.map(lambda change: change.after.right.country)  # type: ignore[union-attr]  # pyright: ignore
ms.Change[Order](after=Customer("ann", "NL", 1))  # type: ignore[arg-type]  # pyright: ignore
ms.key("a", 1.5)  # type: ignore[arg-type]  # pyright: ignore
Grouped(Order, lambda order: order.customer, aggregate.max(lambda order: order.price))  # type: ignore[arg-type]  # pyright: ignore
Grouped(Order, lambda order: order.price, aggregate.count())  # type: ignore[arg-type,return-value]  # pyright: ignore
orders.by_each(lambda order: order.at)  # type: ignore[arg-type,return-value]  # pyright: ignore
orders.by_each(lambda order: 7)  # type: ignore[arg-type,return-value]  # pyright: ignore
spent.of(orders)  # type: ignore[arg-type]  # pyright: ignore
topology.compute("k", spent).reads(placed.changes)  # type: ignore[arg-type]  # pyright: ignore
_ = Kind
