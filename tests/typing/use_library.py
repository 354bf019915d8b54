from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_type

import library as lib
import millstream as ms
import sessions


@dataclass(frozen=True)
class Visit:
    page: str
    clicks: int


def add(total: int, click: sessions.Click) -> int:
    return total + len(click.page)


def visit(click: sessions.Click, session: sessions.Session) -> Visit:
    return Visit(click.page, session.clicks)


topology = sessions.topology
totals = lib.Windowed(lib.hopping(10 * ms.MINUTE, every=ms.MINUTE), lib.fold(int, add))
topology.compute("totals", totals).reads(sessions.clicks, late=ms.Divert(totals.late))
assert_type(totals.results, ms.Output[lib.Result[int]])

visits = lib.StreamJoin(visit, within=ms.HOUR)
topology.compute("visits", visits).reads(
    visits.left(sessions.clicks.by(lambda click: click.user)),
    visits.right(sessions.sessions.closed),
)
assert_type(visits.pairs, ms.Output[Visit])
if TYPE_CHECKING:
    topology.compute("swapped", visits).reads(visits.left(sessions.sessions.closed))  # type: ignore[arg-type]  # pyright: ignore

if TYPE_CHECKING:
    left_cart = lib.Matching(
        lib.first("looked", sessions.Click, lambda click: click.page == "/cart").unless(
            "paid", lambda click: click.page == "/paid", within=ms.HOUR
        )
    )
    assert_type(left_cart.matches, ms.Output[dict[str, sessions.Click]])
