"""The rows of a subscription as the bytes of `cdcpb` rows, cut into events. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.core.mvcc import RowColumns
from tistream.codec.protobuf import message, octets, uint
from tistream.keyrange import KeyRange
from tistream.model.change import RowKind

EMPTY_ROW = message(1, b"")  #: the row for a lock without a change
_LOOP_TXN_SOURCE = 0xFF  #: written by another change feed
_PROTECTED = b"p"  #: the value of some rollbacks
_PROTECTED_EVERY = 10


def encode_rows(rows: RowColumns, wanted: KeyRange, *, filter_loop: bool) -> Iterator[bytes]:
    """Each row of the range as an entry of an event. `filter_loop`: without what another change feed wrote."""
    columns = zip(
        rows.kind,
        rows.op,
        rows.key,
        rows.start_ts,
        rows.commit_ts,
        rows.generation,
        rows.value,
        rows.old_value,
        rows.txn_source,
        rows.expire_ts,
        strict=True,
    )
    for kind, op, key, start_ts, commit_ts, generation, value, old_value, txn_source, expire_ts in columns:
        if key not in wanted or (filter_loop and txn_source & _LOOP_TXN_SOURCE):
            continue
        said = value or b""
        if kind == RowKind.ROLLBACK and start_ts % _PROTECTED_EVERY == 0:
            said = _PROTECTED
        yield message(
            1,
            uint(1, start_ts)
            + uint(2, commit_ts)
            + uint(3, kind)
            + uint(4, op)
            + octets(5, key)
            + octets(6, said)
            + octets(7, old_value or b"")
            + uint(8, expire_ts)
            + uint(9, txn_source)
            + uint(10, generation),
        )


def events(entries: Iterator[bytes], event_bytes: int) -> Iterator[bytes]:
    """The entries of each event: as many as fit, and at least one."""
    held: list[bytes] = []
    size = 0
    for entry in entries:
        if held and size + len(entry) > event_bytes:
            yield b"".join(held)
            held, size = [], 0
        held.append(entry)
        size += len(entry)
    if held:
        yield b"".join(held)
