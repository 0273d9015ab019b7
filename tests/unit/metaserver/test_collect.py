"""The collector against a real catalog and a bucket that a test can hold up: what goes, what stays, in which order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection

from metaserver import collect
from metaserver.collect import Collector
from metaserver.retention import Retention
from schemas.registry.schema_registry import SchemaRegistry
from tests.kit.catalog_cases import OTHER, START, T, activate, advance, catalog_of, flush, output, segment, shift
from tests.kit.manual_clock import ManualClock
from tistream.catalog.database import tables
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.committed import find_segments
from tistream.catalog.log.compaction import commit_compaction, pieces
from tistream.catalog.log.objects import ObjectKind, ObjectState, insert_live, object_states, superseded_objects
from tistream.catalog.log.read_leases import drop_lease, expired_leases, open_lease
from tistream.catalog.log.snapshots import NewSnapshot, switch_snapshot
from tistream.errors import CatalogUnavailable, Fenced, StoreUnavailable
from tistream.ids import Tenant
from tistream.objectstore.layout import BatchKey, CommittedKey, CompactedKey, SchemasKey, SchemaSnapKey, SnapshotKey
from tistream.objectstore.memory import MemoryStore
from tistream.objectstore.protocol import ObjectInfo
from tistream.runtime.containment import RETRY_MAX_S
from tistream.ts import TS_MAX

GRACE_MS = 3_600_000


class Bucket(MemoryStore):
    """Objects as old as the test's clock says, listed in pages: each as it is when it is asked for."""

    def __init__(self, clock: ManualClock, page: int = 1000) -> None:
        super().__init__()
        self.clock, self.page = clock, page
        self.put_ms: dict[str, int] = {}
        self.deleted: list[str] = []
        self.before_delete: Callable[[str], None] = lambda _: None
        self.after_page: Callable[[str], None] = lambda _: None

    def put(self, key: str, data: bytes | memoryview) -> None:
        super().put(key, data)
        self.put_ms[key] = self.clock.unix_ms()

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        while page := list(super().list(prefix, after))[: self.page]:
            for info in page:
                yield ObjectInfo(key=info.key, size=info.size, modified_ms=self.put_ms[info.key])
            after = page[-1].key
            self.after_page(after)

    def delete(self, key: str) -> None:
        self.before_delete(key)
        super().delete(key)
        self.deleted.append(key)

    def names(self) -> Sequence[str]:
        return [info.key for info in super().list("")]


class Interrupted(Catalog):
    """A catalog in which something happens between two requests of whoever uses it."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.before_write: Callable[[], None] = lambda: None

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        happens, self.before_write = self.before_write, lambda: None
        happens()
        with super().transaction() as conn:
            yield conn


class Rig:
    """A tenant with three tasks, an empty bucket, and a collector for which an hour is young."""

    def __init__(self, folder: Path) -> None:
        self.catalog = catalog_of(Interrupted, folder)
        self.clock = ManualClock()
        self.bucket = Bucket(self.clock)
        self.collector = Collector(self.catalog, self.bucket, self.clock, grace_ms=GRACE_MS)
        self.tasks = activate(self.catalog)
        self.durable_ts = START

    def put(self, *keys: str) -> None:
        for key in keys:
            self.bucket.put(key, key.encode())

    def publish(self, key: str) -> None:
        """The catalog's side of a flush."""
        seen, new = self.durable_ts, self.durable_ts + 10
        assert flush(self.catalog, key, advance(self.tasks[0], seen, new, segment(0, seen + 1, new)))
        self.durable_ts = new

    def age(self, ms: int = GRACE_MS + 1) -> None:
        """Let time pass, by the clocks of the bucket and of the catalog."""
        self.clock.advance(ms / 1000)
        shift(self.catalog, tables.objects.c.changed_ms, -ms)

    def state(self, key: str) -> ObjectState | None:
        return object_states(self.catalog, [key]).get(key)

    def visible(self) -> list[str]:
        """The objects that a reader is sent to."""
        return [s.object_key for s in find_segments(self.catalog, T, after_ts=0, upto_ts=TS_MAX, limit=1000)]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    new_rig = Rig(tmp_path)
    yield new_rig
    new_rig.catalog.close()


def committed(seq: int, sorter: str = "sorter-1") -> str:
    return str(CommittedKey(tenant=T, sorter=sorter, incarnation=1, seq=seq))


def snapshot_key(n: int, task_id: int = 1) -> str:
    return str(SnapshotKey(tenant=T, task_id=task_id, epoch=0, n=n))


def switch(rig: Rig, n: int) -> str:
    """Task 1 has a new durable snapshot; its key."""
    key = snapshot_key(n, rig.tasks[0])
    rig.put(key)
    new = NewSnapshot(key=key, n=n, objects={key: 9}, positions={})
    assert switch_snapshot(rig.catalog, rig.tasks[0], 0, new)
    return key


def test_an_orphan_goes_and_what_is_live_stays(rig: Rig) -> None:
    rig.put(committed(1), committed(2), snapshot_key(7))
    rig.publish(committed(1))
    rig.age()
    assert rig.collector.step() == 2
    assert rig.bucket.names() == [committed(1)] == rig.visible()
    assert (rig.state(committed(1)), rig.state(committed(2))) == (ObjectState.LIVE, ObjectState.DEAD)
    assert rig.collector.step() == 0


def test_the_tombstone_comes_before_the_delete(rig: Rig) -> None:
    seen: list[ObjectState | None] = []
    rig.bucket.before_delete = lambda key: seen.append(rig.state(key))
    rig.put(committed(1))
    first, second = switch(rig, 1), switch(rig, 2)
    rig.age()
    assert rig.collector.step() == 2
    assert (seen, rig.bucket.names()) == ([ObjectState.DEAD] * 2, [second])
    assert sorted(rig.bucket.deleted) == sorted([first, committed(1)])


def test_the_row_of_a_deleted_object_goes_a_grace_period_later(rig: Rig) -> None:
    rig.put(committed(1))  # an orphan: its tombstone stays, because its writer may still publish it
    first, second = switch(rig, 1), switch(rig, 2)
    registry = SchemaRegistry(rig.catalog, rig.bucket)
    retention = Retention(rig.catalog, registry, default_hours=0, grace_ms=GRACE_MS, clock=rig.clock)
    rig.age()
    rig.collector.step()
    rig.age(GRACE_MS - 60_000)
    retention.step()
    assert rig.state(first) == ObjectState.DEAD
    rig.age(60_000)
    retention.step()
    assert [rig.state(key) for key in (first, second, committed(1))] == [None, ObjectState.LIVE, ObjectState.DEAD]
    rig.put(first)  # sent long ago
    rig.age()
    rig.collector.step()
    assert rig.bucket.names() == [second]


def test_who_publishes_a_buried_key_is_fenced_and_nothing_becomes_visible(rig: Rig) -> None:
    rig.put(committed(1))
    rig.age()
    rig.collector.step()
    with pytest.raises(Fenced):
        rig.publish(committed(1))
    assert rig.visible() == []
    rig.publish(committed(2))
    assert rig.visible() == [committed(2)]


def test_a_key_that_is_published_after_it_was_found_without_a_row_stays(rig: Rig) -> None:
    rig.put(committed(1))
    rig.age()
    rig.catalog.before_write = lambda: rig.publish(committed(1))  # between the look and the tombstone
    assert rig.collector.step() == 0
    assert rig.bucket.names() == [committed(1)] == rig.visible()


def test_a_put_that_arrives_after_its_delete_is_deleted_again(rig: Rig) -> None:
    rig.put(committed(1))
    rig.age()
    rig.collector.step()
    rig.put(committed(1))  # sent long ago
    assert rig.collector.step() == 0, "it looks young"
    rig.age()
    assert rig.collector.step() == 1
    assert (rig.bucket.names(), rig.visible()) == ([], [])


def test_a_put_that_arrives_behind_the_sweep_waits_for_the_next_one(rig: Rig) -> None:
    rig.bucket.page = 2
    rig.put(*(committed(seq) for seq in (1, 2, 4, 5)))
    rig.age()

    def arrive(after: str) -> None:
        if after == committed(2):
            for seq in (0, 3):  # behind and ahead of where the listing stands
                rig.put(committed(seq))
                rig.bucket.put_ms[committed(seq)] = 0

    rig.bucket.after_page = arrive
    assert rig.collector.step() == 5
    assert rig.bucket.names() == [committed(0)]
    rig.bucket.after_page = lambda _: None
    assert rig.collector.step() == 1
    assert rig.bucket.names() == []


def test_young_objects_are_left_alone_by_either_clock(rig: Rig) -> None:
    first = switch(rig, 1)
    rig.age(GRACE_MS - 60_000)
    rig.put(committed(1))
    switch(rig, 2)
    assert rig.collector.step() == 0
    assert rig.state(first) is ObjectState.SUPERSEDED
    rig.age(61_000)
    assert rig.collector.step() == 0, "replaced a minute ago"
    rig.age(GRACE_MS - 62_000)
    assert rig.collector.step() == 0
    rig.age(2_000)
    assert rig.collector.step() == 2
    assert rig.bucket.names() == [snapshot_key(2, rig.tasks[0])]


def test_one_round_takes_all_however_many(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "_KEYS_AT_ONCE", 4)
    rig.put(*(committed(seq) for seq in range(1, 10)))
    replaced = [snapshot_key(n, 9) for n in range(1, 10)]
    rig.put(*replaced)
    with rig.catalog.transaction() as conn:
        for key in replaced:
            insert_live(conn, T, key, ObjectKind.SNAPSHOT, 1)
        conn.execute(tables.objects.update().values(state=ObjectState.SUPERSEDED))
    rig.age()
    assert rig.collector.step() == 18
    assert rig.bucket.names() == []
    assert superseded_objects(rig.catalog, T, grace_ms=0, limit=1) == []


def test_what_an_error_left_undone_is_done_by_the_next_round(rig: Rig) -> None:
    rig.put(*(committed(seq) for seq in range(1, 8)))
    rig.publish(committed(7))
    rig.age()

    def fail(key: str) -> None:
        if len(rig.bucket.deleted) == 3:
            raise StoreUnavailable(key=key)

    rig.bucket.before_delete = fail
    assert rig.collector.step() == 3
    assert [p.facts["key"] for p in rig.collector.problems()] == [committed(4)]
    assert rig.state(committed(4)) is ObjectState.DEAD, "buried, and still there"
    assert committed(4) in rig.bucket.names()
    rig.bucket.before_delete = lambda _: None

    def refuse() -> None:
        raise CatalogUnavailable(determinate=True)

    rig.catalog.before_write = refuse
    rig.clock.advance(RETRY_MAX_S)
    before = rig.collector.step()
    rig.clock.advance(RETRY_MAX_S)
    assert before + rig.collector.step() == 3
    assert rig.collector.problems() == []
    assert rig.bucket.names() == [committed(7)]


def test_files_of_a_compaction_that_came_to_nothing_go(rig: Rig) -> None:
    key = str(CompactedKey(tenant=T, job="00000001-a", range_id=0, lo_ts=START, hi_ts=START + 1))
    rig.put(key, committed(1))
    rig.publish(committed(1))
    rig.age()
    assert rig.collector.step() == 1
    assert (rig.bucket.names(), rig.state(key)) == ([committed(1)], ObjectState.DEAD)


def test_what_a_compaction_replaced_waits_for_the_lease_too(rig: Rig) -> None:
    rig.put(committed(1), committed(2))
    open_lease(rig.catalog, "reader", 10 * GRACE_MS)
    rig.publish(committed(1))
    rig.publish(committed(2))
    pieces_found = pieces(rig.catalog, T, upto_ts=TS_MAX, limit=9)
    key = str(CompactedKey(tenant=T, job="00000001-a", range_id=0, lo_ts=START + 1, hi_ts=START + 20))
    rig.put(key)
    assert commit_compaction(rig.catalog, T, pieces_found, [output(key, rig.tasks[0], 6)])
    rig.age()
    assert rig.collector.step() == 0
    drop_lease(rig.catalog, "reader")
    open_lease(rig.catalog, "died", 0)
    assert rig.collector.step() == 2
    assert rig.bucket.names() == [key] == rig.visible()
    assert expired_leases(rig.catalog) == 0, "the read leases of the dead are forgotten"


def test_other_folders_and_tenants_are_left_alone(rig: Rig) -> None:
    activate(rig.catalog, OTHER)
    stranger = str(CommittedKey(tenant=Tenant(99, 99), sorter="s", incarnation=1, seq=1))
    keys_left = [
        str(BatchKey(tenant=T, store_id=1, incarnation=1, seq=1)),
        str(SchemaSnapKey(tenant=T, ts=START)),
        str(SchemasKey(tenant=T, ts=START)),
        stranger,
    ]
    theirs = str(CommittedKey(tenant=OTHER, sorter="s", incarnation=1, seq=1))
    rig.put(*keys_left, theirs)
    rig.age()
    assert rig.collector.step() == 1
    assert rig.bucket.names() == sorted(keys_left)
    with rig.catalog.reading() as conn:
        assert conn.execute(tables.objects.select()).one().tenant_id == OTHER.tenant_id


def test_two_collectors_at_once_do_no_harm(rig: Rig) -> None:
    rig.put(*(committed(seq) for seq in range(1, 5)))
    rig.publish(committed(3))
    rig.age()
    other = Collector(rig.catalog, rig.bucket, rig.clock, grace_ms=GRACE_MS)
    counts: list[int] = []

    def overtake(_: str) -> None:
        rig.bucket.before_delete = lambda _: None
        counts.append(other.step())

    rig.bucket.before_delete = overtake
    counts.append(rig.collector.step())
    assert rig.bucket.names() == [committed(3)]
    assert counts == [3, 3], "a delete that finds nothing is one all the same"


@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.sampled_from(["put", "publish", "arrive late"]), st.integers(1, 6)),
            st.tuples(st.sampled_from(["age", "collect"]), st.just(0)),
        ),
        max_size=30,
    ),
    page=st.integers(1, 3),
)
def test_whatever_the_order_a_live_object_is_there_and_in_the_end_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]], page: int
) -> None:
    rig = Rig(tmp_path_factory.mktemp("collect"))
    rig.bucket.page = page
    put: set[str] = set()
    for what, seq in steps:
        key = committed(seq)
        match what:
            case "put" if key not in put:
                rig.put(key)
                put.add(key)
            case "publish" if key in put and rig.state(key) is not ObjectState.LIVE:
                try:
                    rig.publish(key)
                except Fenced:
                    assert rig.state(key) is ObjectState.DEAD
            case "arrive late" if key in put:
                rig.put(key)  # the same request once more
            case "age":
                rig.age()
            case "collect":
                rig.collector.step()
        assert set(rig.visible()) <= set(rig.bucket.names())
    rig.age()
    rig.collector.step()
    assert sorted(rig.visible()) == rig.bucket.names()
    rig.catalog.close()
