"""DDL of partitions, step by step as TiDB writes it: which ids are the table when, and when the DDL takes effect."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson
import pytest

from schemas import ddl
from schemas.history import History
from schemas.ids import IdStatus
from schemas.meta import Definition, MetaCommit
from schemas.snapshot import parse_pushed
from schemas.switch import HOLD_MS
from tistream import ts as tso
from tistream.codec.table_key import DDL_JOB_TABLE_ID
from tistream.errors import DecodeError

S = 1_000
MS = 1 << tso.LOGICAL_BITS
HOLD = HOLD_MS * MS
TABLE, NEW_TABLE = 20, 90
DROP, TRUNCATE, REORGANIZE, PARTITION_BY, REMOVE = 20, 23, 64, 71, 72
RUNNING, ROLLING_BACK, ROLLED_BACK, DONE, SYNCED = 1, 2, 3, 4, 6


def defs(*ids: int) -> list[dict[str, Any]]:
    return [{"id": i, "name": {"O": f"p{i}", "L": f"p{i}"}} for i in ids]


def info(ids: Sequence[int], table_id: int = TABLE, updated: int = 1, **running: Any) -> dict[str, Any]:
    column = {"id": 1, "name": {"O": "id", "L": "id"}, "offset": 0, "state": 5, "type": {"Tp": 3, "Flag": 3}}
    lists = {k: defs(*v) if k.endswith("definitions") else v for k, v in running.items()}
    partition = {"enable": True, "type": 1, "definitions": defs(*ids), **lists} if ids else None
    return {
        "id": table_id, "name": {"O": "Parts", "L": "parts"}, "cols": [column], "state": 5, "pk_is_handle": True,
        "update_timestamp": updated, "partition": partition,
    }  # fmt: skip


def pushed(ts: int = S, **tables: dict[str, Any]) -> dict[str, Any]:
    jobs = info((), DDL_JOB_TABLE_ID) | {"name": {"O": "tidb_ddl_job", "L": "tidb_ddl_job"}}
    system = info((), 30) | {"name": {"O": "user", "L": "user"}}
    names = [(1, "mysql"), (2, "Shop")]
    return {
        "ts": str(ts),
        "dbs": [{"id": i, "db_name": {"O": name, "L": name.lower()}, "state": 5} for i, name in names],
        "tables": [{"db_id": 1, "info": jobs}, {"db_id": 1, "info": system}]
        + [{"db_id": 2, "info": table} for table in tables.values()],
    }


def history(table: dict[str, Any] | None = None, ts: int = S) -> History:
    """One partitioned table, Shop.Parts, with partitions 21, 22, 23."""
    parsed = parse_pushed(pushed(ts, parts=table or info((21, 22, 23))))
    return History(parsed.snapshot, parsed.job_table)


def step(ts: int, kind: int, state: int, definition: dict[str, Any] | None, *, gone: int = 0) -> MetaCommit:
    """What one transaction of job 7 writes."""
    binlog = {"SchemaVersion": 9, "TableInfo": definition} if state in (DONE, SYNCED) else {}
    data = {"id": 7, "type": kind, "state": state, "schema_id": 2, "table_id": TABLE, "schema_name": "shop"}
    data |= {"query": "the user's text", "start_ts": S + 1, "binlog": binlog}
    written = [(d["id"], orjson.dumps(d)) for d in (definition,) if d] + [(i, None) for i in (gone,) if i]
    return MetaCommit(
        start_ts=ts - 1,
        commit_ts=ts,
        jobs=(ddl.parse_job(data, start_ts=ts - 1, commit_ts=ts),),
        definitions=tuple(
            Definition(start_ts=ts - 1, commit_ts=ts, db_id=2, table_id=i, info=text) for i, text in written
        ),
    )


def truncating() -> list[MetaCommit]:
    """TRUNCATE PARTITION p22: 50 is read from the second version on."""
    new: dict[str, Any] = {"new_partition_ids": [50], "ddl_action": TRUNCATE}
    old: dict[str, Any] = {"dropping_definitions": (22,)}
    return [
        step(2_000, TRUNCATE, RUNNING, info((21, 22, 23), updated=2, **new, ddl_state=2)),
        step(3_000, TRUNCATE, RUNNING, info((21, 50, 23), updated=3, **new, **old, ddl_state=1)),
        step(4_000, TRUNCATE, RUNNING, info((21, 50, 23), updated=4, **new, **old, ddl_state=4)),
        step(5_000, TRUNCATE, DONE, info((21, 50, 23), updated=5)),
    ]


def partitioning(done_ts: int) -> list[MetaCommit]:
    """PARTITION BY: 50 and 51 are read from the fourth version on, and the table has another id at the end."""
    run: dict[str, Any] = {
        "adding_definitions": (50, 51),
        "dropping_definitions": (21, 22, 23),
        "ddl_action": PARTITION_BY,
    }
    return [
        step(2_000, PARTITION_BY, RUNNING, info((21, 22, 23), updated=2, **run, ddl_state=1)),
        step(3_000, PARTITION_BY, RUNNING, info((21, 22, 23), updated=3, **run, ddl_state=3)),
        step(4_000, PARTITION_BY, RUNNING, info((50, 51), updated=4, **run, ddl_state=4)),
        step(done_ts - 1_000, PARTITION_BY, RUNNING, info((50, 51), updated=5, **run, ddl_state=5)),
        step(done_ts, PARTITION_BY, DONE, info((50, 51), NEW_TABLE, updated=6), gone=TABLE),
    ]


def ids_at(of: History, ts: int) -> tuple[int, ...]:
    return of.find("shop", "parts", ts).physical_ids


def test_a_truncate_is_placed_where_sessions_begin_to_use_the_new_partition() -> None:
    read = history()
    (event,) = read.follow(truncating(), 9_000)
    assert (event.commit_ts, event.start_ts, event.finished_ts) == (3_000, 2_999, 5_000)
    assert (event.kind, event.query) == ("truncate partition", "the user's text")
    assert event.version is not None
    assert event.version.update_ts == 5, "the event shows the final definition"
    assert [ids_at(read, ts) for ts in (2_999, 3_000, 9_000)] == [(21, 22, 23), (21, 50, 23), (21, 50, 23)]
    assert [read.status_at(50, ts) for ts in (1_500, 2_999, 3_000)] == [IdStatus.COPY, IdStatus.COPY, IdStatus.LIVE]
    assert [read.status_at(22, ts) for ts in (2_999, 3_000)] == [IdStatus.LIVE, IdStatus.RETIRED]


def test_a_dropped_partition_is_gone_with_the_version_that_blocks_it() -> None:
    run: dict[str, Any] = {"dropping_definitions": (22,), "ddl_action": DROP}
    steps = [
        step(2_000, DROP, RUNNING, info((21, 22, 23), **run, ddl_state=2)),
        step(3_000, DROP, RUNNING, info((21, 23), **run, ddl_state=1)),
        step(4_000, DROP, DONE, info((21, 23))),
    ]
    read = history()
    (event,) = read.follow(steps, 9_000)
    assert (event.commit_ts, event.finished_ts) == (2_000, 4_000)
    assert [ids_at(read, ts) for ts in (1_999, 2_000)] == [(21, 22, 23), (21, 23)]
    older = history()
    (event,) = older.follow(steps[1:], 9_000)  # servers that write no version which only blocks it
    assert (event.commit_ts, event.finished_ts) == (3_000, 4_000)


@pytest.mark.parametrize("looks", [1, 2, 3, 4])
def test_the_history_waits_for_the_end_whenever_it_looks(looks: int) -> None:
    """What is known at any time is a part of what is known in the end."""
    whole = history()
    whole.follow(truncating(), 9_000)
    read = history()
    for upto_ts in [*(2_000, 3_000, 4_000, 5_000)[-looks:], 9_000]:
        read.follow([s for s in truncating() if read.resolved_ts < s.commit_ts <= upto_ts], upto_ts)
        assert read.resolved_ts == (2_999 if 3_000 <= upto_ts < 5_000 else upto_ts)
        read = History.load(read.dump())
    assert read.dump() == whole.dump()


def test_an_end_that_takes_long_is_not_waited_for() -> None:
    done_ts = 4_000 + HOLD + 2_000
    steps, read = partitioning(done_ts), history()
    for upto_ts in (4_000, 4_000 + HOLD - 1):
        assert read.follow([s for s in steps if read.resolved_ts < s.commit_ts <= upto_ts], upto_ts) == []
        assert read.resolved_ts == 3_999
    upto_ts = 4_000 + HOLD
    (event,) = read.follow([s for s in steps if read.resolved_ts < s.commit_ts <= upto_ts], upto_ts)
    assert (event.commit_ts, event.finished_ts, event.table_id) == (4_000, 0, TABLE)
    assert event.version is not None
    assert (event.version.physical_ids, event.version.update_ts) == ((50, 51), 4)
    read = History.load(read.dump())
    assert read.follow([s for s in steps if s.commit_ts > upto_ts], done_ts) == []
    last = read.find("shop", "parts", done_ts)
    assert (last.id, last.physical_ids, last.update_ts) == (NEW_TABLE, (50, 51), 4)
    assert [read.status_at(50, ts) for ts in (3_999, 4_000, done_ts)] == [IdStatus.COPY, IdStatus.LIVE, IdStatus.LIVE]
    at_once = history()
    assert at_once.follow(steps, done_ts) == [event]
    assert at_once.dump() == read.dump()


def test_a_new_table_id_holds_from_the_switch_on_when_the_end_is_near() -> None:
    read = history()
    (event,) = read.follow(partitioning(6_000), 9_000)
    assert (event.commit_ts, event.finished_ts, event.table_id) == (4_000, 6_000, NEW_TABLE)
    assert read.find("shop", "parts", 4_000).id == NEW_TABLE
    assert read.find("shop", "parts", 9_000).id == NEW_TABLE


def test_copies_of_a_ddl_that_was_rolled_back_stay_copies() -> None:
    run: dict[str, Any] = {"adding_definitions": (50,), "dropping_definitions": (22, 23), "ddl_action": REORGANIZE}
    steps = [
        step(2_000, REORGANIZE, RUNNING, info((21, 22, 23), **run, ddl_state=1)),
        step(3_000, REORGANIZE, ROLLING_BACK, info((21, 22, 23), **run, ddl_state=3)),
        step(4_000, REORGANIZE, ROLLED_BACK, info((21, 22, 23))),
    ]
    read = history()
    assert read.follow(steps, 9_000) == []
    assert ids_at(read, 9_000) == (21, 22, 23)
    again = History.load(read.dump()).pruned(5_000)
    assert {h.status_at(50, 9_000) for h in (read, again, History.load(again.dump()))} == {IdStatus.COPY}


def test_a_history_begun_after_the_switch_has_no_event_for_it() -> None:
    """The table of the snapshot has the new partition already, and rows in it that a TRUNCATE would take away."""
    steps = truncating()
    middle = orjson.loads(steps[2].definitions[0].info or b"")
    read = history(middle, ts=4_500)
    assert read.follow(steps[3:], 9_000) == []
    assert ids_at(read, 4_500) == ids_at(read, 9_000) == (21, 50, 23)
    before = history(orjson.loads(steps[0].definitions[0].info or b""), ts=2_500)
    assert [e.commit_ts for e in before.follow(steps[1:], 9_000)] == [3_000]
    assert before.status_at(50, 2_500) is IdStatus.COPY


def test_why_a_row_belongs_to_no_table() -> None:
    read = history()
    read.follow(truncating(), 9_000)
    ids = {30: "system", DDL_JOB_TABLE_ID: "system", (1 << 48) - 500: "system", 25: "older", 51: "unnamed"}
    for h in (read, History.load(read.dump())):
        assert {i: str(h.status_at(i, 9_000)) for i in ids} == ids
    pruned = read.pruned(8_000)
    assert [str(pruned.status_at(i, 9_000)) for i in (30, 22, 50, 51)] == ["system", "older", "live", "unnamed"]


def test_a_job_that_took_effect_and_whose_last_row_never_came_is_noticed() -> None:
    read = history()
    steps = truncating()[:3]
    late = 3_000 + HOLD + 1
    read.follow([*steps], late)
    with pytest.raises(DecodeError, match="done row is missing"):
        read.take(step(late + 1_000, TRUNCATE, SYNCED, None))


@pytest.mark.parametrize(
    "text",
    [b"{}", b"[]", b"7", b"nothing", b'{"id":20,"partition":{"definitions":[null]}}', b'{"id":20,"partition":7}'],
)
def test_a_definition_that_cannot_be_read_is_an_error_that_names_it(text: bytes) -> None:
    """Unless it is of one of TiDB's own tables, which are not decoded."""
    good = truncating()[0]
    (definition,) = good.definitions
    broken = replace(good, definitions=(replace(definition, info=text),))
    with pytest.raises(DecodeError, match="of the meta range") as caught:
        history().follow([broken], 9_000)
    assert caught.value.facts["table_id"] == TABLE
    read = history()
    read.follow([replace(good, definitions=(replace(definition, info=text, db_id=1, table_id=77),))], 9_000)
    assert read.resolved_ts == 9_000
    assert read.status_at(77, 9_000) is IdStatus.SYSTEM


def as_another_table(each: MetaCommit, ms: int) -> MetaCommit:
    """The step as a job of another table writes it, so much later: its ids are 1,000 higher."""
    later = ms * MS
    texts = {d.table_id: None if d.info is None else orjson.loads(d.info) for d in each.definitions}
    moved = {i + 1_000: text and _raised(text) for i, text in texts.items()}
    (job,) = each.jobs
    altered = replace(
        job, id=8, table_id=TABLE + 1_000, commit_ts=job.commit_ts + later, start_ts=job.start_ts + later,
        finished_ts=job.finished_ts and job.finished_ts + later, table_info=job.table_info and _raised(job.table_info),
    )  # fmt: skip
    times = {"start_ts": each.start_ts + later, "commit_ts": each.commit_ts + later}
    return MetaCommit(
        **times,
        jobs=(altered,),
        definitions=tuple(
            Definition(**times, db_id=2, table_id=i, info=orjson.dumps(t) if t else None) for i, t in moved.items()
        ),
    )


def _raised(info_: Any) -> dict[str, Any]:
    raised = {**info_, "id": info_["id"] + 1_000, "name": {"O": "Others", "L": "others"}}
    parts = dict(raised["partition"])
    for name, value in parts.items():
        if name.endswith("definitions"):
            parts[name] = [{**d, "id": d["id"] + 1_000} for d in value]
        elif name == "new_partition_ids":
            parts[name] = [i + 1_000 for i in value]
    return {**raised, "partition": parts}


@pytest.mark.parametrize("seed", range(30))
def test_jobs_side_by_side_come_to_the_same_however_often_the_log_is_looked_at(seed: int) -> None:
    """Also with a restart after each look, and with ends that are waited for in vain."""
    rand = random.Random(seed)
    slow = rand.choice([1_000, HOLD + 3_000 * MS])
    later = rand.choice([0, 1, 500])
    jobs = [*partitioning(5_000 + slow), *(as_another_table(s, later) for s in truncating())]
    steps = sorted(jobs, key=lambda s: s.order)
    end = steps[-1].commit_ts + HOLD
    begin = parse_pushed(pushed(parts=info((21, 22, 23)), others=_raised(info((21, 22, 23)))))
    whole = History(begin.snapshot, begin.job_table)
    whole.follow(steps, end)
    assert whole.resolved_ts == end
    looks = sorted(rand.sample(range(S, end), 6) + [s.commit_ts + rand.choice([-1, 0]) for s in steps])
    read = History(begin.snapshot, begin.job_table)
    for upto_ts in [*looks, end]:
        before_ts = read.resolved_ts
        read.follow([s for s in steps if before_ts < s.commit_ts <= upto_ts], upto_ts)
        assert before_ts <= read.resolved_ts <= max(upto_ts, before_ts)
        assert upto_ts - read.resolved_ts <= HOLD, "nothing is held for longer"
        assert read.events(S, read.resolved_ts) == whole.events(S, read.resolved_ts)
        assert read.snapshot(read.resolved_ts) == whole.snapshot(read.resolved_ts)
        if rand.random() < 0.5:
            read = History.load(read.dump())
    assert read.dump() == whole.dump()
