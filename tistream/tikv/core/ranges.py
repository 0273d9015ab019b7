"""The key ranges of a cluster that a tenant follows.

    whole_cluster   all tables and their schemas
    some_tables     parts of the tables, and always the schemas
    raw_keyspace    one keyspace of RawKV

Ranges are plain keys, disjoint, in key order. A keyspace of TiDB has those of a cluster (`keyspaces`).
"""

from __future__ import annotations

from collections.abc import Iterable

from tistream.codec.table_key import DDL_JOB_RANGE, META_RANGE
from tistream.keyrange import KeyRange, prefix_range

_TABLES = KeyRange(b"t", b"u")
_RAW_MODE = b"r"
_KEYSPACE_BYTES = 3


def whole_cluster() -> tuple[KeyRange, ...]:
    """Everything in a classic TiDB cluster."""
    return (META_RANGE, _TABLES)


def some_tables(ranges: Iterable[KeyRange]) -> tuple[KeyRange, ...]:
    """These ranges, the meta range and the DDL job queue, joined where they touch."""
    return joined([META_RANGE, DDL_JOB_RANGE, *ranges])


def raw_keyspace(keyspace_id: int) -> tuple[KeyRange, ...]:
    """Everything in one keyspace of RawKV."""
    return (prefix_range(_RAW_MODE + keyspace_id.to_bytes(_KEYSPACE_BYTES, "big")),)


def joined(ranges: Iterable[KeyRange]) -> tuple[KeyRange, ...]:
    """The same keys in as few ranges as possible, in key order."""
    out: list[KeyRange] = []
    for part in sorted(ranges):
        if out and (not out[-1].end or part.start <= out[-1].end):
            before = out.pop()
            end = b"" if not before.end or not part.end else max(before.end, part.end)
            part = KeyRange(before.start, end)
        out.append(part)
    return tuple(out)
