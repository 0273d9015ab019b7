"""Compaction: pieces, the commit of a job, read leases, and what may be collected."""

from __future__ import annotations

import threading

import pytest

from tests.kit.catalog_cases import OTHER, START, T, activate, advance, flush, output, segment, shift, together
from tistream.catalog.database import tables
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.builds import begin_build
from tistream.catalog.log.committed import TaskAdvance, find_segments
from tistream.catalog.log.compaction import commit_compaction, lowest_durable_ts, pieces, segments_of
from tistream.catalog.log.files import file_bytes, list_files
from tistream.catalog.log.objects import ObjectState, object_states, superseded_objects, tombstone
from tistream.catalog.log.read_leases import drop_expired_leases, drop_lease, open_lease, renew_lease
from tistream.catalog.rows.compaction import Piece
from tistream.catalog.rows.segments import SegmentFormat, SegmentRow
from tistream.codec.compacted_file import Footer
from tistream.errors import Fenced, TiStreamError
from tistream.ts import TS_MAX

ROWS = 3  # of every segment of `catalog_cases.segment`
HOUR_MS = 3_600_000


class TestCompaction:
    @pytest.fixture(autouse=True)
    def filled(self, catalog: Catalog) -> tuple[int, int]:
        return fill(catalog)

    @pytest.fixture
    def low(self, filled: tuple[int, int]) -> int:
        return filled[0]

    @pytest.fixture
    def high(self, filled: tuple[int, int]) -> int:
        return filled[1]

    # pieces

    def test_pieces_are_what_one_task_has_in_one_object(self, catalog: Catalog, low: int, high: int) -> None:
        shown = [(p.object_key, p.task_id, p.segments, p.rows, p.stored_bytes) for p in everything(catalog)]
        assert shown == [
            ("committed/1", low, 2, 6, 200),
            ("committed/1", high, 1, 3, 100),
            ("committed/2", low, 1, 3, 100),
            ("committed/3", low, 1, 3, 100),
        ]
        first = everything(catalog)[0]
        assert (first.lo_ts, first.hi_ts) == (START + 1, START + 10)
        assert pieces(catalog, OTHER, upto_ts=TS_MAX, limit=9) == []

    def test_a_piece_is_old_enough_as_a_whole_or_not_at_all(self, catalog: Catalog) -> None:
        assert [p.object_key for p in pieces(catalog, T, upto_ts=START + 19, limit=9)] == ["committed/1"] * 2
        assert len(pieces(catalog, T, upto_ts=START + 20, limit=9)) == 3
        assert len(pieces(catalog, T, upto_ts=TS_MAX, limit=2)) == 2

    def test_segments_of_pieces_and_the_live_edge(self, catalog: Catalog, low: int) -> None:
        segments = segments_of(catalog, T, everything(catalog))
        assert [s.number for s in segments["committed/1", low]] == [0, 1]
        assert segments_of(catalog, T, [piece("committed/9", low)]) == {}
        assert lowest_durable_ts(catalog, T) == START + 10, "where the slower data task stands, whatever DDL does"
        assert lowest_durable_ts(catalog, OTHER) == 0

    def test_jobs_have_numbers_of_their_own(self, catalog: Catalog) -> None:
        numbers = together(4, lambda _: begin_build(catalog, T))
        assert sorted(numbers) == [1, 2, 3, 4]

    # files

    def test_files_are_objects_with_what_lives_of_them(self, catalog: Catalog, low: int) -> None:
        files = list_files(catalog, T, after_ts=0, upto_ts=TS_MAX, limit=9)
        assert [(f.object_key, f.segments, f.rows, f.lo_ts - START, f.hi_ts - START) for f in files] == [
            ("committed/1", 3, 9, 1, 10),
            ("committed/2", 1, 3, 11, 20),
            ("committed/3", 1, 3, 21, 30),
        ]
        assert commit_compaction(catalog, T, of_task(catalog, low), [output("compacted/a", low, 12)])
        files = list_files(catalog, T, after_ts=0, upto_ts=TS_MAX, limit=9)
        committed, compacted = sorted(files, key=lambda f: f.object_key)
        assert (committed.object_key, committed.segments, committed.rows) == ("committed/1", 1, 3)
        assert (committed.format, compacted.format) == (SegmentFormat.SEGMENT, SegmentFormat.PARQUET)
        assert (compacted.object_key, compacted.segments, compacted.rows) == ("compacted/a", 1, 12)
        assert compacted.stored_bytes > 0
        assert compacted.start_key <= compacted.end_key
        assert (compacted.table_lo, compacted.table_hi) <= (committed.table_lo, committed.table_hi)
        assert list_files(catalog, OTHER, after_ts=0, upto_ts=TS_MAX, limit=9) == []

    def test_files_are_chosen_by_time_and_table(self, catalog: Catalog) -> None:
        def keys(after: int, upto: int, *table_ids: int) -> list[str]:
            ids = table_ids or None
            files = list_files(catalog, T, after_ts=START + after, upto_ts=START + upto, table_ids=ids, limit=9)
            return [f.object_key for f in files]

        assert keys(10, 20) == ["committed/2"]
        assert keys(9, 11) == ["committed/1", "committed/2"]
        every = {s.object_key: (s.table_lo, s.table_hi) for s in listed(catalog)}
        assert keys(0, 99, every["committed/3"][0]) == ["committed/1", "committed/2", "committed/3"]
        assert keys(0, 99, 9_999_999) == []
        assert list_files(catalog, T, after_ts=0, upto_ts=TS_MAX, table_ids=[], limit=9) == []

    def test_a_file_is_there_until_it_is_dead(self, catalog: Catalog, low: int) -> None:
        assert file_bytes(catalog, T, "committed/2") == file_bytes(catalog, T, "committed/3") is not None
        assert file_bytes(catalog, OTHER, "committed/2") is None
        assert file_bytes(catalog, T, "committed/9") is None
        assert commit_compaction(catalog, T, of_task(catalog, low), [output("compacted/a", low, 12)])
        assert file_bytes(catalog, T, "committed/2") is not None, "replaced, and not collected yet"
        assert tombstone(catalog, T, "committed/2")
        assert file_bytes(catalog, T, "committed/2") is None

    # the commit

    def test_a_swap_shows_the_output_in_the_place_of_the_inputs(self, catalog: Catalog, low: int, high: int) -> None:
        inputs = of_task(catalog, low)
        assert commit_compaction(catalog, T, inputs, [output("compacted/a", low, 12)])
        (group, other) = listed(catalog)
        assert (group.object_key, group.task_id, group.rows) == ("compacted/a", low, 12)
        assert (group.format, other.format) == (SegmentFormat.PARQUET, SegmentFormat.SEGMENT)
        assert group.footer == Footer(offset=900, length=50, crc=7)
        assert (other.object_key, other.task_id) == ("committed/1", high)
        live, superseded = dict.fromkeys(["committed/1", "compacted/a"], "live"), ["committed/2", "committed/3"]
        assert states(catalog) == {**live, **dict.fromkeys(superseded, "superseded")}

    def test_an_object_goes_when_its_last_task_is_compacted(self, catalog: Catalog, low: int, high: int) -> None:
        assert commit_compaction(catalog, T, of_task(catalog, low), [output("compacted/a", low, 12)])
        assert commit_compaction(catalog, T, of_task(catalog, high), [output("compacted/b", high, 3)])
        assert states(catalog)["committed/1"] is ObjectState.SUPERSEDED
        assert commit_compaction(catalog, T, of_task(catalog, low), [output("compacted/c", low, 12)]), (
            "outputs are inputs again"
        )
        assert [s.object_key for s in listed(catalog)] == ["compacted/b", "compacted/c"]

    @pytest.mark.parametrize("missing", ["piece", "segment", "object"])
    def test_nothing_happens_when_an_input_is_not_what_it_was(self, catalog: Catalog, low: int, missing: str) -> None:
        inputs = of_task(catalog, low)
        if missing == "piece":
            assert commit_compaction(catalog, T, inputs[1:2], [output("compacted/a", low, 3)])
        else:
            with catalog.transaction() as conn:
                if missing == "segment":
                    conn.execute(tables.segments.delete().where(tables.segments.c.segment_no == 1))
                else:
                    of = tables.objects.c.object_key == "committed/3"
                    conn.execute(tables.objects.update().where(of).values(state="superseded"))
        before = listed(catalog), states(catalog)
        assert not commit_compaction(catalog, T, inputs, [output("compacted/b", low, 12)])
        assert (listed(catalog), states(catalog)) == before

    def test_an_output_whose_key_is_taken_is_refused(self, catalog: Catalog, low: int) -> None:
        inputs, before = of_task(catalog, low), listed(catalog)
        tombstone(catalog, T, "compacted/a")
        with pytest.raises(Fenced):
            commit_compaction(catalog, T, inputs, [output("compacted/a", low, 12)])
        assert listed(catalog) == before

    def test_a_swap_that_loses_rows_is_refused(self, catalog: Catalog, low: int) -> None:
        with pytest.raises(TiStreamError, match="number of rows"):
            commit_compaction(catalog, T, of_task(catalog, low), [output("compacted/a", low, 11)])

    def test_of_swaps_that_want_the_same_piece_one_wins(self, catalog: Catalog, low: int) -> None:
        inputs = of_task(catalog, low)
        done = together(4, lambda i: commit_compaction(catalog, T, inputs, [output(f"compacted/{i}", low, 12)]))
        assert sorted(done) == [False, False, False, True]
        assert len(listed(catalog)) == 2

    def test_whoever_lists_sees_every_row_once(self, catalog: Catalog, low: int) -> None:
        stop = threading.Event()
        seen: set[int] = set()

        def look() -> None:
            while not stop.is_set():
                seen.add(sum(s.rows for s in listed(catalog)))

        def work() -> None:
            for i in range(12):
                assert commit_compaction(catalog, T, of_task(catalog, low), [output(f"compacted/{i}", low, 12)])
            stop.set()

        together(2, lambda i: [look, work][i]())
        assert seen == {15}

    # read leases

    def test_a_lease_holds_what_is_replaced_after_it_was_opened(self, catalog: Catalog, low: int) -> None:
        open_lease(catalog, "reader", HOUR_MS)
        assert commit_compaction(catalog, T, of_task(catalog, low), [output("compacted/a", low, 12)])
        assert collectable(catalog) == []
        open_lease(catalog, "later", HOUR_MS)
        drop_lease(catalog, "reader")
        assert collectable(catalog) == ["committed/2", "committed/3"], "a lease opened after the commit never saw them"
        assert commit_compaction(catalog, T, of_task(catalog, low), [output("compacted/b", low, 12)])
        assert collectable(catalog) == ["committed/2", "committed/3"]
        drop_lease(catalog, "later")
        assert collectable(catalog) == ["committed/2", "committed/3", "compacted/a"]

    def test_a_lease_ends_unless_it_is_renewed(self, catalog: Catalog, low: int) -> None:
        open_lease(catalog, "reader", HOUR_MS)
        open_lease(catalog, "dead", HOUR_MS)
        assert commit_compaction(catalog, T, of_task(catalog, low), [output("compacted/a", low, 12)])
        shift(catalog, tables.read_leases.c.expires_ms, -HOUR_MS // 2)
        assert renew_lease(catalog, "reader", HOUR_MS)
        shift(catalog, tables.read_leases.c.expires_ms, -HOUR_MS * 3 // 4)
        assert not renew_lease(catalog, "dead", HOUR_MS), "it has ended, and what it held may be gone"
        assert collectable(catalog) == []
        assert drop_expired_leases(catalog) == 1
        shift(catalog, tables.read_leases.c.expires_ms, -HOUR_MS)
        assert len(collectable(catalog)) == 2

    def test_the_grace_period_holds_without_a_lease(self, catalog: Catalog, low: int) -> None:
        assert commit_compaction(catalog, T, of_task(catalog, low), [output("compacted/a", low, 12)])
        assert superseded_objects(catalog, T, grace_ms=HOUR_MS, limit=9) == []


def fill(catalog: Catalog) -> tuple[int, int]:
    """Three flushes: two segments of the low task, one of the high one and one of DDL; one of the low; one of it."""
    low, high, ddl = activate(catalog)

    def to(task: int, seen: int, end: int, *numbers: int) -> TaskAdvance:
        return advance(task, START + seen, START + end, *(segment(no, START + seen + 1, START + end) for no in numbers))

    flush(catalog, "committed/1", to(low, 0, 10, 0, 1), to(high, 0, 10, 2), to(ddl, 0, 5))
    flush(catalog, "committed/2", to(low, 10, 20, 0))
    flush(catalog, "committed/3", to(low, 20, 30, 0))
    return low, high


def piece(key: str, task_id: int) -> Piece:
    """A piece that may not be there."""
    return Piece(object_key=key, task_id=task_id, segments=1, rows=ROWS, stored_bytes=100, lo_ts=1, hi_ts=2)


def everything(catalog: Catalog) -> list[Piece]:
    """All pieces of tenant T."""
    return pieces(catalog, T, upto_ts=TS_MAX, limit=1000)


def of_task(catalog: Catalog, task_id: int) -> list[Piece]:
    """Those of one task."""
    return [p for p in everything(catalog) if p.task_id == task_id]


def listed(catalog: Catalog) -> list[SegmentRow]:
    """What a reader finds, the files of compactions first."""
    segments = find_segments(catalog, T, after_ts=0, upto_ts=TS_MAX, limit=1000)
    return sorted(segments, key=lambda s: (not s.object_key.startswith("compacted"), s.object_key, s.number))


def states(catalog: Catalog) -> dict[str, ObjectState]:
    """State of every object."""
    with catalog.reading() as conn:
        keys = list(conn.execute(tables.objects.select()).scalars())
    return object_states(catalog, keys)


def collectable(catalog: Catalog) -> list[str]:
    """What may be deleted, with no grace."""
    return sorted(superseded_objects(catalog, T, grace_ms=0, limit=100))
