"""Jobs and the meta range together, for what the recording does not hold."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from schemas.bases import is_whole_in_log
from schemas.ddl import Job
from schemas.history import History
from schemas.meta import Definition, MetaCommit
from tests.kit import schema_jobs
from tests.kit.schema_jobs import column, info, name, rename_args, shop_history
from tistream.errors import DecodeError, UpstreamContractViolated

START = 100
ROLLED_BACK, CANCELLED, SYNCED, RUNNING = 3, 5, 6, 1
job = partial(schema_jobs.job, id=7)


def db_info(db_id: int, text: str, state: int = 5) -> dict[str, Any]:
    return {"id": db_id, "db_name": name(text), "state": state}


def wrote(commit_ts: int, table_id: int, definition: dict[str, Any] | None, *, db_id: int = 1) -> Definition:
    text = None if definition is None else json.dumps(definition).encode()
    return Definition(start_ts=commit_ts - 1, commit_ts=commit_ts, db_id=db_id, table_id=table_id, info=text)


def step(commit_ts: int, *parts: Job | Definition) -> MetaCommit:
    return MetaCommit(
        start_ts=commit_ts - 1,
        commit_ts=commit_ts,
        jobs=tuple(p for p in parts if isinstance(p, Job)),
        definitions=tuple(p for p in parts if isinstance(p, Definition)),
    )


@pytest.fixture
def history() -> History:
    return shop_history(START)


def shape(history: History) -> dict[str, tuple[tuple[int, ...], int]]:
    """name -> (physical ids, number of columns that are delivered), at the end."""
    history.advance(1000)
    tables = history.snapshot(1000).tables.values()
    return {f"{t.db}.{t.name}": (t.physical_ids, len(t.visible_columns)) for t in tables}


ORDERS, PARTS = {"Shop.Orders": ((10,), 1)}, {"Shop.Parts": ((21, 22), 1)}


# ---- what the job does not carry


def test_a_job_without_its_definition_takes_it_from_the_meta_range(history: History) -> None:
    (event,) = history.take(step(110, job(5, 110, table_id=10), wrote(110, 10, info(10, "Orders", columns=2))))
    assert (event.kind, event.table, event.version and len(event.version.columns)) == ("add column", "Orders", 2)
    assert shape(history) == PARTS | {"Shop.Orders": ((10,), 2)}


def test_a_batch_of_new_tables_without_definitions(history: History) -> None:
    query = "create table A (x int); create table B (x int)"
    definitions = (wrote(110, 31, info(31, "B")), wrote(110, 30, info(30, "A")))
    events = history.take(step(110, job(60, 110, query=query), *definitions))
    assert [(e.table, e.query) for e in events] == [("A", "create table A (x int)"), ("B", "create table B (x int)")]
    assert shape(history).keys() == {"Shop.Orders", "Shop.Parts", "Shop.A", "Shop.B"}


@pytest.mark.parametrize("form", ["object", "array"])
def test_a_swap_of_names_without_definitions(history: History, form: str) -> None:
    args = rename_args((10, 1, "Orders", 2, "Tmp"), (20, 1, "Parts", 1, "Orders"), form=form)
    moved = (wrote(105, 10, None), wrote(105, 10, info(10, "Tmp"), db_id=2))
    other = wrote(105, 20, info(20, "Orders", partitions=(21, 22)))
    history.take(step(105, job(47, 105, state=RUNNING), *moved, other))
    events = history.take(step(110, job(47, 110, raw_args=args)))
    assert [(e.old_table, e.db, e.table) for e in events] == [("Orders", "Store", "Tmp"), ("Parts", "Shop", "Orders")]
    assert shape(history) == {"Store.Tmp": ((10,), 1), "Shop.Orders": ((21, 22), 1)}


@pytest.mark.parametrize("carried", [True, False])
def test_one_of_several_goes_into_a_system_database(history: History, carried: bool) -> None:
    """The meta range deletes it in the one database and puts it in the other."""
    args = rename_args((10, 1, "Orders", 9, "theirs"), (20, 1, "Parts", 2, "Moved"))
    theirs, ours = info(10, "theirs"), info(20, "Moved", partitions=(21, 22))
    moved_away = (wrote(110, 10, None), wrote(110, 10, theirs, db_id=9))
    moved = (wrote(110, 20, None), wrote(110, 20, ours, db_id=2))
    binlog = {"binlog": {"MultipleTableInfos": [theirs, ours]}} if carried else {}
    events = history.take(step(110, job(47, 110, raw_args=args, **binlog), *moved_away, *moved))
    assert [(e.kind, e.db, e.table) for e in events] == [
        ("drop table", "Shop", "Orders"),
        ("rename tables", "Store", "Moved"),
    ]
    assert history.disagreements == ()
    assert shape(history) == {"Store.Moved": ((21, 22), 1)}


def test_an_exchange_without_its_definition(history: History) -> None:
    swapped = (
        wrote(110, 10, None),
        wrote(110, 21, info(21, "Orders")),
        wrote(110, 20, info(20, "Parts", partitions=(10, 22))),
    )
    (event,) = history.take(step(110, job(42, 110, table_id=10), *swapped))
    assert (event.table, event.version and event.version.name) == ("Orders", "Parts")
    assert shape(history) == {"Shop.Orders": ((21,), 1), "Shop.Parts": ((10, 22), 1)}


def test_a_truncate_without_its_definition(history: History) -> None:
    definitions = (wrote(110, 20, None), wrote(110, 40, info(40, "Parts", partitions=(41, 42))))
    (event,) = history.take(step(110, job(11, 110, table_id=20), *definitions))
    assert event.table_id == 40
    assert shape(history) == ORDERS | {"Shop.Parts": ((41, 42), 1)}


def test_a_database_without_its_definition(history: History) -> None:
    (event,) = history.take(step(110, job(1, 110, schema_id=3), wrote(110, 0, db_info(3, "New"), db_id=3)))
    assert (event.db, event.db_id) == ("New", 3)
    history.advance(110)
    assert history.database("new", 110).id == 3


def test_a_recovered_database_whose_drop_is_not_known(history: History) -> None:
    definitions = (wrote(110, 0, db_info(9, "Old"), db_id=9), wrote(110, 90, info(90, "T", columns=2), db_id=9))
    assert history.take(step(110, job(63, 110, schema_id=9), *definitions)) == []
    assert shape(history)["Old.T"] == ((90,), 2)


def test_a_job_without_a_definition_anywhere_is_refused(history: History) -> None:
    with pytest.raises(DecodeError, match="no table definition"):
        history.take(step(110, job(5, 110, table_id=10)))


# ---- what the job does not speak of


@pytest.mark.parametrize("kind", [250, 30, 62])
def test_effects_of_newer_or_ignored_jobs_come_from_the_meta_range(history: History, kind: int) -> None:
    definitions = (wrote(110, 10, info(10, "Orders", columns=3)), wrote(110, 20, None), wrote(110, 30, info(30, "New")))
    assert history.take(step(110, job(kind, 110, table_id=10), *definitions)) == []
    assert shape(history) == {"Shop.Orders": ((10,), 3), "Shop.New": ((30,), 1)}


def test_another_table_that_a_job_changes_in_passing_is_taken_from_the_meta_range(history: History) -> None:
    changed_info = info(10, "Orders", columns=2)
    child = wrote(110, 20, info(20, "Parts", columns=2, partitions=(21, 22)))
    changed = job(5, 110, table_id=10, binlog={"TableInfo": changed_info})
    (event,) = history.take(step(110, changed, wrote(110, 10, changed_info), child))
    assert event.table == "Orders"
    assert shape(history) == {"Shop.Orders": ((10,), 2), "Shop.Parts": ((21, 22), 2)}


def test_definitions_without_a_job_are_adopted_at_their_commit(history: History) -> None:
    for ts, table_id, meta in ((110, 10, info(10, "Orders", columns=2)), (120, 20, None), (130, 30, info(30, "New"))):
        assert history.take(step(ts, wrote(ts, table_id, meta))) == []
    history.take(step(140, wrote(140, 0, db_info(3, "Third"), db_id=3), wrote(140, 50, info(50, "X"), db_id=3)))
    history.take(step(150, wrote(150, 0, None, db_id=2)))
    assert shape(history) == {"Shop.Orders": ((10,), 2), "Shop.New": ((30,), 1), "Third.X": ((50,), 1)}
    assert [len(history.table_at(10, ts).columns) for ts in (109, 110)] == [1, 2]  # type: ignore[union-attr]
    assert [db.name for db in history.databases(1000)] == ["Shop", "Third"]
    assert history.snapshot(1000).schema_version == 0


def test_a_definition_below_the_watermark_is_a_broken_promise(history: History) -> None:
    history.advance(150)
    with pytest.raises(UpstreamContractViolated):
        history.take(step(150, wrote(150, 10, info(10, "Orders", columns=2))))


def test_commits_before_the_start_are_ignored(history: History) -> None:
    assert history.take(step(START, wrote(START, 10, None))) == []
    assert shape(history) == ORDERS | PARTS


def test_tables_of_system_databases_are_left_out(history: History) -> None:
    definitions = (wrote(110, 0, db_info(50, "SYS"), db_id=50), wrote(110, 51, info(51, "t"), db_id=50))
    assert history.take(step(110, *definitions)) == []
    assert history.take(step(120, wrote(120, 52, info(52, "t"), db_id=1234))) == []
    assert shape(history) == ORDERS | PARTS


# ---- jobs under way


def test_nothing_that_a_running_job_wrote_shows_before_it_is_done(history: History) -> None:
    done = info(10, "Orders", columns=2)
    for ts, state in ((105, 1), (106, 2), (107, 3), (108, 5)):
        draft = {**done, "cols": [column(1), column(2, state)]}
        history.take(step(ts, job(61, ts, state=RUNNING, table_id=10), wrote(ts, 10, draft)))
    history.take(step(110, job(61, 110, table_id=10, binlog={"TableInfo": done})))
    history.advance(120)
    assert [len(history.table_at(10, ts).columns) for ts in (108, 109, 110)] == [1, 1, 2]  # type: ignore[union-attr]


def test_a_table_is_gone_for_reads_as_of_a_timestamp_once_its_definition_is_not_public(history: History) -> None:
    for ts, state in ((105, 2), (106, 1)):
        blocked = job(4, ts, state=RUNNING, table_id=10)
        assert history.take(step(ts, blocked, wrote(ts, 10, info(10, "Orders", state=state)))) == []
    (event,) = history.take(step(110, job(4, 110, table_id=10), wrote(110, 10, None)))
    assert (event.commit_ts, event.table) == (110, "Orders")
    history.advance(120)
    assert [history.named("shop", "orders", ts) is not None for ts in (104, 105, 109, 110)] == [True, True, True, False]
    assert [history.public().named("shop", "orders", ts) is not None for ts in (104, 105, 110)] == [True, False, False]


def test_what_a_rolled_back_job_took_away_is_read_again(history: History) -> None:
    blocked, back = info(10, "Orders", state=2), info(10, "Orders")
    history.take(step(105, job(4, 105, state=RUNNING, table_id=10), wrote(105, 10, blocked)))
    assert history.take(step(110, job(4, 110, state=ROLLED_BACK, table_id=10), wrote(110, 10, back))) == []
    history.advance(120)
    assert [history.public().named("shop", "orders", ts) is not None for ts in (104, 105, 109, 110)] == [
        True, False, False, True,
    ]  # fmt: skip
    assert not history.events(START, 120)


def test_rows_of_a_table_that_a_running_rename_makes_known_may_be_older_than_the_log(history: History) -> None:
    """A RENAME out of `mysql`: nothing else tells a reader that the table is not empty."""
    moved = wrote(105, 51, info(51, "Moved"))
    history.take(step(105, job(14, 105, state=RUNNING, table_id=51), moved))
    history.advance(105)
    assert history.public().find("shop", "moved", 105).physical_ids == (51,)
    assert history.named("shop", "moved", 105) is None
    assert not is_whole_in_log(history.public(), 51, START)


def test_two_jobs_at_once_do_not_mix(history: History) -> None:
    half = {**info(10, "Orders", columns=2), "cols": [column(1), column(2, 1)]}
    parts = info(20, "Parts", columns=2, partitions=(21, 22))
    history.take(step(105, job(5, 105, id=1, state=RUNNING, table_id=10), wrote(105, 10, half)))
    history.take(step(106, job(5, 106, id=2, table_id=20, binlog={"TableInfo": parts}), wrote(106, 20, parts)))
    assert shape(history.copy()) == ORDERS | {"Shop.Parts": ((21, 22), 2)}
    done = info(10, "Orders", columns=2)
    history.take(step(110, job(5, 110, id=1, table_id=10, binlog={"TableInfo": done}), wrote(110, 10, done)))
    assert shape(history) == {"Shop.Orders": ((10,), 2), "Shop.Parts": ((21, 22), 2)}


def test_a_copy_has_drafts_of_its_own(history: History) -> None:
    """The registry changes a copy and throws it away when something fails."""
    done = info(10, "Orders", columns=2)
    last = step(110, job(5, 110, table_id=10))
    history.take(step(105, job(5, 105, state=RUNNING, table_id=10), wrote(105, 10, done)))
    for _ in range(2):
        copied = history.copy()
        copied.take(last)
        assert shape(copied) == PARTS | {"Shop.Orders": ((10,), 2)}


def test_a_definition_that_is_not_public_is_not_a_table(history: History) -> None:
    history.take(step(110, wrote(110, 30, info(30, "New", state=2)), wrote(110, 10, info(10, "Orders", state=1))))
    assert shape(history) == ORDERS | PARTS


@pytest.mark.parametrize("state", [ROLLED_BACK, CANCELLED])
def test_an_unfinished_job_leaves_the_definitions_of_the_meta_range(history: History, state: int) -> None:
    half = {**info(10, "Orders"), "cols": [column(1), column(2, 1)]}
    history.take(step(105, job(5, 105, state=RUNNING, table_id=10), wrote(105, 10, half)))
    assert history.take(step(110, job(5, 110, state=state, table_id=10), wrote(110, 10, info(10, "Orders")))) == []
    assert shape(history) == ORDERS | PARTS
    assert not history.changes_since(START)
    assert history.copy()._drafts == {}


# ---- disagreement


@pytest.mark.parametrize(
    ("said", "written", "differs"),
    [
        (info(10, "Orders", columns=2), info(10, "Orders"), ["columns"]),
        (info(10, "Orders"), info(10, "Others"), ["name"]),
        (info(10, "Orders"), info(10, "Orders", pk_is_handle=False), ["handle"]),
        (info(10, "Orders"), info(10, "Orders", partitions=(11, 12)), ["partitions"]),
        (info(10, "Orders"), info(10, "Orders", view={"view_select": "x"}), ["kind"]),
        (info(10, "Orders"), None, ["existence"]),
    ],
)
def test_where_a_job_and_the_meta_range_disagree_the_job_counts_and_it_is_said(
    history: History, said: dict[str, Any], written: dict[str, Any] | None, differs: list[str]
) -> None:
    alone = history.copy()
    one = job(5, 110, table_id=10, binlog={"TableInfo": said})
    assert history.take(step(110, one, wrote(110, 10, written))) == alone.apply(one)
    assert shape(history) == shape(alone)
    (fault,) = history.disagreements
    assert (fault.table_id, fault.job_id, fault.commit_ts, fault.database) == (10, 7, 110, "Shop")
    assert list(fault.differs) == differs


def test_a_drop_that_the_meta_range_does_not_know_is_said(history: History) -> None:
    history.take(step(110, job(4, 110, table_id=10, binlog={"TableInfo": info(10, "Orders", state=0)})))
    assert shape(history) == PARTS
    (fault,) = history.disagreements
    assert (fault.table, fault.differs) == ("Orders", ("existence",))


@pytest.mark.parametrize("written", [None, db_info(3, "Other")])
def test_a_disagreement_about_a_database_is_said(history: History, written: dict[str, Any] | None) -> None:
    said = job(1, 110, schema_id=3, binlog={"DBInfo": db_info(3, "New")})
    history.take(step(110, said, wrote(110, 0, written, db_id=3)))
    history.advance(110)
    assert [db.name for db in history.databases(110)] == ["New", "Shop", "Store"]
    (fault,) = history.disagreements
    assert (fault.database, fault.table, fault.job_id) == ("New", "", 7)


def test_a_dropped_database_takes_its_tables_along(history: History) -> None:
    dropped = job(2, 110, binlog={"DBInfo": db_info(1, "Shop", state=0)})
    unsure = history.copy()
    unsure.take(step(110, dropped))
    assert [each.database for each in unsure.disagreements] == ["Shop"]
    (event,) = history.take(step(110, dropped, wrote(110, 0, None), wrote(110, 10, None)))
    assert event.db == "Shop"
    assert shape(history) == shape(unsure) == {}
    assert history.disagreements == ()


def test_comments_and_times_do_not_matter(history: History) -> None:
    said = info(10, "Orders", columns=2, comment="a", update_timestamp=5)
    written = info(10, "Orders", columns=2, comment="b", update_timestamp=6)
    written["cols"].append(column(3, 2))
    history.take(step(110, job(5, 110, table_id=10, binlog={"TableInfo": said}), wrote(110, 10, written)))
    assert shape(history) == PARTS | {"Shop.Orders": ((10,), 2)}


# ---- jobs in the upstream's own history


def test_a_table_that_was_created_without_a_job_row(history: History) -> None:
    created = job(3, 110, state=SYNCED, table_id=30, binlog={"TableInfo": info(30, "New")})
    (event,) = history.take(step(110, created, wrote(110, 30, info(30, "New"))))
    assert (event.kind, event.table, event.commit_ts) == ("create table", "New", 110)
    assert "Shop.New" in shape(history)


@pytest.mark.parametrize("earlier", [True, False])
def test_a_table_that_was_there_before_the_history_says_so_is_refused(history: History, earlier: bool) -> None:
    """Its rows may lie before that: the row of the job that says when it began is missing."""
    new_info = info(30, "New")
    if earlier:
        history.take(step(108, job(3, 108, state=RUNNING, table_id=30), wrote(108, 30, new_info)))
    with pytest.raises(DecodeError, match="done row is missing"):
        history.take(step(112, job(3, 112, state=SYNCED, table_id=30, binlog={"TableInfo": new_info})))


def test_a_job_that_finished_unseen_is_refused(history: History) -> None:
    new_info = info(10, "Orders", columns=2)
    history.take(step(108, job(5, 108, state=RUNNING, table_id=10), wrote(108, 10, new_info)))
    with pytest.raises(DecodeError, match="done row is missing") as caught:
        history.take(step(112, job(5, 112, state=SYNCED, table_id=10, binlog={"TableInfo": new_info})))
    assert (caught.value.facts["job_id"], caught.value.facts["table_id"]) == (7, 10)


def test_a_job_that_finished_before_the_start_may_end_after_it(history: History) -> None:
    old = job(5, 112, state=SYNCED, table_id=10, start_ts=START - 5, binlog={"TableInfo": info(10, "Orders")})
    assert history.take(step(112, old)) == []
    assert shape(history) == ORDERS | PARTS
