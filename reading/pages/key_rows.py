"""Entries as of a timestamp, as lines and as Arrow.

    ndjson   {"key":...,"value":...|null,"ts":"..."|null,"expire_ts":...|null,"expires_in_s":...|null,"exact":true}
    arrow    key value ts expire_ts expires_in_s exact

`ts` is the timestamp of the write, `expire_ts` Unix seconds, `expires_in_s` the seconds that remained at the timestamp
of the read. An entry that is not exact is the newest that is known of its key, where later ones may be missing; its
value is null when that is none, a deletion, or has expired.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reading.formats.lines import Block, write
from reading.formats.ndjson import Ndjson
from reading.formats.pieces import Piece, choice, slot
from reading.kv.texts import check_utf8, json_strings
from reading.pages.arrow import ipc
from tistream import ts as tso
from tistream.codec.key_format import KeyFormat
from tistream.codec.raw.keys import user_keys

FORMATS = {"ndjson": Ndjson.media_type, "arrow": "application/vnd.apache.arrow.stream"}

ARROW = pa.schema(
    [
        pa.field("key", pa.binary(), False),
        pa.field("value", pa.binary()),
        pa.field("ts", pa.uint64()),
        pa.field("expire_ts", pa.uint64()),
        pa.field("expires_in_s", pa.uint64()),
        pa.field("exact", pa.bool_(), False),
    ]
)
_ZERO = pa.scalar(0, pa.uint64())


def rendered(entries: pa.Table, format: str, form: KeyFormat, as_of: int) -> pa.Buffer:
    """The entries (schema core.state.ENTRIES, one chunk) in one of FORMATS. NotInFormat for UTF-8 that is none."""
    table = _shown(entries, as_of)
    if format == "arrow":
        return ipc(table, None)
    blocks = [Block(at=np.arange(batch.num_rows), pieces=_pieces(batch, form)) for batch in table.to_batches()]
    return pa.py_buffer(write(blocks, end=b"\n")[1])


def _shown(entries: pa.Table, as_of: int) -> pa.Table:
    """With the schema ARROW."""
    expire_ts, now_s = _or_null(entries["expire_ts"]), pa.scalar(tso.physical_ms(as_of) // 1000, pa.uint64())
    left = pc.subtract(pc.max_element_wise(expire_ts, now_s, skip_nulls=False), now_s)
    columns = [
        user_keys(entries["key"].combine_chunks()),
        entries["value"],
        _or_null(entries["commit_ts"]),
        expire_ts,
        left,
        entries["known"],
    ]
    return pa.Table.from_arrays(columns, schema=ARROW)


def _or_null(stamps: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.if_else(pc.equal(stamps, _ZERO), pa.scalar(None, pa.uint64()), stamps)


def _pieces(rows: pa.RecordBatch, form: KeyFormat) -> list[Piece]:
    if form is KeyFormat.UTF8:
        check_utf8(rows["key"], rows["value"])
    return [
        b'{"key":',
        json_strings(rows["key"], form),
        b',"value":',
        json_strings(rows["value"], form),
        b',"ts":',
        slot(rows["ts"], before=b'"', after=b'"'),
        b',"expire_ts":',
        slot(rows["expire_ts"]),
        b',"expires_in_s":',
        slot(rows["expires_in_s"]),
        b',"exact":',
        choice(rows["exact"].to_numpy(zero_copy_only=False), b"true", b"false"),
        b"}",
    ]
