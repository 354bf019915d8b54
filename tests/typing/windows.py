"""What a user writes with windows and aggregates, as both checkers must accept it, without a cast."""
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import assert_type
from zoneinfo import ZoneInfo

import millstream as ms
from leaderboard import Place, Score, Top, board, hour, points, scores, topology
from millstream import aggregate, sketch
from millstream.window import Compare, Compared, Days, Every, Hopping, Rolling, Session, Tumbling, Window, Windowed, Windows, WindowTable


@dataclass(frozen=True)
class Summary:
    scores: int
    points: int
    best: float


@dataclass(frozen=True)
class Audience:
    rate: float
    players: int
    usual: float
    often: list[tuple[str, int]]
    all: sketch.Members
    newest: Score


assert_type(points.results, ms.Output[Windowed[int]])
assert_type(points.late, ms.Output[Score])
assert_type(board.results, ms.Output[Windowed[list[Place]]])
assert_type(hour.changes, ms.Output[ms.Change[Windowed[int]]])

per_minute = Window(Score, Tumbling(ms.MINUTE), aggregate.count())
assert_type(per_minute, Window[Score, int])
summary = Window(
    Score,
    Hopping(10 * ms.MINUTE, every=ms.MINUTE, offset=ms.SECOND),
    aggregate.combine(Summary, aggregate.count(), aggregate.sum(lambda score: score.points, int), aggregate.max(lambda score: score.points)),
)
topology.compute("summary", summary).reads(scores.by(lambda score: "all"))
assert_type(summary.results, ms.Output[Windowed[Summary]])
audience = WindowTable(
    Score,
    Session(gap=30 * ms.SECOND),
    aggregate.combine(
        Audience,
        aggregate.rate(per=ms.MINUTE),
        sketch.distinct(lambda score: score.player),
        sketch.quantile(0.5, lambda score: score.points),
        sketch.frequent(3, lambda score: score.player),
        sketch.membership(lambda score: score.player, expected=100),
        aggregate.last(Score),
    ),
    correct=ms.HOUR,
    early=Every(10 * ms.SECOND, clock=ms.Clock.LOW_WATERMARK),
)
assert_type(audience.changes, ms.Output[ms.Change[Windowed[Audience]]])
earliest = Window(Score, Days(ZoneInfo("Europe/Berlin")), aggregate.min(lambda score: score.at, datetime), patience=ms.HOUR)
assert_type(earliest.results, ms.Output[Windowed[datetime]])
money = Window(Score, Tumbling(ms.MINUTE), aggregate.sum(lambda score: Decimal(score.points), Decimal), fill=ms.HOUR)
assert_type(money.results, ms.Output[Windowed[Decimal]])
everything = Window(Score, Tumbling(ms.MINUTE), aggregate.collect(Score))
assert_type(everything.results, ms.Output[Windowed[list[Score]]])


def pair(count: int, mean: float) -> tuple[int, float]:
    return count, mean


rolling = Rolling(Score, 10 * ms.SECOND, aggregate.combine(pair, aggregate.count(), aggregate.mean(lambda score: score.points)))
assert_type(rolling.results, ms.Output[Windowed[tuple[int, float]]])
compared = Compare(int, back=ms.MINUTE)
topology.compute("per-minute", per_minute).reads(scores)
topology.compute("compared", compared).reads(per_minute.results)
assert_type(compared.compared, ms.Output[Compared[int]])
assert_type(compared.late, ms.Output[Windowed[int]])
top = Window(Windowed[int], Tumbling(ms.HOUR), Top(10))
topology.compute("top", top).reads(per_minute.results)


class Hours:
    """Windows of one's own."""

    merges = False

    def spans(self, at: ms.Timestamp, /) -> list[aggregate.Span]:
        start = ms.floor(at, ms.HOUR)
        return [aggregate.Span(start, start + ms.HOUR)]


own: Windows = Hours()
Window(Score, own, aggregate.stddev(lambda score: score.points))
