"""Compacts one plan row: reads, merges, sorts and writes its segments, and verifies the file.

`compact_range` depends on its plan row and the store only, so it may run twice, at once or after a crash: each attempt
writes under a key that contains its `attempt`, and none is visible until the driver's commit names it. The others are
orphans, and are collected.

Before it is stored, the file is decoded again, row group by row group, and must have the rows, the commit_ts range and
the fingerprint of the inputs, without the versions of keys that garbage collection removes from them
(`compactor.core.collection`; only tenants without tables). The fingerprint is the sum of a 64-bit hash of each row:
independent of the order, and changed by every missing, repeated or modified row.

`build_bases` builds the next bases of a group of tables in the same way: their predecessors and the log since, merged
as by a read as of the timestamp (`tistream.log.table_rows`), and written in the format of a seed. The written files are
decoded again and must have the rows and the fingerprint of the merge, per table. A tenant without tables has one base,
of all its keys, with the newest version of each. It is the bottom: nothing older exists below it, so deletions and
expired versions are left out as `compactor.core.collection` allows.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from compactor.core.base_plan import BasePlanRow
from compactor.core.collection import counted, ended, is_worth_collecting, kept
from compactor.core.plan import PlanRow
from compactor.core.results import BaseFile, BaseResult, Contents, RangeResult
from tistream.catalog.rows.bases import KEY_RANGE
from tistream.codec.compacted_file import CompactedFile, build_compacted_file, decode_row_group, read_footer
from tistream.codec.newest import KEY_VERSION, VERSION, Run
from tistream.codec.seed_file import KEYS, SEED, SeedBuilder, SeedFile
from tistream.codec.segment_file import SegmentFile
from tistream.codec.table_key import table_ids
from tistream.errors import CorruptObject, ErrorKind, ObjectNotFound, TiStreamError, invariant
from tistream.log.committed_log import SegmentSource
from tistream.log.table_rows import base_rows, keys_at, rows_at
from tistream.model import change
from tistream.objectstore.layout import BaseKey, CompactedKey
from tistream.objectstore.protocol import ObjectStore

_SEED = 17
_MESSAGE_MAX = 2000
_IN_ORDER = [(name, "ascending") for name in ("table_id", "commit_ts", "start_ts", "key")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A plan row that a retry cannot help."""

    range_id: int
    code: str
    message: str
    object: str = ""  #: that the error names; empty when it names none
    unreadable: tuple[str, ...] = ()  #: all input objects that are missing or damaged


class HasRange(Protocol):
    @property
    def range_id(self) -> int: ...


RowT = TypeVar("RowT", bound=HasRange)
ResultT = TypeVar("ResultT")


def compact_range(store: ObjectStore, row: PlanRow, attempt: str) -> RangeResult:
    """Write the file of one plan row. `attempt` is a unique name.

    CorruptObject for inputs that do not match the catalog; ObjectNotFound for those collected since they were planned,
    or lost (`unreadable` names all of either); TiStreamError when the file would not hold the same rows: then nothing
    is written.
    """
    begun = time.monotonic()
    inputs = read_inputs(store, row)
    tables = without_obsolete(inputs, row.safe_ts)
    merged = merge(tables)
    file = build_compacted_file(merged, task_id=row.task_id)
    before, after = contents(tables), contents(_decoded(file))
    if before != after:
        raise TiStreamError("a compacted file differs from its inputs", job=row.job, before=before, after=after)
    key = CompactedKey(
        tenant=row.tenant, job=f"{row.job:08d}-{attempt}", range_id=row.range_id, lo_ts=before.lo_ts, hi_ts=before.hi_ts
    )
    store.put(str(key), memoryview(file.data))
    return RangeResult(
        range_id=row.range_id,
        task_id=row.task_id,
        object_key=str(key),
        object_bytes=file.data.size,
        groups=file.groups,
        footer=file.footer,
        before=before,
        after=after,
        seconds=time.monotonic() - begun,
        collected=sum(table.num_rows for table in inputs) - before.rows,
    )


def attempt(build: Callable[[ObjectStore, RowT, str], ResultT], store: ObjectStore, row: RowT) -> ResultT | Failed:
    """`compact_range` or `build_bases` under a new name. An error that a retry cannot help becomes a result, so that
    the other rows continue."""
    try:
        return build(store, row, secrets.token_hex(8))
    except TiStreamError as e:
        if e.kind is ErrorKind.RETRY:
            raise
        about, unreadable = e.facts.get("object", e.facts.get("key", "")), e.facts.pop("unreadable", ())
        return Failed(
            range_id=row.range_id,
            code=e.code,
            message=str(e)[:_MESSAGE_MAX],
            object=str(about),
            unreadable=unreadable if isinstance(unreadable, tuple) else (),
        )
    except Exception as e:  # noqa: BLE001 - a defect concerns this row
        return Failed(range_id=row.range_id, code=TiStreamError.code, message=repr(e)[:_MESSAGE_MAX])


def read_inputs(store: ObjectStore, row: PlanRow) -> list[pa.Table]:
    """The rows of each input segment. The error of the first that cannot be read, with the objects of all of them, so
    that one look at a group finds out what to leave alone."""
    source = SegmentSource(store)
    tables: list[pa.Table] = []
    wrong: dict[str, TiStreamError] = {}
    for segment in row.segments:
        if segment.object_key in wrong:
            continue
        try:
            table = source.rows(segment)
        except (CorruptObject, ObjectNotFound) as e:
            wrong[segment.object_key] = e
            tables.clear()
            continue
        if not wrong:
            tables.append(table)
    if wrong:
        first = next(iter(wrong.values()))
        raise type(first)(first.message, **{**first.facts, "unreadable": tuple(wrong)}) from first
    return tables


def without_obsolete(tables: list[pa.Table], safe_ts: int) -> list[pa.Table]:
    """The inputs of a file without the obsolete versions of keys, if removing them is worth it. A log is never the
    bottom: a base is below it."""
    if not safe_ts or not is_worth_collecting([counted(table, safe_ts) for table in tables], bottom=False):
        return tables
    whole = pa.concat_tables(tables)
    return [whole.filter(pa.array(kept(whole, safe_ts, bottom=False)))]


def merge(tables: Sequence[pa.Table]) -> pa.Table:
    """All rows in (table_id, commit_ts, start_ts, key) order."""
    whole = pa.concat_tables(tables).combine_chunks()
    batches = whole.to_batches()
    invariant(len(batches) == 1, "the inputs of one file fit one record batch", batches=len(batches))
    order = pc.sort_indices(batches[0], sort_keys=_IN_ORDER)
    return pa.Table.from_batches([batches[0].take(order)])


def contents(tables: Iterable[pa.Table]) -> Contents:
    """The figures of these rows, independent of their order."""
    rows, lo_ts, hi_ts, total = 0, (1 << 64) - 1, 0, np.uint64(0)
    for table in tables:
        if not table.num_rows:
            continue
        ts = table["commit_ts"].to_numpy()
        rows += table.num_rows
        lo_ts, hi_ts = min(lo_ts, int(ts.min())), max(hi_ts, int(ts.max()))
        frame = pl.DataFrame(table)
        with np.errstate(over="ignore"):
            total += frame.hash_rows(seed=_SEED).to_numpy().sum(dtype=np.uint64)
    return Contents(rows=rows, lo_ts=lo_ts, hi_ts=hi_ts, fingerprint=int(total))


def _decoded(file: CompactedFile) -> Iterable[pa.Table]:
    data, name = memoryview(file.data), "the file that was built"
    metadata = read_footer(name, data[file.footer.offset :], file.footer)
    for group in file.groups:
        stored = data[group.offset : group.offset + group.length]
        yield decode_row_group(
            name, group.number, stored, metadata, crc=group.crc, rows=group.rows, offset=group.offset
        ).cast(change.COMMITTED)


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
        frame = pl.DataFrame(table)
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
        table_ids_of_rows = table["table_id"].to_numpy()
        at = np.minimum(np.searchsorted(ids, table_ids_of_rows), len(ids) - 1)
        commit_ts = table["commit_ts"].to_numpy()
        kept = (ids[at] == table_ids_of_rows) & (commit_ts > after[at]) & (commit_ts <= np.uint64(row.ts))
        if kept.any():
            yield table.filter(pa.array(kept))


def _segments(store: ObjectStore, row: BasePlanRow) -> Iterable[pa.Table]:
    source = SegmentSource(store)
    return (source.rows(segment) for segment in row.segments)


def _put(store: ObjectStore, file: SeedFile, written: _Sums, schema: pa.Schema) -> BaseFile:
    key = str(file.key)
    stored = SegmentFile.open(key, file.data)
    for number in range(len(file.segments)):
        written.add(stored.read(number, schema))
    store.put(key, file.data)
    return BaseFile(object_key=key, object_bytes=len(file.data), segments=file.segments)
