"""Batches between Spark and the core: one blob holds many records as an Arrow stream; no record becomes a row of Spark."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from millstream.core.epoch import Arrivals, Header, Productions, Summary
from millstream.core.graph import Graph, InputPlan
from millstream.core.pages import bucket_of
from millstream.core.route import Router
from millstream.log.staged import MICROSECONDS, RECORDS, read_records

ARRIVALS = pa.schema(
    [
        pa.field("input", pa.int32()),
        pa.field("key", pa.string()),
        pa.field("value", pa.binary()),
        pa.field("timestamp", pa.int64()),
        pa.field("table", pa.int32()),
        pa.field("epoch", pa.int64()),
        pa.field("sequence", pa.int64()),
        pa.field("error", pa.string()),
    ]
)
PRODUCTIONS = pa.schema([pa.field("stream", pa.string()), *RECORDS])


def to_blob(table: pa.Table, name: str, note: object) -> bytes:
    """A table with a note in its schema, as the bytes of an Arrow stream."""
    table = table.replace_schema_metadata({name: msgspec.json.encode(note)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    blob: bytes = sink.getvalue().to_pybytes()
    return blob


def from_blob(blob: bytes) -> pa.Table:
    return pa.ipc.open_stream(blob).read_all()


class Routing:
    """From files of the log to arrivals in their buckets. Made once in each process."""

    def __init__(self, graph: Graph) -> None:
        self._tables = {name: number for number, name in enumerate(sorted(graph.tables))}
        self._routers: dict[str, list[Router]] = {}
        for read in graph.inputs:
            self._routers.setdefault(read.stream.name, []).append(Router(read))

    def arrivals(self, table: str, stream: str, path: Path) -> pa.Table:
        """What a file brings to all readers of its stream."""
        records = read_records(path)
        values = records["value"].cast(pa.binary())
        parts = []
        for router in self._routers.get(stream, []):
            keys = records["key"]
            errors: dict[int, str] = {}
            if router.read.rekeyed:
                found, errors = router.keys(keys.to_pylist(), values.to_pylist())
                keys = pa.array(found, pa.string())
            parts.append(self._part(router.read, table, records, keys, values, errors))
        return pa.concat_tables(parts)

    def _part(self, read: InputPlan, table: str, records: pa.Table, keys: pa.Array, values: pa.Array, errors: dict[int, str]) -> pa.Table:
        count = records.num_rows
        error = pa.array([errors.get(n) for n in range(count)], pa.string()) if errors else pa.nulls(count, pa.string())
        columns = [
            pa.array(np.full(count, read.index, np.int32)),
            keys,
            values,
            records["timestamp"].cast(pa.int64()),
            pa.array(np.full(count, self._tables[table], np.int32)),
            records["epoch"],
            records["sequence"],
            error,
        ]
        return pa.table(columns, schema=ARRIVALS)


def split(arrivals: pa.Table, buckets: int) -> Iterable[tuple[int, pa.Table]]:
    """The arrivals of each bucket. A key is hashed once, however many records it has."""
    encoded = arrivals["key"].combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.chunk(0) if encoded.num_chunks == 1 else encoded.combine_chunks()
    of_key = np.array([bucket_of(key, buckets) for key in encoded.dictionary.to_pylist()], np.int64)
    of_record = of_key[encoded.indices.to_numpy(zero_copy_only=False)]
    order = np.argsort(of_record, kind="stable")
    arranged = arrivals.take(pa.array(order))
    found, starts = np.unique(of_record[order], return_index=True)
    ends = [*starts[1:], len(order)]
    for bucket, start, end in zip(found, starts, ends, strict=True):
        yield int(bucket), arranged.slice(int(start), int(end - start))


def read_arrivals(blobs: Iterable[bytes], tables: list[str]) -> tuple[Header, Arrivals]:
    """The records of a bucket from all its blobs, in the order of their timestamps and ids."""
    parts = [from_blob(blob) for blob in blobs]
    header = msgspec.json.decode(parts[0].schema.metadata[b"header"], type=Header)
    whole = pa.concat_tables(part.replace_schema_metadata(None) for part in parts)
    arrays = {name: whole[name].to_numpy() for name in ("timestamp", "epoch", "sequence", "table", "input")}
    order = np.lexsort([arrays[name] for name in ("input", "sequence", "epoch", "table", "timestamp")])
    whole = whole.take(pa.array(order))
    errors = {}
    if whole["error"].null_count != whole.num_rows:
        errors = {n: error for n, error in enumerate(whole["error"].to_pylist()) if error is not None}
    names = [tables[number] for number in arrays["table"][order].tolist()]
    ids = list(zip(names, arrays["epoch"][order].tolist(), arrays["sequence"][order].tolist(), strict=True))
    arrivals = Arrivals(
        arrays["input"][order].tolist(),
        whole["key"].to_pylist(),
        whole["value"].to_pylist(),
        arrays["timestamp"][order].tolist(),
        ids,
        errors,
    )
    return header, arrivals


def productions_blob(header: Header, bucket: int, productions: Productions, summary: Summary) -> bytes:
    """What a bucket made, its records numbered: epoch, bucket and place are their id."""
    count = len(productions)
    columns = [
        pa.array(productions.streams, pa.string()),
        pa.array(productions.keys, pa.string()),
        pa.array(productions.values, pa.binary()).cast(pa.string()),
        pa.array(np.array(productions.timestamps, np.int64)).cast(MICROSECONDS),
        pa.array(np.full(count, header.epoch, np.int64)),
        pa.array(np.arange(count, dtype=np.int64) + (bucket << 40)),
    ]
    return to_blob(pa.table(columns, schema=PRODUCTIONS), "summary", summary)


def summary_of(table: pa.Table) -> Summary:
    return msgspec.json.decode(table.schema.metadata[b"summary"], type=Summary)
