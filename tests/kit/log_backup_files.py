"""Writes the files of a log backup as TiKV does, for tests: plain Python from the format's description.

log = LogBackupFiles(MemoryStore())
log.flush([Piece(cf="write", table_id=5, entries=[put(KEY, 10, 20, b"row")])], flush_ts=90)
log.checkpoint(80)
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import zstandard

from tistream.codec.memcomparable import encode_bytes, encode_uvarint
from tistream.objectstore.protocol import ObjectStore

Entry = tuple[bytes, int, bytes]  #: user key, timestamp of the stored key, stored value


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One slice to be written."""

    cf: str
    entries: Sequence[Entry]
    table_id: int = 0
    deletes: bool = False
    plain: bool = False  #: not packed


def put(key: bytes, start_ts: int, commit_ts: int, value: bytes | None, tags: bytes = b"") -> Entry:
    """A put in the write column family; `value` None: it is in the default one."""
    short = b"" if value is None else b"v" + bytes([len(value)]) + value
    return key, commit_ts, b"P" + encode_uvarint(start_ts) + short + tags


def delete(key: bytes, start_ts: int, commit_ts: int) -> Entry:
    """A delete of a user."""
    return key, commit_ts, b"D" + encode_uvarint(start_ts)


def source_tag(txn_source: int) -> bytes:
    """The tag of a transaction's source, for `put`."""
    return b"S" + encode_uvarint(txn_source)


def entry_bytes(entries: Sequence[Entry]) -> bytes:
    """The content of a slice."""
    out = bytearray()
    for key, at, value in entries:
        stored = encode_bytes(key) + (~at & (1 << 64) - 1).to_bytes(8, "big")
        out += len(stored).to_bytes(4, "little") + stored + len(value).to_bytes(4, "little") + value
    return bytes(out)


def number(field: int, value: int) -> bytes:
    """A protobuf field with a number."""
    return encode_uvarint(field << 3) + encode_uvarint(value)


def sized(field: int, body: bytes) -> bytes:
    """A protobuf field with bytes."""
    return encode_uvarint(field << 3 | 2) + encode_uvarint(len(body)) + body


class LogBackupFiles:
    """A log backup's directory."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store

    def checkpoint(self, ts: int, name: str = "central_global") -> None:
        """Note the global checkpoint, over what was noted before."""
        key = f"v1/global_checkpoint/{name}.ts"
        self.store.delete(key)
        self.store.put(key, ts.to_bytes(8, "little"))

    def flush(self, pieces: Sequence[Piece], *, flush_ts: int, store_id: int = 1, name: str = "") -> str:
        """Write one flush: an object of entries and its metadata, whose key is returned."""
        path = f"v1/20261121/08/{store_id}/{flush_ts}-{uuid.uuid4()}.log"
        data, infos = bytearray(), b""
        for piece in pieces:
            entries = entry_bytes(piece.entries)
            stored = entries if piece.plain else zstandard.compress(entries)
            infos += sized(2, self._info(piece, entries, len(data), len(stored)))
            data += stored
        stamps = [at for piece in pieces for _, at, _ in piece.entries]
        group = sized(1, path.encode()) + infos + number(6, len(data))
        meta = number(2, store_id) + number(3, flush_ts) + number(4, max(stamps, default=0))
        meta += (sized(6, group) if pieces else b"") + number(7, 1)
        tags = f"d{min(stamps, default=0):016X}l{min(stamps, default=0):016X}u{max(stamps, default=0):016X}"
        key = f"v1/backupmeta/{name or f'{flush_ts:016X}{store_id:016X}-{tags}'}.meta"
        if pieces:
            self.store.put(path, bytes(data))
        self.store.put(key, meta)
        return key

    def _info(self, piece: Piece, entries: bytes, offset: int, stored: int) -> bytes:
        stamps = [at for _, at, _ in piece.entries]
        is_meta = piece.entries[0][0].startswith(b"m")
        return (
            sized(1, hashlib.sha256(entries).digest())
            + number(3, len(piece.entries))
            + number(4, min(stamps))
            + number(5, max(stamps))
            + sized(10, piece.cf.encode())
            + number(11, 0 if piece.deletes else 1)
            + number(12, int(is_meta))
            + number(13, piece.table_id)
            + number(14, len(entries))
            + number(16, offset)
            + number(17, stored)
            + number(18, 0 if piece.plain else 3)
        )
