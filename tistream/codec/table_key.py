"""TiDB's table keys: the table of a user key, and whether it is a record.

    record   't' + int(table id) + "_r" + handle      an int handle is int(h), 8 bytes; else datums, at least 9 bytes
    index    't' + int(table id) + "_i" + int(index id) + datums
    meta     'm' + ...                                where DDL history lives

Table ids here are physical (a partition's own id) and positive; 0 means "no table". Records of a table fill
`[t{id}_r, t{id}_s)`, everything of it `[t{id}, t{id+1})`. Keys are plain user keys, without MVCC timestamp and without
the memcomparable form that region boundaries have.

`table_ids` and `is_record` take whole Arrow columns, without a Python object per key; `parse_key` takes one key.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tistream.codec.memcomparable import decode_int, encode_int
from tistream.errors import DecodeError
from tistream.keyrange import KeyRange

RECORD = b"_r"
INDEX = b"_i"
_TABLE = b"t"
_AFTER_RECORDS = b"_s"
_INT_HANDLE_BYTES = 8
_TABLE_ID_MAX = (1 << 63) - 1

#: where the upstream keeps its schemas
META_RANGE = KeyRange(b"m", b"n")
#: `mysql.tidb_ddl_job`, the queue of running DDL jobs, in clusters with the default id
DDL_JOB_TABLE_ID = 281474976710654
#: TiDB gives its own tables ids from here; low ids in older versions
SYSTEM_IDS_FROM = (1 << 48) - 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordKey:
    """A row. `handle` is an int, or the encoded datums of a clustered key."""

    table_id: int
    handle: int | bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexKey:
    """An index entry. `suffix` holds the datums, not decoded."""

    table_id: int
    index_id: int
    suffix: bytes


def table_prefix(table_id: int) -> bytes:
    """The prefix of every key of a table, 9 bytes."""
    return _TABLE + encode_int(table_id)


def record_key(table_id: int, handle: int | bytes) -> bytes:
    """The key of a row. Encoded datums shorter than 9 bytes are padded, so they never look like an int handle."""
    encoded = encode_int(handle) if isinstance(handle, int) else handle.ljust(_INT_HANDLE_BYTES + 1, b"\0")
    return table_prefix(table_id) + RECORD + encoded


def index_key(table_id: int, index_id: int, suffix: bytes) -> bytes:
    """The key of an index entry."""
    return table_prefix(table_id) + INDEX + encode_int(index_id) + suffix


def record_range(table_id: int) -> KeyRange:
    """All rows of a physical table."""
    prefix = table_prefix(table_id)
    return KeyRange(prefix + RECORD, prefix + _AFTER_RECORDS)


def table_range(table_id: int) -> KeyRange:
    """Rows and index entries of a physical table."""
    return KeyRange(table_prefix(table_id), table_prefix(table_id + 1) if table_id < _TABLE_ID_MAX else b"u")


#: rows of `mysql.tidb_ddl_job`
DDL_JOB_RANGE = record_range(DDL_JOB_TABLE_ID)


def parse_key(key: bytes) -> RecordKey | IndexKey:
    """The parts of a table key. DecodeError when it is neither a record nor an index entry."""
    if key[:1] != _TABLE:
        raise DecodeError("not a table key", offset=0, key=key)
    table_id, at = decode_int(key, 1)
    if table_id <= 0:
        raise DecodeError("a table id is not positive", offset=1, key=key, table=table_id)
    kind, rest = key[at : at + 2], key[at + 2 :]
    if kind == RECORD and len(rest) == _INT_HANDLE_BYTES:
        return RecordKey(table_id=table_id, handle=decode_int(rest)[0])
    if kind == RECORD and len(rest) > _INT_HANDLE_BYTES:
        return RecordKey(table_id=table_id, handle=rest)
    if kind == INDEX and len(rest) >= _INT_HANDLE_BYTES:
        index_id, end = decode_int(rest)
        return IndexKey(table_id=table_id, index_id=index_id, suffix=rest[end:])
    raise DecodeError("neither a record nor an index key", offset=at, key=key, table=table_id)


def table_ids(keys: pa.BinaryArray | pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Per key the physical table id, 0 where the key (or a null) belongs to no table."""
    return _scan(keys)[0]


def is_record(keys: pa.BinaryArray | pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    """Per key whether it lies in the record range of a table. Its handle may still be malformed."""
    return _scan(keys)[1]


def _scan(keys: pa.BinaryArray | pa.ChunkedArray) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    if isinstance(keys, pa.ChunkedArray):
        keys = keys.combine_chunks()
    if keys.type != pa.binary():
        raise TypeError(f"keys are binary, not {keys.type}")
    from tistream.codec.compiled import view  # importing numba takes half a second: not every process reads rows
    from tistream.codec.key_scan import scan_keys

    ids, records = np.zeros(len(keys), np.int64), np.zeros(len(keys), np.bool_)
    _, offsets, data = keys.buffers()
    if not len(keys) or data is None:
        return ids, records
    bounds, octets = view(offsets, np.int32), view(data, np.uint8)
    if not scan_keys(bounds[keys.offset : keys.offset + len(keys) + 1], octets, ids, records):
        raise IndexError("an offset of the key column points outside of its bytes")
    if keys.null_count:
        nulls = keys.is_null().to_numpy(zero_copy_only=False)
        ids[nulls], records[nulls] = 0, False
    return ids, records
