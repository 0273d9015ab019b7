"""The rows of one table as of a timestamp, from catalog and bucket.

    seed or base of each physical table ────────┐
                                                ├─> `tistream.log.table_rows`: by key, newest version, not deleted
    committed rows above them ──────────────────┘

The log is listed once for each timestamp at which some of the table's bases lie, so that a quiet partition with an old
base does not make its busy neighbours' log be read again. The time grows with the table's rows and with its changes
since the bases, and with nothing else of the tenant.

A base may be retired while it is read. Its rows are listed under a read lease held to the end, so that what was listed
stays; who comes too late for that gets BaseGone, before the first row, and chooses again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import pyarrow as pa

from reading.read_leases import ReadLease
from reading.reader import LogReader
from schemas.bases import Base
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.bases import BaseRow, base_segments_of
from tistream.catalog.log.seeds import SeedRow, SeedSegmentRow, seed_segments_of
from tistream.codec.newest import Run
from tistream.errors import CorruptObject, ObjectNotFound, StoreUnavailable, TsExpired
from tistream.ids import Tenant
from tistream.log.table_rows import base_rows, rows_at
from tistream.objectstore.protocol import ObjectStore

_AHEAD = 2  # segments of a base that are fetched before they are needed


class BaseGone(StoreUnavailable):
    """The base from which a read began was retired meanwhile. The read chooses again by itself; ask again when it was
    in the middle of a long answer."""

    code = "TS-1038"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSource:
    """Where rows come from."""

    catalog: Catalog
    store: ObjectStore
    reader: LogReader

    def rows(self, tenant: Tenant, bases: Sequence[Base], as_of: int) -> Iterator[pa.Table]:
        """The rows (schema newest.STATE) of these physical tables, in key order, none deleted."""
        with self.reader.leased() as lease:
            listed = {base.physical_id: self._segments(base) for base in bases}
            yield from rows_at(self._base(bases, listed, lease), self._changes(tenant, bases, as_of))

    def _changes(self, tenant: Tenant, bases: Sequence[Base], as_of: int) -> Iterator[pa.Table]:
        of_ts: dict[int, list[int]] = {}
        for base in bases:
            of_ts.setdefault(base.ts, []).append(base.physical_id)
        for after, ids in sorted(of_ts.items()):
            try:
                yield from self.reader.versions(tenant, after=after, upto=as_of, table_ids=ids)
            except TsExpired as e:  # the log above the bases went, and they with it
                raise BaseGone("a base was given up", ts=str(after), earliest_ts=e.facts["earliest_ts"]) from e

    def _segments(self, base: Base) -> Sequence[SeedSegmentRow]:
        if base.source is None:
            return []
        found = _listed(self.catalog, base)
        if found is None:
            raise BaseGone("a base was retired", table_id=base.physical_id, ts=str(base.ts))
        return found

    def _base(self, bases: Sequence[Base], listed: Mapping[int, Sequence[SeedSegmentRow]], lease: ReadLease) -> Run:
        """The bases' rows, one physical table after the other: so their keys rise."""
        for base in sorted(bases, key=lambda each: each.physical_id):
            due = deque(listed[base.physical_id])
            coming: deque[Future[pa.Table]] = deque()
            while due or coming:
                while due and len(coming) <= _AHEAD:
                    lease.renew()
                    coming.append(self.reader.submit(self._segment, due.popleft(), base))
                yield coming.popleft().result()

    def _segment(self, row: SeedSegmentRow, base: Base) -> pa.Table:
        try:
            return base_rows(self.store, row, base.ts)
        except ObjectNotFound as e:
            where = {"object": row.object_key, "segment": row.segment_no, "offset": row.offset}
            if _listed(self.catalog, base) is None:
                raise BaseGone("a base was retired while it was read", **where) from e
            raise CorruptObject(f"a segment of a base is not there: {e.message}", **where) from e


def _listed(catalog: Catalog, base: Base) -> Sequence[SeedSegmentRow] | None:
    """Where the base's rows lie, in key order; None when it is not there any more."""
    match base.source:
        case SeedRow() as seed:
            return seed_segments_of(catalog, seed, base.physical_id)
        case BaseRow() as built:
            return base_segments_of(catalog, built)
    return ()
