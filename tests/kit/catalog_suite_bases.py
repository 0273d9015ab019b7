"""The part of the catalog suite that is about bases."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.kit.catalog_cases import LOW, OTHER, START, T, activate, flush, long_key, together
from tests.kit.catalog_suite_seeds import seed
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.bases import BaseRow, NewBase, add_bases, base_segments_of, list_bases, retire_bases
from tistream.catalog.log.committed import TaskAdvance
from tistream.catalog.log.objects import object_states, superseded_objects, tombstone
from tistream.catalog.log.read_leases import drop_lease, open_lease
from tistream.catalog.log.seeds import SeedRow, add_seed, list_seeds
from tistream.catalog.log.segments import segment_in
from tistream.codec.segment_file import SegmentInfo
from tistream.errors import Fenced, TiStreamError

EDGE = START + 100


def info(number: int, table_id: int, start: bytes = LOW.start) -> SegmentInfo:
    """A segment of seven rows of one table."""
    return SegmentInfo(
        number=number,
        kind="seed",
        offset=8,
        length=90,
        raw_length=200,
        crc=0xFFFF_FFFF,
        rows=7,
        table_lo=table_id,
        table_hi=table_id,
        start_key=start,
        end_key=start + b"\xff",
        lo_ts=START,
        hi_ts=START,
    )


def new(table_id: int, ts: int, previous: BaseRow | SeedRow | None = None, *, key: str = "") -> NewBase:
    """A base of one segment in the file `key`; an empty one without."""
    segments = (segment_in(key, info(table_id, table_id)),) if key else ()
    return NewBase(table_id=table_id, ts=ts, previous=previous, rows=7 * len(segments), segments=segments)


class BaseSuite:
    """Needs a fixture `catalog`: a migrated, empty catalog."""

    @staticmethod
    def begun(catalog: Catalog) -> None:
        """The tenant's log stands at EDGE."""
        tasks = activate(catalog)[:2]
        flush(
            catalog,
            None,
            *(TaskAdvance(task_id=t, epoch=0, seen_durable_ts=START, new_durable_ts=EDGE) for t in sorted(tasks)),
        )

    @staticmethod
    def add(catalog: Catalog, *bases: NewBase, start_ts: int = START) -> bool:
        """Add them, with the files that they name."""
        files: Mapping[str, int] = {s.object_key: 1000 for base in bases for s in base.segments}
        return add_bases(catalog, T, bases, files, log_start_ts=start_ts)

    def test_bases_appear_whole(self, catalog: Catalog) -> None:
        self.begun(catalog)
        assert self.add(catalog, new(5, EDGE, key="bases/1"), new(6, EDGE), new(7, EDGE, key="bases/1"))
        five, six, seven = list_bases(catalog, T)
        assert five == BaseRow(tenant=T, table_id=5, ts=EDGE, seed_ts=0, rows=7, bytes=90)
        assert (six.table_id, six.rows, base_segments_of(catalog, six)) == (6, 0, [])
        (segment,) = base_segments_of(catalog, seven) or ()
        assert (segment.object_key, segment.number, segment.table_lo) == ("bases/1", 7, 7)
        assert (segment.start_key, segment.end_key, segment.rows) == (LOW.start, LOW.start + b"\xff", 7)
        assert (segment.offset, segment.length, segment.crc) == (8, 90, 0xFFFF_FFFF)
        assert list_bases(catalog, T, [6, 99]) == [six]
        assert list_bases(catalog, OTHER) == []
        assert object_states(catalog, ["bases/1"]) == {"bases/1": "live"}

    def test_the_segments_of_a_base_come_in_key_order(self, catalog: Catalog) -> None:
        self.begun(catalog)
        ends = [bytes([255 - n]) for n in range(9)]
        segments = tuple(segment_in("bases/1", info(n, 5, long_key(end))) for n, end in enumerate(ends))
        assert self.add(catalog, NewBase(table_id=5, ts=EDGE, previous=None, rows=63, segments=segments))
        (row,) = list_bases(catalog, T)
        found = base_segments_of(catalog, row) or ()
        assert [s.start_key for s in found] == [long_key(end) for end in reversed(ends)]

    def test_a_base_above_the_live_edge_is_a_fault(self, catalog: Catalog) -> None:
        self.begun(catalog)
        with pytest.raises(TiStreamError, match="live edge"):
            self.add(catalog, new(5, EDGE + 1, key="bases/1"))
        assert list_bases(catalog, T) == []

    def test_what_a_base_was_made_of_is_looked_at_again(self, catalog: Catalog) -> None:
        self.begun(catalog)
        add_seed(catalog, seed(), 77)
        (sown,) = list_seeds(catalog, T)
        assert self.add(catalog, new(5, START + 10, sown, key="bases/1"))
        (base,) = list_bases(catalog, T)
        assert base.seed_ts == START
        gone = BaseRow(tenant=T, table_id=5, ts=START + 9, seed_ts=START, rows=7, bytes=90)
        absent = SeedRow(tenant=T, ts=START + 1, table_id=0, rows=1, bytes=1, manifest_key="")
        assert not self.add(catalog, new(5, EDGE, gone, key="bases/2"))
        assert not self.add(catalog, new(5, EDGE, absent, key="bases/2"))
        assert not self.add(catalog, new(5, EDGE, base, key="bases/2"), start_ts=START + 1)
        assert list_bases(catalog, T) == [base]
        assert object_states(catalog, ["bases/2"]) == {}
        assert self.add(catalog, new(5, EDGE, base, key="bases/2"))
        assert [(b.ts, b.seed_ts) for b in list_bases(catalog, T)] == [(EDGE, START), (START + 10, START)]

    def test_the_first_of_two_at_one_timestamp_stays(self, catalog: Catalog) -> None:
        self.begun(catalog)
        won = together(3, lambda n: self.add(catalog, new(5, EDGE, key=f"bases/{n}"), new(6 + n, EDGE)))
        assert sorted(won) == [False, False, True]
        assert [base.table_id for base in list_bases(catalog, T)] == [5, 6 + won.index(True)]

    def test_a_tombstoned_file_fences_its_bases(self, catalog: Catalog) -> None:
        self.begun(catalog)
        assert tombstone(catalog, T, "bases/1")
        with pytest.raises(Fenced):
            self.add(catalog, new(5, EDGE, key="bases/1"))
        assert list_bases(catalog, T) == []

    def test_the_newest_base_is_never_retired(self, catalog: Catalog) -> None:
        self.begun(catalog)
        for n in (1, 2, 3):
            assert self.add(catalog, new(5, START + n, key=f"bases/{n}"))
        assert retire_bases(catalog, T, list_bases(catalog, T)) == 2
        assert [base.ts for base in list_bases(catalog, T)] == [START + 3]
        assert retire_bases(catalog, T, list_bases(catalog, T)) == 0
        assert retire_bases(catalog, T, []) == 0

    def test_a_file_stays_while_one_of_its_tables_needs_it(self, catalog: Catalog) -> None:
        self.begun(catalog)
        assert self.add(catalog, new(5, START + 1, key="bases/1"), new(6, START + 1, key="bases/1"))
        assert self.add(catalog, new(5, START + 2, key="bases/2"))
        assert retire_bases(catalog, T, list_bases(catalog, T)) == 1
        assert object_states(catalog, ["bases/1"]) == {"bases/1": "live"}
        assert self.add(catalog, new(6, START + 2))
        assert retire_bases(catalog, T, list_bases(catalog, T)) == 1
        assert object_states(catalog, ["bases/1", "bases/2"]) == {"bases/1": "superseded", "bases/2": "live"}

    def test_a_retired_base_is_gone_for_those_who_list_and_there_for_those_who_have_listed(
        self, catalog: Catalog
    ) -> None:
        self.begun(catalog)
        assert self.add(catalog, new(5, START + 1, key="bases/1"))
        (old,) = list_bases(catalog, T)
        open_lease(catalog, "reader", 60_000)
        assert base_segments_of(catalog, old)
        assert self.add(catalog, new(5, START + 2, key="bases/2"))
        assert retire_bases(catalog, T, [old]) == 1
        assert base_segments_of(catalog, old) is None
        assert superseded_objects(catalog, T, grace_ms=0, limit=9) == []
        drop_lease(catalog, "reader")
        assert superseded_objects(catalog, T, grace_ms=0, limit=9) == ["bases/1"]
