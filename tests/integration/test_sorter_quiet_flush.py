"""Idle tenants are flushed together: one transaction, each task with its own guard, and every reply may be lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Connection

from sorter.core.task_core import TaskCore
from sorter.worker.publisher import Publication, Publisher
from tests.kit.catalog_cases import elected
from tests.kit.sorter_oracle import D, Mark, Row
from tests.kit.sorter_world import File, feed_batch
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.committed import durable_timestamps
from tistream.catalog.tenancy.tenants import NewTask, activate_tenant, register_tenant
from tistream.catalog.work.tasks import assign_task
from tistream.errors import CatalogUnavailable
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.objectstore.memory import MemoryStore

TENANTS = [Tenant(1, n) for n in (7, 8, 9)]


class FaultyCatalog(Catalog):
    """A transaction that does not happen, or whose reply is lost; they are counted."""

    fault = ""
    transactions = 0

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        self.transactions += 1
        fault, self.fault = self.fault, ""
        if fault in ("lost, not done", "away"):
            raise CatalogUnavailable(fault, determinate=fault == "away")
        with super().transaction() as conn:
            yield conn
        if fault:
            raise CatalogUnavailable(fault, determinate=False)


class Bench:
    """Three tenants of one task each, all owned at epoch 1."""

    def __init__(self, folder: Path) -> None:
        self.catalog = FaultyCatalog(f"sqlite:///{folder}/catalog.db")
        self.catalog.migrate()
        self.publications: dict[Tenant, list[Publication]] = {}
        for n, tenant in enumerate(TENANTS):
            register_tenant(self.catalog, tenant)
            assert activate_tenant(self.catalog, tenant, 10, [NewTask(kind="data", range=KeyRange())])
            self.take_over(n + 1)
            core = TaskCore(n + 1, KeyRange(), 10, 10)
            self.publications[tenant] = [Publication(core=core, epoch=1)]
        self.store = MemoryStore()
        self.publisher = Publisher(self.catalog, self.store, "s", 1)
        self.seq = 0
        self.catalog.transactions = 0

    def take_over(self, task_id: int, seen_epoch: int = 0) -> None:
        epoch = elected(self.catalog)
        assert assign_task(self.catalog, task_id, worker_id="s", seen_epoch=seen_epoch, leader_epoch=epoch)

    def feed(self, upto: int, *tenants: Tenant, rows: int = 0) -> None:
        self.seq += 1
        for tenant in tenants or TENANTS:
            found = tuple(
                Row(kind=D, key=b"k%d" % i, start_ts=upto - 2, commit_ts=upto - 1, value=b"v") for i in range(rows)
            )
            mark = Mark(region_id=1, start=b"", end=b"", checkpoint_ts=10, resolved_ts=upto)
            file = File(store_id=1, incarnation=1, seq=self.seq, cut_ts=upto, rows=found, marks=(mark,))
            self.publications[tenant][0].core.handle(feed_batch(file))

    def flush(self) -> frozenset[int]:
        return self.publisher.flush_idle(self.publications)

    def durable_timestamps(self) -> list[int]:
        """By the catalog; the cores say the same."""
        found = durable_timestamps(self.catalog, [1, 2, 3])
        return [found[n][1] for n in (1, 2, 3)]

    def cores(self) -> list[int]:
        return [self.publications[tenant][0].core.durable_ts for tenant in TENANTS]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.catalog.close()


def test_all_move_in_one_transaction_without_an_object(bench: Bench) -> None:
    bench.feed(20)
    assert bench.flush() == frozenset()
    assert bench.durable_timestamps() == bench.cores() == [20, 20, 20]
    assert bench.catalog.transactions == 1
    assert list(bench.store.list("")) == []
    assert bench.flush() == frozenset()
    assert bench.catalog.transactions == 1, "nothing has moved"


def test_only_those_move_that_can(bench: Bench) -> None:
    bench.feed(20, TENANTS[1])
    bench.flush()
    assert bench.durable_timestamps() == bench.cores() == [10, 20, 10]


def test_one_that_was_taken_away_is_told_and_the_others_move(bench: Bench) -> None:
    bench.feed(20)
    bench.take_over(2, seen_epoch=1)
    assert bench.flush() == {2}
    assert bench.durable_timestamps() == [20, 10, 20]


@pytest.mark.parametrize("fault", ["lost, not done", "lost, done", "away"])
def test_a_lost_reply_is_settled_before_anything_else_is_tried(bench: Bench, fault: str) -> None:
    bench.feed(20)
    bench.catalog.fault = fault
    with pytest.raises(CatalogUnavailable):
        bench.flush()
    assert bench.cores() == [10, 10, 10]
    unsure = fault != "away"
    for tenant, publications in bench.publications.items():
        assert bench.publisher.is_idle(tenant, publications) is not unsure
    bench.feed(30)
    for tenant, publications in bench.publications.items():
        assert bench.publisher.flush(tenant, publications) == frozenset()
    assert bench.durable_timestamps() == bench.cores() == [30, 30, 30]


def test_who_has_rows_is_not_quiet(bench: Bench) -> None:
    bench.feed(20, TENANTS[0], rows=2)
    quiet = [bench.publisher.is_idle(tenant, publications) for tenant, publications in bench.publications.items()]
    assert quiet == [False, True, True]
