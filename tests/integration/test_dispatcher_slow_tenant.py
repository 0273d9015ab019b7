"""A tenant whose folder answers slowly, as S3 throttles a prefix: the files of all others arrive, and are deleted."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatcher.tail import TailTiming
from dispatcher.worker import DispatcherWorker
from tests.kit.assignments import assign_store
from tests.kit.awaited import Awaited, subscribed
from tests.kit.batch_files import batch_bytes
from tests.kit.catalog_cases import begin, elected, new_catalog
from tests.kit.feed_port import owned
from tests.kit.waiting import WAIT_S, eventually
from tistream.catalog.work.stores import issue_incarnation
from tistream.catalog.work.tasks import list_tasks
from tistream.clock import SystemClock
from tistream.feed.protocol import FeedRequest, FeedStream
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.objectstore.layout import BatchKey
from tistream.objectstore.memory import MemoryStore
from tistream.objectstore.protocol import Admit

SLOW, WELL = Tenant(1, 1), Tenant(1, 2)
STORES = 12
RANGE = KeyRange(b"a", b"z")


class Throttled(MemoryStore):
    """Requests for one tenant's folder wait until `released`."""

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()
        self.waiting = 0
        self.throttles = False

    def _wait(self, key: str) -> None:
        if self.throttles and "tenant-1/" in key:
            self.waiting += 1
            self.released.wait(WAIT_S)

    def get(self, key: str, admit: Admit | None = None) -> bytes:
        self._wait(key)
        return super().get(key, admit)

    def delete(self, key: str) -> None:
        self._wait(key)
        super().delete(key)


class World:
    def __init__(self, folder: Path) -> None:
        self.catalog, self.store = new_catalog(folder), Throttled()
        epoch = elected(self.catalog)
        self.worker = DispatcherWorker(
            self.catalog, self.store, SystemClock(), "d1", timing=TailTiming(poll_s=0.02), reclaim_s=0.2
        )
        self.worker.start()
        assert self.worker.wait_until_ready(WAIT_S)
        self.streams: dict[tuple[Tenant, int], Awaited[FeedStream]] = {}
        for tenant in (SLOW, WELL):
            begin(self.catalog, tenant, 1, RANGE)
            (task,) = list_tasks(self.catalog, tenant)
            owned(self.catalog, task.task_id, epoch)
            (task,) = list_tasks(self.catalog, tenant)
            for store_id in range(1, STORES + 1) if tenant == SLOW else (99,):
                issue_incarnation(self.catalog, tenant, store_id)
                assert assign_store(self.catalog, tenant, store_id, worker_id="d1", seen_epoch=0, leader_epoch=epoch)
                request = FeedRequest(
                    tenant=tenant,
                    store_id=store_id,
                    task_id=task.task_id,
                    epoch=task.epoch,
                    worker_id=task.owner or "",
                    range=task.range,
                )
                self.streams[tenant, store_id] = subscribed(self.worker, request)

    def put(self, tenant: Tenant, store_id: int, seq: int) -> None:
        key = BatchKey(tenant=tenant, store_id=store_id, incarnation=1, seq=seq)
        self.store.put(str(key), batch_bytes(key, [(b"a", b"z", [b"b"])]))

    def arrives_s(self, seq: int) -> float:
        """How long a file of the tenant that is well takes."""
        self.put(WELL, 99, seq)
        began = time.monotonic()
        batch = self.streams[WELL, 99].next(WAIT_S)
        assert batch is not None
        assert batch.seq == seq
        return time.monotonic() - began


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr("dispatcher.tenant_pool.SLOW_S", 0.1)
    new_world = World(tmp_path)
    yield new_world
    new_world.store.released.set()
    new_world.worker.stop()


def test_files_of_another_tenant_arrive_and_the_slow_one_is_shown(world: World) -> None:
    world.store.throttles = True
    for (tenant, _), stream in world.streams.items():
        if tenant == SLOW:
            stream.stream.look()
    eventually(lambda: world.store.waiting >= 8)
    assert max(world.arrives_s(seq) for seq in (1, 2, 3)) < 3
    eventually(lambda: [p.source for p in world.worker.problems()] == [f"d1/{SLOW}"])
    world.store.released.set()
    eventually(lambda: world.worker.problems() == [])


def test_deletions_of_one_tenant_hold_up_neither_reads_nor_deletions_of_another(world: World) -> None:
    world.store.throttles = True
    for seq in range(1, 40):
        world.put(SLOW, 1, seq)
    deleting = threading.Thread(
        target=world.worker._reclaimer._delete,
        args=(SLOW, [str(BatchKey(tenant=SLOW, store_id=1, incarnation=1, seq=seq)) for seq in range(1, 40)]),
    )
    deleting.start()
    eventually(lambda: world.store.waiting >= 8)
    assert world.arrives_s(1) < 3
    began = time.monotonic()
    key = BatchKey(tenant=WELL, store_id=99, incarnation=1, seq=1)
    assert world.worker._reclaimer._delete(WELL, [str(key)]) == 1
    assert time.monotonic() - began < 3
    world.store.released.set()
    deleting.join(WAIT_S)
    assert not deleting.is_alive()
