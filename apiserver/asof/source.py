"""The rows of one table as of a timestamp, from catalog and bucket, with bounded memory.

    seed of each physical table ──────────────────────┐
                                                      ├─> merged by key, newest version wins ─> without the deleted
    committed rows above the seeds ─> sorted runs ────┘

The log is in commit order, the answer in key order. So the table's part of the log is read once and cut into runs of
bounded size, each reduced to the newest version of each key and sorted; runs that exceed the memory go to a temporary
file. What is held: one run under construction, and one block of each run and of the seed while they are merged. The
time grows with the table's rows and with its changes since the base, and with nothing else of the tenant.
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from apiserver.asof.bases import Base
from apiserver.asof.newest import STATE, Run, alive, merged, newest, pieces, states
from apiserver.reader import LogReader
from tistream.catalog import seeds
from tistream.catalog.engine import Catalog
from tistream.codec.seed_file import decode_seed_segment
from tistream.codec.table_key import is_record
from tistream.errors import CorruptObject, ObjectNotFound
from tistream.ids import Tenant
from tistream.objectstore.protocol import ObjectStore

RUN_BYTES_MAX = 64 << 20  # of a run under construction
RUNS_IN_MEMORY_MAX = 1
BLOCK_BYTES = 4 << 20
_AHEAD = 2  # segments of a seed that are fetched before they are needed


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSource:
    """Where rows come from."""

    catalog: Catalog
    store: ObjectStore
    reader: LogReader

    def rows(self, tenant: Tenant, bases: Sequence[Base], as_of: int) -> Iterator[pa.Table]:
        """The rows (schema newest.STATE) of these physical tables, in key order, none deleted."""
        with ExitStack() as stack:
            runs = self._changes(tenant, bases, as_of, stack)
            yield from alive(merged([self._base(bases), *runs]))

    def _changes(self, tenant: Tenant, bases: Sequence[Base], as_of: int, stack: ExitStack) -> list[Run]:
        after = min(base.ts for base in bases)
        ids = [base.physical_id for base in bases]
        runs: list[Run] = []
        held: list[pa.Table] = []
        size = 0
        for rows in self.reader.versions(tenant, after=after, upto=as_of, table_ids=ids):
            held.append(states(rows.filter(pa.array(is_record(rows["key"])))))  # not index entries
            size += held[-1].nbytes
            if size < RUN_BYTES_MAX:
                continue
            reduced = newest(pa.concat_tables(held))
            if reduced.nbytes > RUN_BYTES_MAX // 2:  # else there was much of few keys: go on with what is left
                runs.append(_spilled(reduced, stack))
                held, size = [], 0
            else:
                held, size = [reduced], reduced.nbytes
        if held:
            runs.append(pieces(newest(pa.concat_tables(held)), BLOCK_BYTES))
        return runs

    def _base(self, bases: Sequence[Base]) -> Run:
        """The seeds' rows, one physical table after the other: so their keys rise."""
        for base in sorted(bases, key=lambda each: each.physical_id):
            if base.seed is not None:
                yield from self._seed(base, base.seed)

    def _seed(self, base: Base, seed: seeds.SeedRow) -> Run:
        due = deque(seeds.seed_segments_of(self.catalog, seed, base.physical_id))
        coming: deque[Future[pa.Table]] = deque()
        while due or coming:
            while due and len(coming) <= _AHEAD:
                coming.append(self.reader.submit(self._segment, due.popleft(), seed.ts))
            yield coming.popleft().result()

    def _segment(self, row: seeds.SeedSegmentRow, ts: int) -> pa.Table:
        try:
            data = self.store.get_range(row.object_key, row.offset, row.length)
        except (ObjectNotFound, CorruptObject) as e:
            raise CorruptObject(
                f"a segment of a seed is not there: {e.message}",
                object=row.object_key,
                segment=row.segment_no,
                offset=row.offset,
            ) from e
        table = decode_seed_segment(
            row.object_key, row.segment_no, data, ts=ts, crc=row.crc, rows=row.rows, offset=row.offset
        )
        return table.select(STATE.names).cast(STATE)


def _spilled(table: pa.Table, stack: ExitStack) -> Run:
    """The run in a temporary file, which lives as long as the stack."""
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tistream-asof-"))
    path = Path(folder) / "run.arrow"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, STATE) as writer:
        for block in pieces(table, BLOCK_BYTES):
            for batch in block.to_batches():
                writer.write_batch(batch)
    return _blocks(path, stack)


def _blocks(path: Path, stack: ExitStack) -> Run:
    reader = pa.ipc.open_file(stack.enter_context(pa.memory_map(str(path))))
    for n in range(reader.num_record_batches):
        yield pa.Table.from_batches([reader.get_batch(n)], STATE)
