"""Replays the journal into a catalog that is being restored: what its export does not have yet, and was confirmed.

Entries are read all at once, a few kilobytes each, and done in the order of what they are: tenants, keys and their
revocations, deletions. Within each the order does not matter (`tistream.catalog.work.replayed`).
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from tistream.catalog.database.engine import Catalog
from tistream.catalog.rows.journal import EntryKind, JournalEntry
from tistream.catalog.work.replayed import replay_deletion, replay_key, replay_tenant
from tistream.errors import CorruptObject, ObjectNotFound
from tistream.exports.journal import decode, entries_since
from tistream.exports.pieces import Manifest, Sealing
from tistream.objectstore.layout import JournalKey
from tistream.objectstore.protocol import ObjectStore

READ_AT_ONCE = 16
_WORDS = {
    EntryKind.TENANT: "registrations",
    EntryKind.KEY: "new keys",
    EntryKind.REVOCATION: "revocations",
    EntryKind.DELETION: "deletions of tenants",
}


def replay(catalog: Catalog, store: ObjectStore, sealing: Sealing, manifest: Manifest) -> str:
    """Do again what was done since the export; words that say how much. The rows of the export are there, and its
    generation was opened before. CorruptObject for an entry that cannot be read."""
    keys = entries_since(store, manifest.generation, manifest.export_no)
    with ThreadPoolExecutor(READ_AT_ONCE, "replay") as pool:
        entries = list(pool.map(lambda key: _read(store, sealing, key), keys))
    for entry in _of(entries, EntryKind.TENANT):
        with catalog.transaction() as conn:
            for row in entry.rows["tenants"]:
                replay_tenant(conn, row, entry.rows["tasks"])
    for entry in _of(entries, EntryKind.KEY, EntryKind.REVOCATION):
        with catalog.transaction() as conn:
            for row in entry.rows["api_keys"]:
                replay_key(conn, row)
    for entry in _of(entries, EntryKind.DELETION):
        with catalog.transaction() as conn:
            for row in entry.rows["tenants"]:
                replay_deletion(conn, row, actor=entry.actor)
    counted = [f"{len(_of(entries, kind))} {words}" for kind, words in _WORDS.items()]
    return f"the journal since the export: {', '.join(counted)}"


def _of(entries: Sequence[JournalEntry], *kinds: EntryKind) -> list[JournalEntry]:
    return [entry for entry in entries if entry.kind in kinds]


def _read(store: ObjectStore, sealing: Sealing, key: JournalKey) -> JournalEntry:
    try:
        return decode(sealing.unseal(store.get(str(key)), str(key)), key)
    except ObjectNotFound as e:
        raise CorruptObject("an entry of the journal is missing", key=str(key)) from e
