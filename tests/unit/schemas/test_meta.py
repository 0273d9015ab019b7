"""Keys and values of the meta range. The keys are written out as a TiDB server writes them."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from schemas.ddl import Job, parse_job
from schemas.meta import Definition, MetaCommit, database_key, read_meta, steps_of, table_key
from tests.kit.made_rows import table_of
from tistream.errors import DecodeError
from tistream.model import change
from tistream.model.change import FLAG_NOT_A_CHANGE, Op

DB_1 = "6d4442730000000000fa000000000000006844423a3100000000fb"
DB_1_TABLE_2 = "6d44423a3100000000fb00000000000000685461626c653a3200fe"
DB_112_TABLE_116 = "6d44423a3131320000fd00000000000000685461626c653a3131ff3600000000000000f8"
DB_1_TID_2 = "6d44423a3100000000fb00000000000000685449443a32000000fc"
JOB_LIST_0 = "6d44444c4a6f624c69ff7374000000000000f9000000000000006c8000000000000000"
JOB_HISTORY_120 = "6d44444c4a6f624869ff73746f7279000000fc00000000000000680000000000000078ff0000000000000000f7"
OTHERS = [
    "6d4e657874476c6f62ff616c494400000000fb0000000000000073",  # NextGlobalID
    "6d536368656d615665ff7273696f6e4b6579ff0000000000000000f70000000000000073",  # SchemaVersionKey
    "6d44444c5461626c65ff56657273696f6e00fe0000000000000073",  # DDLTableVersion
    "6d446966663a370000fd0000000000000073",  # Diff:7
    "6d5265736f75726365ff47726f7570730000fd000000000000006852473a3100000000fb",  # ResourceGroups / RG:1
    DB_1_TID_2,
]


def rows(*pairs: tuple[str, bytes | None], commit_ts: int = 20, flags: int = 0) -> pa.Table:
    return table_of(
        change.COMMITTED,
        op=[Op.DELETE if value is None else Op.PUT for _, value in pairs],
        key=[bytes.fromhex(key) for key, _ in pairs],
        start_ts=commit_ts - 10,
        commit_ts=commit_ts,
        value=[value for _, value in pairs],
        flags=flags,
    )


def read(*pairs: tuple[str, bytes | None]) -> list[Definition | Job]:
    return list(read_meta(rows(*pairs), 0, 100))


def test_definitions_are_found_and_everything_else_is_passed_over() -> None:
    metas = read((DB_1, b"{}"), (DB_1_TABLE_2, b'{"id":2}'), (DB_112_TABLE_116, None), *((o, b"7") for o in OTHERS))
    assert metas == [
        Definition(start_ts=10, commit_ts=20, db_id=1, info=b"{}"),
        Definition(start_ts=10, commit_ts=20, db_id=1, table_id=2, info=b'{"id":2}'),
        Definition(start_ts=10, commit_ts=20, db_id=112, table_id=116, info=None),
    ]


@pytest.mark.parametrize("key", [JOB_LIST_0, JOB_HISTORY_120])
def test_jobs_of_the_meta_range_are_read_and_their_removal_is_ignored(key: str) -> None:
    meta = json.dumps({"id": 120, "type": 3, "state": 6, "start_ts": 9, "binlog": {"SchemaVersion": 4}}).encode()
    (job,) = read((key, meta))
    assert isinstance(job, Job)
    assert (job.id, job.state, job.created_ts, job.start_ts, job.commit_ts, job.schema_version) == (
        120,
        6,
        9,
        10,
        20,
        4,
    )
    assert read((key, None)) == []


def test_only_what_was_committed_in_the_interval_and_is_a_change() -> None:
    table = rows((DB_1, b"{}"))
    assert [len(list(read_meta(table, a, b))) for a, b in ((19, 20), (20, 100), (0, 19))] == [1, 0, 0]
    assert list(read_meta(rows((DB_1, b"{}"), flags=FLAG_NOT_A_CHANGE), 0, 100)) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (JOB_LIST_0, b"{"),
        (JOB_HISTORY_120, b'{"type": 3}'),  # without an id
        (DB_1[:-18] + "44423a7800000000fb", b"{}"),  # DB:x
        (DB_1[:-2] + "00", b"{}"),  # a broken encoding
    ],
)
def test_unreadable_definitions_are_refused(key: str, value: bytes) -> None:
    with pytest.raises(DecodeError):
        read((key, value))


def test_keys_are_written_as_they_are_read() -> None:
    assert (database_key(1).hex(), table_key(1, 2).hex(), table_key(112, 116).hex()) == (
        DB_1,
        DB_1_TABLE_2,
        DB_112_TABLE_116,
    )


def job(job_id: int, state: int, commit_ts: int, *, schema_version: int = 0, start_ts: int = 1) -> Job:
    data = {"id": job_id, "type": 5, "state": state, "binlog": {"SchemaVersion": schema_version}}
    return parse_job(data, start_ts=start_ts, commit_ts=commit_ts)


def test_a_step_is_a_transaction_with_its_job() -> None:
    definition = Definition(start_ts=1, commit_ts=20, db_id=1, table_id=2, info=b"{}")
    other = Definition(start_ts=2, commit_ts=20, db_id=1, table_id=3, info=None)
    queued, running, later = job(7, 8, 20), job(8, 1, 20), job(8, 4, 30, schema_version=5)
    steps = steps_of([later, queued, running], [other, definition])
    assert steps == [
        MetaCommit(start_ts=1, commit_ts=20, jobs=(queued, running), definitions=(definition,)),
        MetaCommit(start_ts=2, commit_ts=20, definitions=(other,)),
        MetaCommit(start_ts=1, commit_ts=30, jobs=(later,)),
    ]
    assert [step.owner for step in steps] == [8, 0, 8]


def test_steps_of_one_timestamp_go_by_schema_version() -> None:
    first, second = job(8, 4, 30, schema_version=5, start_ts=9), job(9, 4, 30, schema_version=6, start_ts=3)
    assert [step.jobs for step in steps_of([second, first], [])] == [(first,), (second,)]
