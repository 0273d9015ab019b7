"""DDL of partitions under load, as a living cluster recorded it, against what TiDB itself answered around each.

Two writers went on while TRUNCATE, ADD, COALESCE, REORGANIZE, EXCHANGE, DROP PARTITION, TRUNCATE TABLE, PARTITION BY
and REMOVE PARTITIONING ran: sessions one schema version apart, copies, double writes and late ones are all in there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from reading.rows.excluded_rows import excluded_rows
from schemas.ids import IdStatus
from tests.kit.api_world import ApiWorld, api_world, events_of
from tests.kit.partition_consumer import DATABASE, Consumer, PartitionRecording, recorded
from tistream import ts as tso
from tistream.codec.table_key import is_record, table_ids

FLUSHES = 6


@pytest.fixture(scope="module")
def recording() -> PartitionRecording:
    return recorded()


@pytest.fixture(scope="module")
def world(recording: PartitionRecording, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiWorld]:
    with api_world(tmp_path_factory.mktemp("partitions"), rows=recording.rows) as new_world:
        new_world.log.meta, new_world.log.schema = recording.meta, recording.schema
        new_world.clock.advance((tso.physical_ms(recording.end_ts) + 1000 - new_world.clock.unix_ms()) / 1000)
        new_world.log.build(FLUSHES, upto=recording.end_ts)
        yield new_world


def columns_of(line: dict[str, Any]) -> tuple[str | None, ...]:
    return tuple(None if value is None else str(value) for value in line["columns"].values())


def test_every_reading_as_of_is_what_tidb_answered(world: ApiWorld, recording: PartitionRecording) -> None:
    wrong = []
    for reading in recording.readings:
        path = f"/databases/{DATABASE}/tables/{reading.table}/rows"
        rows = sorted(map(columns_of, events_of(world.ok(path, as_of=reading.ts))), key=repr)
        if rows != reading.rows:
            wrong.append((reading.table, reading.ts, len(rows), len(reading.rows)))
    assert not wrong
    assert len(recording.readings) == 580


def test_a_consumer_of_changes_and_ddl_has_the_rows_of_tidb(world: ApiWorld, recording: PartitionRecording) -> None:
    consumer, readings = Consumer(DATABASE), sorted(recording.readings, key=lambda reading: -reading.ts)
    compared = 0
    for event in world.events():
        ts = int(event.get("commit_ts") or event["resolved_ts"])
        while readings and readings[-1].ts < ts:
            reading = readings.pop()
            assert consumer.tables[reading.table].rows() == reading.rows, (reading.table, reading.ts)
            compared += 1
        consumer.apply(event)
    assert compared == 580


def test_no_commit_of_the_batch_files_is_dropped_silently(world: ApiWorld, recording: PartitionRecording) -> None:
    """Every record is delivered, or counted under a reason; what no definition names would be a problem."""
    keys = pa.array(sorted({key for key, _ in recording.committed}), pa.binary())
    of = dict(zip(keys.to_pylist(), table_ids(keys), strict=True))
    records = {key for key, counts in zip(keys.to_pylist(), is_record(keys), strict=True) if counts}
    expected = Counter(int(of[key]) for key, _ in recording.committed if key in records)
    lines = [line for line in world.events() if line["type"] in ("insert", "update", "delete")]
    delivered = {(bytes.fromhex(line["key"]), int(line["commit_ts"])) for line in lines}
    assert len(delivered) == len(lines)
    assert delivered <= recording.committed
    history = world.services.registry.history(world.log.tenant)
    lost = excluded_rows(history, recording.rows.filter(pc.less_equal(recording.rows["commit_ts"], recording.end_ts)))
    counts = Counter(int(of[key]) for key, _ in delivered)
    for part in lost:
        counts[part.physical_id] += part.rows
    assert counts == expected
    reasons = Counter[IdStatus]()
    for part in lost:
        reasons[part.status] += part.rows
    assert set(reasons) == {IdStatus.RETIRED, IdStatus.COPY, IdStatus.SYSTEM}, reasons
    assert world.services.excluded.problems() == []
