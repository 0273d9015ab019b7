"""Decodes committed rows into changes, each with the schema in force just before its commit.

A row committed at c is decoded with the table version of c - 1. Rows of physical ids that no table reads at c - 1 are
not delivered but counted (see `excluded_rows`). Index entries are not delivered either.

A delete whose old value the upstream does not send has the columns of its key, and NULL elsewhere.

A row that cannot be decoded becomes a Quarantined record that names table, column, key and offset; other rows are not
affected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from reading.core.changes import TableChanges
from reading.core.split import build_changes
from reading.rows.scope import Scope, wanted
from schemas.history import History
from schemas.layout import key_layout, row_layout
from schemas.model import Table
from tistream.codec.row.decode import EMPTY_ROW, Decoded, decode
from tistream.codec.row.layout import RowLayout
from tistream.codec.table_key import is_record
from tistream.model.change import Op


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """A row that is in the log and cannot be decoded."""

    database: str
    table: str
    table_id: int
    column: str
    key: bytes
    commit_ts: int
    offset: int
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """The decoded page: one TableChanges per table version, and the rows that could not be decoded."""

    changes: tuple[TableChanges, ...]
    quarantined: tuple[Quarantined, ...]


Shown = Callable[[Table], Table]


def as_it_is(table: Table) -> Table:
    """The table version with all its columns."""
    return table


def decode_rows(history: History, rows: pa.Table, scope: Scope, shown: Shown = as_it_is) -> Decoding:
    """Decode the rows of the scope. `rows` has schema change.COMMITTED, sorted by commit_ts. `shown` gives the table
    version with the columns that are wanted."""
    rows = rows.combine_chunks()
    changes: list[TableChanges] = []
    bad: list[Quarantined] = []
    for table, index in rows_of(history, rows, scope):
        part = rows.take(pa.array(index)).combine_chunks()
        built, failed = _decode_table(shown(table), part)
        changes.append(built)
        bad.extend(failed)
    return Decoding(changes=tuple(changes), quarantined=tuple(sorted(bad, key=lambda q: (q.commit_ts, q.key))))


def rows_of(history: History, rows: pa.Table, scope: Scope) -> Iterator[tuple[Table, npt.NDArray[np.int64]]]:
    """(table version, ascending row numbers) of every table version of the scope that has rows."""
    ids, commit_ts = rows["table_id"].to_numpy(), rows["commit_ts"].to_numpy()
    at = np.flatnonzero(is_record(rows["key"]))
    if (ids[at[1:]] < ids[at[:-1]]).any():
        at = at[np.argsort(ids[at], kind="stable")]
    groups: dict[int, tuple[Table, list[npt.NDArray[np.int64]]]] = {}
    for one_id in np.split(at, np.flatnonzero(np.diff(ids[at])) + 1) if len(at) else ():
        intervals = history.version_intervals(int(ids[one_id[0]]))
        which = intervals.index(commit_ts[one_id])  # of commit_ts - 1
        for version in np.flatnonzero(np.bincount(which + 1)[1:]):
            table = intervals.versions[version]
            assert table is not None
            groups.setdefault(id(table), (table, []))[1].append(one_id[which == version])
    for table, parts in groups.values():
        if wanted(table, scope):
            yield table, parts[0] if len(parts) == 1 else np.sort(np.concatenate(parts))


def _decode_table(table: Table, rows: pa.Table) -> tuple[TableChanges, list[Quarantined]]:
    build = partial(build_changes, table)
    after, before, failed = decode_images(table, row_layout(table), rows)
    if failed:
        keep = np.ones(rows.num_rows, dtype=bool)
        keep[list(failed)] = False
        mask = pa.array(keep)
        return build(rows.filter(mask), after.filter(mask), before.filter(mask)), list(failed.values())
    return build(rows, after, before), []


def decode_images(
    table: Table, layout: RowLayout, rows: pa.Table
) -> tuple[pa.RecordBatch, pa.RecordBatch, dict[int, Quarantined]]:
    """(new images, old images, rows that cannot be decoded by their number) of one table version, with the columns of
    `layout` only."""
    keys = rows["key"].combine_chunks()
    after = decode(layout, keys, rows["value"].combine_chunks())
    before = _with_keys(table, rows, decode(layout, keys, rows["old_value"].combine_chunks()))
    return after.batch, before.batch, _quarantine(table, rows, after, before)


def _with_keys(table: Table, rows: pa.Table, before: Decoded) -> Decoded:
    """The old images; a delete without one gets the columns of its key."""
    deletes = pc.and_(rows["old_value"].is_null(), pc.equal(rows["op"], pa.scalar(int(Op.DELETE), pa.uint8())))
    at = np.flatnonzero(deletes.to_numpy())
    in_key = key_layout(table)
    if not len(at) or not in_key.columns:
        return before
    keys = rows["key"].combine_chunks().take(pa.array(at))
    from_keys = decode(in_key, keys, pa.array([EMPTY_ROW] * len(at), pa.binary()))
    place = np.full(rows.num_rows, -1, np.int64)
    place[at] = np.arange(len(at))
    take = pa.array(place, mask=place < 0)
    columns = [
        pc.coalesce(column, from_keys.batch.column(name).take(take)) if name in from_keys.batch.schema.names else column
        for name, column in zip(before.batch.schema.names, before.batch.columns, strict=True)
    ]
    errors = [replace(e, index=int(at[e.index])) for e in from_keys.errors]
    return replace(
        before,
        batch=pa.RecordBatch.from_arrays(columns, schema=before.batch.schema),
        errors=tuple(sorted([*before.errors, *errors], key=lambda e: e.index)),
    )


def _quarantine(table: Table, rows: pa.Table, after: Decoded, before: Decoded) -> dict[int, Quarantined]:
    seen: dict[int, Quarantined] = {}
    for image, decoded in (("value", after), ("old value", before)):
        for e in decoded.errors:
            seen.setdefault(
                e.index,
                Quarantined(
                    database=table.db,
                    table=table.name,
                    table_id=rows["table_id"][e.index].as_py(),
                    column=e.column,
                    key=rows["key"][e.index].as_py(),
                    commit_ts=rows["commit_ts"][e.index].as_py(),
                    offset=e.offset,
                    cause=f"{e.cause} (in the {image})",
                ),
            )
    return seen
