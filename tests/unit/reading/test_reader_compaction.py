"""Pages over a log that is compacted: the same rows, whatever happens below a page while it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from compactor.core.plan import PlanSettings
from compactor.job import JobEnd, JobSettings, compact_tenant
from compactor.local import LocalExecutor
from metaserver.collect import Collector
from reading.log import read_leases
from reading.log.reader import LogReader
from tests.kit.api_world import ApiWorld, api_world, has_more, next_cursor
from tests.kit.log_builder import TENANT, recording_end
from tests.kit.open_folder import OpenFolder
from tistream.catalog.database import tables
from tistream.catalog.rows.segments import SegmentRow
from tistream.clock import SystemClock
from tistream.errors import CatalogUnavailable, CorruptObject, ObjectNotFound, StoreUnavailable
from tistream.limits import READ_LEASE_TTL_MS
from tistream.objectstore.protocol import Admit

END = recording_end()
EVERYTHING = JobSettings(lag_ms=0, plan=PlanSettings(inputs_min=2))


class Watched(OpenFolder):
    """Something happens before a request."""

    before_get: Callable[[str], None] = staticmethod(lambda _key: None)

    def get(self, key: str, admit: Admit | None = None) -> bytes:
        happens, self.before_get = self.before_get, lambda _key: None
        happens(key)
        return super().get(key, admit)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ApiWorld]:
    with api_world(tmp_path, Watched()) as new_world:
        new_world.log.build(12)
        yield new_world


def compact(world: ApiWorld) -> JobEnd:
    return compact_tenant(world.catalog, TENANT, LocalExecutor(world.store), EVERYTHING, SystemClock()).end


def collect(world: ApiWorld) -> int:
    """A round of the collector for which nothing is too young."""
    with world.catalog.transaction() as conn:
        conn.execute(tables.objects.update().values(changed_ms=tables.objects.c.changed_ms - 1))
    return Collector(world.catalog, world.store, world.clock, grace_ms=0).step()


def all_rows(log: LogReader, world: ApiWorld) -> pa.Table:
    return log.page(TENANT, after=world.log.start_ts, upto=END, rows=10**6).rows


def end_leases(world: ApiWorld) -> None:
    age_leases(world, 1 << 60)


def age_leases(world: ApiWorld, by_ms: int) -> None:
    with world.catalog.transaction() as conn:
        conn.execute(tables.read_leases.update().values(expires_ms=tables.read_leases.c.expires_ms - by_ms))


def leased(world: ApiWorld) -> list[str]:
    with world.catalog.reading() as conn:
        return list(conn.execute(tables.read_leases.select()).scalars())


@pytest.mark.parametrize("form", ["ndjson", "canal-json", "debezium", "csv", "raw-arrow"])
def test_a_pull_is_the_same_bytes_before_and_after(world: ApiWorld, form: str) -> None:
    before = whole(world, form)
    assert compact(world) is JobEnd.COMMITTED
    assert whole(world, form) == before
    assert compact(world) is JobEnd.NOTHING_TO_DO


def whole(world: ApiWorld, form: str) -> bytes:
    return b"".join(page.content for page in world.pages(start_ts="earliest", format=form, limit=200_000))


def test_pages_of_any_size_make_the_same_rows(world: ApiWorld) -> None:
    before = all_rows(world.services.reader, world)
    assert compact(world) is JobEnd.COMMITTED
    for rows in (700, 9000):
        parts, after = [], world.log.start_ts
        while after < END:
            page = world.services.reader.page(TENANT, after=after, upto=END, rows=rows)
            parts.append(page.rows)
            after = page.upto
        assert pa.concat_tables(parts).combine_chunks().equals(before.combine_chunks())
        assert len(parts) <= 3 * before.num_rows // rows + 3, "pages are about as large as they may be"


def test_a_cursor_continues_after_a_compaction_commit(world: ApiWorld) -> None:
    first = world.ok(format="ndjson", limit=4000)
    assert has_more(first)
    rest = world.ok(format="ndjson", limit=200_000, cursor=next_cursor(first)).content
    assert compact(world) is JobEnd.COMMITTED
    assert world.ok(format="ndjson", limit=200_000, cursor=next_cursor(first)).content == rest


def test_files_listed_for_a_page_stay_until_it_is_read(world: ApiWorld) -> None:
    want = all_rows(LogReader(world.catalog, world.store, world.clock), world)
    end_leases(world)
    assert isinstance(world.store, Watched)
    deleted: list[int] = []

    def meanwhile(_key: str) -> None:
        assert compact(world) is JobEnd.COMMITTED
        deleted.append(collect(world))

    world.store.before_get = meanwhile
    log = LogReader(world.catalog, world.store, world.clock)
    assert all_rows(log, world).equals(want)
    assert deleted == [0]
    world.clock.advance(READ_LEASE_TTL_MS / 1000)
    assert all_rows(log, world).equals(want)
    assert collect(world), "the lease of the first page is gone, that of the second is younger than the commit"


def test_a_reader_whose_lease_expired_lists_again(world: ApiWorld) -> None:
    want = all_rows(LogReader(world.catalog, world.store, world.clock), world)
    assert isinstance(world.store, Watched)

    def meanwhile(_key: str) -> None:
        end_leases(world)
        assert compact(world) is JobEnd.COMMITTED
        assert collect(world)

    world.store.before_get = meanwhile
    assert all_rows(LogReader(world.catalog, world.store, world.clock), world).equals(want)


def test_a_long_page_renews_its_lease_or_opens_another(world: ApiWorld) -> None:
    leases = read_leases.ReaderLeases(world.catalog, world.clock)
    with leases.held() as lease:
        first = leased(world)
        world.clock.advance(READ_LEASE_TTL_MS / 2000)
        age_leases(world, READ_LEASE_TTL_MS // 2)
        lease.renew()
        age_leases(world, READ_LEASE_TTL_MS * 3 // 4)
        assert leased(world) == first == [lease.lease_id]
        world.clock.advance(READ_LEASE_TTL_MS / 1000)
        end_leases(world)
        lease.renew()
        assert lease.lease_id not in first
        assert lease.lease_id in leased(world)


def test_pages_share_a_lease_for_a_while_and_the_last_one_drops_it(world: ApiWorld) -> None:
    leases = read_leases.ReaderLeases(world.catalog, world.clock)
    with leases.held() as first:
        with leases.held() as second:
            assert first is second
        world.clock.advance(READ_LEASE_TTL_MS / 10_000)
        with leases.held() as third:
            assert third is not first
            assert sorted(leased(world)) == sorted([str(first.lease_id), str(third.lease_id)])
    assert leased(world) == [third.lease_id]


def test_a_catalog_that_takes_no_writes_is_read_without_a_lease(
    world: ApiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise CatalogUnavailable(determinate=True)

    monkeypatch.setattr(read_leases, "open_lease", refuse)
    want = all_rows(world.services.reader, world)
    assert want.num_rows
    assert leased(world) == []


def test_a_reader_that_is_always_too_late_fails(world: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    log = LogReader(world.catalog, world.store, world.clock)
    listings: list[int] = []

    def always_gone(segment: SegmentRow) -> pa.Table:
        listings.append(1)
        raise ObjectNotFound("gone", object="committed/of-long-ago")

    monkeypatch.setattr(log, "_segment", always_gone)
    with pytest.raises(StoreUnavailable, match="before they can be read"):
        all_rows(log, world)
    assert len(listings) >= 10


def test_a_live_object_that_is_missing_is_damage(world: ApiWorld) -> None:
    assert isinstance(world.store, Watched)
    assert compact(world) is JobEnd.COMMITTED
    for key in [key for key in world.store.objects if key.startswith("compacted/")]:
        del world.store.objects[key]
    with pytest.raises(CorruptObject, match="missing"):
        all_rows(world.services.reader, world)
