"""Questions at the edges, many rows at once, keeping and forgetting. Played on the recording."""

from __future__ import annotations

import numpy as np
import pytest

from schemas.ddl import Job
from schemas.diff import SchemaDiff
from schemas.history import History
from schemas.snapshot import PushedSchema
from tistream.errors import CorruptObject, NotFound, TsExpired, TsOutOfRange


def stamps(history: History) -> list[int]:
    """Timestamps just before, at and between the DDLs, and where their definitions become public."""
    commits = sorted({change.commit_ts for change in history.changes(history.start_ts)})
    return [history.start_ts, *(ts + step for ts in commits for step in (-1, 0, 1)), history.resolved_ts]


def all_ids(history: History) -> set[int]:
    ids: set[int] = set()
    for db in ("shop", "shop_arch", "temp_db", "test"):
        ids |= history.physical_ids(db, None, history.start_ts, history.resolved_ts)
    return ids


def test_lookups_of_many_rows_agree_with_lookups_of_one(history: History) -> None:
    commit_ts = np.array(stamps(history)[1:], dtype=np.uint64)
    ids = all_ids(history)
    assert len(ids) > 90
    for physical_id in [*ids, -1]:
        intervals = history.version_intervals(physical_id)
        for ts, index in zip(commit_ts.tolist(), intervals.index(commit_ts).tolist(), strict=True):
            version = intervals.versions[index] if index >= 0 else None
            assert version is history.table_at(physical_id, ts - 1)


def test_a_saved_history_is_the_same_history(history: History) -> None:
    data = history.dump()
    loaded = History.load(data)
    assert loaded.dump() == data
    assert (loaded.start_ts, loaded.resolved_ts) == (history.start_ts, history.resolved_ts)
    assert loaded.job_table == history.job_table
    for ts in stamps(history):
        assert loaded.snapshot(ts) == history.snapshot(ts)
        assert loaded.public().snapshot(ts) == history.public().snapshot(ts)
    assert loaded.events(loaded.start_ts, loaded.resolved_ts) == history.events(history.start_ts, history.resolved_ts)


@pytest.mark.parametrize("data", [b"", b"nothing", b"\x28\xb5\x2f\xfd\x04\x00\x11\x00\x00{}\xaa\xbb\xcc\xdd"])
def test_bytes_that_are_no_history_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptObject):
        History.load(data)


def test_a_cut_history_is_refused(history: History) -> None:
    with pytest.raises(CorruptObject):
        History.load(history.dump()[:-100])


def between(history: History, kind: str) -> int:
    """A timestamp between the first public definition of a DDL of this kind and the end of its job."""
    event = next(e for e in history.events(history.start_ts, history.resolved_ts) if e.kind == kind)
    (early,) = {c.commit_ts for c in history.changes(history.start_ts) if c.early and c.job_id == event.job_id}
    assert early < event.commit_ts
    return early


@pytest.mark.parametrize("kind", ["", "rename table", "drop table", "drop schema", "drop column"])
def test_a_pruned_history_answers_the_same_above_the_cut(history: History, kind: str) -> None:
    cut = between(history, kind) if kind else stamps(history)[300]
    pruned = history.pruned(cut)
    assert (pruned.snapshot(cut) == pruned.public().snapshot(cut)) is not bool(kind)
    loaded = History.load(pruned.dump())
    for ts in stamps(history):
        if ts < cut:
            with pytest.raises(TsExpired):
                pruned.snapshot(ts)
        else:
            assert pruned.snapshot(ts) == history.snapshot(ts)
            for each in (pruned, loaded):
                assert each.public().snapshot(ts).tables == history.public().snapshot(ts).tables
                assert each.public().databases(ts) == history.public().databases(ts)
    assert pruned.events(cut, history.resolved_ts) == history.events(cut, history.resolved_ts)
    assert pruned.start_ts == cut
    assert len(pruned.dump()) < len(history.dump())


def test_a_copy_grows_alone(pushed: PushedSchema, jobs: list[Job]) -> None:
    first = History(pushed.snapshot, pushed.job_table)
    for job in jobs[:400]:
        first.apply(job)
    first.advance(jobs[399].commit_ts)
    before = first.snapshot(first.resolved_ts)
    second = first.copy()
    for job in jobs[400:]:
        second.apply(job)
    second.advance(jobs[-1].commit_ts)
    assert first.resolved_ts == jobs[399].commit_ts
    assert first.snapshot(first.resolved_ts) == before == second.snapshot(first.resolved_ts)
    assert first.dump() != second.dump()


def test_order_and_repetition_of_delivery_do_not_matter(
    pushed: PushedSchema, jobs: list[Job], history_of_jobs: History
) -> None:
    again = History(pushed.snapshot, pushed.job_table)
    for start in range(0, len(jobs), 50):
        for job in jobs[max(start - 50, 0) : start + 50]:  # every job twice
            again.apply(job)
        again.advance(jobs[: start + 50][-1].commit_ts)
    again.advance(history_of_jobs.resolved_ts)
    assert again.dump() == history_of_jobs.dump()


def test_queries_outside_the_known_range_are_refused(history: History) -> None:
    history.table_at(1, history.resolved_ts)
    for ask in (history.snapshot, history.databases, lambda ts: history.table_at(118, ts)):
        with pytest.raises(TsOutOfRange) as late:
            ask(history.resolved_ts + 1)
        assert late.value.facts["resolved_ts"] == history.resolved_ts
        with pytest.raises(TsExpired) as early:
            ask(history.start_ts - 1)
        assert early.value.facts["earliest_ts"] == history.start_ts


def test_names_that_do_not_exist_come_with_a_guess(history: History) -> None:
    ts = history.resolved_ts
    with pytest.raises(NotFound, match="did you mean 'customers'") as caught:
        history.find("SHOP", "Custmers", ts)
    guesses = caught.value.facts["did_you_mean"]
    assert isinstance(guesses, list)
    assert guesses[0] == "customers"
    with pytest.raises(NotFound, match="did you mean 'shop_arch'"):
        history.tables("shop_arc", ts)
    with pytest.raises(NotFound, match="no database 'mysql'"):
        history.tables("mysql", ts)  # system databases are not served
    assert history.database("SHOP", ts).name == "shop"


def test_snapshots_between_two_jobs_share_their_tables(history: History) -> None:
    ts = history.resolved_ts
    assert history.snapshot(ts).tables is history.snapshot(ts - 1).tables
    assert (history.snapshot(ts).ts, history.snapshot(ts - 1).ts) == (ts, ts - 1)


def test_the_difference_of_two_moments(history: History) -> None:
    events = history.events(history.start_ts, history.resolved_ts)

    def around(kind: str) -> SchemaDiff:
        event = next(e for e in events if e.kind == kind)
        return history.diff(event.commit_ts - 1, event.commit_ts)

    added = around("create schema")
    assert (added.databases_added, added.databases_dropped, added.tables) == (("shop_arch",), (), ())
    (column,) = around("add column").tables[0].columns
    assert column.before is None
    assert column.after is not None
    (truncated,) = around("truncate table").tables
    assert truncated.new_ids
    assert not truncated.renamed
    renamed = next(e for e in events if e.kind == "rename table")
    (moved,) = history.diff(renamed.commit_ts - 1, renamed.commit_ts).tables
    assert moved.renamed
    assert moved.before is not None
    assert (moved.before.db, moved.before.name) == (renamed.old_db, renamed.old_table)
    difference = around("drop schema")
    assert difference.databases_dropped == ("temp_db",)
    assert {t.before.name for t in difference.tables if t.before and not t.after} == {"t1", "t2", "t3"}
    assert history.diff(history.start_ts, history.start_ts).tables == ()
