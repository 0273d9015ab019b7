"""Entries of raw and txn tenants as lines and as Arrow.

    ndjson      {"op":"put|delete","key":...,"value":...|null,"ts":"...","expire_ts":...|null[,"scanned_from_ts":"..."]}
    tikv-cdc    {"key":"...","value":"..."}: key and value of TiKV-CDC's message on Kafka, both in base64
    arrow       op key value ts expire_ts scanned_from_ts

Keys are user keys; `ts` is the timestamp of the write, `expire_ts` Unix seconds. `scanned_from_ts` marks an entry that
came from the scan behind a new subscription, which sends the newest version of each key only: older versions of the
key above `scanned_from_ts` may be missing.

A message of TiKV-CDC (one entry each):

    key      version (8 bytes, 1), length (8 bytes), {"ts":...,"k":base64 of mode, keyspace and user key,"t":4}
    value    length (8 bytes), {"op":1 put, 2 delete,"v":base64,"ex":...}; an empty `v` and an `ex` of 0 are left out
    resolved key with "t":3 and without "k"; the value is a length of 0

Numbers before the JSON are big endian.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import ClassVar, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reading.formats.lines import Block, written
from reading.formats.ndjson import Ndjson
from reading.formats.options import FormatOptions
from reading.formats.pieces import Piece, bare, base64_text, choice, large_binary, only, slot
from reading.formats.protocol import Lines
from reading.formats.rows import json_bytes
from reading.kv.texts import check_utf8, json_strings
from tistream.codec.key_format import KeyFormat
from tistream.codec.raw.keys import user_keys
from tistream.model.arrays import Mask
from tistream.model.change import FLAG_SCANNED, Op

#: how an answer may be written -> media type
FORMATS = {
    "json": "application/json",
    "ndjson": Ndjson.media_type,
    "arrow": "application/vnd.apache.arrow.stream",
    "tikv-cdc": "application/vnd.tistream.tikv-cdc+json",
}

ARROW = pa.schema(
    [
        pa.field("op", pa.dictionary(pa.int8(), pa.string()), False),
        pa.field("key", pa.binary(), False),
        pa.field("value", pa.binary()),
        pa.field("ts", pa.uint64(), False),
        pa.field("expire_ts", pa.uint64()),
        pa.field("scanned_from_ts", pa.uint64()),
    ]
)

_OPS = pa.array(["put", "delete"], pa.string())
_VERSION = (1).to_bytes(8, "big")
_ENTRY, _RESOLVED = 4, 3


class EntryLines(Lines, Protocol):
    """Turns entries into lines."""

    def pieces(self, rows: pa.RecordBatch) -> Sequence[Piece]:
        """The pieces of the lines of these rows (schema change.COMMITTED)."""


def lines_of(name: str, form: KeyFormat) -> EntryLines:
    """The format of that name, which is one of FORMATS and has lines."""
    return TikvCdc() if name == "tikv-cdc" else EntryNdjson(form)


class EntryNdjson:
    """TiStream's own lines."""

    name: ClassVar[str] = Ndjson.name
    media_type: ClassVar[str] = Ndjson.media_type
    terminator: ClassVar[bytes] = b"\n"

    def __init__(self, form: KeyFormat) -> None:
        self._form = form

    def pieces(self, rows: pa.RecordBatch) -> list[Piece]:
        """NotInFormat for UTF-8 that is none."""
        keys, values = user_keys(rows["key"]), rows["value"]
        if self._form is KeyFormat.UTF8:
            check_utf8(keys, values)
        return [
            b'{"op":',
            choice(_is(rows, Op.PUT), b'"put"', b'"delete"'),
            b',"key":',
            json_strings(keys, self._form),
            b',"value":',
            json_strings(values, self._form),
            b',"ts":"',
            slot(rows["commit_ts"]),
            b'","expire_ts":',
            slot(_expiries(rows)),
            only(_scanned(rows), slot(rows["start_ts"], before=b',"scanned_from_ts":"', after=b'"')),
            b"}",
        ]

    def watermark(self, ts: int) -> bytes | None:
        """As in the ndjson of tables."""
        return Ndjson(FormatOptions()).watermark(ts)


class TikvCdc:
    """TiKV-CDC's messages."""

    name: ClassVar[str] = "tikv-cdc"
    media_type: ClassVar[str] = FORMATS["tikv-cdc"]
    terminator: ClassVar[bytes] = b"\n"

    def pieces(self, rows: pa.RecordBatch) -> list[Piece]:
        """One message each."""
        values, expiries = rows["value"], _expiries(rows)
        keys: list[Piece] = [
            b'{"ts":',
            slot(rows["commit_ts"]),
            b',"k":"',
            bare(base64_text(rows["key"])),
            b'","t":%d}' % _ENTRY,
        ]
        holds = pc.fill_null(pc.greater(pc.binary_length(values), 0), False).to_numpy(zero_copy_only=False)
        bodies: list[Piece] = [
            b'{"op":',
            slot(rows["op"]),
            only(holds, bare(base64_text(values)).within(b',"v":"', b'"')),
            only(expiries.is_valid().to_numpy(zero_copy_only=False), slot(expiries, before=b',"ex":')),
            b"}",
        ]
        return [
            b'{"key":"',
            bare(base64_text(_framed(_VERSION, keys, rows.num_rows))),
            b'","value":"',
            bare(base64_text(_framed(b"", bodies, rows.num_rows))),
            b'"}',
        ]

    def watermark(self, ts: int) -> bytes | None:
        """A key alone."""
        head = json_bytes({"ts": ts, "t": _RESOLVED})
        key = _VERSION + len(head).to_bytes(8, "big") + head
        return json_bytes({"key": base64.b64encode(key).decode(), "value": base64.b64encode(bytes(8)).decode()})


def entries(rows: pa.Table) -> pa.Table:
    """Rows (schema change.COMMITTED) with the schema ARROW; they keep their chunks."""
    return pa.Table.from_batches([_entries(batch) for batch in rows.to_batches()], ARROW)


def _entries(rows: pa.RecordBatch) -> pa.RecordBatch:
    scanned_from_ts = pc.if_else(pa.array(_scanned(rows)), rows["start_ts"], pa.scalar(None, pa.uint64()))
    deleted = pa.array((~_is(rows, Op.PUT)).astype(np.int8))
    columns = [
        pa.DictionaryArray.from_arrays(deleted, _OPS),
        user_keys(rows["key"]),
        rows["value"],
        rows["commit_ts"],
        _expiries(rows),
        scanned_from_ts,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ARROW)


def _framed(head: bytes, pieces: Sequence[Piece], rows: int) -> pa.LargeBinaryArray:
    """Each text after the head and its length."""
    texts = written([Block(at=np.arange(rows), pieces=pieces)])
    sizes = pc.binary_length(texts).to_numpy().astype(">u8").view(np.uint8)
    lengths = large_binary(np.arange(rows + 1) * 8, sizes)
    return written([Block(at=np.arange(rows), pieces=[head, slot(lengths), slot(texts)])])


def _is(rows: pa.RecordBatch, op: Op) -> Mask:
    mask: Mask = rows["op"].to_numpy() == op
    return mask


def _scanned(rows: pa.RecordBatch) -> Mask:
    mask: Mask = rows["flags"].to_numpy() & FLAG_SCANNED > 0
    return mask


def _expiries(rows: pa.RecordBatch) -> pa.UInt64Array:
    """Unix seconds; null = never."""
    never = pa.array(rows["expire_ts"].to_numpy() == 0)
    return pc.if_else(never, pa.scalar(None, pa.uint64()), rows["expire_ts"])
