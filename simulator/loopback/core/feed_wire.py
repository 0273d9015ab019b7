"""The change feed's messages (`cdcpb`) as a store handles them: requests read, events written, rows separated.

A row keeps its bytes, so recorded rows are sent unchanged. Pure; damage is CorruptObject.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tistream.codec.memcomparable import decode_bytes, encode_bytes, encode_uvarint
from tistream.codec.protobuf import BYTES, REPEATED, VARINT, fields, merged, message, octets, parse, uint
from tistream.errors import CorruptObject
from tistream.keyrange import KeyRange
from tistream.model.change import RowKind
from tistream.tikv.core import wire

INITIALIZED = 5
INITIALIZED_ROW = message(1, uint(3, INITIALIZED))  #: as an entry of an event
DUPLICATE_REQUEST = 4  #: field of an error
KV_API_TIDB, KV_API_RAW = 0, 1

_ROW = {1: VARINT, 2: VARINT, 3: VARINT, 4: VARINT, 5: BYTES}
_CONTENTS = {6: BYTES, 7: BYTES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A registration that is asked for, or the end of one (region_id 0: of all with this request id)."""

    cluster_id: int
    region_id: int
    version: int
    request_id: int
    range: KeyRange  #: plain keys
    checkpoint_ts: int
    kv_api: int
    deregister: bool
    ticdc_version: str = ""
    filter_loop: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One row of an event. `entry` is the whole field with its tag."""

    kind: int
    start_ts: int
    commit_ts: int
    op: int
    key: bytes
    entry: bytes


@dataclass(frozen=True, slots=True)
class Event:
    """The part of a recorded message for one registration."""

    region_id: int
    request_id: int
    entries: bytes | None
    error: bytes | None

    @property
    def is_duplicate_request(self) -> bool:
        return self.error is not None and any(True for _ in fields(self.error, {DUPLICATE_REQUEST: BYTES}))


@dataclass(frozen=True, slots=True)
class Resolved:
    """A recorded resolved ts of many regions."""

    request_id: int
    regions: tuple[int, ...]
    ts: int


def read_request(data: bytes) -> Request:
    asked = parse(wire.ChangeDataRequest, data)
    return Request(
        cluster_id=asked.header.cluster_id,
        region_id=asked.region_id,
        version=asked.region_epoch.version,
        request_id=asked.request_id,
        range=plain_range(asked.start_key, asked.end_key),
        checkpoint_ts=asked.checkpoint_ts,
        kv_api=asked.kv_api,
        deregister=asked.HasField("deregister"),
        ticdc_version=asked.header.ticdc_version,
        filter_loop=asked.filter_loop,
    )


def read_message(data: bytes) -> tuple[list[Event], list[Resolved]]:
    """The contents of one ChangeDataEvent."""
    events, resolved = [], []
    for number, body in fields(data, {1: BYTES, 2: BYTES}):
        if number == 1:
            said = merged(body, {1: VARINT, 3: BYTES, 5: BYTES, 7: VARINT})
            events.append(Event(said.get(1, 0), said.get(7, 0), said.get(3), said.get(5)))
        else:
            regions = []
            numbers = {2: 0, 3: 0}
            for n, value in fields(body, {1: REPEATED, 2: VARINT, 3: VARINT}):
                if n != 1:
                    numbers[n] = value
                elif isinstance(value, int):
                    regions.append(value)
                else:
                    raise CorruptObject("a recorded resolved ts has packed regions")
            resolved.append(Resolved(numbers[3], tuple(regions), numbers[2]))
    return events, resolved


def read_rows(entries: bytes) -> Iterator[Row]:
    """The rows of an event, also the empty ones."""
    for _, body in fields(entries, {1: BYTES}):
        said = dict(fields(body, _ROW))
        kind = said.get(3, 0)
        if kind > INITIALIZED:
            raise CorruptObject("a recorded row has an unknown kind", kind=kind)
        yield Row(kind, said.get(1, 0), said.get(2, 0), said.get(4, 0), said.get(5, b""), message(1, body))


def has_initialized(entries: bytes) -> bool:
    """Whether the scan's end is among these rows; TiKV puts it last."""
    return entries.endswith(INITIALIZED_ROW) and any(row.kind == INITIALIZED for row in read_rows(entries))


def committed(prewrite: Row, commit: Row) -> Row:
    """The self-contained row of a transaction's change, as an opening scan shows it."""
    contents = merged(merged(prewrite.entry, {1: BYTES})[1], _CONTENTS)
    body = (
        uint(1, commit.start_ts)
        + uint(2, commit.commit_ts)
        + uint(3, RowKind.COMMITTED)
        + uint(4, commit.op)
        + octets(5, commit.key)
        + octets(6, contents.get(6, b""))
        + octets(7, contents.get(7, b""))
    )
    entry = message(1, body)
    return Row(int(RowKind.COMMITTED), commit.start_ts, commit.commit_ts, commit.op, commit.key, entry)


def entries_event(region_id: int, request_id: int, entries: bytes) -> bytes:
    """An event of rows, as a field of a message."""
    return message(1, uint(1, region_id) + message(3, entries) + uint(7, request_id))


def error_event(region_id: int, request_id: int, error: bytes) -> bytes:
    """An event that ends a registration, as a field of a message."""
    return message(1, uint(1, region_id) + message(5, error) + uint(7, request_id))


def resolved_message(request_id: int, regions: Sequence[int], ts: int, *, packed: bool = False) -> bytes:
    """A whole message; regions listed singly, as TiKV does, or packed, as protobuf prefers."""
    body = b"".join(uint(1, region) for region in regions)
    if packed:
        body = message(1, b"".join(encode_uvarint(region) for region in regions))
    return message(2, body + uint(2, ts) + uint(3, request_id))


def region_not_found(region_id: int) -> bytes:
    return message(2, uint(1, region_id))


def epoch_not_match(*regions: bytes) -> bytes:
    """With the current regions (metapb.Region), or without any."""
    return message(3, b"".join(message(1, region) for region in regions))


def server_is_busy(reason: str, backoff_ms: int) -> bytes:
    return message(7, octets(1, reason.encode()) + uint(2, backoff_ms))


def congested(region_id: int) -> bytes:
    return message(8, uint(1, region_id))


def not_leader(region_id: int, peer: bytes = b"") -> bytes:
    """`peer` that leads, if that is known."""
    return message(1, uint(1, region_id) + octets(2, peer))


def duplicate_request(region_id: int) -> bytes:
    return message(DUPLICATE_REQUEST, uint(1, region_id))


def incompatible() -> bytes:
    return message(5, octets(1, b"6.2.0"))


def cluster_id_mismatch(current: int, request: int) -> bytes:
    return message(6, uint(1, current) + uint(2, request))


def plain_range(start: bytes, end: bytes) -> KeyRange:
    """The plain keys of a range in region form. CorruptObject when it is none."""
    try:
        return KeyRange(_plain(start), _plain(end))
    except ValueError as e:
        raise CorruptObject("a range of keys is empty", start=start, end=end) from e


def region_form(key: bytes) -> bytes:
    """The other way round; empty stays infinity."""
    return encode_bytes(key) if key else b""


def _plain(key: bytes) -> bytes:
    return decode_bytes(key)[0] if key else b""
