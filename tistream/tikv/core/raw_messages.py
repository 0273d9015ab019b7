"""Messages of RawKV (`kvrpcpb.Raw*`): keys of users as the stores of an API version have them, requests and answers.

    RawSpace(Api.V2, 7)      keys get `r` and the keyspace on the wire
    RawSpace(Api.V1)         keys of users as they are

- The batches of a write are encoded by compiled code from Arrow's memory, without an object per row;
- a time to live of 0 means for ever: what has expired must be deleted (`remaining`);
- an answer is a result, the reason why the region did not serve (`wire.RegionError`), or a refusal (`RawRefused`), of
  which `is_final` says whether a later try could succeed.

Pure: any bytes give a value, RawRefused or CorruptObject.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tistream.codec.binary import Bounds, flat
from tistream.codec.compiled import kernel
from tistream.codec.protobuf import parse
from tistream.codec.raw.keys import KeyMode, keyspace_prefix, keyspace_range
from tistream.errors import CorruptObject
from tistream.keyrange import KeyRange
from tistream.model.arrays import U8, Mask
from tistream.tikv.core import wire
from tistream.tikv.core.api_versions import Api
from tistream.tikv.core.kv_messages import ApiVersion, KvRefused, context
from tistream.tikv.core.pd_messages import Region
from tistream.tikv.core.regions import plain_range, region_form

SCAN_MAX = 10_240  #: pairs of a RawScan
_CONTEXT, _TTLS = 0x0A, 0x32  # tags of fields 1 and 6
_OF_ENTRY = ("max key size exceeded", "ttl is not enabled")
_FINAL = (
    *_OF_ENTRY,
    "Api version in request does not match",
    "ApiVersionNotMatched",
    "Key mode mismatched",
    "InvalidKeyMode",
    "InvalidKeyRangeMode",
    "length of ttls does not equal",
    "cf is deprecated",
    "nvalid column family",
)
Rows = npt.NDArray[np.int64]
Seconds = npt.NDArray[np.uint64]
M = TypeVar("M")


class RawRefused(KvRefused):
    """A store refused a RawKV request."""

    code = "TS-1104"
    refused: Sequence[tuple[bytes, str]] = ()  #: (key, cause) of the entries that are refused, if it is not everything

    @property
    def is_final(self) -> bool:
        """Whether the same request would be refused again."""
        return any(words in self.message for words in _FINAL)

    @property
    def is_of_entry(self) -> bool:
        """Whether the request would pass without one of its entries."""
        return any(words in self.message for words in _OF_ENTRY)


@dataclass(frozen=True, slots=True)
class RawSpace:
    """Where keys of users are: a keyspace of API V2, or all of a cluster of API V1."""

    api: Api
    keyspace_id: int = 0

    @property
    def prefix(self) -> bytes:
        """The first bytes of each key on the wire."""
        return keyspace_prefix(KeyMode.RAW, self.keyspace_id) if self.api is Api.V2 else b""

    @property
    def has_expiry(self) -> bool:
        """Whether an entry can expire. To a server without, RawGetKeyTTL must not be sent: its process would end."""
        return self.api is not Api.V1

    def outer_range(self, inner: KeyRange) -> KeyRange:
        """A range of keys of users as it is on the wire."""
        if self.api is not Api.V2:
            return inner
        whole = keyspace_range(KeyMode.RAW, self.keyspace_id)
        return KeyRange(self.prefix + inner.start, self.prefix + inner.end if inner.end else whole.end)

    def inner_range(self, outer: KeyRange) -> KeyRange | None:
        """The part of a range on the wire that is of this space, in keys of users."""
        whole = self.outer_range(KeyRange())
        part = outer.intersect(whole)
        if part is None:
            return None
        size = len(self.prefix)
        return KeyRange(part.start[size:], b"" if part.end == whole.end else part.end[size:])

    def inner_key(self, key: bytes) -> bytes:
        """The key of the user. CorruptObject when it is of another space."""
        if not key.startswith(self.prefix):
            raise CorruptObject("a store returned a key of another keyspace", key=key, prefix=self.prefix)
        return key[len(self.prefix) :]

    def boundary(self, key: bytes) -> bytes:
        """A key on the wire as PD has boundaries: memcomparable, but for RawKV of API V1."""
        return region_form(key) if self.api is Api.V2 else key

    def range_of(self, region: Region) -> KeyRange | None:
        """The region's range in keys on the wire; None when no key lies in it."""
        if self.api is Api.V2:
            return plain_range(region)
        return None if region.end and region.end <= region.start else KeyRange(region.start, region.end)

    def head(self, region: Region, seconds: float, *, fills_cache: bool = True) -> bytes:
        """The context of a request to the region's leader, which drops it when it was not begun in that time. A body
        follows."""
        version = ApiVersion.V2 if self.api is Api.V2 else ApiVersion.V1
        context_ = context(region, version, self.keyspace_id)
        context_.max_execution_duration_ms = max(int(seconds * 1000), 1)
        context_.not_fill_cache = not fills_cache
        return _field(_CONTEXT, context_.SerializeToString())


def remaining(expires: Seconds, now_s: int) -> tuple[Seconds, Mask]:
    """(time to live of each entry, which of them have expired) for expiries in Unix seconds, 0 = never."""
    timed = expires != 0
    expired: Mask = timed & (expires <= np.uint64(now_s))
    return np.where(timed & ~expired, expires - np.uint64(now_s), np.uint64(0)), expired


def cut(bounds: Bounds, start: int, end: int, keys_max: int, bytes_max: int) -> list[tuple[int, int]]:
    """Rows [start, end) as consecutive parts within both limits, each of at least one row. `bounds`: bytes before each
    row."""
    parts = []
    while start < end:
        full = int(np.searchsorted(bounds, bounds[start] + bytes_max, "right")) - 1
        to = max(min(end, full, start + keys_max), start + 1)
        parts.append((start, to))
        start = to
    return parts


@dataclass(frozen=True, slots=True)
class Columns:
    """Keys of users, and values, as compiled code reads them. Without values: keys to delete."""

    keys: tuple[Bounds, U8]
    values: tuple[Bounds, U8] | None

    @staticmethod
    def of(keys: pa.BinaryArray, values: pa.BinaryArray | None) -> Columns:
        return Columns(_fixed(flat(keys)), None if values is None else _fixed(flat(values)))

    @property
    def bounds(self) -> Bounds:
        """Bytes before each row."""
        return self.keys[0] if self.values is None else self.keys[0] + self.values[0]

    def key(self, row: int) -> bytes:
        bounds, data = self.keys
        return data[bounds[row] : bounds[row + 1]].tobytes()

    @property
    def is_rising(self) -> bool:
        """Whether each key is above the one before."""
        return is_rising(*self.keys)


def _fixed(column: tuple[Bounds, U8]) -> tuple[Bounds, U8]:
    """Read-only: writable arrays would compile every kernel a second time."""
    for part in column:
        part.flags.writeable = False
    return column


def put_body(space: RawSpace, columns: Columns, rows: Rows, ttls: Seconds | None) -> bytes:
    """RawBatchPut of these rows; `ttls` None: they never expire."""
    assert columns.values is not None
    pairs = encode_entries(_bytes(space.prefix), *columns.keys, *columns.values, rows, True)
    lives = b"" if ttls is None or not ttls.any() else _field(_TTLS, encode_varints(ttls).tobytes())
    return pairs.tobytes() + lives


def delete_body(space: RawSpace, columns: Columns, rows: Rows) -> bytes:
    """RawBatchDelete of the keys of these rows."""
    keys: U8 = encode_entries(_bytes(space.prefix), *columns.keys, *columns.keys, rows, False)
    return keys.tobytes()


def read_answer(kind: type[M], answer: bytes) -> M | wire.RegionError:
    """The answer to anything but RawScan. RawRefused when it is a refusal."""
    body: Any = parse(kind, answer)  # type: ignore[type-var]
    if body.HasField("region_error"):
        return body.region_error  # type: ignore[no-any-return]
    if body.error:
        raise RawRefused(body.error.decode(errors="replace"))
    return body  # type: ignore[no-any-return]


def read_scan(answer: bytes, range_: KeyRange) -> list[wire.KvPair] | wire.RegionError:
    """Pairs of a RawScan, in key order; a store puts its refusal into the first of them."""
    body = parse(wire.RawScanResponse, answer)
    if body.HasField("region_error"):
        return body.region_error
    before: bytes | None = None
    for pair in body.kvs:
        if pair.HasField("error"):
            raise RawRefused((pair.error.abort or pair.error.retryable).decode(errors="replace") or "for no reason")
        if pair.key not in range_ or (before is not None and pair.key <= before):
            raise CorruptObject("a scan returned a key that was not requested, or is out of order", key=pair.key)
        before = pair.key
    return list(body.kvs)


def _field(tag: int, body: bytes) -> bytes:
    size = encode_varints(np.array([len(body)], np.uint64)).tobytes()
    return bytes([tag]) + size + body


def _bytes(text: bytes) -> U8:
    return np.frombuffer(text, np.uint8)


@kernel
def _varint_size(number: Any) -> int:
    size = 1
    while number >= 128:
        number >>= 7
        size += 1
    return size


@kernel
def _put_varint(out: Any, at: int, number: Any) -> int:
    while number >= 128:
        out[at] = (number & 127) | 128
        number >>= 7
        at += 1
    out[at] = number
    return at + 1


@kernel
def _put_field(out: Any, at: int, tag: int, prefix: Any, data: Any, start: int, end: int) -> int:
    out[at] = tag
    at = _put_varint(out, at + 1, len(prefix) + end - start)
    for i in range(len(prefix)):
        out[at + i] = prefix[i]
    at += len(prefix)
    for i in range(end - start):
        out[at + i] = data[start + i]
    return at + end - start


@kernel
def encode_entries(
    prefix: Any, key_bounds: Any, keys: Any, value_bounds: Any, values: Any, rows: Any, is_pair: bool
) -> U8:
    """Field 2 of a batch, once for each row: its key with the prefix, or both as a KvPair."""
    total = 0
    for i in range(len(rows)):
        row = rows[i]
        size = len(prefix) + key_bounds[row + 1] - key_bounds[row]
        size += 1 + _varint_size(size)
        if is_pair:
            value_size = value_bounds[row + 1] - value_bounds[row]
            size += 1 + _varint_size(value_size) + value_size
            size += 1 + _varint_size(size)
        total += size
    out = np.empty(total, np.uint8)
    at = 0
    for i in range(len(rows)):
        row = rows[i]
        if is_pair:
            key_size = len(prefix) + key_bounds[row + 1] - key_bounds[row]
            value_size = value_bounds[row + 1] - value_bounds[row]
            out[at] = 0x12
            inner = 2 + _varint_size(key_size) + key_size + _varint_size(value_size) + value_size
            at = _put_varint(out, at + 1, inner)
        at = _put_field(out, at, 0x12, prefix, keys, key_bounds[row], key_bounds[row + 1])
        if is_pair:
            at = _put_field(out, at, 0x1A, prefix[:0], values, value_bounds[row], value_bounds[row + 1])
    return out


@kernel
def encode_varints(numbers: Seconds) -> U8:
    total = 0
    for i in range(len(numbers)):
        total += _varint_size(numbers[i])
    out = np.empty(total, np.uint8)
    at = 0
    for i in range(len(numbers)):
        at = _put_varint(out, at, numbers[i])
    return out


@kernel
def is_rising(bounds: Any, data: Any) -> bool:
    """Whether each key is above the one before."""
    for row in range(1, len(bounds) - 1):
        a, b, end = bounds[row - 1], bounds[row], bounds[row + 1]
        before_end = b
        while a < before_end and b < end and data[a] == data[b]:
            a += 1
            b += 1
        if b == end or (a < before_end and data[a] > data[b]):
            return False
    return True
