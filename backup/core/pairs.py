"""Keys, values and expiries as columns: what a backup holds and what verification compares."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tistream.codec.crc import Checksum, checksum_of

#: `key` without mode and keyspace; `expire_ts` in Unix seconds, 0 = never
PAIRS = pa.schema(
    [
        pa.field("key", pa.binary(), False),
        pa.field("value", pa.binary(), False),
        pa.field("expire_ts", pa.uint64(), False),
    ]
)


def size_of(pairs: pa.Table) -> int:
    """Bytes of keys and values."""
    lengths = pc.add(pc.binary_length(pairs["key"]), pc.fill_null(pc.binary_length(pairs["value"]), 0))
    return int(pc.sum(lengths).as_py() or 0)


def checksum(pairs: pa.Table) -> Checksum:
    """Over keys and values; expiries take no part."""
    return checksum_of(pairs["key"].combine_chunks(), pairs["value"].combine_chunks())


def parted(pairs: pa.Table) -> tuple[pa.Table, pa.Table]:
    """(pairs that last, pairs with an expiry)."""
    lasting = pc.equal(pairs["expire_ts"], pa.scalar(0, pa.uint64()))
    return pairs.filter(lasting), pairs.filter(pc.invert(lasting))


def alive(pairs: pa.Table, now_s: int) -> pa.Table:
    """Without those whose expiry is at or below this Unix time."""
    expire_ts = pairs["expire_ts"]
    zero, now = pa.scalar(0, pa.uint64()), pa.scalar(now_s, pa.uint64())
    return pairs.filter(pc.or_(pc.equal(expire_ts, zero), pc.greater(expire_ts, now)))
