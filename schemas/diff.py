"""Differences between two schemas, for the API and the console."""

from __future__ import annotations

from dataclasses import dataclass

from schemas.model import Column, Table
from schemas.names import folded
from schemas.snapshot import SchemaSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnDiff:
    """A column on both sides; None where it does not exist."""

    before: Column | None
    after: Column | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDiff:
    """A table on both sides; None where it does not exist."""

    before: Table | None
    after: Table | None
    columns: tuple[ColumnDiff, ...] = ()  #: changed ones, of a table on both sides
    renamed: bool = False
    new_ids: bool = False  #: its physical ids changed: truncated, exchanged or repartitioned


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaDiff:
    """Differences in the order of database and table name; databases by name."""

    from_ts: int
    to_ts: int
    databases_added: tuple[str, ...]
    databases_dropped: tuple[str, ...]
    tables: tuple[TableDiff, ...]


def diff(before: SchemaSnapshot, after: SchemaSnapshot) -> SchemaDiff:
    """Tables are matched by their id, else (truncated, replaced) by their name."""
    pairs = _pairs(before, after)
    entries = [entry for entry in (_table_diff(old, new) for old, new in pairs) if entry is not None]
    old_names, new_names = ({d.name for d in s.databases.values()} for s in (before, after))
    return SchemaDiff(
        from_ts=before.ts,
        to_ts=after.ts,
        databases_added=tuple(sorted(new_names - old_names)),
        databases_dropped=tuple(sorted(old_names - new_names)),
        tables=tuple(sorted(entries, key=_place)),
    )


def _pairs(before: SchemaSnapshot, after: SchemaSnapshot) -> list[tuple[Table | None, Table | None]]:
    both = before.tables.keys() & after.tables.keys()
    pairs: list[tuple[Table | None, Table | None]] = [(before.tables[i], after.tables[i]) for i in both]
    left = {_name(t): t for i, t in before.tables.items() if i not in both}
    right = {_name(t): t for i, t in after.tables.items() if i not in both}
    return pairs + [(left.get(name), right.get(name)) for name in left.keys() | right.keys()]


def _name(table: Table) -> tuple[str, str]:
    return folded(table.db), folded(table.name)


def _place(entry: TableDiff) -> tuple[str, str]:
    table = entry.after or entry.before
    return _name(table) if table else ("", "")


def _table_diff(old: Table | None, new: Table | None) -> TableDiff | None:
    if old is None or new is None:
        return TableDiff(before=old, after=new)
    if old == new:
        return None
    olds, news = {c.id: c for c in old.visible_columns}, {c.id: c for c in new.visible_columns}
    ids = [*(i for i in olds), *(i for i in news if i not in olds)]
    columns = tuple(ColumnDiff(before=olds.get(i), after=news.get(i)) for i in ids if olds.get(i) != news.get(i))
    return TableDiff(
        before=old,
        after=new,
        columns=columns,
        renamed=(old.db, old.name) != (new.db, new.name),
        new_ids=old.physical_ids != new.physical_ids,
    )
