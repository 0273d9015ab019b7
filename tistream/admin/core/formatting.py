"""Keys and key ranges in words. Pure.

A key is shown as its table and row when `name_of` (physical table id -> "database.table", or None) knows them, as the
key of a keyspace, and as hexadecimal otherwise. A range is named by the whole tables it holds, or by a part of one
table or keyspace.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from tistream.admin.core.keyspaces import is_of_keyspace, key_words, keyspace_range_label
from tistream.catalog.rows.tenants import TaskKind
from tistream.codec.memcomparable import decode_int
from tistream.codec.raw.keys import PREFIX_BYTES
from tistream.codec.table_key import DDL_JOB_RANGE, META_RANGE, SYSTEM_IDS_FROM, IndexKey, parse_key
from tistream.errors import DecodeError
from tistream.keyrange import KeyRange

NameOf = Callable[[int], str | None]

_HEX_SHOWN = 16
_PREFIX_BYTES = 9
_NAMES_SHOWN = 3
_PLACES = {b"m": "the first schema key", b"n": "behind the schema keys", b"t": "the first table"}


def range_label(range: KeyRange, kind: str, name_of: NameOf) -> str:
    """The range of a task or of a watermark gap in words."""
    if kind == TaskKind.DDL:
        names = {META_RANGE: "schema changes", DDL_JOB_RANGE: "DDL jobs"}
        return names.get(range) or key_span(range, name_of)
    if is_of_keyspace(range.start):
        return keyspace_range_label(range)
    first, last = _table_id(range.start), _table_id(range.end)
    whole_first = len(range.start) <= _PREFIX_BYTES
    if first and _inside_one(range, first):
        return key_span(range, name_of)
    if (len(range.end) > _PREFIX_BYTES and 0 < last < SYSTEM_IDS_FROM) or (first and not whole_first):
        return key_span(range, name_of)
    if last >= SYSTEM_IDS_FROM:
        last = 0
    if first and last == first + 1:
        return name_of(first) or f"table {first}"
    if first and last:
        return f"tables {first} to {last - 1}{_named(first, last, name_of)}"
    return f"tables below {last}" if last else f"tables from {first}" if first else "all tables"


def key_span(range: KeyRange, name_of: NameOf) -> str:
    """Both ends of a range."""
    if is_of_keyspace(range.start):
        return keyspace_range_label(range)
    first = _table_id(range.start)
    if first and _inside_one(range, first):
        table = name_of(first) or f"table {first}"
        if len(range.start) <= _PREFIX_BYTES and len(range.end) <= _PREFIX_BYTES:
            return table
        return f"{table}, {_within(range.start) or 'its beginning'} to {_within(range.end) or 'its end'}"
    return f"{key_text(range.start, name_of) or 'the beginning'} to {key_text(range.end, name_of) or 'the end'}"


def key_text(key: bytes, name_of: NameOf) -> str:
    """A key for people; empty for the empty key."""
    if not key:
        return ""
    if key in _PLACES:
        return _PLACES[key]
    if is_of_keyspace(key):
        return key_words(key[PREFIX_BYTES:]) if key[PREFIX_BYTES:] else "the beginning of the keyspace"
    table_id = _table_id(key)
    if not table_id:
        return _hex(key)
    table = name_of(table_id) or f"table {table_id}"
    if len(key) <= _PREFIX_BYTES:
        return f"the beginning of {table}"
    return f"{table}, {_within(key)}"


def _inside_one(range: KeyRange, table_id: int) -> bool:
    """Whether the range lies inside one table, including its beginning and end."""
    if not range.end:
        return False
    last = _table_id(range.end)
    return last == table_id or (last == table_id + 1 and len(range.end) <= _PREFIX_BYTES)


def _within(key: bytes) -> str:
    """The part of a key behind its table; empty for the table's beginning or end."""
    if len(key) <= _PREFIX_BYTES:
        return ""
    try:
        parsed = parse_key(key)
    except DecodeError:
        rest = key[_PREFIX_BYTES:]
        known = {b"_r": "its first row", b"_s": "its last row", b"_i": "its indexes"}
        return known.get(rest, f"key {_hex(rest)}")
    if isinstance(parsed, IndexKey):
        return f"index {parsed.index_id}"
    return f"row {parsed.handle}" if isinstance(parsed.handle, int) else f"row {_hex(parsed.handle)}"


def _named(first: int, last: int, name_of: NameOf) -> str:
    names: list[str] = []
    for table_id in count(first):
        if table_id >= min(last, first + 64) or len(names) > _NAMES_SHOWN:
            break
        if name := name_of(table_id):
            names.append(name)
    if not names:
        return ""
    more = ", …" if len(names) > _NAMES_SHOWN else ""
    return f" ({', '.join(names[:_NAMES_SHOWN])}{more})"


def _table_id(key: bytes) -> int:
    """The table id that a key begins with; 0 when it has none or only a part of one."""
    return decode_int(key, 1)[0] if key[:1] == b"t" and len(key) >= _PREFIX_BYTES else 0


def _hex(key: bytes) -> str:
    text = key.hex()
    return text if len(text) <= _HEX_SHOWN else f"{text[:_HEX_SHOWN]}…"
