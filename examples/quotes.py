"""Trades with the quote that was valid then, whichever comes first; trades for which there was none in the last minute apart."""

from dataclasses import dataclass
from datetime import datetime

import millstream as ms
from millstream.join import AsOf


@dataclass(frozen=True)
class Quote:
    symbol: str
    bid: float
    ask: float
    at: datetime


@dataclass(frozen=True)
class Trade:
    symbol: str
    price: float
    at: datetime


topology = ms.Topology("quotes")
quotes = topology.inject(
    "quotes",
    ms.files("quotes/*.jsonl", Quote),
    key=lambda quote: quote.symbol,
    timestamp=lambda quote: quote.at,
    low_watermark=ms.BoundedDisorder(2 * ms.SECOND),
)
trades = topology.inject(
    "trades",
    ms.files("trades/*.jsonl", Trade),
    key=lambda trade: trade.symbol,
    timestamp=lambda trade: trade.at,
    low_watermark=ms.BoundedDisorder(2 * ms.SECOND),
)

quoted = AsOf(Trade, Quote, tolerance=ms.MINUTE)
topology.compute("quoted", quoted).reads(*quoted.of(trades, versions=quotes))

topology.deliver("quoted", quoted.pairs, ms.delta("quoted"))
topology.deliver("unquoted", quoted.unmatched, ms.delta("unquoted"))
topology.deliver("late trades", quoted.late, ms.delta("late-trades"))
topology.deliver("late quotes", quoted.late_versions, ms.delta("late-quotes"))

if __name__ == "__main__":
    ms.run(topology, at="mill/")
