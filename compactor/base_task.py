"""Builds the next bases of a group of tables: their predecessors and the log since, merged.

Like `compact_range` it depends on its plan row and the store only, each attempt writes under its own keys, and nothing
is visible until the driver's transaction names it. Rows are read and merged as by a read as of the timestamp
(`tistream.log.table_rows`), and written in the format of a seed. The written files are decoded again and must have the
rows and the fingerprint of the merge, per table.

A tenant without tables has one base, of all its keys, with the newest version of each. It is the bottom: nothing older
exists below it, so deletions and expired versions are left out as `compactor.core.collection` allows.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa

from compactor.core.base_plan import BasePlanRow
from compactor.core.collection import ended
from tistream.catalog.log.bases import KEY_RANGE
from tistream.codec.newest import KEY_VERSION, VERSION, Run
from tistream.codec.seed_file import KEYS, SEED, SeedBuilder, SeedFile
from tistream.codec.segment_file import SegmentFile, SegmentInfo
from tistream.codec.table_key import table_ids
from tistream.errors import TiStreamError, invariant
from tistream.log.committed_log import SegmentSource
from tistream.log.table_rows import base_rows, keys_at, rows_at
from tistream.objectstore.layout import BaseKey
from tistream.objectstore.protocol import ObjectStore

_SEED = 17


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseFile:
    """A stored file of rows; each segment is of one table."""

    object_key: str
    object_bytes: int
    segments: tuple[SegmentInfo, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseResult:
    """The bases of a group, not visible yet."""

    range_id: int
    ts: int
    files: tuple[BaseFile, ...]
    rows: dict[int, int]  #: table id -> rows, without empty tables
    seconds: float


def build_bases(store: ObjectStore, row: BasePlanRow, attempt: str) -> BaseResult:
    """Write the bases of one plan row. `attempt` is a unique name.

    CorruptObject and ObjectNotFound as in `compact_range`; TiStreamError when the files differ from the merge.
    """
    begun = time.monotonic()
    merged, written = _Sums(), _Sums()
    job = f"{row.job:08d}-{attempt}"
    builder = SeedBuilder(
        row.tenant, row.ts, key_of=lambda n: BaseKey(tenant=row.tenant, job=job, range_id=row.range_id, ts=row.ts, n=n)
    )
    files: list[BaseFile] = []
    for part in _merged(store, row):
        merged.add(part)
        files += [_put(store, file, written, part.schema) for file in builder.add(part)]
    files += [_put(store, file, written, _stored(row)) for file in builder.finish()]
    if merged != written or not merged.rows.keys() <= {table.table_id for table in row.tables}:
        raise TiStreamError("a base differs from its inputs", job=row.job, range=row.range_id)
    return BaseResult(
        range_id=row.range_id, ts=row.ts, files=tuple(files), rows=written.rows, seconds=time.monotonic() - begun
    )


def _stored(row: BasePlanRow) -> pa.Schema:
    """Of the rows of the files."""
    return KEYS if row.tables[0].table_id == KEY_RANGE else SEED


def _merged(store: ObjectStore, row: BasePlanRow) -> Iterator[pa.Table]:
    """The rows of the bases, in key order."""
    if _stored(row) is SEED:
        for part in rows_at(_before(store, row, VERSION), _since(store, row), VERSION):
            yield part.cast(SEED)
        return
    for part in keys_at(_before(store, row, KEY_VERSION), _since(store, row)):
        yield part.filter(pa.array(~ended(part, row.ts))).cast(KEYS)


class _Sums:
    """Rows of each table, and the sum of their hashes."""

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}
        self.fingerprint = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Sums) and (self.rows, self.fingerprint) == (other.rows, other.fingerprint)

    def add(self, table: pa.Table) -> None:
        ids, counts = np.unique(table_ids(table["key"]), return_counts=True)
        for table_id, count in zip(ids.tolist(), counts.tolist(), strict=True):
            self.rows[table_id] = self.rows.get(table_id, 0) + count
        frame = pl.from_arrow(table)
        invariant(isinstance(frame, pl.DataFrame), "a table is a frame")
        total = frame.hash_rows(seed=_SEED).to_numpy().sum(dtype=np.uint64)
        self.fingerprint = (self.fingerprint + int(total)) & 0xFFFF_FFFF_FFFF_FFFF


def _before(store: ObjectStore, row: BasePlanRow, schema: pa.Schema) -> Run:
    """The predecessors in order of table id, hence of key."""
    for table in sorted(row.tables, key=lambda t: t.table_id):
        for segment in table.rows:
            yield base_rows(store, segment, table.after_ts, schema)


def _since(store: ObjectStore, row: BasePlanRow) -> Iterator[pa.Table]:
    """The tables' rows in the log above their predecessors, up to the bases' timestamp."""
    tables = sorted(row.tables, key=lambda t: t.table_id)
    ids = np.array([table.table_id for table in tables], np.int64)
    after = np.array([table.after_ts for table in tables], np.uint64)
    for table in _segments(store, row):
        found = table["table_id"].to_numpy()
        at = np.minimum(np.searchsorted(ids, found), len(ids) - 1)
        commit_ts = table["commit_ts"].to_numpy()
        kept = (ids[at] == found) & (commit_ts > after[at]) & (commit_ts <= np.uint64(row.ts))
        if kept.any():
            yield table.filter(pa.array(kept))


def _segments(store: ObjectStore, row: BasePlanRow) -> Iterable[pa.Table]:
    source = SegmentSource(store)
    return (source.rows(segment) for segment in row.segments)


def _put(store: ObjectStore, file: SeedFile, written: _Sums, schema: pa.Schema) -> BaseFile:
    key = str(file.key)
    found = SegmentFile.open(key, file.data)
    for number in range(len(file.segments)):
        written.add(found.read(number, schema))
    store.put(key, file.data)
    return BaseFile(object_key=key, object_bytes=len(file.data), segments=file.segments)
