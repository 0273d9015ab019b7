"""A bucket with a backlog: the recording pushed, or a part of it, while nobody sorts.

Pushers write batch files and get their incarnations from the catalog; the tenant is activated by the meta server's own
rule when its schema snapshot is there. Whoever comes then (a replay, a live service, one after the other) is for the
test to say.
"""

from __future__ import annotations

import functools
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from dispatcher.tail import TailTiming
from dispatcher.worker import DispatcherWorker
from metaserver.activation import Activation
from metaserver.loop import MetaOptions, MetaWorker
from pusher.control import IncarnationGrant, PushBundle, WantedSeed
from pusher.frontier import FrontierEntry
from simulator.capture import Capture
from simulator.push.capture_push import push_capture
from simulator.push.recording_push import PushProgress
from sorter.worker.worker import SorterWorker
from tests.kit.catalog_cases import new_catalog
from tests.kit.manual_clock import ManualClock
from tests.kit.oracle import Change, batch_files, expected_changes
from tests.kit.recording import RECORDING
from tests.kit.waiting import eventually
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.committed import find_segments
from tistream.catalog.log.objects import ObjectState, object_states
from tistream.catalog.rows.tenants import TaskKind
from tistream.catalog.tenancy.tenants import register_tenant
from tistream.catalog.work.stores import issue_incarnation, newest_incarnation, note_cut_ts
from tistream.catalog.work.stream_ends import end_stream
from tistream.catalog.work.tasks import frontier, list_tasks
from tistream.clock import SystemClock
from tistream.ids import Tenant
from tistream.log.committed_log import SegmentSource
from tistream.model.change import COMMITTED
from tistream.objectstore.layout import committed_prefix, snapshots_prefix
from tistream.objectstore.local import LocalStore
from tistream.runtime.service import Service

TENANT = Tenant(1, 1)
CAPTURE = Capture(RECORDING)
LAST = CAPTURE.meta.last_resolved_ts


class CatalogControl:
    """Implements `pusher.control.CaptureControl` over a catalog; seeds are said to be there."""

    def __init__(self, catalog: Catalog, activate: Callable[[], None]) -> None:
        self._catalog, self._activate = catalog, activate

    @property
    def tenant(self) -> Tenant:
        return TENANT

    def issue_incarnation(self, store_id: int) -> IncarnationGrant:
        incarnation, max_cut_ts = issue_incarnation(self._catalog, TENANT, store_id)
        return IncarnationGrant(incarnation=incarnation, max_cut_ts=max_cut_ts)

    def end_stream(self, store_id: int, incarnation: int, end_ts: int) -> None:
        assert end_stream(self._catalog, TENANT, store_id, incarnation, end_ts)

    def newest_incarnation(self, store_id: int) -> int:
        return newest_incarnation(self._catalog, TENANT, store_id)

    def frontier(self) -> Sequence[FrontierEntry]:
        self._activate()
        rows = frontier(self._catalog, TENANT)
        return [
            FrontierEntry(range=row.range, durable_ts=row.durable_ts, resubscribe_id=row.resubscribe_id) for row in rows
        ]

    def push_bundle(self) -> PushBundle:
        return PushBundle(object_store="", state="ACTIVE")

    def has_seed(self, ts: int, table_id: int) -> bool:
        return True

    def add_seed(self, ts: int, table_id: int) -> None:
        raise AssertionError("seeds are there")

    def wanted_seeds(self) -> Sequence[WantedSeed]:
        return []


@dataclass
class BacklogWorld:
    """A catalog and a bucket in a folder."""

    folder: Path
    catalog: Catalog
    store: LocalStore

    @property
    def store_url(self) -> str:
        return f"file://{self.folder}/bucket"

    def push(self, ticks: int | None = None) -> None:
        """Push the recording, or begin to: the pushers die after so many ticks. Pushed again it goes on, as new lives
        of its stores."""
        clock, stop = ManualClock(), threading.Event()
        activation = Activation(self.catalog, self.store, clock, 2)

        def progress(p: PushProgress) -> None:
            clock.advance(1)
            if p.ticks == ticks:
                stop.set()

        control = CatalogControl(self.catalog, activation.step)
        push_capture(RECORDING, control, lambda _: self.store, progress=progress, stop=stop, clock=clock)
        if ticks is not None:
            for (store_id, _), files in batch_files(self.store).items():
                note_cut_ts(self.catalog, TENANT, store_id, files[-1].cut_ts)  # as a dispatcher would have

    def batch_files(self) -> int:
        """How many lie in the bucket."""
        return len(list((self.folder / "bucket").rglob("file-*.seg")))

    def log(self) -> dict[tuple[bytes, int], Change]:
        """All that is visible: (key, commit_ts) -> change. Nothing is there twice."""
        source = SegmentSource(self.store)
        parts = [
            source.rows(segment)
            for kind in TaskKind
            for segment in find_segments(self.catalog, TENANT, after_ts=0, upto_ts=1 << 62, kind=kind, limit=1_000_000)
        ]
        table = pa.concat_tables([COMMITTED.empty_table(), *parts])
        names = ("key", "commit_ts", "start_ts", "op", "value", "old_value")
        rows = [table[name].to_pylist() for name in names]
        changes = {(key, commit_ts): Change(*rest) for key, commit_ts, *rest in zip(*rows, strict=True)}
        assert len(changes) == table.num_rows, "a row is in the log twice"
        return changes

    def durable_timestamps(self) -> list[int]:
        """Of all tasks."""
        return [row.durable_ts for row in list_tasks(self.catalog, TENANT)]

    @contextmanager
    def live(self, name: str = "1") -> Iterator[list[Service]]:
        """A live service: meta server, dispatcher, sorter."""
        clock = SystemClock()
        meta = MetaWorker(self.catalog, self.store, clock, f"meta-{name}", MetaOptions(interval_s=0.1))
        timing = TailTiming(poll_s=0.02)
        follow = DispatcherWorker(self.catalog, self.store, clock, f"dispatcher-{name}", timing=timing)
        sorter = SorterWorker(self.catalog, self.store, follow, clock, worker_id=f"sorter-{name}")
        services: list[Service] = [meta, follow, sorter]
        for service in services:
            service.start()
        try:
            yield services
        finally:
            for service in reversed(services):
                service.stop()

    def objects(self) -> set[str]:
        """Those of the log and of states, visible or not."""
        prefixes = (committed_prefix(TENANT), snapshots_prefix(TENANT))
        return {info.key for prefix in prefixes for info in self.store.list(prefix)}

    def orphans(self) -> set[str]:
        """Those of them that no row names."""
        keys = self.objects()
        states = object_states(self.catalog, keys)
        return {key for key in keys if states.get(key) is not ObjectState.LIVE}

    def wait_for(self, upto: int) -> None:
        """Until every task is there."""
        self.wait_until(lambda: min(self.durable_timestamps()) >= upto)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        eventually(condition, lambda: [str(row) for row in list_tasks(self.catalog, TENANT)])


@contextmanager
def backlog_world(folder: Path, like: Path | None = None) -> Iterator[BacklogWorld]:
    """A registered tenant and nothing else, or what lies in another world's folder."""
    if like is not None:
        shutil.copytree(like, folder, dirs_exist_ok=True)
    catalog = new_catalog(folder)
    register_tenant(catalog, TENANT)
    yield BacklogWorld(folder, catalog, LocalStore(folder / "bucket"))
    catalog.close()


def truth(upto: int = LAST) -> dict[tuple[bytes, int], Change]:
    """What the recording's own lines say was committed, up to a timestamp."""
    return {version: change for version, change in _truth().items() if version[1] <= upto}


@functools.cache
def _truth() -> dict[tuple[bytes, int], Change]:
    return expected_changes(event for _, event in CAPTURE.events())
