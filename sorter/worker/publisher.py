"""Writes committed files for the tasks of a tenant and publishes them in one guarded catalog transaction.

    take(W) of every task that can advance
    PUT one object under a new key                     (none when no task has rows, several when they do not fit one)
    commit_flush: per task, durable_ts: seen -> W      guarded by epoch and seen durable_ts; adds segments only for the
                                                       tasks that match

A flush of more than FILE_BYTES_TARGET spans several calls, one object each, so that other tasks need not wait; only its
transaction moves `durable_ts` and makes all of its objects visible. When a PUT fails, the same rows are written again
under a new key; earlier objects stay.

Tenants with watermark-only progress are flushed together, in one transaction and without an object: many idle tenants
would otherwise cost as much as busy ones.

A task whose transaction is not known to have advanced it is read back (`tistream.catalog.database.lost_reply`):

- epoch unchanged, durable_ts is one of the attempted W    done up to that W (an earlier reply may have been lost)
- epoch unchanged, durable_ts unchanged                    not done: retry later, under new keys
- anything else                                            fenced: another worker owns the task, drop it

An object that did not become visible is never deleted here and its key is never reused, but a flush of several objects
whose transaction is known to have failed keeps them for the next attempt.

A task whose rows cannot be taken, sorted or fetched is excluded: `failed` has its error, and the other tasks of its
tenant are written.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from sorter.core.task_core import TaskCore
from sorter.rows.output import RowsToWrite
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.lost_reply import attempting, settle
from tistream.catalog.log.committed import TaskAdvance, advance_durable_timestamps, commit_flush, durable_timestamps
from tistream.catalog.rows.segments import SegmentRow, segment_in
from tistream.codec.committed_file import CommittedFileWriter
from tistream.errors import CatalogUnavailable, Fenced, invariant
from tistream.ids import Tenant
from tistream.objectstore.layout import CommittedKey
from tistream.objectstore.protocol import ObjectStore
from tistream.runtime import metrics

_ROWS_OUT, _BYTES_OUT = metrics.ROWS.labels("sorter", "out"), metrics.BYTES.labels("sorter", "out")
_NONE: frozenset[int] = frozenset()
FILE_BYTES_TARGET = 32 << 20  #: uncompressed bytes of one committed file; one piece more at most

log = structlog.get_logger(__name__)


@dataclass(slots=True, kw_only=True)
class Publication:
    """Publishing state of one task that this worker owns."""

    core: TaskCore
    epoch: int
    attempted: set[int] = field(default_factory=set)  #: every attempted W above the core's durable_ts
    unsure: bool = False  #: the last attempt must be read back
    upto: int | None = None  #: set before a merge: nothing above it is written

    def pending(self) -> int | None:
        """A watermark above `durable_ts` that can be written now, or None."""
        w = self.core.pending()
        if w is None or self.upto is None:
            return w
        return min(w, self.upto) if self.upto > self.core.durable_ts else None


@dataclass(slots=True, kw_only=True, eq=False)
class _Taken:
    """The rows of one task, and how many of their pieces are written."""

    publication: Publication
    w: int
    rows: RowsToWrite
    written: int = 0
    segments: list[SegmentRow] = field(default_factory=list)

    @property
    def task_id(self) -> int:
        return self.publication.core.task_id


@dataclass(slots=True)
class _Flush:
    tasks: list[_Taken]
    objects: dict[str, int] = field(default_factory=dict)  #: key -> bytes


class Publisher:
    """Flushes of one incarnation of a sorter. Used from one thread."""

    def __init__(self, catalog: Catalog, store: ObjectStore, worker_id: str, incarnation: int) -> None:
        self._catalog = catalog
        self._store = store
        self._worker_id = worker_id
        self._incarnation = incarnation
        self._seq = 0
        self._under_way: dict[Tenant, list[_Flush]] = {}
        self.failed: dict[int, Exception] = {}  #: tasks excluded from the last flush, and why

    def flush(self, tenant: Tenant, publications: Sequence[Publication]) -> frozenset[int]:
        """Write what can be written, at most one object of a large flush. Returns the ids of fenced tasks.

        `publications` are all tasks of the tenant that are here. Raises StoreUnavailable and CatalogUnavailable; the
        next call continues.
        """
        self.failed = {}
        fenced = settle(publications, self._read_back, _NONE)
        flushes = self._still_owned(tenant, publications)
        busy = {id(t.publication) for flush in flushes for t in flush.tasks}
        ready = [p for p in publications if p.core.task_id not in fenced and id(p) not in busy]
        for flush in flushes:
            fenced |= self._continue(tenant, flush)
        for tasks in _groups(self._taken(ready)):
            fenced |= self._continue(tenant, _Flush(tasks))
        return fenced

    def is_idle(self, tenant: Tenant, publications: Sequence[Publication]) -> bool:
        """Whether the tenant has watermark-only progress and nothing in progress or unsure."""
        try:
            return tenant not in self._under_way and not any(p.unsure or p.core.flushable_bytes() for p in publications)
        except Exception:  # noqa: BLE001 - `flush` fails too, and names the task
            return False

    def flush_idle(self, tenants: Mapping[Tenant, Sequence[Publication]]) -> frozenset[int]:
        """`flush` of idle tenants, in one transaction."""
        self.failed = {}
        taken = [(tenant, t) for tenant, publications in tenants.items() for t in self._taken(publications)]
        if not taken:
            return frozenset()
        for _, t in taken:
            invariant(t.rows.nbytes == 0, "an idle task has no rows", task=t.task_id)
            t.publication.attempted.add(t.w)
        with attempting([t.publication for _, t in taken]):
            advanced = advance_durable_timestamps(self._catalog, [(tenant, _advance(t)) for tenant, t in taken])
        return self._conclude([t for _, t in taken], advanced)

    @property
    def busy(self) -> bool:
        """Whether a flush has objects left to write."""
        return bool(self._under_way)

    def is_busy_with(self, tenant: Tenant) -> bool:
        return tenant in self._under_way

    def writes(self, publication: Publication) -> bool:
        flushes = (flush for of_tenant in self._under_way.values() for flush in of_tenant)
        return any(t.publication is publication for flush in flushes for t in flush.tasks)

    def held_bytes(self) -> int:
        """Memory of the flushes in progress, besides what the tasks hold."""
        flushes = (flush for flushes in self._under_way.values() for flush in flushes)
        return sum(t.rows.held_bytes() for flush in flushes for t in flush.tasks)

    def under_way(self) -> list[Tenant]:
        """The tenants with a flush in progress."""
        return list(self._under_way)

    def keep(self, tenants: Collection[Tenant]) -> None:
        """Forget the flushes of other tenants: all of their tasks have left."""
        self._under_way = {tenant: flushes for tenant, flushes in self._under_way.items() if tenant in tenants}

    def _still_owned(self, tenant: Tenant, publications: Sequence[Publication]) -> list[_Flush]:
        """The flushes in progress, without tasks that have left."""
        owned = {id(p) for p in publications}
        flushes = self._under_way.get(tenant, [])
        for flush in flushes:
            flush.tasks = [t for t in flush.tasks if id(t.publication) in owned]
        owned_still = [flush for flush in flushes if flush.tasks]
        self._set_under_way(tenant, owned_still)
        return owned_still

    def _taken(self, publications: Iterable[Publication]) -> Iterator[_Taken]:
        for p in publications:
            try:
                w = p.pending()
                if w is None:
                    continue
                taken = _Taken(publication=p, w=w, rows=p.core.take(w))
            except Exception as e:  # noqa: BLE001 - concerns one task
                self.failed[p.core.task_id] = e
            else:
                yield taken

    def _continue(self, tenant: Tenant, flush: _Flush) -> frozenset[int]:
        """Write an object; after the last one publish."""
        written = self._write(tenant, flush)
        others = [other for other in self._under_way.get(tenant, []) if other is not flush]
        self._set_under_way(tenant, others if written or not flush.tasks else [*others, flush])
        if not written or not flush.tasks:
            return frozenset()
        try:
            return self._publish(tenant, flush)
        except CatalogUnavailable as e:
            if e.determinate and len(flush.objects) > 1:
                self._set_under_way(tenant, [*others, flush])
            raise

    def _set_under_way(self, tenant: Tenant, flushes: list[_Flush]) -> None:
        if flushes:
            self._under_way[tenant] = flushes
        else:
            self._under_way.pop(tenant, None)

    def _write(self, tenant: Tenant, flush: _Flush) -> bool:
        """Write at most one object; whether all rows are written. Tasks that fail leave the flush."""
        for t in list(flush.tasks):
            if not t.rows.prepared:
                try:
                    t.rows.prepare()
                except Exception as e:  # noqa: BLE001 - concerns one task
                    self._exclude(flush, t, e)
                    continue
                if not t.rows.prepared:
                    return False
        if all(t.written == t.rows.piece_count for t in flush.tasks):
            return True
        self._seq += 1
        at = CommittedKey(tenant=tenant, sorter=self._worker_id, incarnation=self._incarnation, seq=self._seq)
        writer = CommittedFileWriter(at, secrets.token_hex(16))
        held: list[tuple[_Taken, int]] = []
        for t in flush.tasks:
            if writer.raw_bytes >= FILE_BYTES_TARGET:
                break
            try:
                held.append((t, _fill(writer, t)))
            except Exception as e:  # noqa: BLE001 - concerns one task
                self._exclude(flush, t, e)
                return False  # discard the object: it holds part of an excluded task
        key, data = str(at), writer.finish()
        self._store.put(key, data)
        flush.objects[key] = len(data)
        for t, written in held:
            t.written = written
            t.segments += [segment_in(key, s) for s in writer.segments.get(t.task_id, [])]
        _ROWS_OUT.inc(sum(s.rows for segments in writer.segments.values() for s in segments))
        _BYTES_OUT.inc(len(data))
        return all(t.written == t.rows.piece_count for t in flush.tasks)

    def _exclude(self, flush: _Flush, t: _Taken, error: Exception) -> None:
        self.failed[t.task_id] = error
        flush.tasks.remove(t)

    def _publish(self, tenant: Tenant, flush: _Flush) -> frozenset[int]:
        for t in flush.tasks:
            t.publication.attempted.add(t.w)
        try:
            advances = [_advance(t) for t in flush.tasks]
            with attempting([t.publication for t in flush.tasks]):
                advanced = commit_flush(self._catalog, tenant=tenant, objects=flush.objects, advances=advances)
        except Fenced as e:  # an object was collected as an orphan: its key cannot be reused
            log.warning("committed object collected before it became visible", error=str(e))
            advanced = frozenset()
        return self._conclude(flush.tasks, advanced)

    def _conclude(self, tasks: Sequence[_Taken], advanced: Collection[int]) -> frozenset[int]:
        """Record the advanced tasks and read the others back. Returns the ids of fenced tasks."""
        for t in tasks:
            if t.task_id in advanced:
                _advanced(t.publication, t.w)
            else:
                t.publication.unsure = True
        return settle([t.publication for t in tasks], self._read_back, _NONE)

    def _read_back(self, unsure: Sequence[Publication]) -> frozenset[int]:
        """Read back unsure tasks; returns the ids of fenced ones."""
        rows = durable_timestamps(self._catalog, [p.core.task_id for p in unsure])
        fenced = set()
        for p in unsure:
            epoch, durable_ts = rows.get(p.core.task_id, (-1, -1))
            if epoch == p.epoch and durable_ts in p.attempted:
                _advanced(p, durable_ts)
            elif epoch != p.epoch or durable_ts != p.core.durable_ts:
                log.warning("task fenced", task=p.core.task_id, mine=p.epoch, epoch=epoch, durable_ts=durable_ts)
                fenced.add(p.core.task_id)
        return frozenset(fenced)


def _groups(tasks: Iterable[_Taken]) -> Iterator[list[_Taken]]:
    """Tasks that fit one file together; large ones alone."""
    group: list[_Taken] = []
    size = 0
    for taken in tasks:
        if taken.rows.nbytes > FILE_BYTES_TARGET:
            yield [taken]
            continue
        if group and size + taken.rows.nbytes > FILE_BYTES_TARGET:
            yield group
            group, size = [], 0
        group.append(taken)
        size += taken.rows.nbytes
    if group:
        yield group


def _fill(writer: CommittedFileWriter, t: _Taken) -> int:
    """Add pieces of a task's rows until the file is full; how many of its pieces are written."""
    written = t.written
    for piece in t.rows.pieces(written):
        writer.add(t.task_id, piece)
        written += 1
        if writer.raw_bytes >= FILE_BYTES_TARGET:
            break
    return written


def _advanced(p: Publication, w: int) -> None:
    p.core.flushed(w)
    p.attempted = {other for other in p.attempted if other > w}
    p.unsure = False


def _advance(t: _Taken) -> TaskAdvance:
    p = t.publication
    return TaskAdvance(
        task_id=t.task_id,
        epoch=p.epoch,
        seen_durable_ts=p.core.durable_ts,
        new_durable_ts=t.w,
        segments=tuple(t.segments),
    )
