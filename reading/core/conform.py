"""Changes in the columns that their table has at another timestamp, by the rules of reads AS OF (pure).

A change is decoded with the version in force at its commit. A reader that wants one set of columns for all pages asks
for those of one timestamp, and each of them is matched by TiDB's column id:

    the column itself         its value; after an ALTER that kept the stored bytes, the same bytes in the new type
    an ancestor of it         its value, converted step by step along the lineage (`schemas.lineage`, `codec.row.cast`)
    neither                   NULL: the table did not have the column
    a descendant of it        refused: the column was changed after the timestamp
    a table created again     by name: the value where it has the same form, or where its conversion is certain

A value that cannot be converted with certainty refuses the page; no row is left out, and none is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reading.core.changes import DELETE, INSERT, TableChanges
from schemas.history import History
from schemas.layout import column_spec, row_layout
from schemas.lineage import Ancestor, Lineages, table_ids, table_lineages
from schemas.model import STATE_PUBLIC, Column, Table
from schemas.names import folded
from schemas.types import full_type
from tistream import ts as tso
from tistream.codec.row.cast import cast, in_place
from tistream.codec.row.layout import ColumnSpec, ValueKind, kind_of, storage_schema, storage_type
from tistream.errors import NotConvertible

_QUERY_MAX = 1000  # characters of a DDL's text in an error
_LABELS = frozenset({ValueKind.ENUM, ValueKind.SET})

#: where there is no table at the timestamp
NO_TABLE = Table(
    id=0, db_id=0, db="", name="", charset="", collate="", columns=(), indexes=(), pk_is_handle=False,
    is_common_handle=False,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveredColumns:
    """The columns that pages are given: those of `table`, which is in force at `ts`."""

    history: History
    table: Table
    shown: Table  #: with the delivered columns only
    ts: int
    ids: tuple[int, ...]  #: of the table up to `ts`, newest first
    lines: Lineages

    @classmethod
    def at(cls, history: History, table: Table, ts: int, shown: Table) -> DeliveredColumns:
        """The columns of `shown`, the version in force at `ts` with the delivered columns."""
        ids, lines = table_ids(history, table), table_lineages(history, table, ts)
        return cls(history=history, table=table, shown=shown, ts=ts, ids=ids, lines=lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conformed:
    """`changes` have the version `table`; `newer` are names of columns that rows above the timestamp have besides
    them."""

    changes: list[TableChanges]
    table: Table
    newer: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Source:
    """The column of a version that holds a wanted one, and the changes that it went through since."""

    column: Column
    steps: tuple[Ancestor, ...] = ()
    by_name: bool = False  #: of another table that had the name


def conformed(target: DeliveredColumns, changes: Sequence[TableChanges]) -> Conformed:
    """The changes in the target's columns. NotConvertible names the column, the DDL and a row."""
    sources = [_sources(target, part) for part in changes]
    table = _with_labels(target.shown, [list(source.values()) for source in sources])
    newer: dict[str, None] = {}
    made = []
    for part, source in zip(changes, sources, strict=True):
        newer |= dict.fromkeys(_newer(target, part))
        made.append(_conformed(table, part, source))
    return Conformed(changes=made, table=table, newer=tuple(newer))


def _conformed(table: Table, part: TableChanges, sources: Mapping[int, _Source]) -> TableChanges:
    place = {spec.id: n for n, spec in enumerate(row_layout(part.table).columns)}
    layout = row_layout(table)
    images = []
    for batch, missing in ((part.after, part.kind == DELETE), (part.before, part.kind == INSERT)):
        columns = []
        for spec in layout.columns:
            source = sources.get(spec.id)
            if source is None:
                columns.append(pa.nulls(len(part), storage_type(spec)))
                continue
            columns.append(_converted(part, spec, source, batch.column(place[source.column.id]), missing))
        schema = storage_schema(layout)
        images.append(pa.RecordBatch.from_arrays(columns, schema=schema) if columns else batch.select([]))
    return replace(part, table=table, after=images[0], before=images[1])


def _sources(target: DeliveredColumns, part: TableChanges) -> dict[int, _Source]:
    """Wanted column id -> where its value is; without those that the rows' version does not have."""
    there = {c.id: c for c in part.table.columns if c.visible}
    wanted = row_layout(target.shown).columns
    if part.table.id not in target.ids and not _is_successor(target, part):
        names = {folded(c.name): c for c in there.values()}
        return {s.id: _Source(names[folded(s.name)], by_name=True) for s in wanted if folded(s.name) in names}
    sources = {}
    for spec in wanted:
        if spec.id in there:
            sources[spec.id] = _Source(there[spec.id])
        elif (source := _ancestor(target, spec, there, part)) is not None:
            sources[spec.id] = source
        else:
            _refuse_changed_later(target, spec, part)
    return sources


def _is_successor(target: DeliveredColumns, part: TableChanges) -> bool:
    """Whether the rows are of the target's table under a later id."""
    return target.table.id in table_ids(target.history, part.table)


def _ancestor(
    target: DeliveredColumns, spec: ColumnSpec, there: Mapping[int, Column], part: TableChanges
) -> _Source | None:
    line = target.lines.get(spec.id, ())
    for n in reversed(range(len(line))):
        column = line[n].column
        if column is not None and column.id in there:
            return _Source(there[column.id], line[n:])
        if column is None and int(part.commit_ts.min()) <= line[n].ddl_ts:
            _refuse(part, spec, line[n], 0)
    return None


def _refuse_changed_later(target: DeliveredColumns, spec: ColumnSpec, part: TableChanges) -> None:
    """A later version may hold the value in a type that it has got since."""
    if int(part.commit_ts.max()) <= target.ts:
        return
    for line in table_lineages(target.history, part.table, int(part.commit_ts.max())).values():
        for ancestor in line:
            if ancestor.ddl_ts > target.ts and (ancestor.column is None or ancestor.column.id == spec.id):
                _refuse(part, spec, ancestor, 0, later=True)


def _newer(target: DeliveredColumns, part: TableChanges) -> list[str]:
    """Columns of rows above the target's timestamp that the table does not have there."""
    if int(part.commit_ts.max()) <= target.ts:
        return []
    same = part.table.id in target.ids or _is_successor(target, part)
    ids, names = {c.id for c in _public(target.table)}, {folded(c.name) for c in _public(target.table)}
    there = [c for c in part.table.columns if c.visible]
    return [c.name for c in there if (c.id not in ids if same else folded(c.name) not in names)]


def _public(table: Table) -> list[Column]:
    return [c for c in table.columns if c.state == STATE_PUBLIC]


def _with_labels(table: Table, sources: Sequence[Sequence[_Source]]) -> Table:
    """The version whose ENUM and SET columns have all labels that an ALTER has appended since."""
    longest: dict[int, tuple[str, ...]] = {c.id: c.elems for c in table.columns if c.elems}
    for source in (each for group in sources for each in group):
        elems = longest.get(source.column.id, ())
        if not source.by_name and elems and source.column.elems[: len(elems)] == elems:
            longest[source.column.id] = source.column.elems
    if all(longest.get(c.id, c.elems) == c.elems for c in table.columns):
        return table
    return replace(table, columns=tuple(replace(c, elems=longest.get(c.id, c.elems)) for c in table.columns))


def _converted(
    part: TableChanges, spec: ColumnSpec, source: _Source, values: pa.Array, missing: npt.NDArray[np.bool_]
) -> pa.Array:
    """The values in the storage form of `spec`. `missing`: rows without this image, whose NULLs are no values."""
    form = column_spec(source.column)
    if source.by_name:
        if _same_form(form, spec):
            return values
        made, sure = cast(form, replace(spec, not_null=False), values)
        _check(part, spec, source, sure | missing)
        return made
    for step in source.steps:
        assert step.column is not None
        old, new = column_spec(step.column), column_spec(step.became)
        before, kept = in_place(form, old, values)
        values, fits = cast(old, new, before)
        _check(part, spec, source, (kept & fits) | missing, step)
        form = new
    values, kept = _kept_in_place(form, spec, values)
    _check(part, spec, source, kept | missing, source.steps[-1] if source.steps else None)
    return values


def _same_form(old: ColumnSpec, new: ColumnSpec) -> bool:
    same = kind_of(old) is kind_of(new) and storage_type(old) == storage_type(new)
    if kind_of(old) is ValueKind.TIME:
        return same and old.tp == new.tp
    return same and (kind_of(old) not in _LABELS or old.elems == new.elems)


def _kept_in_place(old: ColumnSpec, new: ColumnSpec, values: pa.Array) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
    """As `in_place`; a label is the same where one list of labels begins with the other."""
    if kind_of(old) in _LABELS and old.elems != new.elems:
        short = min(len(old.elems), len(new.elems))
        if old.elems[:short] != new.elems[:short]:
            return cast(old, new, values)
    return in_place(old, new, values)


def _check(
    part: TableChanges, spec: ColumnSpec, source: _Source, sure: npt.NDArray[np.bool_], step: Ancestor | None = None
) -> None:
    if not sure.all():
        at = int(np.flatnonzero(~sure)[0])
        _refuse(part, spec, step, at, was=source.column)


def _refuse(
    part: TableChanges,
    spec: ColumnSpec,
    step: Ancestor | None,
    at: int,
    *,
    was: Column | None = None,
    later: bool = False,
) -> None:
    """Raise NotConvertible: it names the column, the DDL if one is known, and a row."""
    table, commit_ts = part.table, int(part.commit_ts[at])
    name = f"{table.db}.{table.name}"
    facts: dict[str, Any] = {
        "database": table.db,
        "table": table.name,
        "table_id": table.id,
        "column": spec.name,
        "key": part.key[at].as_py(),
        "commit_ts": str(commit_ts),
    }
    if step is None:
        old = "" if was is None else f", which was {full_type(was)} in a row of {tso.described(commit_ts)}"
        raise NotConvertible(
            f"Column {spec.name} of {name}{old}, has another type at the timestamp that the columns are of, and the "
            "value cannot be converted with certainty. Read the times before and after the change apart.",
            **facts,
        )
    query = step.query if len(step.query) <= _QUERY_MAX else step.query[:_QUERY_MAX] + "..."
    old = "an unknown column" if step.column is None else full_type(step.column)
    changed = f"was changed from {old} to {full_type(step.became)} at {tso.described(step.ddl_ts)}, by {query!r}"
    facts |= {"ddl": query, "ddl_ts": str(step.ddl_ts)}
    facts["ddl_time"] = tso.to_text(step.ddl_ts) if step.ddl_ts < 1 << 62 else ""
    if later:
        facts["schema_ts"] = str(step.ddl_ts)
        said = "The columns that are asked for are of an earlier time: ask for those of this time or later."
    else:
        said = (
            "The value of a row from before cannot be converted with certainty. Read the times up to "
            f"{step.ddl_ts - 1} and from there on apart, each with its own columns."
        )
    raise NotConvertible(f"Column {spec.name} of {name} {changed}. {said}", **facts)
