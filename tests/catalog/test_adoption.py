"""What is named by a timestamp and was written after the export is found in the bucket, checked, and adopted."""

from __future__ import annotations

import functools
import threading

import pytest
import zstandard

from metaserver.activation import Activation
from schemas.history import History
from schemas.registry import history_store
from schemas.registry.history_store import HistoryStore
from schemas.registry.schema_registry import SchemaRegistry
from tests.kit.catalog_cases import ON_SQLALCHEMY
from tests.kit.log_builder import TENANT, LogBuilder, recording_end
from tests.kit.lost_catalog import Lost
from tests.kit.recording import recorded_history, recorded_start, recorded_steps
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.objects import live_objects
from tistream.catalog.log.retention import raise_floor, retire_below_floor
from tistream.catalog.log.schema_versions import latest_schema_version
from tistream.catalog.log.seeds import list_seeds, seed_segments_of
from tistream.catalog.rows.tenants import TaskKind, TenantState
from tistream.catalog.tenancy.tenants import get_tenant
from tistream.catalog.work.tasks import list_tasks
from tistream.codec.seed_file import manifest_key
from tistream.errors import AheadOfTime, CorruptObject
from tistream.keyrange import KeyRange
from tistream.objectstore.layout import SchemasKey, SchemaSnapKey, SeedKey
from tistream.ts import compose

pytestmark = ON_SQLALCHEMY
TABLE = 104  #: any id: a seed of one table
YEAR_2100_MS = 4_102_444_800_000


@pytest.fixture
def lost(catalog: Catalog, empty: Catalog) -> Lost:
    return Lost(catalog, empty)


@functools.cache
def grown(share: float) -> History:
    """The recording's history up to a share of its steps."""
    pushed, steps = recorded_start(), recorded_steps()
    history = History(pushed.snapshot, pushed.job_table)
    upto = steps[int(share * (len(steps) - 1))].commit_ts if share < 1 else recorded_history().resolved_ts
    history.follow([step for step in steps if step.commit_ts <= upto], upto)
    return history


class TestSeeds:
    def test_complete_ones_have_their_rows_again(self, lost: Lost) -> None:
        log = LogBuilder(lost.catalog, lost.store).activate()
        lost.export()
        log.seed().seed(log.meta.slice(0, 0).select(["key"]), ts=log.start_ts + 1, table_id=TABLE)
        known, there = list_seeds(lost.catalog, TENANT), lost.objects("seeds/")
        assert len(known) == 2
        assert lost.restore().seeds == 2
        assert list_seeds(lost.empty, TENANT) == known
        assert live_objects(lost.empty, TENANT, after_key="seeds/", limit=999) == [
            (key, len(data)) for key, data in there.items()
        ]
        ids = {table.id for table in recorded_start().snapshot.tables.values()}
        segments = [[seed_segments_of(catalog, known[1], i) for i in ids] for catalog in (lost.catalog, lost.empty)]
        assert segments[0] == segments[1]
        assert any(segments[0])
        again = LogBuilder(lost.empty, lost.store)
        again.start_ts = log.start_ts
        again.seed()  # its pusher asks once more
        assert list_seeds(lost.empty, TENANT) == known
        assert sum("adopted" in line and "not adopted" not in line for line in lost.said) == 2

    @pytest.mark.parametrize("missing", ["manifest", "file"])
    def test_an_incomplete_one_waits_for_its_pusher_which_finds_its_own_bytes(self, lost: Lost, missing: str) -> None:
        log = LogBuilder(lost.catalog, lost.store).activate()
        lost.export()
        log.seed()
        known, there = list_seeds(lost.catalog, TENANT), lost.objects("seeds/")
        manifest = manifest_key(TENANT, log.start_ts, 0)
        lost.store.delete(str(manifest if missing == "manifest" else SeedKey(tenant=TENANT, ts=log.start_ts, n=1)))
        assert lost.restore().seeds == 0
        assert list_seeds(lost.empty, TENANT) == []
        assert ("incomplete" in " ".join(lost.said)) == (missing == "file")
        again = LogBuilder(lost.empty, lost.store)
        again.start_ts = log.start_ts
        again.seed()
        assert list_seeds(lost.empty, TENANT) == known
        assert lost.objects("seeds/") == there

    def test_one_that_is_damaged_or_ahead_of_time_is_named_and_left(self, lost: Lost) -> None:
        log = LogBuilder(lost.catalog, lost.store).activate()
        lost.export()
        damaged = manifest_key(TENANT, log.start_ts, 0)
        lost.store.put(str(damaged), b"no manifest")
        with pytest.raises(AheadOfTime):
            log.seed(ts=compose(YEAR_2100_MS))
        log.seed(ts=log.start_ts + 1)
        assert lost.restore().seeds == 1
        assert [seed.ts for seed in list_seeds(lost.empty, TENANT)] == [log.start_ts + 1]
        refused = [line for line in lost.said if "not adopted" in line]
        assert sorted(line.split(" not adopted, ")[1][:7] for line in refused) == ["TS-1020", "TS-1067"]
        assert any(str(damaged) in line for line in refused)

    def test_one_that_the_lost_service_still_registers_is_adopted(
        self, lost: Lost, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = LogBuilder(lost.catalog, lost.store).activate()
        lost.export()
        wait = lost.clock.wait

        def wait_and_seed(event: threading.Event, seconds: float) -> bool:
            log.seed()  # by an API server that has not seen the new generation yet
            return wait(event, seconds)

        monkeypatch.setattr(lost.clock, "wait", wait_and_seed)
        assert lost.restore().seeds == 1

    def test_one_that_retention_has_retired_stays_retired(self, lost: Lost) -> None:
        log = LogBuilder(lost.catalog, lost.store).activate().seed()
        end = recording_end()
        log.flush(end)
        assert raise_floor(lost.catalog, TENANT, seen_floor=0, to_ts=end)
        retire_below_floor(lost.catalog, TENANT)
        assert list_seeds(lost.catalog, TENANT) == []
        lost.export()
        assert lost.restore().seeds == 0
        assert list_seeds(lost.empty, TENANT) == []
        assert not any("seed of" in line for line in lost.said)


class TestSchemas:
    @pytest.fixture(autouse=True)
    def increments_only(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(history_store, "_INCREMENTS_SHARE_MAX", 1e9)

    def saved(self, lost: Lost) -> str:
        """The key of a history that was saved in two steps after the export."""
        LogBuilder(lost.catalog, lost.store).register()
        histories = HistoryStore(lost.catalog, lost.store)
        histories.save(TENANT, grown(0.2))
        lost.export()
        histories.save(TENANT, grown(0.5))
        histories.save(TENANT, grown(1))
        return str(SchemasKey(tenant=TENANT, ts=grown(1).resolved_ts))

    def test_a_history_in_the_place_of_its_own_is_adopted_with_all_that_it_builds_on(self, lost: Lost) -> None:
        key = self.saved(lost)
        there = lost.objects("schemas/")
        assert len(there) == 3
        lost.restore()
        restored, end = HistoryStore(lost.empty, lost.store), grown(1)
        assert latest_schema_version(lost.empty, TENANT) == (grown(0.2).resolved_ts, next(iter(there)))
        restored.save(TENANT, end)
        assert latest_schema_version(lost.empty, TENANT) == (end.resolved_ts, key)
        newest = restored.newest(TENANT)
        assert newest is not None
        assert newest.dump() == end.dump()
        assert live_objects(lost.empty, TENANT, after_key="schemas/", limit=9) == [
            (key, len(data)) for key, data in there.items()
        ]
        assert lost.objects("schemas/") == there

    @pytest.mark.parametrize("harm", ["damaged", "another history", "a link is missing"])
    def test_what_is_no_such_history_is_named_and_left(self, lost: Lost, harm: str) -> None:
        key = self.saved(lost)
        lost.restore()
        if harm == "a link is missing":
            lost.store.delete(str(SchemasKey(tenant=TENANT, ts=grown(0.5).resolved_ts)))
        else:
            other = grown(0.8).copy()
            other.advance(grown(1).resolved_ts)  # as if nothing had followed
            data = lost.store.get(key)
            lost.store.delete(key)
            lost.store.put(key, data[:-9] + b"x" + data[-8:] if harm == "damaged" else other.dump())
        there = lost.objects("schemas/")
        with pytest.raises(CorruptObject, match="was not overwritten") as caught:
            HistoryStore(lost.empty, lost.store).save(TENANT, grown(1))
        assert caught.value.facts["object_key"] == key
        assert latest_schema_version(lost.empty, TENANT) == (grown(0.2).resolved_ts, next(iter(there)))
        assert lost.objects("schemas/") == there


def test_a_tenant_that_was_activated_since_is_activated_again_with_the_same_history(lost: Lost) -> None:
    log = LogBuilder(lost.catalog, lost.store).register()
    lost.export()
    key = SchemaSnapKey(tenant=TENANT, ts=recorded_start().snapshot.ts)
    lost.store.put(str(key), zstandard.compress(log.schema))

    def activated(catalog: Catalog) -> tuple[int, list[tuple[TaskKind, KeyRange, int]], bytes]:
        Activation(catalog, lost.store, lost.clock, data_tasks=3).step()
        tasks = [(task.kind, task.range, task.durable_ts) for task in list_tasks(catalog, TENANT)]
        return get_tenant(catalog, TENANT).start_ts, tasks, SchemaRegistry(catalog, lost.store).history(TENANT).dump()

    first = activated(lost.catalog)
    assert first[0] == key.ts
    lost.restore()
    assert get_tenant(lost.empty, TENANT).state is TenantState.AWAITING_SNAPSHOT
    there = lost.objects("schemas/")
    assert there, "the history was saved"
    assert activated(lost.empty) == first
    assert lost.objects("schemas/") == there
    assert latest_schema_version(lost.empty, TENANT) == (key.ts, next(iter(there)))
