"""Decodes keys and values into the columns that a table has at a timestamp (pure).

As in TiDB, every row is decoded with the version in force at that timestamp. Where MODIFY COLUMN gave a column a new
id, rows not written since hold only an ancestor of it: its value is converted along the lineage (`schemas.lineage`,
`codec.row.cast`). A row whose conversion is not certain, or that cannot be decoded, is an error; no row is dropped.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from schemas.history import History
from schemas.layout import column_spec, row_layout
from schemas.lineage import Ancestor, Lineages, column_lineages, versions_of
from schemas.model import Table
from schemas.types import full_type
from tistream import ts as tso
from tistream.codec.row.cast import cast, in_place
from tistream.codec.row.decode import Decoded, decode
from tistream.codec.row.layout import ColumnSpec, RowLayout, storage_schema, storage_type
from tistream.codec.table_key import table_ids
from tistream.errors import DecodeError, NotConvertible
from tistream.model.arrays import Mask

_QUERY_MAX = 1000  # characters of a DDL's text in an error


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How the rows of one physical table become columns of `table`."""

    table: Table
    layout: RowLayout  #: of the delivered columns, then of their ancestors
    lines: Lineages
    log_start_ts: int = 0
    seeded_ts: int | None = None  #: the first seed of the whole table above the timestamp

    @property
    def converts(self) -> bool:
        """Whether some rows may need a conversion."""
        return bool(self.lines)


def readings(
    history: History, table: Table, as_of: int, *, log_start_ts: int = 0, seeded_ts: int | None = None
) -> dict[int, Reading]:
    """Physical id -> Reading, for the table at `as_of`. `seeded_ts`: its first seed above that, if there is one."""
    reading_of = {id_: _reading(history, table, id_, as_of) for id_ in table.physical_ids}
    return {id_: replace(each, log_start_ts=log_start_ts, seeded_ts=seeded_ts) for id_, each in reading_of.items()}


def decoded(reading_of: dict[int, Reading], rows: pa.Table) -> pa.RecordBatch:
    """The delivered columns, in storage form, of live rows (schema newest.STATE) in key order."""
    ids = table_ids(rows["key"])
    bounds = [0, *(np.flatnonzero(ids[1:] != ids[:-1]) + 1).tolist(), len(ids)]
    parts = [
        _decoded(reading_of[int(ids[a])], rows.slice(a, b - a).combine_chunks()) for a, b in itertools.pairwise(bounds)
    ]
    return parts[0] if len(parts) == 1 else pa.concat_batches(parts)


def _reading(history: History, table: Table, physical_id: int, as_of: int) -> Reading:
    layout = row_layout(table)
    shown = {spec.id for spec in layout.columns}
    lines = {
        id_: line for id_, line in column_lineages(versions_of(history, physical_id, as_of)).items() if id_ in shown
    }
    older = {
        ancestor.column.id: column_spec(ancestor.column)
        for line in lines.values()
        for ancestor in line
        if ancestor.column is not None and ancestor.column.id not in shown
    }
    return Reading(table=table, layout=replace(layout, columns=(*layout.columns, *older.values())), lines=lines)


def _decoded(reading: Reading, rows: pa.Table) -> pa.RecordBatch:
    table, layout = reading.table, reading.layout
    keys, values = rows["key"].chunk(0), rows["value"].chunk(0)
    values_read = decode(layout, keys, values, with_lacking=reading.converts)
    if values_read.errors:
        error = values_read.errors[0]
        raise DecodeError(
            f"A row of {table.db}.{table.name} cannot be decoded: {error.cause}.",
            database=table.db,
            table=table.name,
            column=error.column,
            key=keys[error.index].as_py(),
            commit_ts=str(rows["commit_ts"][error.index].as_py()),
            offset=error.offset,
        )
    shown = row_layout(table)
    place = {spec.id: n for n, spec in enumerate(layout.columns)}
    arrays = []
    for n, spec in enumerate(shown.columns):
        line = reading.lines.get(spec.id)
        array = values_read.batch.column(n)
        if line and values_read.lacking[n].any():
            array = _converted(reading, spec, line, values_read, place, rows)
        arrays.append(array)
    if not arrays:
        return values_read.batch
    return pa.RecordBatch.from_arrays(arrays, schema=storage_schema(shown))


def _converted(
    reading: Reading,
    spec: ColumnSpec,
    line: tuple[Ancestor, ...],
    values_read: Decoded,
    place: dict[int, int],
    rows: pa.Table,
) -> pa.Array:
    """The column; rows without it get the converted value of their newest ancestor.

    A row committed after the change that lacks the new column has its default (TiDB does not store NULLs); one
    committed before lacks it because it was not written since."""
    own = place[spec.id]
    commit_ts = rows["commit_ts"].to_numpy()
    lacking = np.flatnonzero(values_read.lacking[own] & (commit_ts <= np.uint64(line[-1].ddl_ts)))
    if not len(lacking):
        return values_read.batch.column(own)
    index, written = pa.array(lacking), commit_ts[lacking]
    value, form, known = pa.nulls(len(lacking), storage_type(spec)), spec, np.zeros(len(lacking), np.bool_)
    lost = np.zeros(len(lacking), np.intp)  # the place in the line of the change at which the value became unknown
    for n, ancestor in enumerate(line):
        target = column_spec(ancestor.became)
        if ancestor.column is None:
            value, form = pa.nulls(len(lacking), storage_type(target)), target
            lost[known] = n
            known = np.zeros(len(lacking), np.bool_)
            continue
        at = place[ancestor.column.id]
        source = reading.layout.columns[at]
        holds = ~values_read.lacking[at][lacking]
        holds |= True if n == 0 else written > np.uint64(line[n - 1].ddl_ts)
        before, kept = in_place(form, source, value)
        value, fits = cast(source, target, _chosen(holds, values_read.batch.column(at).take(index), before))
        had, form, known = holds | known, target, (holds | (known & kept)) & fits
        lost[had & ~known] = n
    value, kept = in_place(form, spec, value)
    lost[known & ~kept] = len(line) - 1
    known &= kept
    if not known.all():
        first = int(np.flatnonzero(~known)[0])
        _refuse(reading, spec, line[int(lost[first])], rows, int(lacking[first]))
    places = np.arange(rows.num_rows, dtype=np.int64)
    places[lacking] = rows.num_rows + np.arange(len(lacking))
    return pa.concat_arrays([values_read.batch.column(own), value]).take(pa.array(places))


def _chosen(mask: Mask, chosen: pa.Array, other: pa.Array) -> pa.Array:
    places = np.arange(len(mask), dtype=np.int64)
    places[~mask] += len(mask)
    return pa.concat_arrays([chosen, other]).take(pa.array(places))


def _refuse(reading: Reading, spec: ColumnSpec, ancestor: Ancestor, rows: pa.Table, at: int) -> None:
    """Raise NotConvertible: it names the DDL, and the timestamps that can be read."""
    table = reading.table
    column = next(c for c in table.columns if c.id == spec.id)
    was = "an unknown column" if ancestor.column is None else full_type(ancestor.column)
    upto, seeded = ancestor.ddl_ts - 1, reading.seeded_ts
    before = upto >= reading.log_start_ts
    readable = [f"as of {tso.described(upto)} and earlier"] * before
    readable.append(
        f"as of {tso.described(seeded)} and later, where a seed begins"
        if seeded is not None
        else "from a seed on that is taken after the change"
    )
    raise NotConvertible(
        f"Column {column.name} of {table.db}.{table.name} was changed from {was} to {full_type(ancestor.became)} at "
        f"{tso.described(ancestor.ddl_ts)}, by {_shortened(ancestor.query)!r}. The change feed does not carry the rows "
        "that this rewrote, and the value of one of them cannot be converted with certainty. The column can be read "
        f"{', and '.join(readable)}.",
        database=table.db,
        table=table.name,
        table_id=table.id,
        column=column.name,
        ddl=_shortened(ancestor.query),
        ddl_ts=str(ancestor.ddl_ts),
        ddl_time=_time(ancestor.ddl_ts),
        readable_upto_ts=str(upto) if before else None,
        readable_upto_time=_time(upto) if before else None,
        readable_from_ts=None if seeded is None else str(seeded),
        readable_from_time=None if seeded is None else _time(seeded),
        key=rows["key"][at].as_py(),
        commit_ts=str(rows["commit_ts"][at].as_py()),
    )


def _shortened(query: str) -> str:
    return query if len(query) <= _QUERY_MAX else query[:_QUERY_MAX] + "..."


def _time(ts: int) -> str:
    return tso.to_text(ts) if ts < 1 << 62 else ""
