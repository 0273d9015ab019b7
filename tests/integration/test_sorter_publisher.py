"""The commit protocol of flushes, of one tenant and of all idle ones, against a catalog that loses chosen replies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, event

from sorter.core.task_core import TaskCore
from sorter.worker.publisher import Publication, Publisher
from tests.kit.assignments import assign_task
from tests.kit.catalog_cases import HALVES, begin, catalog_of, elected
from tests.kit.routed import routed
from tests.kit.sorter_oracle import D, Mark, Row
from tests.kit.sorter_world import File, feed_batch
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.committed import durable_timestamps, find_segments
from tistream.catalog.log.objects import tombstone
from tistream.codec.committed_file import decode_committed_segment
from tistream.codec.table_key import record_key
from tistream.errors import CatalogUnavailable, StoreUnavailable
from tistream.feed.protocol import FeedBatch
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.limits import SEGMENT_OWN_BYTES_MIN
from tistream.objectstore.layout import CommittedKey
from tistream.objectstore.memory import MemoryStore

TENANT = Tenant(1, 7)


class FaultyCatalog(Catalog):
    """Fails once, as told: the transaction does not happen, or happens and its reply is lost; or reading fails."""

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
            self.fault = "reading" if fault == "lost, done, and no answer after it" else ""
            raise CatalogUnavailable(fault, determinate=False)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        if self.fault == "reading":
            self.fault = ""
            raise CatalogUnavailable("away", determinate=True)
        with super().reading() as conn:
            yield conn


class FaultyStore(MemoryStore):
    down = False
    puts = 0
    refused: frozenset[int] = frozenset()  #: the PUTs with these numbers fail

    def put(self, key: str, data: bytes | memoryview) -> None:
        self.puts += 1
        if self.down or self.puts in self.refused:
            raise StoreUnavailable("down", determinate=True)
        super().put(key, data)


def take_over(catalog: Catalog, task_id: int, seen_epoch: int = 0) -> None:
    epoch = elected(catalog)
    assert assign_task(catalog, task_id, worker_id="s", seen_epoch=seen_epoch, leader_epoch=epoch)


def batch(seq: int, upto: int, keys: Iterable[bytes], value: bytes = b"v") -> FeedBatch:
    rows = tuple(Row(kind=D, key=k, start_ts=upto - 2, commit_ts=upto - 1, value=value) for k in keys)
    mark = Mark(region_id=1, start=b"", end=b"", checkpoint_ts=10, resolved_ts=upto)
    return feed_batch(File(store_id=1, incarnation=1, seq=seq, cut_ts=upto, rows=rows, marks=(mark,)))


class Bench:
    """Two tasks of a tenant, owned at epoch 1, and a publisher."""

    def __init__(self, folder: Path) -> None:
        self.catalog = catalog_of(FaultyCatalog, folder)
        begin(self.catalog, TENANT, 10, *HALVES)
        take_over(self.catalog, 1)
        take_over(self.catalog, 2)
        self.store = FaultyStore()
        self.publisher = Publisher(self.catalog, self.store, "s", 1)
        self.tasks = [Publication(core=TaskCore(n, half, 10, 10), epoch=1) for n, half in enumerate(HALVES, 1)]
        self.seq = 0

    def feed(self, upto: int, *keys: bytes, value: bytes = b"v") -> None:
        self.seq += 1
        for p in self.tasks:
            p.core.handle(routed(batch(self.seq, upto, keys, value), p.core.range))

    def flush(self) -> frozenset[int]:
        return self.publisher.flush(TENANT, self.tasks)

    def state(self) -> tuple[list[int], int]:
        """(durable watermarks by the catalog, rows that can be read)."""
        durable = durable_timestamps(self.catalog, [1, 2])
        segments = find_segments(self.catalog, TENANT, after_ts=0, upto_ts=1 << 60, limit=99)
        assert all(s.object_key in self.keys() for s in segments)
        return [durable[1][1], durable[2][1]], sum(s.rows for s in segments)

    def keys(self) -> list[str]:
        return [o.key for o in self.store.list("committed/")]


@contextmanager
def statements() -> Iterator[list[str]]:
    """The SQL that is sent meanwhile; BEGIN and COMMIT stand for transactions."""
    sent: list[str] = []
    hooks: list[tuple[str, Callable[..., None]]] = [
        ("before_cursor_execute", lambda conn, cursor, sql, *rest: sent.append(sql.split()[0])),
        ("commit", lambda conn: sent.append("COMMIT")),
    ]
    for name, hook in hooks:
        event.listen(Engine, name, hook)
    try:
        yield sent
    finally:
        for name, hook in hooks:
            event.remove(Engine, name, hook)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    new_bench = Bench(tmp_path)
    yield new_bench
    new_bench.catalog.close()


def key(seq: int) -> str:
    return str(CommittedKey(tenant=TENANT, sorter="s", incarnation=1, seq=seq))


def test_all_tasks_of_a_tenant_share_one_object(bench: Bench) -> None:
    bench.feed(20, b"a", b"x")
    assert bench.flush() == frozenset()
    assert bench.keys() == [key(1)]
    assert bench.state() == ([20, 20], 2)
    assert [p.core.durable_ts for p in bench.tasks] == [20, 20]
    assert bench.flush() == frozenset()


def test_without_rows_only_the_durable_timestamps_move(bench: Bench) -> None:
    bench.feed(20)
    assert bench.flush() == frozenset()
    assert bench.keys() == []
    assert bench.state() == ([20, 20], 0)


def test_idle_tasks_cost_one_statement_each_in_one_transaction_and_no_object(bench: Bench) -> None:
    bench.feed(20)
    with statements() as sent:
        bench.flush()
    assert [s for s in sent if s != "BEGIN"] == ["UPDATE", "UPDATE", "COMMIT"]
    assert bench.store.puts == 0
    with statements() as sent:
        bench.flush()
    assert sent == [], "W has not moved"


@pytest.mark.parametrize(("tables", "value"), [(1, b"v"), (300, b"v"), (3, b"v" * SEGMENT_OWN_BYTES_MIN)])
def test_a_flush_costs_as_many_statements_for_any_number_of_tables(bench: Bench, tables: int, value: bytes) -> None:
    keys = [record_key(100 + t, 1) for t in range(tables)]
    bench.feed(20, b"a", *keys, value=value)  # raw keys for the first task, records for the second
    with statements() as sent:
        bench.flush()
    assert [s for s in sent if s != "BEGIN"] == ["UPDATE", "UPDATE", "SELECT", "INSERT", "INSERT", "COMMIT"]
    assert bench.store.puts == 1
    assert bench.state() == ([20, 20], tables + 1)


def test_a_task_that_was_taken_away_is_left_out_and_named(bench: Bench) -> None:
    bench.feed(20, b"a", b"x")
    take_over(bench.catalog, 1, seen_epoch=1)
    assert bench.flush() == {1}
    assert bench.state() == ([10, 20], 1)
    assert [p.core.durable_ts for p in bench.tasks] == [10, 20]


@pytest.mark.parametrize("fault", ["lost, not done", "away"])
def test_what_did_not_happen_is_tried_again_under_a_new_key(bench: Bench, fault: str) -> None:
    bench.feed(20, b"a")
    bench.catalog.fault = fault
    with pytest.raises(CatalogUnavailable):
        bench.flush()
    assert bench.state() == ([10, 10], 0)
    bench.feed(30, b"b")
    assert bench.flush() == frozenset()
    assert bench.keys() == [key(1), key(2)]
    assert bench.state() == ([30, 30], 2)


@pytest.mark.parametrize("fault", ["lost, done", "lost, done, and no answer after it"])
def test_what_happened_without_a_reply_is_found_by_reading_back(bench: Bench, fault: str) -> None:
    bench.feed(20, b"a", b"x")
    bench.catalog.fault = fault
    for _ in range(2 if "no answer" in fault else 1):
        with pytest.raises(CatalogUnavailable):
            bench.flush()
    bench.feed(30, b"b")
    assert bench.flush() == frozenset()
    assert bench.state() == ([30, 30], 3)
    assert [p.attempted for p in bench.tasks] == [set(), set()]


def test_an_attempt_that_lands_after_the_next_one_was_prepared_counts(bench: Bench) -> None:
    bench.feed(20, b"a")
    bench.catalog.fault = "away"
    with pytest.raises(CatalogUnavailable):
        bench.flush()
    with bench.catalog.transaction() as conn:  # the database had it in hand all the time
        conn.exec_driver_sql("UPDATE tasks SET durable_ts = 20")
    bench.feed(30, b"b")
    assert bench.flush() == frozenset()
    assert [p.core.durable_ts for p in bench.tasks] == [20, 20]
    assert bench.flush() == frozenset()
    assert bench.state()[0] == [30, 30]


def test_an_durable_ts_that_nobody_here_attempted_means_fenced(bench: Bench) -> None:
    bench.feed(20, b"a")
    with bench.catalog.transaction() as conn:
        conn.exec_driver_sql("UPDATE tasks SET durable_ts = 15 WHERE task_id = 1")
    assert bench.flush() == {1}


def test_an_object_that_was_collected_as_an_orphan_is_written_again_under_a_new_key(bench: Bench) -> None:
    bench.feed(20, b"a", b"x")
    assert tombstone(bench.catalog, TENANT, key(1))
    assert bench.flush() == frozenset()
    assert bench.state() == ([10, 10], 0)
    assert bench.flush() == frozenset()
    assert bench.keys() == [key(1), key(2)]
    assert bench.state() == ([20, 20], 2)


def test_while_the_store_is_down_nothing_moves_and_nothing_is_lost(bench: Bench) -> None:
    bench.feed(20, b"a")
    bench.store.down = True
    with pytest.raises(StoreUnavailable):
        bench.flush()
    assert bench.state() == ([10, 10], 0)
    bench.store.down = False
    assert bench.flush() == frozenset()
    assert bench.state() == ([20, 20], 1)


def test_large_flushes_are_cut_into_several_objects(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sorter.worker.publisher.FILE_BYTES_TARGET", 1)
    bench.feed(20, b"a", b"x")
    assert bench.flush() == frozenset()
    assert bench.keys() == [key(1), key(2)]
    assert bench.state() == ([20, 20], 2)


@pytest.fixture
def pieces(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Each row is a piece, and two of them fill an object. The first task has a transaction of seven rows."""
    monkeypatch.setattr("sorter.rows.output.PIECE_ROWS", 0.5)
    monkeypatch.setattr("sorter.worker.publisher.FILE_BYTES_TARGET", 100)
    bench.feed(20, *(b"a%d" % n for n in range(7)), value=b"v" * 40)
    return bench


def rows_in_order(bench: Bench) -> list[bytes]:
    keys = []
    for s in find_segments(bench.catalog, TENANT, after_ts=0, upto_ts=1 << 60, limit=99):
        data = bench.store.get_range(s.object_key, s.offset, s.length)
        keys += decode_committed_segment(s.object_key, s.number, data, crc=s.crc, rows=s.rows)["key"].to_pylist()
    return keys


def finish(bench: Bench) -> int:
    """Flush until nothing is under way; in how many steps."""
    for step in range(1, 30):
        bench.flush()
        if not bench.publisher.busy:
            return step
    raise AssertionError("it never ends")


def test_a_large_transaction_becomes_visible_at_once_in_many_objects(pieces: Bench) -> None:
    pieces.flush()
    assert pieces.publisher.busy
    assert pieces.store.puts == 1, "one object with each step"
    assert pieces.state() == ([10, 20], 0)
    with statements() as sent:
        finish(pieces)
    assert pieces.store.puts == 4
    assert pieces.state() == ([20, 20], 7)
    assert [s for s in sent if s not in ("BEGIN", "COMMIT")] == ["UPDATE", "SELECT", "INSERT", "INSERT"]
    assert rows_in_order(pieces) == [b"a%d" % n for n in range(7)]
    assert pieces.publisher.held_bytes() == 0


def test_an_object_that_could_not_be_written_is_written_again_and_the_others_stay(pieces: Bench) -> None:
    pieces.store.refused = frozenset({2, 3})
    pieces.flush()
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            pieces.flush()
    finish(pieces)
    assert pieces.keys() == [key(1), key(4), key(5), key(6)]
    assert rows_in_order(pieces) == [b"a%d" % n for n in range(7)]
    assert pieces.state() == ([20, 20], 7)


def test_other_tasks_are_written_while_a_large_flush_is_under_way(pieces: Bench) -> None:
    pieces.flush()
    pieces.feed(30, b"x")
    pieces.flush()
    assert pieces.publisher.busy
    assert pieces.state() == ([10, 30], 1)
    finish(pieces)
    assert pieces.state() == ([20, 30], 8)
    finish(pieces)
    assert pieces.state()[0] == [30, 30]


def test_a_task_that_leaves_in_the_middle_takes_its_flush_with_it(pieces: Bench) -> None:
    pieces.flush()
    pieces.publisher.flush(TENANT, pieces.tasks[1:])
    assert not pieces.publisher.busy
    assert pieces.state() == ([10, 20], 0)
    pieces.tasks[0] = Publication(core=pieces.tasks[0].core, epoch=1)
    finish(pieces)
    assert pieces.state() == ([20, 20], 7)
    assert len(pieces.keys()) == 5, "the first object stays where it is, and means nothing"


def test_a_tenant_that_has_left_is_forgotten(pieces: Bench) -> None:
    pieces.flush()
    pieces.publisher.keep({Tenant(1, 8)})
    assert not pieces.publisher.busy


def test_one_object_that_was_collected_takes_all_of_them_along(pieces: Bench) -> None:
    pieces.flush()
    pieces.flush()
    assert tombstone(pieces.catalog, TENANT, key(1))
    finish(pieces)
    assert pieces.state() == ([10, 20], 0)
    finish(pieces)
    assert pieces.state() == ([20, 20], 7)
    assert rows_in_order(pieces) == [b"a%d" % n for n in range(7)]


@pytest.mark.parametrize("fault", ["lost, not done", "lost, done", "away"])
def test_a_lost_reply_to_the_transaction_of_many_objects(pieces: Bench, fault: str) -> None:
    for _ in range(3):
        pieces.flush()
    pieces.catalog.fault = fault
    with pytest.raises(CatalogUnavailable):
        pieces.flush()
    finish(pieces)
    assert pieces.state() == ([20, 20], 7)
    assert rows_in_order(pieces) == [b"a%d" % n for n in range(7)]
    is_known = fault != "lost, not done"
    assert len(pieces.keys()) == (4 if is_known else 8), "what is known not to have happened keeps its objects"


# ---- idle tenants are flushed together: one transaction, each task with its own guard

TENANTS = [Tenant(1, n) for n in (7, 8, 9)]


class IdleBench:
    """Three tenants of one task each, all owned at epoch 1."""

    def __init__(self, folder: Path) -> None:
        self.catalog = catalog_of(FaultyCatalog, folder)
        self.publications: dict[Tenant, list[Publication]] = {}
        for n, tenant in enumerate(TENANTS, 1):
            begin(self.catalog, tenant, 10)
            take_over(self.catalog, n)
            core = TaskCore(n, KeyRange(), 10, 10)
            self.publications[tenant] = [Publication(core=core, epoch=1)]
        self.store = MemoryStore()
        self.publisher = Publisher(self.catalog, self.store, "s", 1)
        self.seq = 0
        self.catalog.transactions = 0

    def feed(self, upto: int, *tenants: Tenant, rows: int = 0) -> None:
        self.seq += 1
        for tenant in tenants or TENANTS:
            keys = (b"k%d" % i for i in range(rows))
            self.publications[tenant][0].core.handle(batch(self.seq, upto, keys))

    def flush(self) -> frozenset[int]:
        return self.publisher.flush_idle(self.publications)

    def durable_timestamps(self) -> list[int]:
        """By the catalog; the cores say the same."""
        durable = durable_timestamps(self.catalog, [1, 2, 3])
        return [durable[n][1] for n in (1, 2, 3)]

    def cores(self) -> list[int]:
        return [self.publications[tenant][0].core.durable_ts for tenant in TENANTS]


@pytest.fixture
def idle(tmp_path: Path) -> Iterator[IdleBench]:
    new_bench = IdleBench(tmp_path)
    yield new_bench
    new_bench.catalog.close()


def test_all_move_in_one_transaction_without_an_object(idle: IdleBench) -> None:
    idle.feed(20)
    assert idle.flush() == frozenset()
    assert idle.durable_timestamps() == idle.cores() == [20, 20, 20]
    assert idle.catalog.transactions == 1
    assert list(idle.store.list("")) == []
    assert idle.flush() == frozenset()
    assert idle.catalog.transactions == 1, "nothing has moved"


def test_only_those_move_that_can(idle: IdleBench) -> None:
    idle.feed(20, TENANTS[1])
    idle.flush()
    assert idle.durable_timestamps() == idle.cores() == [10, 20, 10]


def test_one_that_was_taken_away_is_told_and_the_others_move(idle: IdleBench) -> None:
    idle.feed(20)
    take_over(idle.catalog, 2, seen_epoch=1)
    assert idle.flush() == {2}
    assert idle.durable_timestamps() == [20, 10, 20]


@pytest.mark.parametrize("fault", ["lost, not done", "lost, done", "away"])
def test_a_lost_reply_is_settled_before_anything_else_is_tried(idle: IdleBench, fault: str) -> None:
    idle.feed(20)
    idle.catalog.fault = fault
    with pytest.raises(CatalogUnavailable):
        idle.flush()
    assert idle.cores() == [10, 10, 10]
    unsure = fault != "away"
    for tenant, publications in idle.publications.items():
        assert idle.publisher.is_idle(tenant, publications) is not unsure
    idle.feed(30)
    for tenant, publications in idle.publications.items():
        assert idle.publisher.flush(tenant, publications) == frozenset()
    assert idle.durable_timestamps() == idle.cores() == [30, 30, 30]


def test_who_has_rows_is_not_quiet(idle: IdleBench) -> None:
    idle.feed(20, TENANTS[0], rows=2)
    quiet = [idle.publisher.is_idle(tenant, publications) for tenant, publications in idle.publications.items()]
    assert quiet == [False, True, True]
