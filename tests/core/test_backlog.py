"""What lies undelivered in the log, against a list that is searched whole."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.core.backlog import Backlog, Limits, LogFile, Position
from millstream.timestamp import END_OF_TIME

TABLES = ("injector a", "injector b", "mill")
STREAMS = ("read", "also read", "unread")
READ = frozenset(STREAMS[:2])
NO_LIMITS = Limits(1_000_000, 1_000_000)


def file(table: str, version: int, *, number: int = 0, stream: str = "read", rows: int = 1, size: int = 1, oldest: int = 0) -> LogFile:
    return LogFile(table, Position(version, number), f"{table}/{version}/{number}", stream, rows, size, oldest)  # type: ignore[arg-type]


def backlog(*files: LogFile, tables: tuple[str, ...] = TABLES) -> Backlog:
    made = Backlog(tables, READ)
    for each in files:
        made.add(each.table, [each], Position(each.position.version + 1))
    return made


def paths(files: list[LogFile]) -> list[str]:
    return [each.path for each in files]


def test_the_mills_own_table_comes_first() -> None:
    waiting = backlog(file("injector a", 0, oldest=1), file("mill", 0, oldest=9), file("mill", 1, oldest=8))
    assert paths(waiting.take(NO_LIMITS, first="mill")) == ["mill/0/0", "mill/1/0", "injector a/0/0"]


def test_among_the_injectors_the_oldest_goes_first() -> None:
    waiting = backlog(
        file("injector a", 0, oldest=5), file("injector a", 1, oldest=1), file("injector b", 0, oldest=3), file("injector b", 1, oldest=7)
    )
    taken = waiting.take(NO_LIMITS, first="mill")
    assert paths(taken) == ["injector b/0/0", "injector a/0/0", "injector a/1/0", "injector b/1/0"]


def test_limits_are_kept() -> None:
    files = [file("mill", version, rows=4, size=10) for version in range(5)]
    assert len(backlog(*files).take(Limits(11, 1_000), first="mill")) == 2
    assert len(backlog(*files).take(Limits(12, 1_000), first="mill")) == 3
    assert len(backlog(*files).take(Limits(1_000, 29), first="mill")) == 2
    assert len(backlog(*files).take(Limits(1_000, 30), first="mill")) == 3


def test_one_file_is_taken_however_large_it_is() -> None:
    waiting = backlog(file("mill", 0, rows=100, size=100), file("mill", 1))
    assert paths(waiting.take(Limits(1, 1), first="mill")) == ["mill/0/0"]
    assert paths(waiting.take(Limits(1, 1), first="mill")) == ["mill/1/0"]
    assert waiting.take(Limits(1, 1), first="mill") == []


def test_files_that_nobody_reads_and_empty_ones_are_passed_over() -> None:
    waiting = backlog(file("mill", 0, stream="unread", oldest=1), file("mill", 1, rows=0, oldest=1), file("mill", 2, oldest=5))
    assert waiting.oldest("mill", "unread") == END_OF_TIME
    assert waiting.oldest("mill", "read") == 5
    assert waiting.rows() == 1
    assert waiting.positions()["mill"] == Position(2)
    assert paths(waiting.take(NO_LIMITS, first="mill")) == ["mill/2/0"]


def test_a_table_is_read_on_after_its_last_commit_or_at_the_first_file_left() -> None:
    waiting = backlog()
    waiting.add("mill", [file("mill", 3, number=0), file("mill", 3, number=1)], Position(4))
    assert waiting.positions() == {"injector a": Position(), "injector b": Position(), "mill": Position(3, 0)}
    waiting.take(Limits(1, 1), first="mill")
    assert waiting.positions()["mill"] == Position(3, 1)
    waiting.take(Limits(1, 1), first="mill")
    assert waiting.positions()["mill"] == Position(4)


def test_the_oldest_is_told_by_table_and_stream() -> None:
    waiting = backlog(file("mill", 0, oldest=4), file("mill", 1, stream="also read", oldest=2), file("injector a", 0, oldest=3))
    assert waiting.oldest("mill", "read") == 4
    assert waiting.oldest("mill", "also read") == 2
    assert waiting.oldest("injector a", "read") == 3
    assert waiting.oldest("injector b", "read") == END_OF_TIME


# Any history.


@dataclass(frozen=True)
class Commit:
    """Files that come in one commit."""

    table: str
    files: tuple[tuple[str, int, int, int], ...]  # stream, rows, size, oldest


@dataclass
class Naive:
    """The log as lists; every question is answered by looking at all of it."""

    log: dict[str, list[list[LogFile]]] = field(default_factory=lambda: {table: [] for table in TABLES})
    taken: set[str] = field(default_factory=set)

    def commit(self, commit: Commit) -> tuple[list[LogFile], Position]:
        version = len(self.log[commit.table])
        files = [
            file(commit.table, version, number=number, stream=stream, rows=rows, size=size, oldest=oldest)
            for number, (stream, rows, size, oldest) in enumerate(commit.files)
        ]
        self.log[commit.table].append(files)
        return files, Position(version + 1)

    def left(self, table: str, stream: str | None = None) -> list[LogFile]:
        files = [each for commit in self.log[table] for each in commit]
        waiting = [each for each in files if each.stream in READ and each.rows and each.path not in self.taken]
        return [each for each in waiting if stream in (None, each.stream)]

    def next(self) -> LogFile | None:
        """The file that is taken next."""
        if self.left("mill"):
            return self.left("mill")[0]
        heads = [self.left(table)[0] for table in TABLES if self.left(table)]
        return min(heads, key=lambda each: (each.oldest, each.table), default=None)

    def reopened(self, positions: dict[str, Position]) -> Backlog:
        """A new backlog that reads every table on from its position."""
        made = Backlog(TABLES, READ)
        for table, position in positions.items():
            made.add(table, [], position)
            for version, files in enumerate(self.log[table]):
                made.add(table, [each for each in files if each.position >= position], Position(version + 1))
        return made


def check(waiting: Backlog, naive: Naive) -> None:
    for table in TABLES:
        for stream in STREAMS:
            expected = min((each.oldest for each in naive.left(table, stream)), default=END_OF_TIME)
            assert waiting.oldest(table, stream) == expected
        left = naive.left(table)
        assert waiting.positions()[table] == (left[0].position if left else Position(len(naive.log[table])))
    assert waiting.rows() == sum(each.rows for table in TABLES for each in naive.left(table))


FILES = st.tuples(st.sampled_from(STREAMS), st.integers(0, 5), st.integers(1, 5), st.integers(0, 6))
COMMITS = st.builds(Commit, st.sampled_from(TABLES), st.lists(FILES, max_size=4).map(tuple))
LIMITS = st.builds(Limits, st.integers(1, 15), st.integers(1, 15))


@settings(max_examples=120, deadline=None)
@given(st.lists(COMMITS | LIMITS, max_size=14), st.booleans())
def test_it_is_as_if_all_were_searched_whatever_happens(happens: list[Commit | Limits], restarts: bool) -> None:
    waiting, naive = Backlog(TABLES, READ), Naive()
    for each in happens:
        if isinstance(each, Commit):
            waiting.add(each.table, *naive.commit(each))
        else:
            taken = waiting.take(each, first="mill")
            for got in taken:
                assert got is naive.next()
                naive.taken.add(got.path)
            rows, size, left = sum(f.rows for f in taken), sum(f.size for f in taken), naive.next()
            assert len(taken) <= 1 or (rows <= each.records and size <= each.size)
            assert left is None or (taken and (rows + left.rows > each.records or size + left.size > each.size))
        if restarts:
            waiting = naive.reopened(waiting.positions())
        check(waiting, naive)
