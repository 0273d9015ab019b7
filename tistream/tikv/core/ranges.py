"""The key ranges of a cluster that a tenant follows: plain keys, disjoint, in key order.

A keyspace of TiDB has those of a cluster (`keyspaces`).
"""

from __future__ import annotations

from collections.abc import Iterable

from tistream.codec.table_key import META_RANGE
from tistream.keyrange import KeyRange

_TABLES = KeyRange(b"t", b"u")


def whole_cluster() -> tuple[KeyRange, ...]:
    """Everything in a classic TiDB cluster."""
    return (META_RANGE, _TABLES)


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
