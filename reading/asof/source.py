"""The rows of one table as of a timestamp, from catalog and bucket.

    seed or base of each physical table ────────┐
                                                ├─> `tistream.log.table_rows`: by key, newest version, not deleted
    committed rows above them ──────────────────┘

The log is listed once per base timestamp, so that an idle partition with an old base does not make the log of its busy
neighbours be read again. The time grows with the table's rows and its changes since the bases only.

Memory is admitted by tenant (`reading.log.memory`) before the first segment is fetched, and held until the read ends.

A base may be retired while it is read. Its segments are listed under a read lease held to the end; when the base is
already gone then, BaseGone is raised before the first row, and the read chooses again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from reading.core import page_rows
from reading.log.memory import Held
from reading.log.read_leases import ReadLease
from reading.log.reader import LogReader
from schemas.bases import Base
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.bases import base_segments_of
from tistream.catalog.log.seeds import seed_segments_of
from tistream.catalog.rows.bases import BaseRow
from tistream.catalog.rows.seeds import SeedRow
from tistream.catalog.rows.segments import SegmentRow
from tistream.codec.newest import KEY_VERSION, STATE, Run, committed
from tistream.errors import CorruptObject, ObjectNotFound, StoreUnavailable, TsExpired
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.limits import SEED_SEGMENT_BYTES_TARGET
from tistream.log.table_rows import base_rows, rows_at
from tistream.objectstore.protocol import ObjectStore

T = TypeVar("T")
CHOICES_MAX = 10  # of bases, when each is retired before it can be read
_EVERY_KEY = KeyRange()
_AHEAD = 2  # segments of a base that are fetched before they are needed
_COPIES = 3  # of the rows of a segment of a base: as read, merged, as a body


class BaseGone(StoreUnavailable):
    """The base of a read was retired meanwhile. The read chooses another; retry if this ended a long answer."""

    code = "TS-1038"


def while_bases_go(read: Callable[[], T]) -> T:
    """What `read` returns, which chooses other bases when one is retired. BaseGone when that has happened too often."""
    for _ in range(CHOICES_MAX - 1):
        with suppress(BaseGone):
            return read()
    return read()


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSource:
    """Where rows come from."""

    catalog: Catalog
    store: ObjectStore
    reader: LogReader

    def rows(
        self, tenant: Tenant, bases: Sequence[Base], as_of: int, *, after: bytes = b"", held: Held | None = None
    ) -> Iterator[pa.Table]:
        """The live rows (schema newest.STATE) of these physical tables above the key `after`, in key order.

        `held`: what the caller holds of the memory for reads. What this read needs is a part of it until the end."""
        with self.reader.leased() as lease, self.reader.holding(tenant, held) as whole, whole.part() as part:
            listed = {
                base.physical_id: [segment for segment in self._segments(base) if segment.end_key > after]
                for base in bases
            }
            part.add(_window(listed))
            base_above = _above(self._base(bases, listed, lease), after)
            yield from rows_at(base_above, _above(self._changes(tenant, bases, as_of, part), after))

    def versions(self, tenant: Tenant, base: Base, upto: int, keys: KeyRange) -> Iterator[pa.Table]:
        """Versions of these keys of a tenant without tables, in no order: those of the base, and all in the log between
        it and `upto` (schema change.COMMITTED). In the base, a key has its newest version only."""
        with self.reader.leased() as lease, self.reader.memory.held(tenant) as part:
            listed = {
                base.physical_id: [
                    segment
                    for segment in self._segments(base)
                    if segment.end_key >= keys.start and not (keys.end and segment.start_key >= keys.end)
                ]
            }
            part.add(_window(listed))
            for rows in self._base([base], listed, lease, KEY_VERSION):
                yield page_rows.within(committed(rows), keys)
            yield from self._changes(tenant, [base], upto, part, keys)

    def _changes(
        self, tenant: Tenant, bases: Sequence[Base], as_of: int, held: Held, keys: KeyRange = _EVERY_KEY
    ) -> Iterator[pa.Table]:
        of_ts: dict[int, list[int]] = {}
        for base in bases:
            of_ts.setdefault(base.ts, []).append(base.physical_id)
        for after, ids in sorted(of_ts.items()):
            try:
                yield from self.reader.versions(tenant, after=after, upto=as_of, table_ids=ids, keys=keys, held=held)
            except TsExpired as e:  # retention removed the log above the bases, and the bases
                raise BaseGone("a base was retired", ts=str(after), earliest_ts=e.facts["earliest_ts"]) from e

    def _segments(self, base: Base) -> Sequence[SegmentRow]:
        if base.source is None:
            return []
        segments = _listed(self.catalog, base)
        if segments is None:
            raise BaseGone("a base was retired", table_id=base.physical_id, ts=str(base.ts))
        return segments

    def _base(
        self,
        bases: Sequence[Base],
        listed: Mapping[int, Sequence[SegmentRow]],
        lease: ReadLease,
        schema: pa.Schema = STATE,
    ) -> Run:
        """The bases' rows in key order: one physical table after the other."""
        for base in sorted(bases, key=lambda each: each.physical_id):
            remaining = deque(listed[base.physical_id])
            fetching: deque[Future[pa.Table]] = deque()
            while remaining or fetching:
                while remaining and len(fetching) <= _AHEAD:
                    lease.renew()
                    fetching.append(self.reader.submit(self._segment, remaining.popleft(), base, schema))
                yield fetching.popleft().result()

    def _segment(self, row: SegmentRow, base: Base, schema: pa.Schema) -> pa.Table:
        try:
            return base_rows(self.store, row, base.ts, schema)
        except ObjectNotFound as e:
            where = {"object": row.object_key, "segment": row.number, "offset": row.offset}
            if _listed(self.catalog, base) is None:
                raise BaseGone("a base was retired while it was read", **where) from e
            raise CorruptObject(f"a segment of a base is missing: {e.message}", **where) from e


def _window(listed: Mapping[int, Sequence[SegmentRow]]) -> int:
    """Bytes of segments of bases that are held at once. How large they are unpacked is known only of the target."""
    largest = max((s.length for segments in listed.values() for s in segments), default=0)
    return (_AHEAD + _COPIES) * max(largest, SEED_SEGMENT_BYTES_TARGET) if largest else 0


def _above(tables: Iterator[pa.Table], after: bytes) -> Iterator[pa.Table]:
    """The rows with keys above `after`."""
    if not after:
        return tables
    return (table.filter(pc.greater(table["key"], pa.scalar(after, pa.binary()))) for table in tables)


def _listed(catalog: Catalog, base: Base) -> Sequence[SegmentRow] | None:
    """The segments of the base in key order; None when it was retired."""
    match base.source:
        case SeedRow() as seed:
            return seed_segments_of(catalog, seed, base.physical_id)
        case BaseRow() as built:
            return base_segments_of(catalog, built)
    return ()
