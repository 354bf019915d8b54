"""Records as they lie in the journal: columns in parts, parts in frames, and what planning knows of each."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from millstream.timestamp import END_OF_TIME, Timestamp

RECORDS_PER_PART = 65_536  # the step in which an epoch can be bounded
BYTES_PER_PART = 8 << 20
NO_KEY = ""  # the reason of a record that `by_each` finds no key for: it is counted, and nothing more


class Columns(msgspec.Struct, array_like=True):
    """The content of a part: records as columns, in the order of their ids.

    The id of a record is (origin, major, minor): origin and major are the part's, the minor is here. `errors` says, by
    position, why the key for a reader could not be extracted; such a record stands under the key that it had. Under several
    keys it stands several times, with one id. `own` are the keys that they had, for a reader that sees records whole; it is empty
    for all others, and where the keys are their own.
    """

    keys: list[str] = msgspec.field(default_factory=list)
    values: list[bytes] = msgspec.field(default_factory=list)
    timestamps: list[Timestamp] = msgspec.field(default_factory=list)
    minors: Sequence[int] = msgspec.field(default_factory=list)
    errors: dict[int, str] = msgspec.field(default_factory=dict)
    own: list[str] = msgspec.field(default_factory=list)

    def __len__(self) -> int:
        return len(self.keys)


class Part(msgspec.Struct, array_like=True, frozen=True):
    """Where some records lie in the segment of their frame, for whom, and what planning needs to know of them.

    A *plain* part (`reader` is empty) has records under their own keys: the log, deliveries and the readers without `by`
    use it. Each reader with `by` has parts of its own, under the keys that it extracts.
    """

    offset: int
    length: int
    checksum: int
    lane: int  # whose keys these are
    stream: str
    reader: str
    origin: str  # of the ids: the injector and a place in its source, or the stream that was produced
    major: int  # of the ids: the epoch of a production, the batch of an injection
    records: int
    oldest: Timestamp


class RowsPart(msgspec.Struct, array_like=True, frozen=True):
    """Where the rows that an epoch changed in a lane lie in the segment of its frame."""

    offset: int
    length: int
    checksum: int
    rows: int


class Redo(msgspec.Struct, array_like=True, frozen=True):
    """Rows that an epoch changed and that a lane may not have."""

    epoch: int
    segment: str
    rows: RowsPart


class Frame(msgspec.Struct, array_like=True, frozen=True):
    """What a writer appended at once: of a lane, what it did in an epoch; of a source, what it took in."""

    segment: str
    lane: int  # of a source: NO_LANE
    parts: list[Part]
    rows: RowsPart | None = None


NO_LANE = -1


def injector_of(origin: str) -> str:
    """The injector that ids of this origin are of, if they are of one: names of injectors have no stroke in them."""
    return origin.partition("/")[0]


encode_columns = msgspec.msgpack.Encoder().encode
decode_columns = msgspec.msgpack.Decoder(Columns).decode


class Dealt(msgspec.Struct):
    """Columns that are ready to become a part."""

    lane: int
    stream: str
    reader: str
    origin: str
    major: int
    columns: Columns

    def encoded(self) -> bytes:
        columns = self.columns
        return encode_columns(
            columns if isinstance(columns.minors, list) else msgspec.structs.replace(columns, minors=list(columns.minors))
        )

    def placed(self, offset: int, length: int, checksum: int) -> Part:
        """The part that these become when they are written there."""
        oldest = min(self.columns.timestamps, default=END_OF_TIME)
        return Part(offset, length, checksum, self.lane, self.stream, self.reader, self.origin, self.major, len(self.columns.keys), oldest)


class Slice(msgspec.Struct):
    """Some of what a source gave, dealt: parts to be written, how many records and letters are in them, up to when each
    partition is complete, and how far the source is read with it."""

    dealt: list[Dealt]
    marks: dict[str, Timestamp]
    injected: int = 0
    dead: int = 0
    positions: dict[str, int | str] = {}
