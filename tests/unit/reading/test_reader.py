"""Pages of a log of several tasks against the rows themselves; the cache; faults."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from reading.log import reader
from reading.log.reader import LogReader
from tests.kit.api_world import ApiWorld, api_world
from tests.kit.log_builder import TENANT, recording_end
from tests.kit.made_rows import with_columns
from tests.kit.open_folder import OpenFolder
from tests.kit.recording import changed_rows, recorded_history
from tistream.catalog.log.committed import find_segments
from tistream.catalog.rows.segments import SegmentRow
from tistream.catalog.work.tasks import list_tasks
from tistream.errors import CorruptObject, StoreUnavailable
from tistream.model import change

END = recording_end()
START = recorded_history().start_ts


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiWorld]:
    """A log whose tasks were flushed at different timestamps."""
    with api_world(tmp_path_factory.mktemp("log")) as new_world:
        new_world.log.activate()
        ids = [task.task_id for task in list_tasks(new_world.catalog, TENANT)]
        for n, ts in enumerate(new_world.log.cuts(30)):
            new_world.log.flush(ts, task_ids={ids[n % len(ids)], ids[(n + 1) % len(ids)]})
        new_world.log.flush(END)
        yield new_world


def data_rows() -> pa.Table:
    """What the data tasks hold, in commit order: everything that is not a DDL job."""
    rows = changed_rows()
    ddl_job_table = recorded_history().job_table.id
    return rows.filter(pc.not_equal(rows["table_id"], pa.scalar(ddl_job_table, pa.int64())))


def canonical(rows: pa.Table) -> pa.Table:
    return rows.sort_by([("commit_ts", "ascending"), ("key", "ascending")]).combine_chunks()


def walk(
    log: LogReader, rows: int, after: int = START, upto: int = END, table_ids: set[int] | None = None
) -> list[pa.Table]:
    pages, more_to_come = [], True
    while more_to_come:
        page = log.page(TENANT, after=after, upto=upto, rows=rows, table_ids=table_ids)
        ts = page.rows["commit_ts"].to_pylist()
        assert ts == sorted(ts)
        assert all(after < t <= page.upto for t in ts)
        assert page.has_more is (page.upto < upto)
        pages.append(page.rows)
        after, more_to_come = page.upto, page.has_more
    return pages


@pytest.mark.parametrize("rows", [1000, 7777, 1_000_000])
def test_pages_hold_every_row_once(world: ApiWorld, rows: int) -> None:
    pages = walk(LogReader(world.catalog, world.store), rows)
    assert canonical(pa.concat_tables(pages)).equals(canonical(data_rows()))
    for page in pages:
        last = pc.equal(page["commit_ts"], page["commit_ts"][-1]) if page.num_rows else pa.array([], pa.bool_())
        assert page.num_rows - pc.sum(last).as_py() < rows if page.num_rows else True


def test_short_listings_change_nothing(world: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_SEGMENTS_PER_QUERY", 3)
    pages = walk(LogReader(world.catalog, world.store), 5000)
    assert canonical(pa.concat_tables(pages)).equals(canonical(data_rows()))


def test_pages_are_bounded_by_bytes_too(world: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_PAGE_BYTES_MAX", 50_000)
    monkeypatch.setattr(reader, "_PAGE_STORED_BYTES_MAX", 30_000)
    pages = walk(LogReader(world.catalog, world.store), 1_000_000)
    assert len(pages) > 20
    assert canonical(pa.concat_tables(pages)).equals(canonical(data_rows()))


def test_a_page_of_some_tables(world: ApiWorld) -> None:
    rows = data_rows()
    chosen_ids = set(pc.unique(rows["table_id"]).to_pylist()[3:6])
    pages = walk(LogReader(world.catalog, world.store), 500, table_ids=chosen_ids)
    want = rows.filter(pc.is_in(rows["table_id"], value_set=pa.array(sorted(chosen_ids), pa.int64())))
    assert want.num_rows
    assert canonical(pa.concat_tables(pages)).equals(canonical(want))
    assert all(p.num_rows for p in pages[:-1]), "rows of other tables are skipped"


def test_no_table_is_an_empty_page_up_to_the_end(world: ApiWorld) -> None:
    page = LogReader(world.catalog, world.store).page(TENANT, after=START, upto=END, rows=10, table_ids=set())
    assert (page.rows.num_rows, page.upto, page.has_more) == (0, END, False)
    assert page.rows.schema == change.COMMITTED


def test_rows_that_are_kept_for_reads_as_of_only_are_no_changes(tmp_path_factory: pytest.TempPathFactory) -> None:
    rows = data_rows().slice(0, 100)
    flags = pa.array([change.FLAG_NOT_A_CHANGE if n % 3 == 0 else 0 for n in range(100)], pa.uint8())
    marked = with_columns(rows, flags=flags)
    with api_world(tmp_path_factory.mktemp("log"), rows=marked) as api:
        api.log.build(3)
        pages = walk(api.services.reader, 10)
        assert canonical(pa.concat_tables(pages)).equals(canonical(marked.filter(pc.equal(flags, 0))))


def test_a_segment_is_fetched_once_while_the_cache_has_room(world: ApiWorld) -> None:
    assert isinstance(world.store, OpenFolder)
    log = LogReader(world.catalog, world.store)
    world.store.gets.clear()
    walk(log, 1000)
    segments = find_segments(world.catalog, TENANT, after_ts=START, upto_ts=END, limit=10_000)
    assert sum(world.store.gets.values()) == len(segments)
    walk(log, 100_000)
    assert sum(world.store.gets.values()) == len(segments)
    small = LogReader(world.catalog, world.store, cache_bytes=1)
    world.store.gets.clear()
    walk(small, 1000)
    assert sum(world.store.gets.values()) > len(segments)
    assert len(small._cache) == 1
    none = LogReader(world.catalog, world.store, cache_bytes=0)
    walk(none, 1000)
    assert not none._cache


def test_a_fault_names_object_and_segment(tmp_path_factory: pytest.TempPathFactory) -> None:
    with api_world(tmp_path_factory.mktemp("log")) as api:
        assert isinstance(api.store, OpenFolder)
        api.log.build(2)
        first: SegmentRow = find_segments(api.catalog, TENANT, after_ts=START, upto_ts=END, limit=1)[0]
        data = api.store.objects[first.object_key]
        api.store.objects[first.object_key] = data[: first.offset] + b"\0" + data[first.offset + 1 :]
        with pytest.raises(CorruptObject) as e:
            walk(LogReader(api.catalog, api.store), 1)
        assert (e.value.facts["object"], e.value.facts["segment"]) == (first.object_key, first.number)
        assert e.value.facts["offset"] == first.offset
        api.store.away = True
        with pytest.raises(StoreUnavailable):
            walk(LogReader(api.catalog, api.store), 1)
