"""Which tables a session uses during DDL, and what its statements write.

All servers use the newest schema version or, for a while, the one before. A transaction keeps the version of a table
with which it first wrote to it, and commits under that. The next version of a table is made only when no transaction
holds an older one than the newest (TiDB's metadata locks), so two versions at most are in use at once.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Set
from typing import NamedTuple

from simulator.ddl import UpstreamSchema
from simulator.partitions import Json, copy_of, handles, physical_id
from tistream.codec.table_key import record_key

Held = dict[int, tuple[int, Json]]  #: of a transaction: first id of a table -> (its id, its TableInfo then)
_CACHED_MAX = 64


class RowKey(NamedTuple):
    """A row that a session can write to."""

    key: bytes
    table_id: int
    info: Json
    handle: int


class Sessions:
    """See the module."""

    def __init__(self, schema: UpstreamSchema, rand: random.Random) -> None:
        self._schema = schema
        self._rand = rand
        self._places: dict[tuple[int, int], tuple[Json, list[RowKey]]] = {}  # (identity of a TableInfo, rows)

    def places(self, held: Held, blocked: Set[int], rows: int) -> list[RowKey]:
        """The rows that a transaction can write to: of the tables that it holds, as it holds them; of the others as
        its server knows them."""
        schema = self._schema
        tables = schema.tables
        if schema.previous is not None and self._rand.random() < 0.5:
            tables = schema.previous
        places: list[RowKey] = []
        for table_id, (_, info) in tables.items():
            first = schema.lineage.get(table_id, table_id)
            if first in held:
                places += self._of(*held[first], rows)
            elif table_id not in blocked:
                places += self._of(table_id, info, rows)
        return places

    def hold(self, held: Held, place: RowKey) -> None:
        """The transaction writes to the place's table."""
        held.setdefault(self._schema.lineage.get(place.table_id, place.table_id), (place.table_id, place.info))

    def lag(self, of_all: Iterable[Held]) -> bool:
        """Whether some transaction holds a table in an older version than the newest."""
        for held in of_all:
            for first, (_, info) in held.items():
                now = self._schema.of_lineage(first)
                if now is None or now[1] is not info:
                    return True
        return False

    @staticmethod
    def keys(place: RowKey) -> list[bytes]:
        """The keys that a statement on this row writes to: the row's own first."""
        copy = copy_of(place.info, place.handle)
        return [place.key] if copy is None else [place.key, record_key(copy[0], place.handle)]

    @staticmethod
    def writes(place: RowKey, value: bytes | None, *, exists: bool) -> list[tuple[bytes, bytes | None]]:
        """The writes of a statement: to the row's key, and to the key of its copy."""
        writes = [(place.key, value)]
        copy = copy_of(place.info, place.handle)
        if copy is not None:
            copied, only_deletes = copy
            if value is None or not only_deletes or exists:
                writes.append((record_key(copied, place.handle), None if only_deletes else value))
        return writes

    def _of(self, table_id: int, info: Json, rows: int) -> Collection[RowKey]:
        kept = self._places.get((id(info), rows))
        if kept is None or kept[0] is not info:
            if len(self._places) >= _CACHED_MAX:
                self._places.clear()
            there = ((handle, physical_id(info, handle)) for handle in handles(info, rows))
            made = [RowKey(record_key(p, handle), table_id, info, handle) for handle, p in there if p is not None]
            kept = self._places[id(info), rows] = (info, made)
        return kept[1]
