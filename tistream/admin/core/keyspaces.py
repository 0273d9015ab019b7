"""A raw or txn tenant for people and programs: what it is, and its keys in words. Pure."""

from __future__ import annotations

from typing import Any

from tistream.catalog.rows.tenants import TenantRow
from tistream.codec.raw.keys import PREFIX_BYTES, KeyMode
from tistream.keyrange import KeyRange, prefix_range

_SHOWN_BYTES = 24
_MODES = tuple(mode.value for mode in KeyMode)


def kind_fact(row: TenantRow) -> dict[str, Any]:
    """The kind of a tenant; of a keyspace its id and name, and its key range in keys as users see them."""
    keys = row.user_keys if row.kind.is_keyspace else None
    return {
        "kind": str(row.kind),
        "keyspace": {"id": row.keyspace.id, "name": row.keyspace.name} if row.kind.is_keyspace else None,
        "start_key": None if keys is None else keys.start.hex(),
        "end_key": None if keys is None else keys.end.hex(),
    }


def is_of_keyspace(key: bytes) -> bool:
    """Whether a stored key is one of a raw or txn tenant."""
    return key[:1] in _MODES and len(key) >= PREFIX_BYTES


def keyspace_range_label(range: KeyRange) -> str:
    """A stored range that begins in a keyspace, in words."""
    prefix, start = range.start[:PREFIX_BYTES], range.start[PREFIX_BYTES:]
    to_end = not range.end.startswith(prefix)
    of = f"keyspace {int.from_bytes(prefix[1:], 'big')}"
    if to_end and not start:
        return f"all keys of {of}" if range.end == prefix_range(prefix).end else f"{of} and what follows"
    end = "its end" if to_end else key_words(range.end[PREFIX_BYTES:])
    return f"{of}, {key_words(start) if start else 'its beginning'} to {end}"


def key_words(key: bytes) -> str:
    """A user key for people: as text if it is plain, else as hexadecimal."""
    cut, more = key[:_SHOWN_BYTES], "…" if len(key) > _SHOWN_BYTES else ""
    if cut and all(0x20 <= byte < 0x7F for byte in cut):
        return f"key {cut.decode('ascii')}{more}"
    return f"key 0x{cut.hex()}{more}"
