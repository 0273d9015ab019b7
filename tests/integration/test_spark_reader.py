"""The readers of the Spark source without Spark: plans, offsets, and what a task does at the edges of the log."""

from __future__ import annotations

import pickle
import threading
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql.datasource import EqualTo, GreaterThan, LessThanOrEqual
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType
from sqlalchemy import delete

from schemas.actions import Action
from tests.kit.api_world import ApiWorld, api_world, arrow_of
from tests.kit.large_transaction import bound, built, the_transaction
from tests.kit.log_builder import recording_end, with_broken_value
from tests.kit.quarantined_log import quarantine_for
from tests.kit.recording import committed_rows, recorded_history
from tistream import ts as tso
from tistream.catalog.database import tables
from tistream.client import Client
from tistream.errors import (
    DecodeError,
    InvalidInput,
    NotConvertible,
    NotFound,
    StoreUnavailable,
    TableRenamed,
    TsExpired,
    TsOutOfRange,
)
from tistream.spark import TiStreamDataSource, access, source

FLUSHES = 25

END = recording_end()
ALL = ReadAllAvailable()
ACCT: dict[str, Any] = {"database": "shop", "table": "acct"}


class Lent(httpx2.BaseTransport):
    """A world's transport for one of many clients: closing it would end what the others have asked."""

    def __init__(self, world: ApiWorld) -> None:
        self.handle_request = world.http._transport.handle_request  # type: ignore[method-assign]


@pytest.fixture
def over(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Lead the source to a world instead of a network."""

    def lead(world: ApiWorld) -> None:
        monkeypatch.setattr(
            access, "connect", lambda url, **_: Client("http://testserver", transport=Lent(world), retry_s=0)
        )

    return lead


class Frame:
    """What Spark makes of `load()`: each process gets a copy of the source as it was when the schema was known."""

    def __init__(self, *, typed: bool = False, **options: object) -> None:
        """`typed`: with `.schema(...)`, so that Spark does not ask for one."""
        given = {"cluster": "1", "tenant": "1", **{k: str(v) for k, v in options.items()}}
        source = TiStreamDataSource(given)
        self.schema: StructType = (TiStreamDataSource(given) if typed else source).schema()
        self._pickled = pickle.dumps(source)

    def reader(self, *filters: object) -> Any:
        opened = pickle.loads(self._pickled).reader(self.schema)
        self.left = list(opened.pushFilters(list(filters))) if filters else []
        return opened

    def stream(self) -> Any:
        return pickle.loads(self._pickled).streamReader(self.schema)

    def rows(self, *filters: object) -> pa.Table:
        reader = self.reader(*filters)
        return table(reader, reader.partitions())


def table(reader: Any, parts: list[Any]) -> pa.Table:
    copies = pickle.loads(pickle.dumps((reader, list(parts))))  # as executors get them
    batches = [batch for part in copies[1] for batch in copies[0].read(part)]
    return pa.Table.from_batches(batches) if batches else pa.table({})


def changes(rows: pa.Table) -> list[tuple[Any, ...]]:
    if not rows.num_rows:
        return []
    names = ("_commit_ts", "_key") if "_key" in rows.schema.names else ("commit_ts", "key")
    return sorted(tuple(row[n] for n in names) for row in rows.select(list(names)).to_pylist())


def pulled(world: ApiWorld, path: str, **params: Any) -> list[tuple[Any, ...]]:
    pages = world.pages(path + "/changes", limit=200_000, **params)
    return sorted(row for page in pages for row in changes(arrow_of(page)))


def walk(stream: Any, limit: Any, offset: Any = None) -> list[tuple[Any, Any]]:
    """(start, end) of all micro-batches until there is nothing new."""
    offsets, at = [], stream.initialOffset() if offset is None else offset
    while (end := stream.latestOffset(at, limit)) != at:
        offsets.append((at, end))
        at = end
    return offsets


def test_parts_are_the_pull(world: ApiWorld, over: Any) -> None:
    over(world)
    truth = pulled(world, "/databases/shop/tables/acct", format="arrow")
    frame = Frame(**ACCT, numPartitions=6)
    assert len(frame.reader().partitions()) == 6
    assert changes(frame.rows()) == truth
    small = Frame(**ACCT, partitionBytes=8000, rowsPerPage=5)
    assert 20 < len(small.reader().partitions()) < len(truth) / 10, "each of them has several pages"
    assert changes(small.rows()) == truth
    assert changes(Frame(**ACCT, decode="false").rows()) == truth
    middle = truth[len(truth) // 2][0]
    both = changes(Frame(**ACCT, endTs=middle).rows()) + changes(Frame(**ACCT, startTs=middle).rows())
    assert both == truth


def test_a_frame_ends_where_the_log_ended_when_it_was_made(over: Any, fresh: ApiWorld) -> None:
    over(fresh)
    fresh.log.build(4, fresh.log.cuts(4)[1])
    frame = Frame()
    before = changes(frame.rows())
    fresh.log.flush(END)
    assert changes(frame.rows()) == before
    assert len(before) < len(changes(Frame().rows()))


@pytest.mark.parametrize("given", [{}, {"endTs": "latest"}, {"endTs": "-15s"}, {"startTs": "-20s"}])
@pytest.mark.parametrize("typed", [False, True])
def test_a_frames_rows_are_decided_when_it_is_made(
    over: Any, fresh: ApiWorld, given: dict[str, str], typed: bool
) -> None:
    over(fresh)
    fresh.log.build(4, fresh.log.cuts(4)[1])
    frame = Frame(**given, typed=typed)
    options: dict[str, Any] = {"endTs": "latest", **given}
    stream = Frame(**options).stream()
    interval = {"start_ts": given.get("startTs", "earliest"), "end_ts": given.get("endTs", "latest")}
    rows_then = pulled(fresh, "", format="raw-arrow", **interval)
    assert rows_then
    assert changes(frame.rows()) == rows_then
    fresh.clock.advance(5)
    fresh.log.flush(END)
    assert changes(frame.rows()) == rows_then
    batches = walk(stream, ALL)
    assert sorted(r for b in batches for r in changes(table(stream, stream.partitions(*b)))) == rows_then


def test_a_stream_may_end_in_the_future_and_a_batch_may_not(world: ApiWorld, over: Any) -> None:
    over(world)
    frame = Frame(**ACCT, endTs="2099-01-01")
    stream = frame.stream()
    stream.prepareForTriggerAvailableNow()
    parts = [changes(table(stream, stream.partitions(*batch))) for batch in walk(stream, ALL)]
    assert [row for part in parts for row in part] == pulled(world, "/databases/shop/tables/acct", format="arrow")
    with pytest.raises(TsOutOfRange, match="2099-01-01 is in the future"):
        frame.reader()


def test_filters_bound_what_is_pulled(world: ApiWorld, over: Any) -> None:
    over(world)
    truth = pulled(world, "/databases/shop/tables/acct", format="raw-arrow")
    low, high = truth[100][0], truth[300][0]
    frame = Frame(pushFilters="true")
    ours = [EqualTo(("database",), "shop"), EqualTo(("table",), "ACCT")]
    rows = frame.rows(*ours, GreaterThan(("commit_ts",), low), LessThanOrEqual(("commit_ts",), high))
    assert changes(rows) == [row for row in truth if low < row[0] <= high]
    assert frame.left == ours, "Spark compares names by itself, with case"
    assert frame.rows(EqualTo(("database",), "nowhere")).num_rows == 0
    assert frame.rows(GreaterThan(("commit_ts",), END)).num_rows == 0
    inside = Frame(**ACCT, pushFilters="true")
    assert changes(inside.rows(EqualTo(("_commit_ts",), low))) == [row for row in truth if row[0] == low]
    with pytest.raises(NotFound):
        Frame(database="nowhere").rows()


def test_a_stream_is_the_pull_in_bounded_batches_that_can_be_repeated(world: ApiWorld, over: Any) -> None:
    over(world)
    truth = pulled(world, "/databases/shop/tables/acct", format="arrow")
    frame = Frame(**ACCT, maxRowsPerTrigger=150, numPartitions=2)
    batches = walk(frame.stream(), frame.stream().getDefaultReadLimit())
    first, *rest = batches
    assert first[0]["begins"]
    assert frame.stream().partitions(*first) == [], "the first batch says where the query begins"
    assert len(rest) > 5
    parts = [changes(table(frame.stream(), frame.stream().partitions(*batch))) for batch in rest]
    assert [row for part in parts for row in part] == truth
    assert max(len(part) for part in parts) <= 150 + 60, "index entries count, the last commit is whole"
    again = Frame(**ACCT, numPartitions=7).stream()
    assert [changes(table(again, again.partitions(*batch))) for batch in rest] == parts
    assert len(walk(frame.stream(), ALL)) == 2, "without a bound all is one batch"


@pytest.mark.parametrize(
    ("given", "path", "format"),
    [({}, "", "raw-arrow"), ({"database": "shop", "table": "k_dup"}, "/databases/shop/tables/k_dup", "arrow")],
)
def test_a_transaction_larger_than_a_page_is_read_whole(
    over: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], path: str, format: str
) -> None:
    with built(tmp_path, the_transaction(b"x" * 20, 48)) as large:
        over(large)
        truth = pulled(large, path, format=format, start_ts="earliest")
        bound(monkeypatch, commit=1000, body=600)
        assert len(list(large.pages(path + "/changes", limit=1000, format=format, start_ts="earliest"))) > 4
        assert changes(Frame(**given, startTs="earliest", rowsPerPage=3, partitionBytes=1).rows()) == truth
        frame = Frame(**given, startTs="earliest", maxRowsPerTrigger=5, numPartitions=2)
        batches = walk(frame.stream(), frame.stream().getDefaultReadLimit())
        parts = [changes(table(frame.stream(), frame.stream().partitions(*batch))) for batch in batches]
        assert [row for part in parts for row in part] == truth


def test_a_query_that_began_at_latest_goes_on_from_there(over: Any, fresh: ApiWorld) -> None:
    """Killed before its first batch is committed, it begins later, and ends where it began: nothing is lost."""
    over(fresh)
    fresh.log.build(4, fresh.log.cuts(4)[1])
    frame = Frame(startTs="latest")
    stream = frame.stream()
    begun = stream.initialOffset()
    recorded = stream.latestOffset(begun, ALL)
    fresh.log.flush(END)
    assert frame.stream().initialOffset() == begun, "the frame's own `latest`, however often Spark asks"
    later = Frame(startTs="latest").stream()  # the driver started again
    begins_later = later.initialOffset()
    assert int(begins_later["commit_ts"]) > int(recorded["commit_ts"])
    assert later.partitions(begins_later, recorded) == []
    ((start, end),) = walk(later, ALL, recorded)
    rows = changes(table(later, later.partitions(start, end)))
    assert rows == pulled(fresh, "", format="raw-arrow", start_ts=begun["commit_ts"])
    assert rows


def test_nothing_new_is_no_batch_until_a_minute_has_passed(over: Any, tmp_path: Path) -> None:
    rows = committed_rows()
    quiet = rows.filter(pc.less(rows["commit_ts"], pa.scalar(END - (1 << 18) * 1000, pa.uint64())))
    with api_world(tmp_path, rows=quiet) as api:
        over(api)
        api.log.build(3)
        stream = Frame().stream()
        at = walk(stream, ALL)[-1][1]
        second = tso.compose(1000) - tso.compose(0)
        api.log.flush(END + 20 * second)
        assert stream.latestOffset(at, ALL) == at
        api.log.flush(END + 100 * second)
        moved = stream.latestOffset(at, ALL)
        assert int(moved["commit_ts"]) > int(at["commit_ts"])
        assert table(stream, stream.partitions(at, moved)).num_rows == 0


def test_available_now_ends_at_what_was_served_when_it_began(over: Any, fresh: ApiWorld) -> None:
    over(fresh)
    cut = fresh.log.cuts(4)[1]
    fresh.log.build(4, cut)
    stream = Frame(maxRowsPerTrigger=700).stream()
    stream.prepareForTriggerAvailableNow()
    fresh.log.flush(END)
    batches = walk(stream, ReadMaxRows(700))
    assert int(batches[-1][1]["commit_ts"]) <= cut
    rows = [row for batch in batches for row in changes(table(stream, stream.partitions(*batch)))]
    assert sorted(rows) == pulled(fresh, "", format="raw-arrow", end_ts=cut)


def test_a_server_that_is_behind_is_waited_for(world: ApiWorld, over: Any, tmp_path: Path) -> None:
    """Offsets come from one server, tasks may ask another: the end was final when it was served."""
    over(world)
    batches = walk(Frame(**ACCT).stream(), ALL)
    truth = pulled(world, "/databases/shop/tables/acct", format="arrow")
    with api_world(tmp_path) as behind:
        over(behind)
        behind.log.build(4, truth[len(truth) // 2][0])
        stream = Frame(**ACCT).stream()
        parts = stream.partitions(*batches[-1])
        assert parts[-1].end_ts == END
        threading.Timer(1, lambda: behind.log.flush(END)).start()
        assert changes(table(stream, parts)) == truth


def test_a_dropped_table_ends_no_stream(world: ApiWorld, over: Any) -> None:
    over(world)
    dropped: dict[str, Any] = {"database": "temp_db", "table": "t2"}
    history = recorded_history()
    events = history.events(history.start_ts, END)
    before = next(e.commit_ts for e in events if e.type == Action.DROP_SCHEMA and e.db == "temp_db") - 1
    frame = Frame(**dropped, schemaTs=before)
    batches = walk(frame.stream(), ReadMaxRows(1))
    rows = [row for batch in batches for row in changes(table(frame.stream(), frame.stream().partitions(*batch)))]
    assert int(batches[-1][1]["commit_ts"]) >= before
    assert rows == pulled(world, "/databases/temp_db/tables/t2", format="arrow")
    assert rows


def test_a_column_that_comes_ends_the_query_and_a_new_one_goes_on(world: ApiWorld, over: Any) -> None:
    over(world)
    history = recorded_history()
    added = next(e for e in history.events(history.start_ts, END) if e.table == "evolve" and e.kind == "add column")
    frame = Frame(database="shop", table="evolve", schemaTs=added.commit_ts - 1)
    stream = frame.stream()
    batches = walk(stream, ALL)
    with pytest.raises(InvalidInput, match="start the query again"):
        table(stream, stream.partitions(*batches[-1]))
    assert {f.name for f in frame.schema} < {f.name for f in Frame(database="shop", table="evolve").schema} | {"c"}


REWRITTEN = {  # by a MODIFY COLUMN while the recording was made
    "shop.evolve": ["a", "b", "cc", "e"], "shop.rnd_0_19": ["c8"],
    "shop.rnd_2_20": ["x y7", "ß15"], "shop_arch.rnd_1": ["c4", "Col_7", "ß5"], "shop_arch.rnd_3": ["ß9", "c10"],
}  # fmt: skip


def test_older_rows_of_rewritten_columns_are_those_as_of_the_end(world: ApiWorld, over: Any) -> None:
    """The newest change of each key has what a read AS OF gives of it, or the frame is refused. (A column that came
    after the row is null in a frame, and has its default AS OF.)"""
    over(world)
    own = [StructField("_KEY", BinaryType()), StructField("_Op", StringType()), StructField("_commit_ts", LongType())]
    own.append(StructField("_table_id", LongType()))
    history, shown = recorded_history(), []
    for database, table in (name.split(".") for name in REWRITTEN):
        frame = Frame(database=database, table=table, typed=True)
        types = {field.name: field.dataType for field in frame.schema}
        for name in REWRITTEN[f"{database}.{table}"]:
            spelled = name.upper() if name.isascii() else name
            frame.schema = StructType([*own, StructField(spelled, types[name])])
            try:
                rows = frame.rows().to_pylist()
            except NotConvertible:
                continue
            ids = history.find(database, table, END).physical_ids
            last = {r["_KEY"]: r for r in sorted(rows, key=lambda r: r["_commit_ts"]) if r["_table_id"] in ids}
            ours = Counter(
                str(row[spelled]) for row in last.values() if row["_Op"] != "delete" and row[spelled] is not None
            )
            path = f"/databases/{database}/tables/{quote(table)}/rows"
            theirs = arrow_of(world.ok(path, as_of=END, columns=f"`{name}`", format="arrow"))[name].to_pylist()
            assert not ours - Counter(map(str, theirs)), (database, table, name)
            shown.append(name)
    assert len(shown) > 5, shown


def test_a_users_schema_names_columns_that_exist(world: ApiWorld, over: Any) -> None:
    over(world)
    frame = Frame(**ACCT, typed=True)
    for typo in ("idd", "_commit"):
        frame.schema = StructType([StructField(typo, LongType())])
        with pytest.raises(InvalidInput, match=f"no column '{typo}'"):
            frame.reader()
    frame.schema = StructType([StructField("ID", LongType()), StructField("_COMMIT_TS", LongType())])
    rows = frame.rows()
    assert rows.num_rows == len(pulled(world, "/databases/shop/tables/acct", format="arrow"))
    assert rows["ID"].null_count == rows["_COMMIT_TS"].null_count == 0


def test_a_renamed_table_has_the_same_rows_in_any_number_of_parts(world: ApiWorld, over: Any) -> None:
    over(world)
    history = recorded_history()
    renames = [e for e in history.events(history.start_ts, END) if e.type == Action.RENAME_TABLE]
    renamed = []
    for event in renames:
        if len(history.physical_ids(event.old_db, event.old_table, history.start_ts, END)) > 1:
            continue  # other tables had the name, with other columns
        old: dict[str, Any] = {"database": event.old_db, "table": event.old_table, "schemaTs": event.commit_ts - 1}
        one, many = Frame(**old, numPartitions=1, rowsPerPage=9), Frame(**old, numPartitions=40)
        rows = changes(one.rows())
        assert changes(many.rows()) == rows
        stream = one.stream()
        begun = stream.latestOffset(stream.initialOffset(), ALL)
        end = stream.latestOffset(begun, ALL)
        assert changes(table(stream, stream.partitions(begun, end))) == rows
        if event.version is not None and history.table_at(event.version.id, END) is not None:
            renamed.append(event.table)
            with pytest.raises(TableRenamed, match=event.old_table):
                stream.latestOffset(end, ALL)
    assert renamed


def test_a_filter_hides_no_error_but_its_own(over: Any, fresh: ApiWorld) -> None:
    over(fresh)
    fresh.log.build(5)
    frame = Frame(**ACCT, pushFilters=True)
    assert frame.rows(GreaterThan(("_commit_ts",), 5)).num_rows > 0
    with fresh.log.catalog.transaction() as connection:
        connection.execute(delete(tables.tenants))
    with pytest.raises(NotFound):
        frame.rows(GreaterThan(("_commit_ts",), 5))


@pytest.mark.parametrize("given", [{}, {"endTs": END}, {"pushFilters": True}])
def test_a_batch_read_is_whole_or_an_error(
    world: ApiWorld, over: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    """The server that plans is behind the one at which the frame was made, or a store is quarantined later."""
    over(world)
    truth = pulled(world, "/databases/shop/tables/acct", format="arrow")
    frame = Frame(**ACCT, **given)
    filters = [GreaterThan(("_commit_ts",), 5)] if given.get("pushFilters") else []
    with api_world(tmp_path) as behind:
        over(behind)
        behind.log.build(4, truth[len(truth) // 2][0])
        monkeypatch.setattr(source, "_BEHIND_S_MAX", 0.1)
        with pytest.raises(StoreUnavailable, match="does not serve the end"):
            frame.rows(*filters)
        monkeypatch.undo()
        over(behind)
        threading.Timer(1, lambda: behind.log.flush(END)).start()
        assert changes(frame.rows(*filters)) == truth


def test_a_quarantine_between_two_actions_is_an_error(
    over: Any, fresh: ApiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    over(fresh)
    fresh.log.build(FLUSHES)
    frame = Frame(**ACCT, endTs=END)
    truth = changes(frame.rows())
    rows = committed_rows()
    late = rows.filter(pc.equal(rows["commit_ts"], pa.scalar(truth[len(truth) // 2][0], pa.uint64())))
    quarantine_for(fresh.log, late)
    monkeypatch.setattr(source, "_BEHIND_S_MAX", 0.1)
    with pytest.raises(StoreUnavailable, match="quarantined since"):
        frame.rows()


@pytest.mark.parametrize("given", ["startTs", "a date", "schemaTs"])
def test_a_stream_goes_on_when_retention_has_passed_its_start(over: Any, fresh: ApiWorld, given: str) -> None:
    over(fresh)
    fresh.log.build(6)
    start = fresh.log.start_ts
    date = tso.to_text(start + (1 << 20))
    all_options: dict[str, dict[str, Any]] = {
        "startTs": {"startTs": start}, "a date": {"startTs": date}, "schemaTs": {"schemaTs": start},
    }  # fmt: skip
    options = all_options[given]
    checkpoint = walk(Frame(**ACCT, **options).stream(), ALL)[-1][1]
    with fresh.log.catalog.transaction() as connection:
        connection.execute(tables.tenants.update().values(floor_ts=start + (1 << 30)))
    again = Frame(**ACCT, **options)
    assert again.stream().latestOffset(checkpoint, ALL) == checkpoint
    if given != "schemaTs":
        for read in (again.rows, again.stream().initialOffset):
            with pytest.raises(TsExpired, match="begins at"):
                read()


def test_rows_that_cannot_be_decoded_end_the_query_unless_told(over: Any, tmp_path: Path) -> None:
    rows = committed_rows()
    of_acct = pc.equal(rows["table_id"], pa.scalar(264, pa.int64())).to_numpy().nonzero()[0]
    values = rows["value"].combine_chunks()
    at = next(int(n) for n in of_acct if values[int(n)].is_valid and b"_r" in rows["key"][int(n)].as_py())
    with api_world(tmp_path, rows=with_broken_value(rows, at)) as api:
        over(api)
        api.log.build(4)
        with pytest.raises(DecodeError, match=r"onUndecodable=skip.*acct"):
            Frame(**ACCT).rows()
        truth = pulled(api, "/databases/shop/tables/acct", format="arrow")
        assert changes(Frame(**ACCT, onUndecodable="skip").rows()) == truth
