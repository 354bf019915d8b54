"""Mistakes with windows and aggregates. Every line marked here must be refused by both checkers; an unused mark is an error too."""
import millstream as ms
from clickstream import Click, clicks, visits
from leaderboard import Score, Top, board, points, scores
from millstream import aggregate, sketch
from millstream.window import Compare, Days, Every, Hopping, Rolling, Session, Tumbling, Window, WindowTable
from windows import Summary, per_minute

topology = ms.Topology("wrong")

Window(Score, Tumbling(60), aggregate.count())  # type: ignore[arg-type]  # pyright: ignore
Window(Score, ms.MINUTE, aggregate.count())  # type: ignore[arg-type]  # pyright: ignore
Window(Score, Hopping(ms.MINUTE), aggregate.count())  # type: ignore[call-arg]  # pyright: ignore
Window(Score, Days("Europe/Berlin"), aggregate.count())  # type: ignore[arg-type]  # pyright: ignore
Window(Score, Tumbling(ms.MINUTE), aggregate.sum(lambda score: score.pints))  # type: ignore[attr-defined]  # pyright: ignore
Window(Score, Tumbling(ms.MINUTE), aggregate.sum(lambda score: score.player))  # type: ignore[arg-type,return-value]  # pyright: ignore
Window(Score, Tumbling(ms.MINUTE), aggregate.sum(lambda score: score.player, str))  # type: ignore[type-var]  # pyright: ignore
Window(Score, Tumbling(ms.MINUTE), aggregate.count)  # type: ignore[arg-type]  # pyright: ignore
Window(Click, Tumbling(ms.MINUTE), Top(3))  # type: ignore[misc]  # pyright: ignore
Window(Score, Tumbling(ms.MINUTE), aggregate.combine(Summary, aggregate.count(), aggregate.collect(Score), aggregate.count()))  # type: ignore[arg-type]  # pyright: ignore
Window(Score, Tumbling(ms.MINUTE), sketch.distinct(lambda score: score.at))  # type: ignore[arg-type,return-value]  # pyright: ignore
Window(Score, Tumbling(ms.MINUTE), aggregate.count(), correct=ms.HOUR)  # type: ignore[call-arg]  # pyright: ignore
WindowTable(Score, Session(ms.MINUTE), aggregate.count())  # type: ignore[call-arg]  # pyright: ignore
WindowTable(Score, Session(ms.MINUTE), aggregate.count(), correct=ms.HOUR, early=ms.SECOND)  # type: ignore[arg-type]  # pyright: ignore
WindowTable(Score, Session(ms.MINUTE), aggregate.count(), correct=ms.HOUR, early=Every(ms.SECOND, clock="wall"))  # type: ignore[arg-type]  # pyright: ignore
per_minute.changes  # type: ignore[attr-defined]  # pyright: ignore
topology.compute("a", Window(Score, Tumbling(ms.MINUTE), aggregate.count())).reads(clicks)  # type: ignore[arg-type]  # pyright: ignore
topology.compute("b", per_minute).reads(scores, late=ms.Divert(per_minute.results))  # type: ignore[arg-type]  # pyright: ignore
topology.compute("c", board).reads(visits.changes)  # type: ignore[arg-type]  # pyright: ignore
Rolling(Score, 10, aggregate.count())  # type: ignore[arg-type]  # pyright: ignore
topology.compute("d", Compare(str, back=ms.MINUTE)).reads(points.results)  # type: ignore[arg-type]  # pyright: ignore


class Longest(aggregate.Aggregate[Score, str, int]):
    def zero(self) -> int: return 0  # type: ignore[override]  # pyright: ignore
    def add(self, so_far: str, record: ms.Record[Click], /) -> str: return so_far  # type: ignore[override]  # pyright: ignore
    def merge(self, one: str, other: str, /) -> str: return one
    def result(self, so_far: str, span: aggregate.Span, /) -> str: return so_far  # type: ignore[override]  # pyright: ignore
