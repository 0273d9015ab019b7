"""Whether the catalog takes writes: a full disk, a bound on its size or a read-only server fail no read."""

from __future__ import annotations

import secrets

from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.tables import idempotency_keys

_BODY_BYTES = 64 << 10  # more than the free part of a page that has room for a small row


def check_writes(catalog: Catalog) -> None:
    """Insert a row that needs pages of its own and delete it, in one transaction. TiStreamError where that fails."""
    row = {
        "key_hash": secrets.token_hex(32),
        "request_hash": "",
        "attempt": "",
        "status": 0,
        "media_type": "",
        "body": bytes(_BODY_BYTES),
        "started_ms": 0,
    }
    with catalog.transaction() as conn:
        conn.execute(idempotency_keys.insert().values(row))
        conn.execute(idempotency_keys.delete().where(idempotency_keys.c.key_hash == row["key_hash"]))
