"""Seeds, bases, and retention: floors, changefeeds, safe points, dead rows."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import pytest

from tests.kit.catalog_cases import (
    EDGE,
    LOW,
    OTHER,
    START,
    T,
    activate,
    advance,
    flush,
    grown_log,
    info,
    long_key,
    seed,
    segment,
    shift,
    together,
)
from tistream.catalog.database import tables
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.bases import add_bases, base_segments_of, list_bases, retire_bases
from tistream.catalog.log.committed import find_segments
from tistream.catalog.log.objects import (
    forget_dead,
    live_objects,
    object_states,
    stored_bytes,
    superseded_objects,
    tombstone,
)
from tistream.catalog.log.read_leases import drop_lease, open_lease
from tistream.catalog.log.retention import check_listing, raise_floor, retire_below_floor
from tistream.catalog.log.safe_points import list_safe_points, remove_safe_point, set_safe_point
from tistream.catalog.log.seeds import add_seed, list_seeds, seed_segments_of
from tistream.catalog.rows.bases import BaseRow, NewBase
from tistream.catalog.rows.seeds import SeedRow
from tistream.catalog.rows.segments import segment_in
from tistream.catalog.tenancy.consumers import CONSUMERS, add_consumer, move_checkpoint, remove_consumer
from tistream.catalog.tenancy.log_readers import ReaderState
from tistream.catalog.tenancy.tenants import get_tenant, kept_s, set_retention
from tistream.codec.seed_file import manifest_key
from tistream.errors import Fenced, InvalidInput, NotFound, TiStreamError, TsExpired, TsOutOfRange


def new(table_id: int, ts: int, previous: BaseRow | SeedRow | None = None, *, key: str = "") -> NewBase:
    """A base of one segment in the file `key`; an empty one without."""
    segments = (segment_in(key, info(table_id, table_id)),) if key else ()
    after_ts, rows = START if previous is None else previous.ts, 7 * len(segments)
    return NewBase(table_id=table_id, ts=ts, previous=previous, after_ts=after_ts, rows=rows, segments=segments)


def add(catalog: Catalog, *bases: NewBase) -> bool:
    """Whether all of them were added, with the files that they name; else none."""
    files = {s.object_key: 1000 for base in bases for s in base.segments}
    added = add_bases(catalog, T, bases, files)
    assert added in (set(), {base.table_id for base in bases})
    return bool(added)


def left(catalog: Catalog) -> list[tuple[str, int]]:
    return [(s.object_key, s.number) for s in find_segments(catalog, T, after_ts=0, upto_ts=EDGE, limit=99)]


class TestSeeds:
    @pytest.fixture(autouse=True)
    def active(self, catalog: Catalog) -> None:
        activate(catalog)

    def test_a_seed_appears_whole(self, catalog: Catalog) -> None:
        manifest = seed()
        assert add_seed(catalog, manifest, 77)
        (row,) = list_seeds(catalog, T)
        assert (row.ts, row.table_id, row.rows, row.bytes) == (START, 0, 21, 1500)
        assert row.manifest_key == str(manifest_key(T, START, 0))
        assert stored_bytes(catalog, T) == {("seed", "live"): (3, 1577)}
        found = seed_segments_of(catalog, row, 5) or ()
        assert [(s.object_key, s.number, s.start_key, s.end_key) for s in found] == [
            (manifest.key_of(2), 0, long_key(b"c"), long_key(b"d\xff")),
            (manifest.key_of(1), 1, long_key(b"e\x00"), long_key(b"f")),
        ]
        assert {(s.rows, s.offset, s.length, s.crc) for s in found} == {(7, 8, 90, 0xFFFF_FFFF)}
        assert seed_segments_of(catalog, row, 6) == []
        assert list_seeds(catalog, OTHER) == []

    def test_the_same_seed_again_changes_nothing(self, catalog: Catalog) -> None:
        assert [add_seed(catalog, seed(), 77) for _ in range(3)] == [True, False, False]
        assert stored_bytes(catalog, T) == {("seed", "live"): (3, 1577)}

    def test_writers_at_once_add_it_once(self, catalog: Catalog) -> None:
        assert sorted(together(4, lambda _: add_seed(catalog, seed(), 77))) == [False, False, False, True]
        assert len(list_seeds(catalog, T)) == 1

    def test_seeds_come_newest_first_and_keep_to_themselves(self, catalog: Catalog) -> None:
        for ts, table_id in ((START, 0), (START + 5, 5), (START, 5)):
            assert add_seed(catalog, seed(ts, table_id), 1)
        found = list_seeds(catalog, T)
        assert [(row.ts, row.table_id) for row in found] == [(START + 5, 5), (START, 0), (START, 5)]
        keys = {s.object_key for row in found for s in seed_segments_of(catalog, row, 5) or ()}
        assert len(keys) == 6

    def test_a_seed_with_a_tombstoned_object_is_refused_whole(self, catalog: Catalog) -> None:
        gone = seed().key_of(2)
        assert tombstone(catalog, T, gone)
        with pytest.raises(Fenced):
            add_seed(catalog, seed(), 77)
        assert list_seeds(catalog, T) == []
        assert set(object_states(catalog, [seed().key_of(1), gone])) == {gone}

    def test_an_empty_seed_is_one(self, catalog: Catalog) -> None:
        assert add_seed(catalog, dataclasses.replace(seed(), file_bytes={}, segments=()), 10)
        assert [row.rows for row in list_seeds(catalog, T)] == [0]


class TestBases:
    @pytest.fixture(autouse=True)
    def begun(self, catalog: Catalog) -> None:
        """The tenant's log ends at EDGE."""
        flush(catalog, None, *(advance(task, START, EDGE) for task in activate(catalog)[:2]))

    def test_bases_appear_whole(self, catalog: Catalog) -> None:
        assert add(catalog, new(5, EDGE, key="bases/1"), new(6, EDGE), new(7, EDGE, key="bases/1"))
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
        ends = [bytes([255 - n]) for n in range(9)]
        segments = tuple(segment_in("bases/1", info(n, 5, long_key(end))) for n, end in enumerate(ends))
        assert add(catalog, NewBase(table_id=5, ts=EDGE, previous=None, after_ts=START, rows=63, segments=segments))
        (row,) = list_bases(catalog, T)
        found = base_segments_of(catalog, row) or ()
        assert [s.start_key for s in found] == [long_key(end) for end in reversed(ends)]

    def test_a_base_above_the_live_edge_is_a_fault(self, catalog: Catalog) -> None:
        with pytest.raises(TiStreamError, match="live edge"):
            add(catalog, new(5, EDGE + 1, key="bases/1"))
        assert list_bases(catalog, T) == []

    def test_what_a_base_was_made_of_is_looked_at_again(self, catalog: Catalog) -> None:
        add_seed(catalog, seed(), 77)
        (sown,) = list_seeds(catalog, T)
        assert add(catalog, new(5, START + 10, sown, key="bases/1"))
        (base,) = list_bases(catalog, T)
        assert base.seed_ts == START
        gone = BaseRow(tenant=T, table_id=5, ts=START + 9, seed_ts=START, rows=7, bytes=90)
        absent = SeedRow(tenant=T, ts=START + 1, table_id=0, rows=1, bytes=1, manifest_key="")
        assert not add(catalog, new(5, EDGE, gone, key="bases/2"))
        assert not add(catalog, new(5, EDGE, absent, key="bases/2"))
        assert not add(catalog, replace(new(5, EDGE, base, key="bases/2"), after_ts=START - 1))
        assert list_bases(catalog, T) == [base]
        assert object_states(catalog, ["bases/2"]) == {}
        assert add(catalog, new(5, EDGE, base, key="bases/2"))
        assert [(b.ts, b.seed_ts) for b in list_bases(catalog, T)] == [(EDGE, START), (START + 10, START)]

    def test_the_first_of_two_at_one_timestamp_stays(self, catalog: Catalog) -> None:
        def both(n: int) -> frozenset[int]:
            return add_bases(catalog, T, [new(5, EDGE, key=f"bases/{n}"), new(6 + n, EDGE)], {f"bases/{n}": 1000})

        won = together(3, both)
        assert sorted(5 in added for added in won) == [False, False, True]
        assert [6 + n in added for n, added in enumerate(won)] == [True] * 3, "it was the only one of its table"
        assert [base.table_id for base in list_bases(catalog, T)] == [5, 6, 7, 8]
        first = f"bases/{next(n for n, added in enumerate(won) if 5 in added)}"
        assert object_states(catalog, [f"bases/{n}" for n in range(3)]) == {first: "live"}

    def test_a_tombstoned_file_fences_its_bases(self, catalog: Catalog) -> None:
        assert tombstone(catalog, T, "bases/1")
        with pytest.raises(Fenced):
            add(catalog, new(5, EDGE, key="bases/1"))
        assert list_bases(catalog, T) == []

    def test_the_newest_base_is_never_retired(self, catalog: Catalog) -> None:
        for n in (1, 2, 3):
            assert add(catalog, new(5, START + n, key=f"bases/{n}"))
        assert retire_bases(catalog, T, list_bases(catalog, T)) == 2
        assert [base.ts for base in list_bases(catalog, T)] == [START + 3]
        assert retire_bases(catalog, T, list_bases(catalog, T)) == 0
        assert retire_bases(catalog, T, []) == 0

    def test_a_file_stays_while_one_of_its_tables_needs_it(self, catalog: Catalog) -> None:
        assert add(catalog, new(5, START + 1, key="bases/1"), new(6, START + 1, key="bases/1"))
        assert add(catalog, new(5, START + 2, key="bases/2"))
        assert retire_bases(catalog, T, list_bases(catalog, T)) == 1
        assert object_states(catalog, ["bases/1"]) == {"bases/1": "live"}
        assert add(catalog, new(6, START + 2))
        assert retire_bases(catalog, T, list_bases(catalog, T)) == 1
        assert object_states(catalog, ["bases/1", "bases/2"]) == {"bases/1": "superseded", "bases/2": "live"}

    def test_a_retired_base_is_not_listed_and_stays_while_a_lease_needs_it(self, catalog: Catalog) -> None:
        assert add(catalog, new(5, START + 1, key="bases/1"))
        (old,) = list_bases(catalog, T)
        open_lease(catalog, "reader", 60_000)
        assert base_segments_of(catalog, old)
        assert add(catalog, new(5, START + 2, key="bases/2"))
        assert retire_bases(catalog, T, [old]) == 1
        assert base_segments_of(catalog, old) is None
        assert superseded_objects(catalog, T, grace_ms=0, limit=9) == []
        drop_lease(catalog, "reader")
        assert superseded_objects(catalog, T, grace_ms=0, limit=9) == ["bases/1"]


class TestRetention:
    @pytest.fixture(autouse=True)
    def tasks(self, catalog: Catalog) -> list[int]:
        return grown_log(catalog)

    def test_what_lies_below_the_floor_goes_and_nothing_else(self, catalog: Catalog) -> None:
        assert get_tenant(catalog, T).earliest_ts == START
        assert retire_below_floor(catalog, T).objects == 0
        assert raise_floor(catalog, T, seen_floor=0, to_ts=START + 19)
        assert get_tenant(catalog, T).earliest_ts == START + 19
        assert (retire_below_floor(catalog, T).segments, left(catalog)) == (1, [("f/1", 0), ("f/2", 1), ("f/2", 0)])
        assert object_states(catalog, ["f/1"]) == {"f/1": "live"}
        assert raise_floor(catalog, T, seen_floor=START + 19, to_ts=START + 20)
        assert retire_below_floor(catalog, T).segments == 1
        assert retire_below_floor(catalog, T).objects == 0
        assert object_states(catalog, ["f/1", "f/2"]) == {"f/1": "superseded", "f/2": "live"}
        assert live_objects(catalog, T, after_key="", limit=9) == [("f/2", 1000)]

    def test_objects_are_retired_some_at_a_time(self, catalog: Catalog) -> None:
        assert raise_floor(catalog, T, seen_floor=0, to_ts=EDGE)
        assert [retire_below_floor(catalog, T, limit=1).objects for _ in range(3)] == [1, 1, 0]
        assert left(catalog) == []

    def test_a_floor_rises_only_from_where_it_was_seen_and_never_above_what_is_served(self, catalog: Catalog) -> None:
        assert not raise_floor(catalog, T, seen_floor=START, to_ts=START + 5)
        assert not raise_floor(catalog, T, seen_floor=0, to_ts=START)
        assert not raise_floor(catalog, OTHER, seen_floor=0, to_ts=START + 5)
        with pytest.raises(TiStreamError, match="at or below the watermark"):
            raise_floor(catalog, T, seen_floor=0, to_ts=EDGE + 1)
        won = together(3, lambda n: raise_floor(catalog, T, seen_floor=0, to_ts=START + 5 + n))
        assert sorted(won) == [False, False, True]
        assert get_tenant(catalog, T).floor_ts == START + 5 + won.index(True)

    def test_who_lists_from_below_the_floor_is_told(self, catalog: Catalog) -> None:
        check_listing(catalog, T, 0, 1)  # nothing was given up: it is no business of this check
        assert raise_floor(catalog, T, seen_floor=0, to_ts=START + 20)
        check_listing(catalog, T, START + 20, START + 21)
        with pytest.raises(TsExpired) as caught:
            check_listing(catalog, T, START + 19, START + 20)
        assert caught.value.facts["earliest_ts"] == str(START + 20)
        assert str(caught.value.facts["earliest_time"]).endswith("Z")

    def test_a_lease_keeps_what_was_listed(self, catalog: Catalog) -> None:
        open_lease(catalog, "reader", 60_000)
        assert raise_floor(catalog, T, seen_floor=0, to_ts=START + 20)
        assert retire_below_floor(catalog, T).objects == 1
        assert superseded_objects(catalog, T, grace_ms=0, limit=9) == []
        drop_lease(catalog, "reader")
        assert superseded_objects(catalog, T, grace_ms=0, limit=9) == ["f/1"]

    def test_bases_and_seeds_below_the_floor_go_with_the_log(self, catalog: Catalog) -> None:
        add_seed(catalog, seed(), 77)
        (sown,) = list_seeds(catalog, T)
        files = {s.object_key for s in seed_segments_of(catalog, sown, 5) or ()} | {sown.manifest_key}
        assert add(catalog, new(5, START + 10, sown, key="bases/1"), new(6, START + 10, sown, key="bases/1"))
        (five, six) = list_bases(catalog, T)
        assert add(catalog, new(5, START + 20, five, key="bases/2"))
        assert raise_floor(catalog, T, seen_floor=0, to_ts=START + 10)
        assert (list_seeds(catalog, T), seed_segments_of(catalog, sown, 5)) == ([], None)
        assert set(object_states(catalog, files).values()) == {"superseded"}
        assert [base.ts for base in list_bases(catalog, T, [5, 6])] == [START + 20, START + 10, START + 10]
        assert raise_floor(catalog, T, seen_floor=START + 10, to_ts=START + 11)
        assert [base.ts for base in list_bases(catalog, T)] == [START + 20]
        assert not add(catalog, new(6, START + 20, six, key="bases/3"))
        assert object_states(catalog, ["bases/1", "bases/2"]) == {"bases/1": "superseded", "bases/2": "live"}
        assert add(catalog, new(5, START + 30, list_bases(catalog, T)[0], key="bases/4"))

    def test_a_floor_leaves_out_only_the_bases_that_were_built_from_below_it(self, catalog: Catalog) -> None:
        add_seed(catalog, seed(), 77)
        (sown,) = list_seeds(catalog, T)
        assert add(catalog, *(new(n, START + 10, sown, key="bases/1") for n in (5, 6)))
        (five, six) = list_bases(catalog, T)
        built = [
            new(5, START + 30, five, key="bases/2"),
            new(6, START + 30, six, key="bases/3"),
            new(7, START + 30, key="bases/3"),  # of all its log
            new(8, START + 30, key="bases/4"),
        ]
        files = {f"bases/{n}": 1000 for n in (2, 3, 4)}
        assert raise_floor(catalog, T, seen_floor=0, to_ts=START + 10)
        assert add_bases(catalog, T, built, files) == {5, 6}
        assert {base.table_id for base in list_bases(catalog, T) if base.ts == START + 30} == {5, 6}
        assert object_states(catalog, files) == {"bases/2": "live", "bases/3": "live"}, "the other one is an orphan"
        assert add_bases(catalog, T, built[2:], files) == frozenset()

    def test_changefeeds_hold_the_floor(self, catalog: Catalog) -> None:
        assert add_consumer(catalog, T, "a", START + 10)
        assert not add_consumer(catalog, T, "a", START + 10), "once more: its reply was lost"
        with pytest.raises(InvalidInput):
            add_consumer(catalog, T, "a", START + 11)
        assert not raise_floor(catalog, T, seen_floor=0, to_ts=START + 11)
        CONSUMERS.switch(catalog, T, "a", ReaderState.STOPPED)
        assert not raise_floor(catalog, T, seen_floor=0, to_ts=START + 11), "a stopped one holds as well"
        assert raise_floor(catalog, T, seen_floor=0, to_ts=START + 10)
        assert move_checkpoint(catalog, T, "a", START + 12).checkpoint_ts == START + 12
        assert raise_floor(catalog, T, seen_floor=START + 10, to_ts=START + 12)
        with pytest.raises(TsExpired):
            add_consumer(catalog, T, "late", START + 11)
        assert [remove_consumer(catalog, T, "a") for _ in range(2)] == [True, False]
        assert raise_floor(catalog, T, seen_floor=START + 12, to_ts=EDGE)
        assert add_consumer(catalog, T, "b", None)
        assert CONSUMERS.get(catalog, T, "b").start_ts == EDGE

    def test_a_changefeed_begins_where_the_log_is_or_is_refused(self, catalog: Catalog) -> None:
        """Whoever comes first: a floor above a changefeed that holds is never seen."""

        def act(n: int) -> bool:
            if n % 2:
                return raise_floor(catalog, T, seen_floor=0, to_ts=START + 30)
            try:
                return add_consumer(catalog, T, f"feed-{n}", START + 10)
            except TsExpired:
                return False

        won = together(4, act)
        raised = get_tenant(catalog, T).floor_ts == START + 30
        assert raised == (won[1] or won[3])
        assert raised == (CONSUMERS.of_tenant(catalog, T) == [])

    def test_a_checkpoint_never_falls_and_ends_at_its_target(self, catalog: Catalog) -> None:
        assert add_consumer(catalog, T, "a", START + 1, target_ts=START + 30, partitions=2)
        row = move_checkpoint(catalog, T, "a", START + 20)
        assert (row.state, row.target_ts) == (ReaderState.NORMAL, START + 30)
        assert move_checkpoint(catalog, T, "a", START + 20).checkpoint_ts == START + 20
        with pytest.raises(Fenced) as caught:
            move_checkpoint(catalog, T, "a", START + 19)
        assert caught.value.facts["checkpoint_ts"] == str(START + 20)
        with pytest.raises(TsOutOfRange):
            move_checkpoint(catalog, T, "a", EDGE + 1)
        assert move_checkpoint(catalog, T, "a", START + 30).state is ReaderState.FINISHED
        with pytest.raises(Fenced):
            CONSUMERS.switch(catalog, T, "a", ReaderState.NORMAL)
        assert raise_floor(catalog, T, seen_floor=0, to_ts=EDGE), "a finished one holds nothing"
        with pytest.raises(NotFound):
            move_checkpoint(catalog, T, "b", START + 30)
        with pytest.raises(NotFound):
            add_consumer(catalog, OTHER, "a", START)

    def test_safe_points_hold_the_floor_until_they_end(self, catalog: Catalog) -> None:
        set_safe_point(catalog, T, "backfill", START + 10, 3600)
        set_safe_point(catalog, T, "other", START + 30, 3600)
        assert [(p.service_id, p.safe_ts) for p in list_safe_points(catalog, T)] == [
            ("backfill", START + 10),
            ("other", START + 30),
        ]
        assert not raise_floor(catalog, T, seen_floor=0, to_ts=START + 11)
        set_safe_point(catalog, T, "backfill", START + 12, 3600)
        assert raise_floor(catalog, T, seen_floor=0, to_ts=START + 11)
        with pytest.raises(TsExpired):
            set_safe_point(catalog, T, "late", START + 10, 3600)
        shift(catalog, tables.safe_points.c.expires_ms, -3_600_000)
        assert list_safe_points(catalog, T) == []
        assert raise_floor(catalog, T, seen_floor=START + 11, to_ts=START + 35)
        set_safe_point(catalog, T, "other", START + 36, 3600)
        assert [remove_safe_point(catalog, T, "other") for _ in range(2)] == [True, False]
        with pytest.raises(NotFound):
            set_safe_point(catalog, OTHER, "backfill", START, 1)

    def test_a_tenant_has_a_retention_of_its_own(self, catalog: Catalog) -> None:
        assert kept_s(get_tenant(catalog, T), 1.5) == 5400
        assert set_retention(catalog, T, 0)
        assert kept_s(get_tenant(catalog, T), 1.5) == 0
        assert set_retention(catalog, T, None)
        assert get_tenant(catalog, T).retention_s is None
        assert not set_retention(catalog, OTHER, 1)

    def test_a_dead_row_is_forgotten_and_a_tombstone_is_not(self, catalog: Catalog, tasks: list[int]) -> None:
        assert raise_floor(catalog, T, seen_floor=0, to_ts=START + 20)
        retire_below_floor(catalog, T)
        assert forget_dead(catalog, older_ms=0, limit=9) == 0, "it may still be in the bucket"
        assert all(tombstone(catalog, T, key) for key in ("f/1", "f/late"))
        assert forget_dead(catalog, older_ms=60_000, limit=9) == 0
        assert forget_dead(catalog, older_ms=0, limit=9) == 1
        assert object_states(catalog, ["f/1", "f/late"]) == {"f/late": "dead"}
        late = advance(tasks[0], EDGE, EDGE + 9, segment(0, EDGE + 1, EDGE + 9))
        with pytest.raises(Fenced):
            flush(catalog, "f/late", late)
