"""The modelled feed of the benchmarks keeps what a Source promises, and says as many rows as it should."""

from __future__ import annotations

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.load.feed import FIRST_TABLE_ID, LoadStore, regions, schema
from pusher.core.batcher import Batcher
from pusher.core.source import Resolved, Rows
from pusher.flush_schedule import FlushSchedule
from schemas.snapshot import parse_pushed
from tests.kit.manual_clock import ManualClock
from tistream.codec.batch_file import BatchFile
from tistream.codec.table_key import DDL_JOB_TABLE_ID
from tistream.model.change import REGIONS, RowKind

TABLES = list(range(FIRST_TABLE_ID, FIRST_TABLE_ID + 6))


def run(seconds: float) -> tuple[LoadStore, list[BatchFile]]:
    """A store that leads half of the regions, written to for so long and then until nothing is open."""
    clock = ManualClock()
    source = LoadStore(
        1,
        TABLES[::2],
        active=2,
        rows_per_s=1000,
        bounds=regions(TABLES, 2)[1],
        schedule=FlushSchedule(clock),
        clock=clock,
    )
    batcher, files, resolved_ts = Batcher(), [], 0
    for _ in range(round((seconds + 2) * 50)):
        source.going = clock.monotonic() < seconds
        clock.advance(0.02)
        for event in source.poll(0.0, lambda _: 1):
            if isinstance(event, Rows):
                commits = event.rows.filter(pc.equal(event.rows["kind"], int(RowKind.COMMIT)))
                assert not len(commits) or pc.min(commits["commit_ts"]).as_py() > resolved_ts
            elif isinstance(event, Resolved):
                assert event.resolved_ts.min() >= resolved_ts
                resolved_ts = int(event.resolved_ts.max())
            files += batcher.handle(event)
    return source, files


def test_every_prewrite_is_committed_later_in_the_same_region_at_the_given_rate() -> None:
    source, files = run(4.0)
    rows = pa.Table.from_batches([file.rows for file in files])
    prewrites, commits = (rows.filter(pc.equal(rows["kind"], int(kind))) for kind in (RowKind.PREWRITE, RowKind.COMMIT))
    joined = prewrites.select(["key", "start_ts"]).join(
        commits.select(["key", "start_ts", "commit_ts"]), ["key", "start_ts"], join_type="inner"
    )
    assert joined.num_rows == prewrites.num_rows == commits.num_rows == source.committed
    assert pc.all(pc.greater(joined["commit_ts"], joined["start_ts"])).as_py()
    assert 3800 <= source.committed <= 4000
    assert source.waited_ms / source.committed < 1000


def test_the_regions_of_all_stores_tile_the_keys() -> None:
    for per_table in (True, False):
        edges = regions(TABLES, 2, per_table=per_table)
        pairs = sorted(((b[i], b[i + 1]) for b in edges.values() for i in range(0, len(b), 2)), key=lambda p: p[0])
        assert pairs[0][0] == pairs[-1][1] == b""
        assert [end for _, end in pairs[:-1]] == [start for start, _ in pairs[1:]]


def test_a_file_says_of_every_region_how_far_it_is_complete() -> None:
    _, files = run(1.0)
    assert files[-1].regions.schema == REGIONS
    assert files[-1].regions.num_rows == 3
    assert pc.all(pc.greater(files[-1].regions["resolved_ts"], 0)).as_py()


def test_the_schema_can_be_pushed() -> None:
    pushed = parse_pushed(orjson.loads(schema(77, TABLES, columns=3)))
    assert pushed.job_table.id == DDL_JOB_TABLE_ID
    assert sorted(pushed.snapshot.tables) == TABLES
    assert [c.name for c in pushed.snapshot.tables[TABLES[0]].columns] == ["id", "c2", "c3"]
