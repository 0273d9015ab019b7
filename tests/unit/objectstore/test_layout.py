"""Object keys: the documented spelling, and that parsing is exactly the inverse of building."""

from __future__ import annotations

import pytest

from tistream.ids import Tenant
from tistream.objectstore import layout
from tistream.objectstore.layout import (
    AnyKey,
    BatchKey,
    CommittedKey,
    CompactedKey,
    JournalKey,
    SchemasKey,
    SchemaSnapKey,
    SeedKey,
    SnapshotKey,
    WrapKey,
    parse,
)

T = Tenant(12, 3)
KEYS: list[tuple[AnyKey, str]] = [
    (
        SchemaSnapKey(tenant=T, ts=470613537819721728),
        "data_change_buffer/cluster-12/tenant-3/schema_snap/00470613537819721728.json.zst",
    ),
    (
        BatchKey(tenant=T, store_id=5, incarnation=7, seq=42),
        "data_change_buffer/cluster-12/tenant-3/store-5/000007/file-000000000042.seg",
    ),
    (
        CommittedKey(tenant=T, sorter="sorter-2", incarnation=1, seq=9),
        "committed/cluster-12/tenant-3/sorter-2-000001/000000000009.seg",
    ),
    (SnapshotKey(tenant=T, task_id=31, epoch=4, n=8), "snapshots/cluster-12/tenant-3/task-31/000004-000000000008.seg"),
    (SchemasKey(tenant=T, ts=1), "schemas/cluster-12/tenant-3/00000000000000000001.json.zst"),
    (SeedKey(tenant=T, ts=2**64 - 1, n=0), "seeds/cluster-12/tenant-3/18446744073709551615/000000.seg"),
    (
        CompactedKey(tenant=T, job="job-1", range_id=2, lo_ts=3, hi_ts=4),
        "compacted/cluster-12/tenant-3/job-1/00002-00000000000000000003-00000000000000000004.parquet",
    ),
    (
        JournalKey(generation=2, exports_begun=41, ms=1_790_000_000_123, name="00ff00ff00ff00ff"),
        "journal/000002/000000000041/1790000000123-00ff00ff00ff00ff.json",
    ),
    (WrapKey(tenant=T, root_no=7), "keys/cluster-12/tenant-3/000007.json"),
    (WrapKey(tenant=T, root_no=7, n=12), "keys/cluster-12/tenant-3/000007-12.json"),
    (
        BatchKey(tenant=Tenant(0, 0), store_id=0, incarnation=1_000_000, seq=10**12),
        "data_change_buffer/cluster-0/tenant-0/store-0/1000000/file-1000000000000.seg",
    ),
]


@pytest.mark.parametrize(("key", "text"), KEYS)
def test_keys_are_spelled_as_documented_and_parse_back(key: AnyKey, text: str) -> None:
    assert str(key) == text
    assert parse(text) == key


@pytest.mark.parametrize(
    "text",
    [
        "",
        "committed/cluster-12/tenant-3/",
        "keys/cluster-12/tenant-3/000007-0.json",
        "keys/cluster-12/tenant-3/7.json",
        "data_change_buffer/cluster-12/tenant-3/store-5/000007/file-42.seg",
        "data_change_buffer/cluster-12/tenant-3/store-5/7/file-000000000042.seg",
        "data_change_buffer/cluster-012/tenant-3/store-5/000007/file-000000000042.seg",
        "data_change_buffer/cluster-12/tenant-3/store-5/0000007/file-000000000042.seg",
        "data_change_buffer/cluster-12/tenant-3/store-5/000007/file-0000000000042.seg",
        "data_change_buffer/cluster-12/tenant-3/store-5/000007/file-000000000042.seg.tmp",
        "data_change_buffer/cluster-12/tenant-3/store-5/000007/file-000000000042.seg\n",
        "x/data_change_buffer/cluster-12/tenant-3/store-5/000007/file-000000000042.seg",
        "data_change_buffer/cluster--1/tenant-3/store-5/000007/file-000000000042.seg",
        "data_change_buffer/cluster-12/tenant-3/store-٥/000007/file-000000000042.seg",
        "committed/cluster-12/tenant-3/a/b-000001/000000000009.seg",
        "schemas/cluster-12/tenant-3/1.json.zst",
    ],
)
def test_other_keys_are_not_ours(text: str) -> None:
    assert parse(text) is None


def test_keys_of_a_folder_sort_in_the_order_of_writing() -> None:
    written = [
        str(BatchKey(tenant=T, store_id=5, incarnation=i, seq=n)) for i in (1, 2, 10) for n in (1, 2, 9, 10, 99, 100)
    ]
    assert sorted(written) == written
    stamps = [str(SchemasKey(tenant=T, ts=ts)) for ts in (1, 9, 10, 2**63, 2**64 - 1)]
    assert sorted(stamps) == stamps


def test_prefixes_hold_their_keys_and_no_other_tenant() -> None:
    batch, snap = str(KEYS[1][0]), str(KEYS[0][0])
    assert batch.startswith(layout.incarnation_prefix(T, 5, 7))
    assert snap.startswith(layout.schema_snap_prefix(T))
    assert all(key.startswith(layout.buffer_prefix(T)) for key in (batch, snap))
    assert not batch.startswith(layout.buffer_prefix(Tenant(1, 3)))
    assert not batch.startswith(layout.incarnation_prefix(T, 5, 0))
    other = str(BatchKey(tenant=Tenant(12, 31), store_id=5, incarnation=7, seq=42))
    assert not other.startswith(layout.buffer_prefix(T))
