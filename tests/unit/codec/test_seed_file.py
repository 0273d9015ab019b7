"""Seeds as files: cut, read back, and refused when they are not what they claim."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tistream.codec import seed_file
from tistream.codec.seed_file import (
    FILES_PER_SEED_MAX,
    SEED,
    SeedBuilder,
    SeedFile,
    build_manifest,
    decode_seed_segment,
    manifest_key,
    read_manifest,
)
from tistream.codec.segment_file import SegmentFile
from tistream.codec.table_key import index_key, record_key
from tistream.errors import CorruptObject, InvalidInput
from tistream.ids import Tenant
from tistream.objectstore.layout import SeedKey, parse

TENANT, TS = Tenant(1, 2), 1000


def rows(*keys: bytes, commit_ts: int = 9) -> pa.Table:
    n = len(keys)
    return pa.table([list(keys), [5] * n, [commit_ts] * n, [b"v" * 50] * n], schema=SEED)


def many(tables: int, each: int) -> pa.Table:
    return rows(*(record_key(t, h) for t in range(1, tables + 1) for h in range(each)))


def built(table: pa.Table, table_id: int = 0) -> list[SeedFile]:
    builder = SeedBuilder(TENANT, TS, table_id)
    half = table.num_rows // 2
    return [*builder.add(table.slice(0, half)), *builder.add(table.slice(half)), *builder.finish()]


def manifest_of(files: list[SeedFile], table_id: int = 0) -> bytes:
    return build_manifest(TENANT, TS, table_id, [(f.key.n, len(f.data), f.segments) for f in files])


def test_rows_come_back_in_order_whatever_the_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seed_file, "SEED_SEGMENT_BYTES_TARGET", 500)
    monkeypatch.setattr(seed_file, "COMMITTED_FILE_BYTES_TARGET", 2000)
    table = many(3, 60)
    files = built(table)
    assert [f.key.n for f in files] == list(range(1, len(files) + 1))
    assert len(files) > 3
    manifest = read_manifest("m", manifest_of(files), TENANT, TS, 0)
    assert manifest.rows == table.num_rows
    data = {f.key.n: f.data for f in files}
    parts = [
        decode_seed_segment(
            "s", s.segment_no, data[s.n][s.offset : s.offset + s.length], ts=TS, crc=s.crc, rows=s.rows, offset=s.offset
        )
        for s in manifest.segments
    ]
    assert pa.concat_tables(parts).combine_chunks().equals(table.combine_chunks())
    assert {s.table_id for s in manifest.segments} == {1, 2, 3}, "a segment holds one table"
    assert max(p.num_rows for p in parts) < 20


def test_the_same_rows_give_the_same_bytes() -> None:
    one, two = built(many(2, 30)), built(many(2, 30))
    assert [f.data for f in one] == [f.data for f in two]
    assert manifest_of(one) == manifest_of(two)


def test_seeds_of_tables_and_of_the_tenant_never_share_a_key() -> None:
    keys = {str(f.key) for table_id in (0, 7, 8) for f in built(many(1, 3), table_id)}
    keys |= {str(manifest_key(TENANT, TS, table_id)) for table_id in (0, 7, 8)}
    assert len(keys) == 6
    assert all(isinstance(parse(key), SeedKey) for key in keys)
    assert manifest_key(TENANT, TS, 7).n == 7 * FILES_PER_SEED_MAX


@pytest.mark.parametrize(
    ("table", "why"),
    [
        (rows(record_key(1, 2), record_key(1, 1)), "row 1 is not above"),
        (rows(record_key(1, 1), record_key(1, 1)), "row 1 is not above"),
        (rows(index_key(1, 1, b"12345678")), "not that of a record"),
        (rows(b"m1"), "not that of a record"),
        (rows(record_key(1, 1), commit_ts=TS + 1), "above the seed's timestamp"),
    ],
)
def test_rows_that_are_no_seed_are_refused(table: pa.Table, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        list(SeedBuilder(TENANT, TS).add(table))


def test_rows_that_fall_behind_earlier_ones_are_refused() -> None:
    builder = SeedBuilder(TENANT, TS)
    list(builder.add(rows(record_key(2, 1))))
    with pytest.raises(InvalidInput, match="row 0 is not above"):
        list(builder.add(rows(record_key(1, 9))))


def test_a_manifest_of_another_seed_is_refused() -> None:
    data = manifest_of(built(many(1, 3)))
    for tenant, ts, table_id in ((Tenant(1, 3), TS, 0), (TENANT, TS + 1, 0), (TENANT, TS, 7)):
        with pytest.raises(CorruptObject, match="another seed"):
            read_manifest("m", data, tenant, ts, table_id)
    with pytest.raises(CorruptObject):
        read_manifest("m", built(many(1, 3))[0].data, TENANT, TS, 0)


def test_a_damaged_segment_is_refused() -> None:
    file = built(many(1, 30))[0]
    info = SegmentFile.open("f", file.data).segments[0]
    stored = bytearray(file.data[info.offset : info.offset + info.length])
    stored[len(stored) // 2] ^= 1
    with pytest.raises(CorruptObject) as caught:
        decode_seed_segment("f", 0, bytes(stored), ts=TS, crc=info.crc, rows=info.rows, offset=info.offset)
    assert caught.value.facts["object"] == "f"


def test_an_empty_seed_is_complete_too() -> None:
    assert built(SEED.empty_table()) == []
    assert read_manifest("m", manifest_of([]), TENANT, TS, 0).rows == 0
