"""The compacted file: what goes in comes out, row groups follow tables, and nothing damaged is used."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tistream.codec.compacted_file import CompactedFile, build_compacted_file, decode_row_group, read_footer
from tistream.errors import CorruptObject, InvalidInput
from tistream.limits import SEGMENT_OWN_BYTES_MIN
from tistream.model import change

NAME = "compacted/x"


def rows(*tables: tuple[int, int, int]) -> pa.Table:
    """(table id, rows, bytes of each value), in order; every third row is a delete, every fourth has an old value."""
    parts = []
    for table_id, count, size in tables:
        n = np.arange(count)
        parts.append(
            pa.table(
                [
                    pa.array(np.full(count, table_id), pa.int64()),
                    pa.array(np.where(n % 3 == 0, 2, 1), pa.uint8()),
                    pa.array([b"t%08d_%08d" % (table_id, i % 7) for i in n], pa.binary()),
                    pa.array(450_000_000_000_000_000 + n, pa.uint64()),
                    pa.array(450_000_000_000_000_001 + n, pa.uint64()),
                    pa.array([None if i % 3 == 0 else bytes([i % 251]) * size for i in n], pa.binary()),
                    pa.array([b"" if i % 4 == 0 else None for i in n], pa.binary()),
                    pa.array(n % 2, pa.uint64()),
                    pa.array((n % 5 == 0).astype(np.uint8)),
                ],
                schema=change.COMMITTED,
            )
        )
    return pa.concat_tables(parts).combine_chunks()


def decoded(file: CompactedFile, data: bytes | None = None) -> pa.Table:
    whole = file.data.to_pybytes() if data is None else data
    metadata = read_footer(NAME, whole[file.footer.offset : file.footer.offset + file.footer.length], file.footer)
    parts = [
        decode_row_group(
            NAME, g.number, whole[g.offset : g.offset + g.length], metadata, crc=g.crc, rows=g.rows, offset=g.offset
        )
        for g in file.groups
    ]
    return pa.concat_tables(parts)


MANY = ((-1, 3, 10), (1, 5, 100), (7, 2000, 3 * SEGMENT_OWN_BYTES_MIN // 1000), (8, 1, 0), (9, 40, 10))


def test_what_goes_in_comes_out() -> None:
    given = rows(*MANY)
    assert decoded(build_compacted_file(given)).equals(given)


def test_any_parquet_reader_reads_it() -> None:
    given = rows(*MANY)
    table = pq.read_table(io.BytesIO(build_compacted_file(given).data))
    assert table.cast(change.COMMITTED).equals(given)


def test_row_groups_follow_the_tables_and_describe_their_rows() -> None:
    file = build_compacted_file(rows(*MANY), task_id=4)
    assert [(g.table_lo, g.table_hi) for g in file.groups] == [(-1, 1), (7, 7), (8, 9)]
    given = rows(*MANY)
    at = 0
    for g in file.groups:
        part = given.slice(at, g.rows)
        keys, ts = pc.min_max(part["key"]).as_py(), pc.min_max(part["commit_ts"]).as_py()
        assert (g.start_key, g.end_key, g.lo_ts, g.hi_ts) == (keys["min"], keys["max"], ts["min"], ts["max"])
        assert g.task_id == 4
        at += g.rows
    assert at == given.num_rows


def test_a_large_table_is_cut() -> None:
    given = rows((1, 300, 1 << 16))
    file = build_compacted_file(given)
    assert len(file.groups) == 2
    assert decoded(file).equals(given)


def test_every_flipped_byte_that_is_read_is_noticed() -> None:
    file = build_compacted_file(rows((1, 50, 20), (2, 50, 20)))
    data = file.data.to_pybytes()
    filters = file.groups[-1].offset + file.groups[-1].length
    read = [*range(4, filters), *range(file.footer.offset, len(data))]
    for at in read[:: len(read) // 97]:
        with pytest.raises(CorruptObject) as e:
            decoded(file, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert e.value.facts["object"] == NAME


def test_a_row_group_of_another_file_is_refused() -> None:
    file, other = build_compacted_file(rows((1, 50, 20))), build_compacted_file(rows((1, 51, 20)))
    group, data = other.groups[0], other.data.to_pybytes()
    metadata = read_footer(NAME, file.data.to_pybytes()[file.footer.offset :], file.footer)
    stored = data[group.offset : group.offset + group.length]
    with pytest.raises(CorruptObject):
        decode_row_group(NAME, 0, stored, metadata, crc=group.crc, rows=group.rows, offset=group.offset)
    with pytest.raises(CorruptObject, match="no such row group"):
        decode_row_group(NAME, 5, stored, metadata, crc=group.crc, rows=group.rows, offset=group.offset)


def test_rows_out_of_order_doubled_or_missing_are_refused() -> None:
    given = rows((1, 10, 5))
    for wrong in (given.take([1, 0]), given.take([0, 0]), given.slice(0, 0), given.drop_columns(["flags"])):
        with pytest.raises(InvalidInput):
            build_compacted_file(wrong)


def test_each_row_group_has_a_bloom_filter_of_its_keys_and_the_footer_does_not_hold_it() -> None:
    few = rows((7, 5000, 100), (8, 3, 10))
    own = few.set_column(
        2, change.COMMITTED.field("key"), pa.array([b"%08d" % n for n in range(len(few))], pa.binary())
    )
    sizes = []
    for given in (few, own):
        file = build_compacted_file(given)
        sizes.append(file.footer.offset - (file.groups[-1].offset + file.groups[-1].length))
        assert file.footer.offset + file.footer.length == file.data.size
        assert pq.read_table(pa.BufferReader(file.data)).equals(given)
    assert 0 < sizes[0] < 200, "seven keys in each row group"
    assert 0.5 * len(own) < sizes[1] < 4 * len(own), "about a byte a key"
