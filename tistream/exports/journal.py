"""The catalog's journal in the bucket: deeds that a restore must not lose are put there at once.

    the deed is committed (`tistream.catalog.database.journaled`) -> entry -> look for a newer generation -> the answer

The entry is put before the look, and a restore opens its generation before it lists the journal. So either the restore
reads the entry, or the look sees the generation, and the deed of a catalog that no longer counts has no good answer.

An entry that cannot be put changes nothing about the deed, which is done: an export is asked for instead. An export has
all entries of lower numbers; they are deleted with the exports that need them.

An entry is JSON, sealed as the pieces of an export: format, release, kind, actor, time, and per table the rows that the
deed wrote, as columns; bytes are hexadecimal. A key's row has the hash of its secret.
"""

from __future__ import annotations

import json
import secrets
from typing import Any

import structlog
from sqlalchemy import LargeBinary, Table

from tistream.catalog.database.dump import exported_tables
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.journaled import want_export
from tistream.catalog.rows.journal import EntryKind, JournalEntry
from tistream.errors import ConfigError, CorruptObject, TiStreamError
from tistream.exports.pieces import Sealing
from tistream.objectstore.generations import CatalogReplaced, GenerationWatch
from tistream.objectstore.layout import ExportKey, JournalKey, journal_prefix, parse
from tistream.objectstore.protocol import ObjectStore

log = structlog.get_logger(__name__)

FORMAT = 1


class Journal:
    """Keeps entries: a `Catalog.journal`. Thread-safe."""

    def __init__(self, catalog: Catalog, store: ObjectStore, watch: GenerationWatch, sealing: Sealing) -> None:
        self._catalog, self._store, self._watch, self._sealing = catalog, store, watch, sealing

    def __call__(self, entry: JournalEntry) -> None:
        """Put an entry, or ask for an export. CatalogReplaced when the catalog of the deed no longer counts."""
        at = {"generation": entry.generation, "exports_begun": entry.exports_begun, "ms": entry.at_ms}
        key = str(JournalKey(**at, name=secrets.token_hex(8)))
        try:
            if entry.exports_key != self._sealing.name:
                raise ConfigError("exports.key_file of this process is not that of the leading meta server.")
            self._store.put(key, self._sealing.seal(encode(entry, str(self._catalog.release)), key))
            self._watch.look()
        except CatalogReplaced:
            raise
        except TiStreamError as e:
            log.error("not in the journal, an export is asked for", kind=entry.kind, key=key, code=e.code, error=str(e))
            self._ask(entry, e)

    def _ask(self, entry: JournalEntry, error: TiStreamError) -> None:
        try:
            want_export(self._catalog, why=f"{entry.kind}: {error}", actor=entry.actor)
        except CatalogReplaced:
            raise
        except TiStreamError as e:
            log.error("no export could be asked for: the next one has it", kind=entry.kind, code=e.code, error=str(e))


def encode(entry: JournalEntry, release: str) -> bytes:
    """An entry as an object, before it is sealed. `release`: of the process."""
    body = {
        "format": FORMAT,
        "release": release,
        "kind": entry.kind,
        "actor": entry.actor,
        "at_ms": entry.at_ms,
        "rows": entry.rows,
    }
    return json.dumps(body, default=bytes.hex).encode("utf-8")


def decode(data: bytes, key: JournalKey) -> JournalEntry:
    """The entry of an object, once it is unsealed. CorruptObject for anything that this release cannot read."""
    tables = {table.name: table for table in exported_tables()}
    try:
        body = json.loads(data)
        if body["format"] != FORMAT:
            raise CorruptObject(f"the entry has format {body['format']}, which this release cannot read", key=str(key))
        return JournalEntry(
            generation=key.generation,
            exports_begun=key.exports_begun,
            kind=EntryKind(body["kind"]),
            actor=body["actor"],
            at_ms=body["at_ms"],
            rows={name: [_row(tables[name], row) for row in rows] for name, rows in body["rows"].items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise CorruptObject("not an entry of the journal, or one of a later release", key=str(key)) from e


def _row(table: Table, row: dict[str, Any]) -> dict[str, Any]:
    is_bytes = {name: isinstance(table.c[name].type, LargeBinary) for name in row}
    return {
        name: bytes.fromhex(value) if is_bytes[name] and value is not None else value for name, value in row.items()
    }


def entries_since(store: ObjectStore, generation: int, export_no: int) -> list[JournalKey]:
    """The entries that an export of this generation and number does not have, the oldest first."""
    return [key for key in _keys(store) if not _is_before(key, generation, export_no)]


def prune(store: ObjectStore, oldest: ExportKey) -> None:
    """Delete the entries that the oldest export has."""
    for key in _keys(store):
        if not _is_before(key, oldest.generation, oldest.export_no):
            return
        store.delete(str(key))


def _keys(store: ObjectStore) -> list[JournalKey]:
    keys = (parse(info.key) for info in store.list(journal_prefix()))
    return sorted((key for key in keys if isinstance(key, JournalKey)), key=_order)


def _order(key: JournalKey) -> tuple[int, int, int, str]:
    return key.generation, key.exports_begun, key.ms, key.name


def _is_before(key: JournalKey, generation: int, export_no: int) -> bool:
    """Whether an export has the entry. A restore that opens a generation replays those of the one before."""
    return (key.generation, key.exports_begun) < (generation, export_no)
