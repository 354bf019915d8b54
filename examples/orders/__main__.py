"""Runs the shop: orders come, change and go in PostgreSQL, and each writer waits until it sees its own write in the view.

    python -m examples.orders --dsn "host=127.0.0.1 dbname=shop" --servers 127.0.0.1:9092

Without the two, it starts a server and a broker of its own on loopback; they end with it. On a server of yours it makes the tables
`orders` and `customers`, and a slot, which stays until you drop it: the last line says how.
"""

from __future__ import annotations

import argparse
import random
import shlex
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import psycopg

import millstream as ms
from examples.orders.topology import shop

CUSTOMERS = ("anna", "bert", "cleo", "dora")


def prepare(dsn: str) -> None:
    """The table that is captured. With its whole row in the log, a change says what was there before it."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE orders (id bigserial PRIMARY KEY, customer text NOT NULL, cents bigint NOT NULL, status text NOT NULL)"
        )
        connection.execute("ALTER TABLE orders REPLICA IDENTITY FULL")
        connection.execute("INSERT INTO orders (customer, cents, status) SELECT 'anna', 100, 'paid' FROM generate_series(1, 5)")


def order(connection: psycopg.Connection, rng: random.Random) -> set[str]:
    """Somebody orders, changes, gives away or cancels something; returns whom it concerns."""
    customer = rng.choice(CUSTOMERS)
    found = connection.execute("SELECT id FROM orders WHERE customer = %s ORDER BY random() LIMIT 1", (customer,)).fetchone()
    what = rng.choice(["order", "order", "order", "pay", "give", "cancel"])
    if found is None or what == "order":
        connection.execute("INSERT INTO orders (customer, cents, status) VALUES (%s, %s, 'new')", (customer, rng.randrange(1, 9_999)))
    elif what == "pay":
        connection.execute("UPDATE orders SET status = 'paid', cents = cents + 1 WHERE id = %s", found)
    elif what == "give":
        other = rng.choice(CUSTOMERS)
        connection.execute("UPDATE orders SET customer = %s WHERE id = %s", (other, *found))
        return {customer, other}
    else:
        connection.execute("DELETE FROM orders WHERE id = %s", found)
    return {customer}


def view_of(connection: psycopg.Connection, table: str) -> list[tuple[str, int, int]]:
    """One row for each customer: as the view has it, or as it follows from the orders."""
    if table == "view":
        return connection.execute("SELECT key, orders, cents FROM customers ORDER BY key").fetchall()
    query = "SELECT customer, count(*)::bigint, sum(cents)::bigint FROM orders GROUP BY customer ORDER BY customer"
    return connection.execute(query).fetchall()


def run(dsn: str, servers: str, at: Path, *, orders: int = 50, spark: object = None) -> None:
    """Returns when everything was seen to be right."""
    topology = shop(dsn, servers)  # first: a dsn with a password in it is refused, and nothing was made
    prepare(dsn)
    running = ms.start(topology, at=at, spark=spark)  # type: ignore[arg-type]
    with running, psycopg.connect(dsn, autocommit=True) as connection:
        rng, waits = random.Random(7), list[float]()
        for _ in range(orders):
            customers = order(connection, rng)
            began = time.perf_counter()
            (written,) = connection.execute("SELECT pg_current_wal_lsn()::text").fetchone() or ("",)
            assert running.wait_for("view", written, timeout=120), "the view does not follow"
            waits.append(time.perf_counter() - began)
            mine = [row for row in view_of(connection, "view") if row[0] in customers]
            assert mine == [row for row in view_of(connection, "orders") if row[0] in customers], "a writer reads its own write"
        running.drain()
        print(f"{orders} writes, each seen in the view by its writer after {sorted(waits)[len(waits) // 2] * 1000:.0f} ms (median)")
        for name, count, cents in view_of(connection, "view"):
            print(f"  {name:5} {count:3} orders {cents / 100:9.2f}")
        assert view_of(connection, "view") == view_of(connection, "orders")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dsn")
    parser.add_argument("--servers")
    parser.add_argument("--at", type=Path, default=None, help="the folder of the run; a temporary one if none is given")
    parser.add_argument("--orders", type=int, default=50)
    given = parser.parse_args()
    if (given.dsn is None) != (given.servers is None):
        parser.error("give both --dsn and --servers, or neither: then a server and a broker are started")
    with ExitStack() as ends, tempfile.TemporaryDirectory() as folder:
        if given.dsn is not None:
            command = f"MILLSTREAM_DSN={shlex.quote(given.dsn)} millstream slots --dsn-env MILLSTREAM_DSN --drop millstream_orders"
            ends.callback(print, f"the slot stays on the server, and holds back its log, until you drop it:\n  {command}")
        else:
            from tests.services import both

            given.dsn, given.servers = ends.enter_context(both(Path(folder)))
        run(given.dsn, given.servers, given.at or Path(folder) / "mill", orders=given.orders)


if __name__ == "__main__":
    main()
