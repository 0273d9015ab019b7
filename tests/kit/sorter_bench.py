"""A sorter process in this one, for tests: SQLite catalog, store in memory, feed in memory, the real clock."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from sqlalchemy import Connection

from sorter.worker.spill import Spill
from sorter.worker.worker import SorterWorker
from tests.kit.assignments import assign_task
from tests.kit.catalog_cases import HALVES, begin, catalog_of, elected
from tests.kit.memory_feed import MemoryFeed
from tests.kit.sorter_oracle import C, Mark, P, Row, Served
from tests.kit.sorter_world import File, feed_batch, served
from tests.kit.waiting import eventually
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.committed import find_segments
from tistream.catalog.rows.tasks import TaskRow
from tistream.catalog.work.stores import issue_incarnation
from tistream.catalog.work.tasks import get_task
from tistream.clock import SystemClock
from tistream.codec.committed_file import decode_committed_segment
from tistream.errors import CatalogUnavailable
from tistream.ids import Tenant
from tistream.objectstore.memory import MemoryStore

TENANT = Tenant(1, 7)


class FlakyCatalog(Catalog):
    """A catalog whose transactions fail as told: before they are committed, or only their reply."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.lost_before = 0
        self.lost_replies = 0
        self.lost_before_of = self.lost_replies_of = ""  #: and the next transaction of this function

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        caller = sys._getframe(2).f_code.co_name
        if caller == self.lost_before_of:
            self.lost_before, self.lost_before_of = 1, ""
        if caller == self.lost_replies_of:
            self.lost_replies, self.lost_replies_of = 1, ""
        if self.lost_before:
            self.lost_before -= 1
            raise CatalogUnavailable("away", determinate=True)
        with super().transaction() as conn:
            yield conn
        if self.lost_replies:
            self.lost_replies -= 1
            raise CatalogUnavailable("reply lost", determinate=False)


class Bench:
    """Everything a worker needs, with one tenant of two tasks and one store."""

    def __init__(self, folder: Path) -> None:
        self.catalog = catalog_of(FlakyCatalog, folder)
        begin(self.catalog, TENANT, 10, *HALVES)
        issue_incarnation(self.catalog, TENANT, 1)
        self.store = MemoryStore()
        self.feed = MemoryFeed()
        self.tasks = [1, 2]
        self.workers: list[SorterWorker] = []

    def assign(self, worker_id: str) -> None:
        epoch = elected(self.catalog)
        for task_id in self.tasks:
            seen = get_task(self.catalog, task_id).epoch
            assert assign_task(self.catalog, task_id, worker_id=worker_id, seen_epoch=seen, leader_epoch=epoch)

    def worker(
        self,
        worker_id: str,
        *,
        snapshot_interval_s: float = 0.1,
        flush_interval_s: float = 0.02,
        spill: Spill | None = None,
    ) -> SorterWorker:
        started = SorterWorker(
            self.catalog,
            self.store,
            self.feed,
            SystemClock(),
            worker_id=worker_id,
            flush_interval_s=flush_interval_s,
            snapshot_interval_s=snapshot_interval_s,
            spill=spill,
        )
        self.workers.append(started)
        started.start()
        return started

    def assigned(self, worker_id: str, **options: Any) -> SorterWorker:
        """As `worker`, with both tasks."""
        self.assign(worker_id)
        return self.worker(worker_id, **options)

    def put(self, seq: int, *rows: Row, upto: int, checkpoint_ts: int = 10) -> None:
        mark = Mark(region_id=1, start=b"", end=b"", checkpoint_ts=checkpoint_ts, resolved_ts=upto)
        self.feed.put(feed_batch(File(store_id=1, incarnation=1, seq=seq, cut_ts=upto, rows=rows, marks=(mark,))))

    def row(self, task_id: int) -> TaskRow:
        return get_task(self.catalog, task_id)

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        eventually(condition, lambda: f"{what}: {[w.problems() for w in self.workers]}")

    def wait_for_durable_ts(self, upto: int) -> None:
        self.wait(lambda: all(self.row(t).durable_ts >= upto for t in self.tasks), f"durable watermark {upto}")

    def segments(self) -> Iterator[pa.Table]:
        """What was written, in the order of writing."""
        segments_found = find_segments(self.catalog, TENANT, after_ts=0, upto_ts=1 << 62, limit=1000)
        for s in sorted(segments_found, key=lambda s: (s.object_key, s.number)):
            data = self.store.get_range(s.object_key, s.offset, s.length)
            yield decode_committed_segment(s.object_key, s.number, data, crc=s.crc, rows=s.rows)

    def served(self) -> list[Served]:
        return sorted(row for table in self.segments() for row in served(table))

    def stop(self) -> None:
        """End all workers in good order."""
        for worker in self.workers:
            worker.stop()
        self.catalog.close()


def change(key: bytes, start_ts: int, commit_ts: int, value: bytes) -> tuple[Row, Row]:
    """A prewrite and its commit."""
    return (
        Row(kind=P, key=key, start_ts=start_ts, value=value),
        Row(kind=C, key=key, start_ts=start_ts, commit_ts=commit_ts),
    )


def expected(key: bytes, start_ts: int, commit_ts: int, value: bytes) -> Served:
    """What is served of such a change."""
    return Served(commit_ts=commit_ts, start_ts=start_ts, key=key, op=1, value=value, old_value=None)
