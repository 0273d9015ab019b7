"""The two sources of schemas against each other on the recording: job rows and the meta range."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from schemas.ddl import Job
from schemas.history import History
from schemas.merge import Disagreement
from schemas.meta import Definition, MetaCommit
from schemas.model import Table
from schemas.snapshot import PushedSchema
from schemas.tidb_json import table as table_of
from tests.kit.recording import recorded_steps
from tistream.errors import DecodeError

DONE = 4


@pytest.fixture(scope="module")
def steps() -> tuple[MetaCommit, ...]:
    return recorded_steps()


def begun(pushed: PushedSchema) -> History:
    return History(pushed.snapshot, pushed.job_table)


def played(history: History, steps: tuple[MetaCommit, ...] | list[MetaCommit], until: int) -> History:
    history.follow(steps, until)
    return history


def of_key(key: bytes) -> tuple[int, int] | None:
    """(database id, table id) of the key of a table's definition; None for any other key."""
    name, at = text_of(key, 1)
    if not name.startswith(b"DB:"):
        return None
    field, _ = text_of(key, at + 8)
    return (int(name[3:]), int(field[6:])) if field.startswith(b"Table:") else None


def text_of(key: bytes, at: int) -> tuple[bytes, int]:
    """A text in groups of eight bytes and a marker, and where it ends."""
    text = b""
    while True:
        text, marker, at = text + key[at : at + 8], key[at + 8], at + 9
        if marker != 255:
            return text[: len(text) + marker - 255], at


def test_every_table_is_the_same_in_jobs_and_meta_range(
    history: History,
    pushed: PushedSchema,
    steps: tuple[MetaCommit, ...],
    meta_writes: list[tuple[int, int, bytes, bytes | None]],
) -> None:
    """At each finished job, for every table: the same ids, names, columns, types, indexes and partitions."""
    names = {db.id: db.name for step in steps for db in history.databases(max(step.commit_ts, history.start_ts))}
    defined = {t.id: (t.db_id, t) for t in pushed.snapshot.tables.values()}
    writes = sorted(meta_writes, key=lambda w: (w[1], w[0], w[3] is not None))  # deletions before puts
    finished = sorted({job.commit_ts for step in steps for job in step.jobs if job.state == DONE})
    at = compared = 0
    dated = set()
    for ts in finished:
        while at < len(writes) and writes[at][1] <= ts:
            (_, _, key, value), at = writes[at], at + 1
            named = of_key(key)
            if named is None or named[0] not in names:
                continue
            db_id, table_id = named
            if value is not None:
                defined[table_id] = db_id, table_of(json.loads(value), db_id=db_id, db=names[db_id])
            elif defined[table_id][0] == db_id:
                del defined[table_id]
        tables = history.snapshot(ts).tables
        assert tables.keys() == defined.keys(), ts
        for table_id, table in tables.items():
            _, other = defined[table_id]
            assert replace(table, update_ts=0) == replace(other, update_ts=0), (ts, table.name)
            compared += 1
            if table.update_ts != other.update_ts:
                dated.add(table.name)
    assert compared > 10_000
    # an exchanged table counts as updated with the partitioned one, and some jobs are passed over: TiCDC has it so
    assert dated == {"p_swap", "autoinc", "dupidx"}


Shown = tuple[tuple[int, ...], tuple[tuple[str, int, str], ...], frozenset[str], str]


def shown_by(info: dict[str, Any]) -> Shown:
    """(physical ids, columns with ids and comments, indexes, comment) that a definition has for readers."""
    part = info.get("partition") or {}
    partitions = part.get("definitions") or [] if part.get("enable") else []
    if (part.get("ddl_action"), part.get("ddl_state")) == (20, 2):  # a DROP PARTITION blocks what it drops
        blocked = {dropped["id"] for dropped in part["dropping_definitions"]}
        partitions = [each for each in partitions if each["id"] not in blocked]
    columns = sorted((c for c in info.get("cols") or () if c["state"] == 5), key=lambda c: c["offset"])
    columns = [c for c in columns if not c["hidden"] and (not c["generated_expr_string"] or c["generated_stored"])]
    indexes = frozenset(i["idx_name"]["O"] for i in info.get("index_info") or () if i["state"] == 5)
    shown = tuple((c["name"]["O"], c["id"], c["comment"]) for c in columns)
    return tuple(d["id"] for d in partitions) or (info["id"],), shown, indexes, info["comment"]


def of_model(table: Table) -> Shown:
    indexes = frozenset(index.name for index in table.indexes if index.state == 5)
    columns = tuple((c.name, c.id, c.comment) for c in table.visible_columns)
    return table.physical_ids, columns, indexes, table.comment


def of_database(key: bytes) -> int | None:
    """The id of the database whose definition is stored under this key."""
    name, at = text_of(key, 1)
    return int(text_of(key, at + 8)[0][3:]) if name == b"DBs" else None


def tables_of(history: History, ts: int) -> dict[tuple[str, str], Shown]:
    return {(db.name, t.name): of_model(t) for db in history.databases(ts) for t in history.tables(db.name, ts)}


def test_a_read_as_of_any_schema_version_sees_the_newest_public_definitions(
    history: History, pushed: PushedSchema, meta_writes: list[tuple[int, int, bytes, bytes | None]]
) -> None:
    """TiDB loads the schema of an AS OF from the meta range as of the timestamp: what is public there, of whatever job,
    done or not."""
    public, system = history.public(), {"mysql", "information_schema", "sys", "performance_schema"}
    databases = {db.id: db.name for db in pushed.snapshot.databases.values()}
    tables = {(t.db_id, t.id): (t.name, of_model(t)) for t in pushed.snapshot.tables.values()}
    moments: dict[int, list[tuple[bytes, bytes | None]]] = {}
    for _, commit_ts, key, value in meta_writes:
        if (of_key(key) or of_database(key)) and commit_ts > history.start_ts:
            moments.setdefault(commit_ts, []).append((key, value))
    before: dict[tuple[str, str], Shown] | None = None
    differs = Counter[bool]()
    for ts, writes in moments.items():
        for key, value in writes:
            info = None if value is None else json.loads(value)
            is_public = info is not None and info["state"] == 5
            if (db_id := of_database(key)) is not None:
                databases.pop(db_id, None)
                if info is not None and is_public and info["db_name"]["L"] not in system:
                    databases[db_id] = info["db_name"]["O"]
            elif (named := of_key(key)) is not None:
                tables.pop(named, None)
                if info is not None and is_public:
                    tables[named] = info["name"]["O"], shown_by(info)
        there = {(databases[db_id], name): shown for (db_id, _), (name, shown) in tables.items() if db_id in databases}
        assert tables_of(public, ts) == there, ts
        if before is not None:
            assert tables_of(public, ts - 1) == before, ts - 1
        before = there
        differs[tables_of(history, ts) != there] += 1
    assert differs[True] > 40, "no moment between a schema version and the end of its job"


def test_both_sources_together_make_the_history_that_the_jobs_alone_make(
    history: History, history_of_jobs: History
) -> None:
    """The same events and tables; only a DDL of partitions comes when it takes effect, which is earlier."""
    events, theirs = (h.events(h.start_ts, h.resolved_ts) for h in (history, history_of_jobs))
    at = {(e.job_id, e.sub): e for e in events}
    assert len(at) == len(events) == len(theirs)
    early = set()
    for event in theirs:
        recorded = at[event.job_id, event.sub]
        assert replace(recorded, commit_ts=event.commit_ts, start_ts=event.start_ts) == event
        if recorded.commit_ts != event.commit_ts:
            assert recorded.start_ts < recorded.commit_ts < event.start_ts < event.commit_ts == recorded.finished_ts
            early.add(recorded.kind)
    assert early == {
        "truncate partition", "drop partition", "alter table reorganize partition", "alter table partition by",
        "alter table remove partitioning",
    }  # fmt: skip
    assert history.snapshot(history.resolved_ts) == history_of_jobs.snapshot(history.resolved_ts)


def bare(job: Job) -> Job:
    return replace(job, db_info=None, table_info=None, table_infos=())


def test_jobs_without_their_definitions_make_the_same_history_from_the_meta_range(
    history: History, pushed: PushedSchema, steps: tuple[MetaCommit, ...]
) -> None:
    """The same versions, so every row of the recording is decoded alike, and the same events."""
    stripped = [replace(step, jobs=tuple(map(bare, step.jobs))) for step in steps]
    assert played(begun(pushed), stripped, history.resolved_ts).dump() == history.dump()


def test_every_definition_was_written_by_a_job_and_no_draft_is_left(
    history: History, pushed: PushedSchema, steps: tuple[MetaCommit, ...]
) -> None:
    """What the merge rests on: definitions commit in the transaction of a job's row."""
    assert all(step.owner for step in steps if step.definitions)
    assert played(begun(pushed), steps, history.resolved_ts)._drafts == {}


def test_drafts_outlive_a_restart_at_any_moment(
    history: History, pushed: PushedSchema, steps: tuple[MetaCommit, ...]
) -> None:
    """A saved history knows what jobs under way have written: their rows are not read again."""
    reopened, with_drafts, waiting = begun(pushed), 0, 0
    for upto_ts in [*(step.commit_ts for step in steps), history.resolved_ts]:
        reopened.follow([step for step in steps if reopened.resolved_ts < step.commit_ts <= upto_ts], upto_ts)
        waiting += reopened.resolved_ts < upto_ts
        if reopened._drafts:
            with_drafts += 1
            reopened = History.load(reopened.dump())
    assert with_drafts > 300
    assert waiting > 10, "no end of a job was waited for"
    assert reopened.dump() == history.dump()


Break = Callable[[Job, MetaCommit], MetaCommit]


def broken(
    pushed: PushedSchema, steps: tuple[MetaCommit, ...], change: Break
) -> Iterator[tuple[Job, DecodeError | tuple[Disagreement, ...]]]:
    """Per finished job what comes of it when each of its steps is changed, in the place where it happened."""
    whole = begun(pushed)
    done = {job.id: job for step in steps for job in step.jobs if job.state == DONE}
    firsts: dict[int, int] = {}
    lasts: dict[int, int] = {}
    for at, step in enumerate(steps):
        for job in step.jobs:
            firsts.setdefault(job.id, at)
            lasts[job.id] = at
    starting = {at: done[job_id] for job_id, at in firsts.items() if job_id in done}
    for at, step in enumerate(steps):
        if (begins := starting.get(at)) is not None:
            hurt = whole.copy()
            try:
                rest = steps[at : lasts[begins.id] + 1]
                rest = tuple(change(begins, each) if begins.id in {j.id for j in each.jobs} else each for each in rest)
                for n, each in enumerate(rest):
                    hurt.take(each, rest[n + 1 :])
                yield begins, hurt.disagreements
            except DecodeError as caught:
                yield begins, caught
        whole.take(step, steps[at + 1 :])


#: kinds whose jobs may leave columns, indexes, names and ids as they were
HARMLESS = {17, 13, 22, 39, 41, 65, 67}


def blamed(job: Job, outcome: DecodeError | tuple[Disagreement, ...]) -> bool:
    assert isinstance(outcome, tuple)
    return {each.job_id for each in outcome} == {job.id} and all(each.commit_ts <= job.commit_ts for each in outcome)


def test_a_definition_that_is_missing_in_the_meta_range_is_noticed(
    pushed: PushedSchema, steps: tuple[MetaCommit, ...]
) -> None:
    outcomes = list(broken(pushed, steps, lambda _, step: replace(step, definitions=())))
    assert len(outcomes) == 230
    assert all(blamed(job, said) for job, said in outcomes if said)
    assert {job.type for job, said in outcomes if not said} == HARMLESS
    assert sum(not said for _, said in outcomes) == 12


def other_type(definition: Definition) -> Definition:
    """The same table with another type of its last public column, or another name if it has none."""
    if definition.info is None or not definition.table_id:
        return definition
    info = json.loads(definition.info)
    columns = [column for column in info.get("cols") or () if column["state"] == 5 and not column["hidden"]]
    if columns and not info["view"]:
        columns[-1]["type"]["Tp"] = 10 if columns[-1]["type"]["Tp"] != 10 else 3
    else:
        info["name"] = {"O": "other", "L": "other"}
    return replace(definition, info=json.dumps(info).encode())


def test_a_definition_that_is_another_in_the_meta_range_is_noticed(
    pushed: PushedSchema, steps: tuple[MetaCommit, ...]
) -> None:
    def change(_: Job, step: MetaCommit) -> MetaCommit:
        return replace(step, definitions=tuple(map(other_type, step.definitions)))

    kinds_without_puts = {1, 2, 4, 24, 26}
    adopted = {39}  # whatever the meta range says: nothing that the job says is used
    for job, outcome in broken(pushed, steps, change):
        assert not isinstance(outcome, DecodeError)
        if job.type in kinds_without_puts | adopted:
            assert outcome == (), job
            continue
        assert blamed(job, outcome), job
        assert all(each.database and each.table and each.table_id for each in outcome)
        assert {fact for each in outcome for fact in each.differs} <= {"columns", "name"}


def test_a_job_whose_last_row_is_missing_is_noticed(pushed: PushedSchema, steps: tuple[MetaCommit, ...]) -> None:
    def without(_: Job, step: MetaCommit) -> MetaCommit:
        return replace(step, jobs=tuple(j for j in step.jobs if j.state != DONE))

    for job, error in broken(pushed, steps, without):
        if job.type in (34, 39):  # no events: their definitions are adopted
            assert error == ()
        else:
            assert isinstance(error, DecodeError), job
            assert error.facts["job_id"] == job.id
            assert error.message.endswith("done row is missing")
