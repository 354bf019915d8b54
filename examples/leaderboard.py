"""A live leaderboard: who scored most in the last ten minutes, once a minute; and in this hour, while it lasts."""

from dataclasses import dataclass
from datetime import datetime

import millstream as ms
from millstream import aggregate
from millstream.window import Every, Hopping, Tumbling, Window, Windowed, WindowTable


@dataclass(frozen=True)
class Score:
    player: str
    points: int
    at: datetime


@dataclass(frozen=True)
class Place:
    player: str
    points: int


class Top(aggregate.Aggregate[Windowed[int], list[Place], list[Place]]):
    """The best, at most `most` of them."""

    def __init__(self, most: int) -> None:
        self.most = most

    def zero(self) -> list[Place]:
        return []

    def add(self, so_far: list[Place], record: ms.Record[Windowed[int]], /) -> list[Place]:
        return self.merge(so_far, [Place(record.value.key, record.value.value)])

    def merge(self, one: list[Place], other: list[Place], /) -> list[Place]:
        return sorted([*one, *other], key=lambda place: (-place.points, place.player))[: self.most]

    def result(self, so_far: list[Place], span: aggregate.Span, /) -> list[Place]:
        return so_far


topology = ms.Topology("leaderboard")
scores = topology.inject(
    "scores",
    ms.files("scores/*.jsonl", Score),
    key=lambda score: score.player,
    timestamp=lambda score: score.at,
    low_watermark=ms.BoundedDisorder(2 * ms.SECOND),
)

# Each player's points of the last ten minutes, every minute. A result carries the last instant of its window, so all that end
# in the same minute fall into one window of the board.
points = Window(Score, Hopping(10 * ms.MINUTE, every=ms.MINUTE), aggregate.sum(lambda score: score.points, int))
topology.compute("points", points).reads(scores)
board = Window(Windowed[int], Tumbling(ms.MINUTE), Top(3))
topology.compute("board", board).reads(points.results.by(lambda window: "all"))
topology.deliver("board", board.results, ms.delta("board"))

# This hour, as it stands: a row a player, told every few seconds, and put right for ten minutes.
hour = WindowTable(
    Score,
    Tumbling(ms.HOUR),
    aggregate.sum(lambda score: score.points, int),
    correct=10 * ms.MINUTE,
    early=Every(2 * ms.SECOND),
)
topology.compute("hour", hour).reads(scores)
topology.deliver("hour", hour.changes, ms.delta("hour"))

if __name__ == "__main__":
    ms.run(topology, at="mill/")
