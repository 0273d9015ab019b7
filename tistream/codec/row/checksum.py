"""Row checksums: the trailer that TiDB writes when row level checksums are on.

Version 2 covers the row bytes, the trailer's header byte and the handle; version 1 the record key in place of the
handle, though some writers of version 1 hashed the handle too, so either is accepted. For version 0 see
`column_checksum`.

The trailer has room for a second checksum. It belongs to version 0, where it is that of the columns of another schema;
TiDB clears its bit when it writes versions 1 and 2, whose checksum is of bytes and needs no schema. A row that has one
must still match the first, which covers the trailer's header byte with that bit; the second cannot be checked.
"""

from __future__ import annotations

import zlib

import numpy as np

from tistream.codec.compiled import kernel
from tistream.codec.row import kernel as k
from tistream.codec.row.handle import PREFIX_SIZE
from tistream.codec.row.kernel import Bytes, Int32s, Number


def _table() -> Bytes:
    """The CRC-32 of each byte, without the inversions that zlib adds."""
    return np.array([zlib.crc32(bytes([byte]), 0xFFFFFFFF) ^ 0xFFFFFFFF for byte in range(256)], np.uint32)


_TABLE = _table()


@kernel
def _update(crc: Number, data: Bytes, start: Number, end: Number) -> Number:
    state = np.uint32(crc)
    for at in range(start, end):
        state = _TABLE[(state ^ np.uint32(data[at])) & np.uint32(0xFF)] ^ (state >> np.uint32(8))
    return state


@kernel
def verify(
    data: Bytes, offsets: Int32s, keys: Bytes, key_offsets: Int32s, trailer: Int32s, length: Int32s, fault: Int32s
) -> None:
    """Fail the rows whose checksum (at `trailer`, else -1) does not match."""
    full = np.uint32(0xFFFFFFFF)
    for row in range(len(trailer)):
        at = np.int64(trailer[row])
        if at < 0 or data[at] & 7 == 0:
            continue
        start, end = np.int64(key_offsets[row]), np.int64(key_offsets[row + 1])
        stored = np.uint32(k.little_endian(data, at + 1, 4))
        body = _update(full, data, np.int64(offsets[row]), at + 1)
        matches = _update(body, keys, min(start + PREFIX_SIZE, end), end) ^ full == stored
        if not matches and data[at] & 7 == 1:
            matches = _update(body, keys, start, end) ^ full == stored
        if not matches:
            k.fail(fault, length, row, k.CHECKSUM, -1, at)
