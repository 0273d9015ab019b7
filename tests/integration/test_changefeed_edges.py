"""The edges of a changefeed's life: where it starts, what an outage of its source does, and where it ends."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from sqlalchemy import update

from apiserver.control.changefeed_control import ChangefeedSettings
from reading.log.memory import ReadMemory
from replicator.lane_run import LaneRun
from tests.kit.dead_letters import CANAL
from tests.kit.entry_log import Entry, EntryLog, entry_rows
from tests.kit.lane_feed import FEED, Feed, T, control_of, recovery
from tests.kit.log_builder import LogBuilder, recording_end
from tests.kit.recording import committed_rows, recorded_history
from tests.kit.row_encoder import encode_v2, record_key
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.tables import changefeeds
from tistream.catalog.log.bases import add_bases
from tistream.catalog.log.retention import raise_floor
from tistream.catalog.rows.bases import KEY_RANGE, NewBase
from tistream.catalog.tenancy.changefeeds import CHANGEFEEDS
from tistream.catalog.tenancy.tenants import get_tenant
from tistream.ids import Tenant
from tistream.model import change
from tistream.model.change import Op
from tistream.objectstore.memory import MemoryStore


@pytest.mark.parametrize(("floor_ts", "start_ts", "is_told"), [(0, None, False), (20, None, True), (20, 25, False)])
def test_who_begins_where_retention_has_been_is_told_that_keys_are_missing(
    catalog: Catalog, floor_ts: int, start_ts: int | None, is_told: bool
) -> None:
    rows = entry_rows([Entry(10, b"old", b"1"), Entry(30, b"new", b"2")])
    log = EntryLog(catalog, MemoryStore(), rows=rows).activate()
    log.flush(30)
    if floor_ts:
        begin = get_tenant(catalog, T).earliest_ts
        base = NewBase(table_id=KEY_RANGE, ts=floor_ts, previous=None, after_ts=begin, rows=0, segments=())
        assert add_bases(catalog, T, [base], {})
        assert raise_floor(catalog, T, seen_floor=0, to_ts=floor_ts)
    with recovery() as served:
        wanted = ChangefeedSettings(sink_uri=f"tikv://{served.pd_address}?backoff-base=10ms")
        _, notes = control_of(catalog, log.store).create(T, "dr", start_ts, wanted, lanes=1, actor="")
    told = [note for note in notes if "do not reach the destination" in note and "backup-ts" in note]
    assert bool(told) is is_told, notes


@pytest.mark.parametrize("is_behind", [False, True])
def test_an_outage_of_the_source_costs_a_changefeed_its_log_only_when_it_is_behind(
    catalog: Catalog, tmp_path: Path, is_behind: bool
) -> None:
    """The source is away for longer than the log is held while nothing moves, and its watermark jumps afterwards."""
    log = LogBuilder(catalog, MemoryStore()).activate()
    cuts = log.cuts(3)
    log.flush(cuts[0])
    feed = Feed(catalog, log, ChangefeedSettings(sink_uri=f"file://{tmp_path}/lake?{CANAL}"))
    run = feed.run("a")
    feed.write(run)
    if is_behind:
        log.flush(cuts[1])
        (tmp_path / "lake").rename(tmp_path / "away")
        (tmp_path / "lake").write_bytes(b"")
    for passed_s in (0, 25 * 3600):
        with catalog.transaction() as conn:
            conn.execute(update(changefeeds).values(last_active_ms=changefeeds.c.last_active_ms - passed_s * 1000))
        feed.clock.advance(passed_s)
        for _ in range(3):
            run.core.confirmed(feed.clock.monotonic())
            feed.clock.advance(run.turn(lambda: feed.services.served(T)))
    log.flush(cuts[2])
    assert CHANGEFEEDS.get(catalog, T, FEED).holds_log is not is_behind
    assert raise_floor(catalog, T, seen_floor=0, to_ts=cuts[2] - 1) == is_behind
    run.close()


LARGE = 274  # (id, a, b)
C = recording_end() - 1000


def large_transaction(catalog: Catalog, folder: Path, count: int, text: bytes) -> Feed:
    """A changefeed over a log with a transaction of `count` rows of about twice the text."""
    stamps = {"start_ts": C - 10, "commit_ts": C, "expire_ts": 0, "flags": 0}
    rows = [
        {"table_id": LARGE, "op": int(Op.PUT), "key": record_key(LARGE, n), "value": encode_v2({2: text}), **stamps}
        | {"old_value": encode_v2({2: text[::-1]})}
        for n in range(count)
    ]
    recorded = committed_rows()
    jobs = recorded.filter(pc.equal(recorded["table_id"], recorded_history().job_table.id))
    whole = pa.concat_tables([pa.Table.from_pylist(rows, schema=change.COMMITTED), jobs])
    whole = whole.sort_by([(name, "ascending") for name in ("table_id", "commit_ts", "start_ts", "key")])
    log = LogBuilder(catalog, MemoryStore(), rows=whole, rows_per_object=50)
    log.build(1)
    feed = Feed(
        catalog, log, ChangefeedSettings(sink_uri=f"file://{folder}/lake?{CANAL}", filters={"tables": "shop_arch.*"})
    )
    feed.services.reader._cache_bytes_max = 0
    return feed


def turn(feed: Feed, run: LaneRun) -> None:
    run.core.confirmed(feed.clock.monotonic())
    run.turn(lambda: feed.services.served(T))
    feed.clock.advance(60)


def test_a_transaction_that_takes_the_memory_of_its_worker_is_named(catalog: Catalog, tmp_path: Path) -> None:
    feed = large_transaction(catalog, tmp_path, 500, b"x" * 1000)
    feed.services.reader.memory = ReadMemory(2 << 20, in_turn=True)
    run = feed.run("a")
    for _ in range(4):
        turn(feed, run)
    assert run.core.checkpoint_ts == C - 1, "everything below it is written"
    error = feed.lane.error
    table = recorded_history().table_at(LARGE, C)
    assert table is not None
    assert (error["code"], error["commit_ts"]) == ("TS-1117", str(C))
    for named in (FEED, f"{table.db}.{table.name}", "replication.memory_mib"):
        assert named in error["message"]
    assert not feed.lane.is_stopped
    feed.services.reader.memory = ReadMemory(8 << 20, in_turn=True)
    for _ in range(4):
        turn(feed, run)
    assert run.core.checkpoint_ts > C, "it goes on with a larger one"
    run.close()


def test_a_lane_holds_what_was_admitted(catalog: Catalog, tmp_path: Path) -> None:
    """Until its stretch is written; and it reads nothing while others hold the memory."""
    feed = large_transaction(catalog, tmp_path, 500, b"x" * 4000)
    memory, most = ReadMemory(32 << 20, wait_s=0.01, in_turn=True), 0
    take = memory._take

    def taken(tenant: Tenant, own: int, more: int) -> None:
        nonlocal most
        take(tenant, own, more)
        most = max(most, memory.taken)

    memory._take = taken  # type: ignore[method-assign]
    feed.services.reader.memory = memory
    run = feed.run("a")
    with memory.held(T) as other:
        other.take(32 << 20)
        for _ in range(2):
            turn(feed, run)
        assert (run.core.checkpoint_ts, feed.lane.error["code"]) == (feed.lane.checkpoint_ts, "TS-1118")
        assert run.core.checkpoint_ts < C
    most, before = 0, pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    pa.set_memory_pool(pool)
    try:
        for _ in range(4):
            turn(feed, run)
    finally:
        pa.set_memory_pool(before)
    assert run.core.checkpoint_ts > C
    assert 4 << 20 < pool.max_memory() < most <= 32 << 20
    assert memory.taken == 0
    assert run._stretch is None, "nor are its rows held"
    run.close()
