"""Writing out: one committed file for all tasks of a tenant, then one guarded catalog transaction.

    take(W) of every task that can advance
    PUT one object under a new key                    (none when no task has rows)
    commit_flush: per task, upper: seen -> W          guarded by epoch and seen upper; segments only of those that match

What the reply says, or its absence, is settled per task by one rule. A task that did not surely advance is read back:

- epoch mine, upper one of the W that I attempted   done, up to that W (an earlier reply may have been lost)
- epoch mine, upper unchanged                       not done: try again later, under a new key
- anything else                                     fenced: the task belongs to somebody else, drop it

Until the read-back has been answered the task stays `unsure` and nothing else is attempted for it. An object that did
not become visible is never deleted here, and its key is never used again.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import structlog

from sorter.core import TaskCore
from tistream.catalog.committed import TaskAdvance, commit_flush, new_segment, uppers
from tistream.catalog.engine import Catalog
from tistream.codec.committed_file import build_committed_file
from tistream.codec.segment_file import SegmentInfo
from tistream.errors import CatalogUnavailable, Fenced
from tistream.ids import Tenant
from tistream.layout import CommittedKey
from tistream.objectstore.protocol import ObjectStore

FILE_BYTES_TARGET = 512 << 20  #: rows of one committed file, before compression

log = structlog.get_logger(__name__)


@dataclass(slots=True, kw_only=True)
class Publication:
    """What the publisher knows of one task that this worker owns."""

    core: TaskCore
    epoch: int
    attempted: set[int] = field(default_factory=set)  #: every W that was tried above the core's upper
    unsure: bool = False  #: the outcome of the last attempt has not been read back yet


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taken:
    publication: Publication
    w: int
    rows: pa.Table

    @property
    def task_id(self) -> int:
        return self.publication.core.task_id


class Publisher:
    """Flushes of one sorter life. Used from one thread."""

    def __init__(self, catalog: Catalog, store: ObjectStore, worker_id: str, incarnation: int) -> None:
        self._catalog = catalog
        self._store = store
        self._worker_id = worker_id
        self._incarnation = incarnation
        self._seq = 0

    def flush(self, tenant: Tenant, publications: Sequence[Publication]) -> frozenset[int]:
        """Write out whatever can be. Returns the ids of the tasks that were taken away.

        Raises StoreUnavailable and CatalogUnavailable; the next call goes on where this one stopped.
        """
        fenced = self._settle([p for p in publications if p.unsure])
        ready = [p for p in publications if p.core.task_id not in fenced]
        for group in _groups(ready):
            fenced |= self._publish(tenant, group)
        return fenced

    def _publish(self, tenant: Tenant, group: Sequence[_Taken]) -> frozenset[int]:
        """One file and one transaction for these tasks."""
        key, size, segments = None, 0, dict[int, list[SegmentInfo]]()
        written = [t for t in group if t.rows.num_rows]
        if written:
            self._seq += 1
            at = CommittedKey(tenant=tenant, sorter=self._worker_id, incarnation=self._incarnation, seq=self._seq)
            data, segments = build_committed_file(at, [(t.task_id, t.rows) for t in written], secrets.token_hex(16))
            key, size = str(at), len(data)
            self._store.put(key, data)
        for t in group:
            t.publication.attempted.add(t.w)
        try:
            advances = [_advance(t, segments.get(t.task_id, [])) for t in group]
            advanced = commit_flush(self._catalog, tenant=tenant, object_key=key, object_bytes=size, advances=advances)
        except CatalogUnavailable as e:
            for t in group:
                t.publication.unsure = not e.determinate
            raise
        except Fenced as e:  # the object was given up as an orphan before its row came: its key is burnt
            log.warning("a committed object was collected before it became visible", object=key, error=str(e))
            advanced = frozenset()
        for t in group:
            if t.task_id in advanced:
                _done(t.publication, t.w)
            else:
                t.publication.unsure = True
        return self._settle([t.publication for t in group if t.publication.unsure])

    def _settle(self, unsure: Sequence[Publication]) -> frozenset[int]:
        """Read back what became of these; the ids of those that were taken away."""
        if not unsure:
            return frozenset()
        found = uppers(self._catalog, [p.core.task_id for p in unsure])
        fenced = set()
        for p in unsure:
            epoch, upper = found.get(p.core.task_id, (-1, -1))
            p.unsure = False
            if epoch == p.epoch and upper in p.attempted:
                _done(p, upper)
            elif epoch != p.epoch or upper != p.core.upper:
                log.warning("a task was taken away", task=p.core.task_id, mine=p.epoch, epoch=epoch, upper=upper)
                fenced.add(p.core.task_id)
        return frozenset(fenced)


def _groups(publications: Iterable[Publication]) -> Iterator[list[_Taken]]:
    """The tasks that can advance with their rows, cut into files."""
    group: list[_Taken] = []
    size = 0
    for p in publications:
        w = p.core.pending()
        if w is None:
            continue
        taken = _Taken(publication=p, w=w, rows=p.core.take(w))
        if group and size + taken.rows.nbytes > FILE_BYTES_TARGET:
            yield group
            group, size = [], 0
        group.append(taken)
        size += taken.rows.nbytes
    if group:
        yield group


def _done(p: Publication, w: int) -> None:
    p.core.flushed(w)
    p.attempted = {other for other in p.attempted if other > w}
    p.unsure = False


def _advance(t: _Taken, segments: Sequence[SegmentInfo]) -> TaskAdvance:
    p = t.publication
    return TaskAdvance(
        task_id=t.task_id,
        epoch=p.epoch,
        seen_upper=p.core.upper,
        new_upper=t.w,
        segments=tuple(new_segment(s) for s in segments),
    )
