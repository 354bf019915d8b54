"""The topologies of the examples and of the guide, each with input of its kind."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any

import millstream as ms
from tests.splits import Sent

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


@dataclass(frozen=True)
class Shown:
    """A topology that is shown: its input, what it says in event time, what it says as records come, and its tables."""

    topology: ms.Topology
    events: Callable[[random.Random], list[Sent]]
    in_event_time: Sequence[ms.Output[Any]] = ()
    as_they_come: Sequence[ms.Output[Any]] = ()
    tables: Sequence[ms.Output[Any]] = ()  # of their changes only those that are left count


def minutes(chance: random.Random, most: int, number: int) -> list[datetime]:
    return [NOON + timedelta(seconds=second) for second in chance.sample(range(60 * most), number)]


def sent(stream: Any, value: Any, at: datetime) -> Sent:
    return Sent(stream, value, ms.to_timestamp(at))


def of_queries(it: ModuleType) -> Callable[[random.Random], list[Sent]]:
    return lambda chance: [sent(it.queries, it.Query(chance.choice("ab"), at), at) for at in minutes(chance, 1, 25)]


def readme(it: ModuleType) -> Shown:
    return Shown(it.topology, of_queries(it), [it.per_second.results])


def by_hand(it: ModuleType) -> Shown:
    return Shown(it.topology, of_queries(it), [it.per_second.counts])


def sessions(it: ModuleType) -> Shown:
    def events(chance: random.Random) -> list[Sent]:
        return [sent(it.clicks, it.Click(chance.choice("ab"), "/", at), at) for at in minutes(chance, 600, 25)]

    return Shown(it.topology, events, [it.sessions.closed])


def enrich(it: ModuleType) -> Shown:
    def events(chance: random.Random) -> list[Sent]:
        times = minutes(chance, 9, 21)
        profiles = [sent(it.profiles, it.Profile(chance.choice([1, 2]), chance.choice("NB"), at), at) for at in times[:6]]
        return [*profiles, *(sent(it.clicks, it.Click(chance.choice("12"), "/", at), at) for at in times[6:])]

    return Shown(it.topology, events, [], [it.enrich.enriched, it.enrich.unknown])


def payments(it: ModuleType) -> Shown:
    def events(chance: random.Random) -> list[Sent]:
        times = minutes(chance, 150, 20)
        orders = [sent(it.orders, it.Order(f"{n % 6}", "ann", 5.0, at), at) for n, at in enumerate(times[:8])]
        return [*orders, *(sent(it.payments, it.Payment(chance.choice("0123456789"), 5.0, at), at) for at in times[8:])]

    return Shown(it.topology, events, [it.paid.pairs, it.paid.unmatched_left, it.paid.unmatched_right])


def orders(it: ModuleType) -> Shown:
    topology = it.shop("postgresql:///shop", "localhost:9092")
    customers = topology.nodes["customers"].computation

    def events(chance: random.Random) -> list[Sent]:
        stream, rows = topology.injected["orders"], dict[int, Any]()
        found: list[Sent] = []
        for second in range(25):
            number = chance.randrange(5)
            before, at = rows.get(number), ms.to_timestamp(NOON + timedelta(seconds=second))
            customer = chance.choice("ab") if before is None else before.customer
            after = None if before is not None and chance.random() < 0.3 else it.Order(number, customer, chance.randrange(100), "paid")
            rows[number] = after
            found.append(Sent(stream, ms.Change(before, after), at, f"{number}"))
        return found

    return Shown(topology, events, [], [customers.enriched, customers.view])


def computations(it: ModuleType) -> Shown:
    def events(chance: random.Random) -> list[Sent]:
        times = minutes(chance, 600, 26)
        profiles = [sent(it.profiles, it.Profile(chance.choice("ab"), chance.choice("NB"), at), at) for at in times[:6]]
        return [*profiles, *(sent(it.clicks, it.Click(chance.choice("ab"), f"/{n % 3}", at), at) for n, at in enumerate(times[6:]))]

    return Shown(it.topology, events, [it.visits.visits], [it.countries.countries, it.counted.counts, it.counted.too_late])


def bank(it: ModuleType) -> Shown:
    def events(chance: random.Random) -> list[Sent]:
        times = [ms.to_timestamp(at) for at in minutes(chance, 10, 20)]
        return [Sent(it.payments, it.Payment(chance.choice("ab"), chance.randrange(-9, 9), at), at) for at in times]

    return Shown(it.topology, events, [it.balance.balances])


def clickstream(it: ModuleType) -> Shown:
    def events(chance: random.Random) -> list[Sent]:
        return [sent(it.clicks, it.Click(chance.choice("ab"), f"/{n}", at), at) for n, at in enumerate(minutes(chance, 600, 25))]

    return Shown(it.topology, events, tables=[it.visits.changes])


def leaderboard(it: ModuleType) -> Shown:
    def events(chance: random.Random) -> list[Sent]:
        return [sent(it.scores, it.Score(chance.choice("abcde"), chance.randrange(9), at), at) for at in minutes(chance, 150, 30)]

    return Shown(it.topology, events, [it.points.results, it.board.results], tables=[it.hour.changes])


def quotes(it: ModuleType) -> Shown:
    def events(chance: random.Random) -> list[Sent]:
        times = minutes(chance, 9, 30)
        quoted = [sent(it.quotes, it.Quote(chance.choice("ab"), n, n + 1, at), at) for n, at in enumerate(times[:12])]
        return [*quoted, *(sent(it.trades, it.Trade(chance.choice("ab"), n, at), at) for n, at in enumerate(times[12:]))]

    return Shown(it.topology, events, [it.quoted.pairs, it.quoted.unmatched])


def joins(it: ModuleType) -> Shown:
    def events(chance: random.Random) -> list[Sent]:
        times, known = minutes(chance, 150, 40), dict[str, Any]()
        found = [sent(it.orders, it.Order(f"{n}", chance.choice("ab"), 5.0, at), at) for n, at in enumerate(times[:10])]
        found += [sent(it.payments, it.Payment(f"{chance.randrange(12)}", 5.0, at), at) for at in times[10:20]]
        found += [sent(it.rates, it.Rate("USD", float(n), at), at) for n, at in enumerate(times[20:30])]
        for at in sorted(times[30:]):
            id = chance.choice("ab")
            known[id], before = it.Customer(id, chance.choice(["NL", "DE"]), at), known.get(id)
            found.append(sent(it.customers, ms.Change(before, known[id]), at))
        return found

    told = [it.paid.pairs, it.paid.unmatched_left, it.paid.unmatched_right, it.then.pairs, it.then.unmatched, it.valued.pairs]
    return Shown(it.topology, events, told, [it.now.pairs, it.now.unmatched])


def windows(it: ModuleType) -> Shown:
    def events(chance: random.Random) -> list[Sent]:
        times = minutes(chance, 150, 30)
        return [sent(it.orders, it.Order(chance.choice("ab"), chance.choice(["tea", "milk"]), n, at), at) for n, at in enumerate(times)]

    told = [it.per_minute, it.sales, it.per_day, it.busiest, it.recent, it.longest, it.traffic]
    return Shown(it.topology, events, [*(each.results for each in told), it.compared.compared], tables=[it.visits.changes])


def tables(it: ModuleType) -> Shown:
    def events(chance: random.Random) -> list[Sent]:
        times = minutes(chance, 150, 40)
        found = [sent(it.registered, it.Customer(chance.choice("ab"), chance.choice(["NL", "DE"]), at), at) for at in times[:10]]
        for at in times[10:]:
            order = it.Order(f"{chance.randrange(9)}", chance.choice("abc"), chance.randrange(9), chance.random() < 0.3, at)
            found.append(sent(it.events, order, at))
        return found

    shown = [it.orders, it.accounts, it.spent, it.customers, it.located]
    return Shown(it.topology, events, tables=[each.changes for each in shown])


def deliveries(it: ModuleType) -> Shown:
    def events(chance: random.Random) -> list[Sent]:
        return [sent(it.orders, it.Order(chance.choice("ab"), chance.randrange(9), at), at) for at in minutes(chance, 9, 20)]

    return Shown(it.topology, events, as_they_come=[it.spent.changes])


EXAMPLES = {
    "readme": readme,
    "by_hand": by_hand,
    "sessions": sessions,
    "enrich": enrich,
    "payments": payments,
    "orders.topology": orders,
    "clickstream": clickstream,
    "leaderboard": leaderboard,
    "quotes": quotes,
}


def operations(it: ModuleType) -> Shown:
    def events(chance: random.Random) -> list[Sent]:
        times = minutes(chance, 3 * 24 * 60, 25)
        return [sent(it.sales, it.Sale(chance.choice("ab"), chance.randrange(9), at), at) for at in times]

    return Shown(it.topology, events, [it.daily.results])


PAGES = {
    "operations": operations,
    "computations": computations,
    "testing": bank,
    "joins": joins,
    "windows": windows,
    "tables": tables,
    "deliveries": deliveries,
}
ELSEWHERE = {"cycle"}  # what comes round a cycle comes some epochs later, and the example is about just that
