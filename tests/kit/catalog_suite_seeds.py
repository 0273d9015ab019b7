"""The part of the catalog suite that is about seeds."""

from __future__ import annotations

import dataclasses

import pytest

from tests.kit.catalog_cases import OTHER, START, T, activate, long_key, together
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.objects import object_states, stored_bytes, tombstone
from tistream.catalog.log.seeds import add_seed, list_seeds, seed_segments_of
from tistream.codec.seed_file import FILES_PER_SEED_MAX, SeedManifest, SeedSegment, manifest_key
from tistream.errors import Fenced


def seed(ts: int = START, table_id: int = 0) -> SeedManifest:
    """A seed of two files; table 5 has rows in both, and those of the second file come first in key order."""
    first = table_id * FILES_PER_SEED_MAX + 1
    places = ((first, 0, 4, b"a", b"b"), (first, 1, 5, b"e\x00", b"f"), (first + 1, 0, 5, b"c", b"d\xff"))
    segments = tuple(
        SeedSegment(
            n=n,
            segment_no=no,
            table_id=table,
            start_key=long_key(start),
            end_key=long_key(end),
            rows=7,
            offset=8,
            length=90,
            crc=0xFFFF_FFFF,
        )
        for n, no, table, start, end in places
    )
    return SeedManifest(tenant=T, ts=ts, table_id=table_id, file_bytes={first: 1000, first + 1: 500}, segments=segments)


class SeedSuite:
    """Needs a fixture `catalog`: a migrated, empty catalog."""

    def test_a_seed_appears_whole(self, catalog: Catalog) -> None:
        activate(catalog)
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
        activate(catalog)
        assert [add_seed(catalog, seed(), 77) for _ in range(3)] == [True, False, False]
        assert stored_bytes(catalog, T) == {("seed", "live"): (3, 1577)}

    def test_writers_at_once_add_it_once(self, catalog: Catalog) -> None:
        activate(catalog)
        assert sorted(together(4, lambda _: add_seed(catalog, seed(), 77))) == [False, False, False, True]
        assert len(list_seeds(catalog, T)) == 1

    def test_seeds_come_newest_first_and_keep_to_themselves(self, catalog: Catalog) -> None:
        activate(catalog)
        for ts, table_id in ((START, 0), (START + 5, 5), (START, 5)):
            assert add_seed(catalog, seed(ts, table_id), 1)
        found = list_seeds(catalog, T)
        assert [(row.ts, row.table_id) for row in found] == [(START + 5, 5), (START, 0), (START, 5)]
        keys = {s.object_key for row in found for s in seed_segments_of(catalog, row, 5) or ()}
        assert len(keys) == 6

    def test_a_seed_with_a_tombstoned_object_is_refused_whole(self, catalog: Catalog) -> None:
        activate(catalog)
        gone = seed().key_of(2)
        assert tombstone(catalog, T, gone)
        with pytest.raises(Fenced):
            add_seed(catalog, seed(), 77)
        assert list_seeds(catalog, T) == []
        assert set(object_states(catalog, [seed().key_of(1), gone])) == {gone}

    def test_an_empty_seed_is_one(self, catalog: Catalog) -> None:
        activate(catalog)
        assert add_seed(catalog, dataclasses.replace(seed(), file_bytes={}, segments=()), 10)
        assert [row.rows for row in list_seeds(catalog, T)] == [0]
