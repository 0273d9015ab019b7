"""Reads the rows of a cluster's tables at the tenant's start, and pushes them as its seed while the stream runs.

    schema snapshot at S -> record ranges of its tables -> KvScan at S, rate limited -> seed files -> manifest

Then it asks every minute for tables whose rows a MODIFY COLUMN has rewritten (the change feed does not carry them), and
seeds each of these in the same way: just above the DDL, or at a newer timestamp when that history has been collected.

- A GC barrier of its own protects history at S until the manifest is written, for no longer than the cap;
- pieces are cut by the rows alone, not by page or region boundaries: another process writes the same files and finds
  earlier ones unchanged;
- within a process nothing restarts: each request to PD, stores, bucket and control plane is retried by itself. A large
  seed would never finish otherwise;
- before the manifest is written the barrier is renewed once more. PD accepts none below its safe point, so success
  proves that all history at S was present during the read, even if the barrier lapsed meanwhile;
- the commit_ts of every row is S, because a snapshot read does not return it;
- a failed seed does not stop the stream; `problem` describes it. That of a table is tried again at the next round.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import structlog

from pusher.control import ReseedControl, TableRead, WantedSeed, retrying
from pusher.seed_push import SeedBucket, push_seed
from pusher.tikv.history import GcBarrier
from schemas.snapshot import SchemaSnapshot, parse_pushed
from tistream.clock import Clock
from tistream.codec.seed_file import SEED
from tistream.codec.table_key import record_range
from tistream.errors import StoreUnavailable, TiStreamError
from tistream.ids import Tenant
from tistream.tikv.core.kv_messages import Page
from tistream.tikv.kv_scan import KvReader

T = TypeVar("T")
log = structlog.get_logger(__name__)

_PIECE_BYTES = 4 << 20
_RENEW_S = 60.0
_WANTED_S = 60.0  # interval of questions for tables that need a seed
_TENANT = 0  # table id of the tenant's seed


def seeded_ids(schema: SchemaSnapshot) -> list[int]:
    """The physical ids to read: those of the tables, and those named by a partition DDL under way, whose reorganisation
    has copied rows already that belong to the table once it takes effect."""
    read = {i for table in schema.tables.values() if table.kind == "table" for i in table.physical_ids}
    return sorted(read.union(i for i, table_id in schema.named.items() if table_id in schema.tables))


class SeedScan:
    """The thread that seeds a tenant, and its rewritten tables until `stop`. Start it, `join` it; the rest may be read
    from any thread."""

    def __init__(
        self,
        reader: KvReader,
        control: ReseedControl,
        store: SeedBucket,
        schema: bytes,
        barrier: GcBarrier,
        *,
        stop: threading.Event,
        clock: Clock,
    ) -> None:
        """`schema`: the tenant's first snapshot, as JSON. `stop` is shared with the reader."""
        pushed = parse_pushed(orjson.loads(schema))
        self._first = TableRead(ts=pushed.snapshot.ts, physical_ids=tuple(seeded_ids(pushed.snapshot)))
        self._reader, self._barrier = reader, barrier
        self._control, self._store = _PatientControl(control, self._patiently), _PatientBucket(store, self._patiently)
        self._stop, self._clock = stop, clock
        self._renew_at = 0.0
        self._fault = ""
        self._failed: dict[int, str] = {}  # table id -> why its seed failed
        self._thread = threading.Thread(target=self._run, name="seed", daemon=True)
        self.rows = 0  #: read so far
        self.tables_left = len(self._first.physical_ids)  #: of the seed that is being read
        self.done = False  #: the tenant's seed is complete

    @property
    def problem(self) -> str:
        """What the seed waits for, or why it failed."""
        text = self._fault or self._reader.problem or next(iter(list(self._failed.values())), "")
        return f"seed: {text}" if text else ""

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        """Wait for the thread to end; set `stop` first."""
        self._thread.join()

    def _run(self) -> None:
        try:
            self.done = self._attempt(_TENANT, "the tenant", self._first)
            while not self._stop.is_set():
                self._seed_rewritten()
                self._clock.wait(self._stop, _WANTED_S)
        except _Stopped:
            log.info("seed interrupted", rows=self.rows)
        finally:
            self._reader.close()

    def _seed_rewritten(self) -> None:
        try:
            seeds = self._control.wanted_seeds()
        except TiStreamError as e:
            log.error("the tables that need a seed are not known", error=str(e))
            self._fault = str(e)
            return
        there = {_TENANT, *(each.table_id for each in seeds)}
        self._failed = {table_id: text for table_id, text in self._failed.items() if table_id in there}
        for each in seeds:
            for read in each.reads:
                if self._attempt(each.table_id, each.name, read):
                    break

    def _attempt(self, table_id: int, name: str, read: TableRead) -> bool:
        """Whether the seed is complete; otherwise `problem` says why not. _Stopped when stopped first."""
        self.tables_left = len(read.physical_ids)
        try:
            if not self._control.has_seed(read.ts, table_id):
                rows = pieces(self._read(read), _PIECE_BYTES)
                push_seed(self._control, self._store, read.ts, rows, table_id=table_id)
        except _Stopped:
            raise
        except Exception as e:
            log.error("seed failed", table=name, ts=read.ts, exc_info=not isinstance(e, TiStreamError), error=str(e))
            self._failed[table_id] = f"{name} at {read.ts}: {e if isinstance(e, TiStreamError) else repr(e)}"
            return False
        else:
            self._failed.pop(table_id, None)
            return True
        finally:
            self.tables_left = 0
            if not self._stop.is_set():  # the next start of this pusher reads under the same barrier
                self._barrier.release()

    def _patiently(self, action: Callable[[], T]) -> T:
        """The result of the action, retried until it succeeds. _Stopped when stopped first."""
        results: list[T] = []
        retrying(lambda: results.append(action()), stop=self._stop, clock=self._clock, notice=self._notice)
        if not results:
            raise _Stopped
        self._fault = ""
        return results[0]

    def _notice(self, error: TiStreamError) -> None:
        self._fault = str(error)

    def _read(self, read: TableRead) -> Iterator[pa.Table]:
        self._renew_at = 0.0
        for physical_id in read.physical_ids:
            self._renew(read.ts)
            for page in self._pages(physical_id, read.ts):
                self._renew(read.ts)
                self.rows += len(page.keys)
                times = pa.array(np.full(len(page.keys), read.ts, np.uint64))
                yield pa.Table.from_arrays(
                    [pa.array(page.keys, pa.binary()), times, times, pa.array(page.values, pa.binary())], schema=SEED
                )
            self.tables_left -= 1
        self._renew_at = 0.0
        self._renew(read.ts)

    def _pages(self, physical_id: int, ts: int) -> Iterator[Page]:
        try:
            yield from self._reader.read(record_range(physical_id), ts)
        except StoreUnavailable as e:  # raised only when stopped
            raise _Stopped from e

    def _renew(self, ts: int) -> None:
        if (now := self._clock.monotonic()) >= self._renew_at:
            self._renew_at = now + _RENEW_S
            self._patiently(lambda: self._barrier.renew(ts))
            if not self._barrier.covers(ts):
                raise TiStreamError(self._barrier.problem or "history is not protected by a GC barrier", ts=ts)


class _Stopped(Exception):
    """The scan was stopped."""


class _Patiently(Protocol):
    def __call__(self, action: Callable[[], T]) -> T: ...


class _PatientControl:
    def __init__(self, control: ReseedControl, patiently: _Patiently) -> None:
        self._control, self._patiently = control, patiently

    @property
    def tenant(self) -> Tenant:
        return self._control.tenant

    def has_seed(self, ts: int, table_id: int) -> bool:
        return self._patiently(lambda: self._control.has_seed(ts, table_id))

    def add_seed(self, ts: int, table_id: int) -> None:
        self._patiently(lambda: self._control.add_seed(ts, table_id))

    def wanted_seeds(self) -> Sequence[WantedSeed]:
        return self._patiently(self._control.wanted_seeds)


class _PatientBucket:
    def __init__(self, store: SeedBucket, patiently: _Patiently) -> None:
        self._store, self._patiently = store, patiently

    def put(self, key: str, data: bytes | memoryview) -> None:
        self._patiently(lambda: self._store.put(key, data))

    def get(self, key: str) -> bytes:
        return self._patiently(lambda: self._store.get(key))


def pieces(parts: Iterable[pa.Table], piece_bytes: int) -> Iterator[pa.Table]:
    """The same rows in pieces of about `piece_bytes` of keys and values, cut by the rows alone."""
    kept: list[pa.Table] = []
    size = 0
    for part in parts:
        sizes = np.cumsum(_bytes(part))
        start = 0
        while start < part.num_rows:
            before = int(sizes[start - 1]) if start else 0
            end = int(np.searchsorted(sizes, before + piece_bytes - size, side="left")) + 1
            end = min(end, part.num_rows)
            kept.append(part.slice(start, end - start))
            size += int(sizes[end - 1]) - before
            start = end
            if size >= piece_bytes:
                yield pa.concat_tables(kept)
                kept, size = [], 0
    if kept:
        yield pa.concat_tables(kept)


def _bytes(part: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    lengths = [np.asarray(pc.binary_length(part[name])).astype(np.int64) for name in ("key", "value")]
    return lengths[0] + lengths[1]
