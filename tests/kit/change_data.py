"""Writes what a TiKV store sends on its change feed, for tests: messages, rows, errors; and reads it with its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from pusher.core.cdcpb import RegionError, ResolvedRegions, split_change_data
from pusher.core.cdcpb_rows import read_entries
from tistream.codec.protobuf import message, octets, uint
from tistream.model.change import Op, RowKind
from tistream.tikv.core.pd_messages import Region

INITIALIZED = uint(3, 5)
LOCK_ONLY = b""  #: the row that a store sends for a lock without a change


def row(
    kind: RowKind | int,
    key: bytes,
    start_ts: int,
    commit_ts: int = 0,
    *,
    op: Op = Op.PUT,
    value: bytes = b"",
    old_value: bytes = b"",
    expire_ts: int = 0,
) -> bytes:
    """Event.Row."""
    op = Op.NONE if kind is RowKind.ROLLBACK else op
    numbers = uint(1, start_ts) + uint(2, commit_ts) + uint(3, kind) + uint(4, op)
    return numbers + octets(5, key) + octets(6, value) + octets(7, old_value) + uint(8, expire_ts)


def prewrite(key: bytes, start_ts: int, value: bytes = b"v", op: Op = Op.PUT) -> bytes:
    return row(RowKind.PREWRITE, key, start_ts, op=op, value=value)


def commit(key: bytes, start_ts: int, commit_ts: int) -> bytes:
    return row(RowKind.COMMIT, key, start_ts, commit_ts)


def committed(key: bytes, start_ts: int, commit_ts: int, value: bytes = b"v") -> bytes:
    return row(RowKind.COMMITTED, key, start_ts, commit_ts, value=value)


def entries(*rows: bytes) -> bytes:
    """The body of Event.entries."""
    return b"".join(message(1, r) for r in rows)


def event(region: int, request: int, *rows: bytes, error: bytes | None = None, resolved_ts: int = 0) -> bytes:
    """A ChangeDataEvent with one Event; with rows, an error or a resolved ts of the old form."""
    said = message(3, entries(*rows)) if rows else b""
    said += message(5, error) if error is not None else b""
    return message(1, uint(1, region) + said + uint(6, resolved_ts) + uint(7, request))


def resolved(request: int, regions: Sequence[int], ts: int) -> bytes:
    """A ChangeDataEvent with one ResolvedTs, its regions one by one."""
    return message(2, b"".join(uint(1, r) for r in regions) + uint(2, ts) + uint(3, request))


def not_leader(region: int, leader_store: int = 0) -> bytes:
    peer = message(2, uint(1, 99) + uint(2, leader_store)) if leader_store else b""
    return message(1, uint(1, region) + peer)


def region_not_found(region: int) -> bytes:
    return message(2, uint(1, region))


def epoch_not_match(*regions: Region) -> bytes:
    return message(3, b"".join(message(1, _region(r)) for r in regions))


def duplicate_request(region: int) -> bytes:
    return message(4, uint(1, region))


def compatibility(version: str) -> bytes:
    return message(5, octets(1, version.encode()))


def cluster_id_mismatch(current: int, request: int) -> bytes:
    return message(6, uint(1, current) + uint(2, request))


def server_is_busy(reason: str, backoff_ms: int = 0) -> bytes:
    return message(7, octets(1, reason.encode()) + uint(2, backoff_ms))


def congested(region: int) -> bytes:
    return message(8, uint(1, region))


def unknown_error() -> bytes:
    return message(9, uint(1, 5))


def _region(region: Region) -> bytes:
    epoch = uint(1, region.conf_ver) + uint(2, region.version)
    return uint(1, region.id) + octets(2, region.start) + octets(3, region.end) + message(4, epoch)


@dataclass(frozen=True, slots=True)
class RegionEvent:
    """An event of one registration, with its rows."""

    region_id: int
    request_id: int
    rows: pa.RecordBatch | None  #: schema change.ROWS, in arrival order; None = no entries
    initialized: bool  #: the opening scan is complete
    error: RegionError | None


@dataclass(frozen=True, slots=True)
class ChangeDataEvent:
    events: tuple[RegionEvent, ...]
    resolved: ResolvedRegions | None


def read_change_data(data: bytes) -> ChangeDataEvent:
    """A message as pushers read it. CorruptObject when it or its rows are damaged."""
    events, resolved = split_change_data(data)
    read = []
    for event in events:
        rows, initialized = (None, False) if event.entries is None else read_entries(event.entries)
        read.append(RegionEvent(event.region_id, event.request_id, rows, initialized, event.error))
    return ChangeDataEvent(tuple(read), resolved)
