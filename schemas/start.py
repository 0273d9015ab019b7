"""The schema that a history starts from: all tables at one timestamp, parsed on demand.

`SavedTables` are those of a saved base. Opening it reads only its index (ids, names, databases); a table is fetched and
parsed on its first lookup and is the same object from then on. A `Start` lays tables held in memory over them, for a
pruned history or a snapshot just pushed.

The code does no I/O itself: a function of the opener fetches parts of an object. A missing or damaged block raises
CorruptObject naming the object and the table.

Thread-safe; two threads that parse the same table at once agree on one object.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from schemas.model import Database, Table
from schemas.names import folded
from schemas.saved import BLOCK_BITS, Fetch, Opening, dumps, frame, ints_of, table_of, texts_of, unframe
from schemas.snapshot import SchemaSnapshot
from tistream.errors import CorruptObject

_BLOCKS_UNPACKED_MAX = 4
_ORDINARY = "table"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A table's entry in an index."""

    id: int
    name: str
    db_id: int
    kind: str
    partition_ids: tuple[int, ...]

    @classmethod
    def of(cls, table: Table) -> Entry:
        return cls(id=table.id, name=table.name, db_id=table.db_id, kind=table.kind, partition_ids=table.partition_ids)


class SavedTables:
    """The tables of a saved base, by *row*: the index in the order of ids."""

    def __init__(self, opening: Opening, fetch: Fetch) -> None:
        self.name = opening.name
        self._fetch = fetch
        self._parsed: dict[int, Table] = {}
        self._rows_by_name: dict[int, dict[str, int]] = {}
        self._lines = functools.lru_cache(maxsize=_BLOCKS_UNPACKED_MAX)(self._read_lines)
        try:
            self._take_index(opening.head, opening.blocks_at)
        except (AttributeError, KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
            raise CorruptObject("the index of a schema history is damaged", object_key=self.name) from error

    def _take_index(self, head: Mapping[str, Any], blocks_at: int) -> None:
        index, blocks = head["tables"], head["blocks"]
        self.ids = np.array(index["ids"], np.int64)
        self._names = list(texts_of(index["names"]))
        self._dbs = np.array(index["dbs"], np.int64)
        self._kinds = {row: kind for kind, rows in index["kinds"].items() for row in ints_of(rows)}
        self._partitions = {int(row): ints_of(ids) for row, ids in index["partitions"].items()}
        self._first = np.concatenate([[0], np.cumsum(np.array(blocks["rows"], np.int64))])
        self._at = blocks_at + np.concatenate([[0], np.cumsum(np.array(blocks["lengths"], np.int64))])
        rows = len(self.ids)
        whole = len(self._names) == len(self._dbs) == rows == self._first[-1] and len(self._first) == len(self._at)
        if not whole or (np.diff(self.ids) <= 0).any() or (np.diff(self._at) <= 0).any():
            raise ValueError("columns of an index that do not fit together")
        if not all(0 <= row < rows for row in (*self._kinds, *self._partitions)):
            raise ValueError("an index that names a row it has not")
        plain = np.ones(rows, bool)
        plain[list(self._partitions)] = False
        parts = [(pid, row) for row, ids in self._partitions.items() for pid in ids]
        extra = np.array(parts, np.int64).reshape(-1, 2)
        physical = np.concatenate([self.ids[plain], extra[:, 0]])
        order = np.argsort(physical, kind="stable")
        self._physical = physical[order]
        self._physical_row = np.concatenate([np.flatnonzero(plain), extra[:, 1]])[order]

    @property
    def end(self) -> int:
        """The size of the object."""
        return int(self._at[-1])

    def row_of(self, table_id: int) -> int | None:
        return _found(self.ids, table_id)

    def row_of_physical(self, physical_id: int) -> int | None:
        place = _found(self._physical, physical_id)
        return None if place is None else int(self._physical_row[place])

    def row_named(self, db_id: int, name: str) -> int | None:
        """`name` in lower case."""
        rows = self._rows_by_name.get(db_id)
        if rows is None:
            rows = {folded(self._names[row]): row for row in self.rows_in(db_id)}
            self._rows_by_name[db_id] = rows
        return rows.get(name)

    def rows_in(self, db_id: int) -> list[int]:
        rows: list[int] = np.flatnonzero(self._dbs == db_id).tolist()
        return rows

    def physical_ids_in(self, db_id: int) -> set[int]:
        """Of the ordinary tables of a database."""
        ordinary = self._dbs == db_id
        ordinary[list(self._kinds)] = False
        return set(self._physical[ordinary[self._physical_row]].tolist())

    def entry(self, row: int) -> Entry:
        return Entry(
            id=int(self.ids[row]),
            name=self._names[row],
            db_id=int(self._dbs[row]),
            kind=self._kinds.get(row, _ORDINARY),
            partition_ids=self._partitions.get(row, ()),
        )

    def table(self, row: int) -> Table:
        """The parsed table; the same object each time."""
        parsed = self._parsed.get(row)
        return parsed if parsed is not None else self._parsed.setdefault(row, self._parse(row))

    def _parse(self, row: int) -> Table:
        entry = self.entry(row)
        facts = {"table": entry.name, "table_id": entry.id}
        block = int(np.searchsorted(self._first, row, side="right")) - 1
        try:
            table = table_of(orjson.loads(self._lines(block)[row - int(self._first[block])]))
        except CorruptObject as error:
            raise CorruptObject(error.message, **{**error.facts, "object_key": self.name, **facts}) from error
        except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
            raise CorruptObject(
                "a table of a schema history cannot be read", object_key=self.name, reason=repr(error), **facts
            ) from error
        if (table.id, table.name, table.db_id, table.partition_ids) != (
            entry.id,
            entry.name,
            entry.db_id,
            entry.partition_ids,
        ):
            raise CorruptObject("a saved table is not the one in its index", object_key=self.name, **facts)
        return table

    def _read_lines(self, block: int) -> list[bytes]:
        return unframe(self.name, self._packed(block), offset=int(self._at[block])).splitlines()

    def _packed(self, block: int) -> bytes:
        offset, end = int(self._at[block]), int(self._at[block + 1])
        data = self._fetch(offset, end - offset)
        if len(data) != end - offset:
            raise CorruptObject("a schema history is cut short", object_key=self.name, offset=offset)
        return data

    def packed_block(self, rows: list[int]) -> bytes | None:
        """The bytes of the block that holds exactly these rows; None when there is no such block."""
        block = int(np.searchsorted(self._first, rows[0], side="right")) - 1
        if (self._first[block], self._first[block + 1]) != (rows[0], rows[-1] + 1) or rows[-1] - rows[0] >= len(rows):
            return None
        data = self._packed(block)
        unframe(self.name, data, offset=int(self._at[block]), table=self._names[rows[0]])
        return data


def _found(values: npt.NDArray[np.int64], wanted: int) -> int | None:
    place = int(np.searchsorted(values, wanted))
    return place if place < len(values) and values[place] == wanted else None


class Start:
    """The schema at `ts`. Immutable. Names are looked up in lower case."""

    def __init__(
        self,
        *,
        ts: int,
        schema_version: int,
        databases: Mapping[int, Database],
        own: Mapping[int, Table],
        saved: SavedTables | None = None,
        hidden: frozenset[int] = frozenset(),
    ) -> None:
        """`own` tables override the saved ones of the same id; `hidden` saved ones are dropped."""
        self.ts, self.schema_version, self.databases = ts, schema_version, databases
        self._own = own
        self._saved = saved
        self._hidden = hidden | own.keys()
        self._own_names = {(t.db_id, folded(t.name)): t for t in own.values()}
        self._own_physical = {physical_id: t for t in own.values() for physical_id in t.physical_ids}
        self._db_ids = {folded(db.name): db.id for db in databases.values()}

    @classmethod
    def of(cls, snapshot: SchemaSnapshot) -> Start:
        """A start held in memory."""
        return cls(
            ts=snapshot.ts, schema_version=snapshot.schema_version, databases=snapshot.databases, own=snapshot.tables
        )

    def with_changes(
        self,
        *,
        ts: int,
        schema_version: int,
        databases: Mapping[int, Database],
        put: Mapping[int, Table],
        gone: Iterable[int],
    ) -> Start:
        """The schema at a later timestamp: with `put`, without `gone`."""
        dropped = frozenset(gone)
        own = {i: t for i, t in {**self._own, **put}.items() if i not in dropped}
        return Start(
            ts=ts,
            schema_version=schema_version,
            databases=databases,
            own=own,
            saved=self._saved,
            hidden=self._hidden | dropped,
        )

    def table(self, table_id: int) -> Table | None:
        if (own_table := self._own.get(table_id)) is not None or self._saved is None:
            return own_table
        return self._shown(self._saved.row_of(table_id))

    def of_physical(self, physical_id: int) -> Table | None:
        if (table_id := self._own_physical.get(physical_id)) is not None or self._saved is None:
            return table_id
        return self._shown(self._saved.row_of_physical(physical_id))

    def named(self, db: str, name: str) -> Table | None:
        db_id = self._db_ids.get(db)
        if db_id is None:
            return None
        if (own_name := self._own_names.get((db_id, name))) is not None or self._saved is None:
            return own_name
        return self._shown(self._saved.row_named(db_id, name))

    def _shown(self, row: int | None) -> Table | None:
        if row is None or self._saved is None or int(self._saved.ids[row]) in self._hidden:
            return None
        return self._saved.table(row)

    def ids(self) -> list[int]:
        """Of all tables, ascending."""
        saved = self._saved.ids.tolist() if self._saved else []
        return sorted([*self._own, *(i for i in saved if i not in self._hidden)])

    def names_in(self, db: str) -> dict[str, int]:
        """Original names of a database's tables, with their ids."""
        return {entry.name: entry.id for entry in self.entries_in(db)}

    def entries_in(self, db: str) -> Iterator[Entry]:
        """The tables of a database, without parsing them."""
        return self._entries_in(self._db_ids.get(db))

    def ids_in(self, db_id: int) -> list[int]:
        return [entry.id for entry in self._entries_in(db_id)]

    def _entries_in(self, db_id: int | None) -> Iterator[Entry]:
        if db_id is None:
            return
        yield from (Entry.of(t) for t in self._own.values() if t.db_id == db_id)
        if self._saved:
            entries = map(self._saved.entry, self._saved.rows_in(db_id))
            yield from (e for e in entries if e.id not in self._hidden)

    def physical_ids_in(self, db: str) -> set[int]:
        """Of the ordinary tables of a database, without parsing them."""
        db_id = self._db_ids.get(db)
        if db_id is None:
            return set()
        ids = set()
        if self._saved:
            rows = (self._saved.row_of(i) for i in self._hidden)
            gone = [self._saved.entry(row) for row in rows if row is not None]
            ids = self._saved.physical_ids_in(db_id)
            ids.difference_update(p for e in gone for p in e.partition_ids or (e.id,))
        return ids.union(*(t.physical_ids for t in self._own.values() if t.db_id == db_id and t.kind == _ORDINARY))

    def physical_ids_of(self, db: str, names: Collection[str]) -> set[int]:
        """Of the ordinary tables of a database with these lower-case names, without parsing them."""
        wanted = (e for e in self._entries_in(self._db_ids.get(db)) if names and folded(e.name) in names)
        return {p for e in wanted if e.kind == _ORDINARY for p in e.partition_ids or (e.id,)}

    # ---- storage

    def entries(self) -> list[Entry]:
        """Of all tables, by id."""
        return [self._entry(i) for i in self.ids()]

    def _entry(self, table_id: int) -> Entry:
        if (own := self._own.get(table_id)) is not None or self._saved is None:
            return Entry.of(self._own[table_id] if own is None else own)
        row = self._saved.row_of(table_id)
        assert row is not None
        return self._saved.entry(row)

    def blocks(self) -> Iterator[tuple[int, bytes]]:
        """(number of tables, packed bytes) per block. Blocks of a saved base that did not change are copied
        unparsed."""
        for ids in block_ids(self.ids()):
            yield len(ids), self._kept_block(ids) or frame(b"".join(dumps(self.table(i)) + b"\n" for i in ids))

    def _kept_block(self, ids: list[int]) -> bytes | None:
        if self._saved is None or not self._hidden.isdisjoint(ids):
            return None
        rows = [row for row in map(self._saved.row_of, ids) if row is not None]
        return self._saved.packed_block(rows)


def index_of(entries: Sequence[Entry]) -> dict[str, Any]:
    """The index of these tables, by id, in the head of a base."""
    kinds: dict[str, list[int]] = {}
    for row, entry in enumerate(entries):
        if entry.kind != _ORDINARY:
            kinds.setdefault(entry.kind, []).append(row)
    return {
        "ids": [e.id for e in entries],
        "names": [e.name for e in entries],
        "dbs": [e.db_id for e in entries],
        "kinds": kinds,
        "partitions": {str(row): e.partition_ids for row, e in enumerate(entries) if e.partition_ids},
    }


def block_ids(ids: Iterable[int]) -> Iterator[list[int]]:
    """The ids, in order, of the tables that share a block."""
    for _, group in groupby(ids, key=lambda i: i >> BLOCK_BITS):
        yield list(group)
