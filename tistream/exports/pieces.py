"""The files of an export: pieces with rows of one table, and the manifest that names them.

    piece      an Arrow IPC stream, compressed with zstd: the rows of one table between two primary keys
    manifest   JSON: generation, release, revision of the tables, and per table its columns, rows and pieces

A table is cut behind a row whose primary key hashes to a multiple of ROWS_ON_AVERAGE, so a row that is added or removed
changes one piece, and the next export writes only that one. A piece is named by the SHA-256 of its bytes.

With a key both are sealed: AES-256-GCM under a random nonce, with the object's kind and generation as associated data,
so an object that was changed or moved is refused. Pieces are then named by an HMAC, which tells nothing about the rows.
"""

from __future__ import annotations

import hmac
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
from sqlalchemy import BigInteger, Boolean, Integer, LargeBinary, Table

from tistream.catalog.database.dump import Rows
from tistream.errors import ConfigError, CorruptObject

FORMAT = 1
ROWS_ON_AVERAGE = 4_096
ROWS_MAX = 16_384
KEY_BYTES = 32
_SEALED = b"TSX1"
_NONCE_BYTES = 12
_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd")


class Sealing:
    """Seals the objects of an export with the deployment's key, or leaves them as they are."""

    def __init__(self, key: bytes | None = None) -> None:
        self._key = key

    @classmethod
    def of_file(cls, path: str) -> Sealing:
        """The key in this file, 64 hexadecimal digits; no key for an empty path. ConfigError for anything else."""
        if not path:
            return cls()
        try:
            key = bytes.fromhex(Path(path).read_text("ascii").strip())
        except (OSError, ValueError) as e:
            raise ConfigError(f"exports.key_file {path} is not a readable file of hexadecimal digits: {e}") from e
        if len(key) != KEY_BYTES:
            raise ConfigError(f"exports.key_file {path} must have {2 * KEY_BYTES} hexadecimal digits.")
        return cls(key)

    @property
    def is_on(self) -> bool:
        return self._key is not None

    @property
    def name(self) -> str:
        """Tells one key from another, and nothing else about them; empty without a key."""
        return "" if self._key is None else hmac.new(self._key, b"the name of this key", "sha256").hexdigest()[:16]

    def digest(self, data: bytes) -> str:
        """What a piece with these bytes is named."""
        return sha256(data).hexdigest() if self._key is None else hmac.new(self._key, data, "sha256").hexdigest()

    def seal(self, data: bytes, place: str) -> bytes:
        """The object's bytes. `place` is what `unseal` must be given again."""
        if self._key is None:
            return data
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce = os.urandom(_NONCE_BYTES)
        return _SEALED + nonce + AESGCM(self._key).encrypt(nonce, data, place.encode("ascii"))

    def unseal(self, stored: bytes, place: str) -> bytes:
        """What was sealed. ConfigError without the key, CorruptObject when the bytes or the key are not those."""
        if not stored.startswith(_SEALED):
            if self._key is not None:
                raise CorruptObject(
                    "an object of the export or the journal is not sealed, and exports.key_file is set", place=place
                )
            return stored
        if self._key is None:
            raise ConfigError("The export is sealed: set exports.key_file to the key with which it was made.")
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        at = len(_SEALED) + _NONCE_BYTES
        try:
            return AESGCM(self._key).decrypt(stored[len(_SEALED) : at], stored[at:], place.encode("ascii"))
        except InvalidTag as e:
            raise CorruptObject(
                "an object of the export or the journal was changed, or sealed with another key", place=place
            ) from e


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Rows of one table in an object."""

    digest: str
    rows: int
    size: int  #: bytes of the Arrow stream


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePieces:
    """What an export has of one table."""

    name: str
    columns: tuple[str, ...]
    pieces: tuple[Piece, ...]

    @property
    def rows(self) -> int:
        return sum(piece.rows for piece in self.pieces)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One export."""

    generation: int
    leader_epoch: int
    export_no: int
    snapshot_ms: int  #: by the database's clock
    release: str  #: that made it
    revision: str  #: of the tables
    tables: tuple[TablePieces, ...]

    @property
    def rows(self) -> int:
        return sum(table.rows for table in self.tables)

    @property
    def size(self) -> int:
        """Bytes of all pieces."""
        return sum(piece.size for table in self.tables for piece in table.pieces)

    def encode(self) -> bytes:
        tables = [
            {
                "name": table.name,
                "columns": table.columns,
                "pieces": [{"digest": piece.digest, "rows": piece.rows, "bytes": piece.size} for piece in table.pieces],
            }
            for table in self.tables
        ]
        own = {name: getattr(self, name) for name in _FIELDS}
        return json.dumps({"format": FORMAT, **own, "tables": tables}).encode("utf-8")

    @classmethod
    def decode(cls, data: bytes, place: str) -> Manifest:
        """CorruptObject for anything but a manifest that this release can read."""
        try:
            body = json.loads(data)
            if body["format"] != FORMAT:
                raise CorruptObject(
                    f"the export has format {body['format']}, which this release cannot read", key=place
                )
            tables = tuple(
                TablePieces(
                    name=table["name"],
                    columns=tuple(table["columns"]),
                    pieces=tuple(Piece(digest=p["digest"], rows=p["rows"], size=p["bytes"]) for p in table["pieces"]),
                )
                for table in body["tables"]
            )
            return cls(**{name: body[name] for name in _FIELDS}, tables=tables)
        except (ValueError, KeyError, TypeError) as e:
            raise CorruptObject("not the manifest of an export", key=place) from e


_FIELDS = ("generation", "leader_epoch", "export_no", "snapshot_ms", "release", "revision")


def cut(table: Table, batches: Iterator[Rows]) -> Iterator[Rows]:
    """The rows of a table, cut where their primary keys say."""
    at = [n for n, column in enumerate(table.columns) if column.primary_key]
    piece: list[Sequence[Any]] = []
    for batch in batches:
        for row in batch:
            piece.append(row)
            is_end = zlib.crc32(repr([row[n] for n in at]).encode()) % ROWS_ON_AVERAGE == 0
            if is_end or len(piece) == ROWS_MAX:
                yield piece
                piece = []
    if piece:
        yield piece


def encode_rows(table: Table, rows: Rows) -> bytes:
    """Rows as an Arrow stream."""
    schema = pa.schema([pa.field(column.name, _type(column.type)) for column in table.columns])
    arrays = [pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), schema, strict=True)]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=_OPTIONS) as writer:
        writer.write_batch(pa.record_batch(arrays, schema=schema))
    return bytes(sink.getvalue())


def decode_rows(data: bytes, place: str) -> list[dict[str, Any]]:
    """The rows of an Arrow stream, by column. CorruptObject for anything else."""
    try:
        with pa.ipc.open_stream(data) as reader:
            return [row for batch in reader for row in batch.to_pylist()]
    except pa.ArrowInvalid as e:
        raise CorruptObject("not a piece of an export", key=place) from e


def _type(column: Any) -> pa.DataType:
    match column:
        case Boolean():
            return pa.bool_()
        case BigInteger() | Integer():
            return pa.int64()
        case LargeBinary():
            return pa.binary()
    return pa.string()
