"""The example of the shop, without Spark and servers: what its computations make of changes, and how it is called."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

import millstream as ms
from examples.orders import __main__ as program
from examples.orders.topology import Customer, Customers, Order, shop
from millstream.clients.postgres_dsn import Dsn
from millstream.clients.postgres_slots import drop_command
from millstream.sources.postgres_changes import slot_for
from millstream.testing import Driver

DSN, SERVERS = "host=db.example.com dbname='the shop'", "kafka.example.com:9092"


def test_an_order_that_goes_to_another_customer_leaves_the_first() -> None:
    topology = shop(DSN, SERVERS)
    driver, customers = Driver(topology), topology.nodes["customers"].computation
    assert isinstance(customers, Customers)
    rows: list[Order | None] = [None, Order(1, "anna", 500, "new"), Order(1, "bert", 700, "new"), Order(1, "bert", 700, "paid"), None]
    views: list[dict[str, Customer | None]] = []
    for second, (before, after) in enumerate(pairwise(rows)):
        at = ms.Timestamp(1_700_000_000_000_000) + second * ms.SECOND
        driver.put(topology.injected["orders"], ms.Change(before, after), key="1", timestamp=at)
        views.append({record.key: record.value for record in driver.read(customers.view)})
    assert views == [
        {"anna": Customer(1, 500)},
        {"anna": None, "bert": Customer(1, 700)},
        {"anna": None, "bert": Customer(1, 700)},
        {"anna": None, "bert": None},
    ]
    sent = [(record.key, record.value.cents, record.value.customer_orders) for record in driver.read(customers.enriched)]
    assert sent == [("anna", 500, 1), ("bert", 700, 1), ("bert", 700, 1)]


@pytest.mark.parametrize("given", [["--dsn", DSN], ["--servers", SERVERS]])
def test_one_server_of_the_two_is_refused(given: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["orders", *given])
    monkeypatch.setattr(program, "run", lambda *_, **__: pytest.fail("it ran with servers of its own"))
    with pytest.raises(SystemExit):
        program.main()
    assert "give both --dsn and --servers, or neither" in capsys.readouterr().err


@pytest.mark.parametrize("fails", [False, True])
def test_on_a_server_of_the_users_it_says_how_the_slot_is_dropped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fails: bool
) -> None:
    def run(dsn: str, servers: str, at: Path, *, orders: int) -> None:
        assert (dsn, servers) == (DSN, SERVERS)
        assert not fails, "the view does not follow"

    monkeypatch.setattr("sys.argv", ["orders", "--dsn", DSN, "--servers", SERVERS])
    monkeypatch.setattr(program, "run", run)
    if fails:
        with pytest.raises(AssertionError, match="does not follow"):
            program.main()
    else:
        program.main()
    assert capsys.readouterr().out.splitlines()[-1].strip() == drop_command(Dsn(DSN), slot_for("orders"))


def test_a_dsn_that_is_refused_leaves_nothing_on_the_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(program, "prepare", lambda dsn: pytest.fail("the table was made"))
    with pytest.raises(ms.TopologyError, match="there is a password in it"):
        program.run(f"{DSN} password=secret", SERVERS, tmp_path / "mill")
