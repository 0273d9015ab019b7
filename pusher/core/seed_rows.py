"""Encodes decoded rows as the upstream stores them: record keys and row values (pure).

The key is derived from the columns where that is exact: an integer primary key, or a clustered one of numbers, times
and texts that sort bytewise. Otherwise the file provides it: `_tidb_rowid` for a table without a clustered key, as
returned by `SELECT *, _tidb_rowid`; or `_tistream_key`, the record key itself, which takes precedence. A table with
neither is refused, because log changes could not be applied to its rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pusher.core.seed_values import stored
from schemas.shape import Shape
from tistream.codec.row.encode import cell, key_datum, row_value
from tistream.codec.row.layout import ColumnSpec, ValueKind, kind_of
from tistream.codec.seed_file import SEED
from tistream.codec.table_key import record_key
from tistream.errors import InvalidInput

ROWID, KEY = "_tidb_rowid", "_tistream_key"


def encoded(shape: Shape, columns: Mapping[str, Sequence[Any]], ts: int, *, file: str, in_text: bool) -> pa.Table:
    """The rows, schema SEED, by key. `columns`: name -> values, all of one length; `in_text`: from NDJSON.

    InvalidInput names file, row (from 1) and column."""
    given = {name.lower(): values for name, values in columns.items()}
    wanted = {spec.name.lower() for spec in shape.columns}
    _check_names(shape, set(given), wanted, file)
    count = len(next(iter(given.values())))
    cells: dict[int, list[Any]] = {}
    for spec in shape.columns:
        cells[spec.id] = _stored(spec, given[spec.name.lower()], file, in_text)
    by_id = {spec.id: spec for spec in shape.columns}
    in_key = {shape.int_handle, *shape.common_handle}
    keys, values = [], []
    for n in range(count):
        keys.append(_key(shape, by_id, given, cells, n, file, in_text))
        row = {
            spec.id: None if given[spec.name.lower()][n] is None else cell(spec, cells[spec.id][n])
            for spec in shape.columns
            if spec.id not in in_key
        }
        values.append(row_value(row))
    times = pa.array([ts] * count, pa.uint64())
    rows = pa.table([pa.array(keys, pa.binary()), times, times, pa.array(values, pa.binary())], schema=SEED)
    order = pc.sort_indices(rows, sort_keys=[("key", "ascending")])
    rows = rows.take(order).combine_chunks()
    same = pc.equal(rows["key"].slice(1), rows["key"].slice(0, max(count - 1, 0)))
    if (at := pc.index(same, True).as_py()) >= 0:
        first, second = sorted(order[n].as_py() + 1 for n in (at, at + 1))
        raise InvalidInput(f"{file}, rows {first} and {second}: both have the same key.", file=file)
    return rows


def _check_names(shape: Shape, given: set[str], wanted: set[str], file: str) -> None:
    if missing := sorted(wanted - given):
        raise InvalidInput(f"{file} lacks columns of the table: {', '.join(missing)}.", file=file)
    if foreign := sorted(given - wanted - {ROWID, KEY}):
        raise InvalidInput(f"{file} has columns that the table lacks: {', '.join(foreign)}.", file=file)
    is_known = shape.key_is_whole and (shape.int_handle is not None or bool(shape.common_handle))
    has_rowid = ROWID in given and shape.int_handle is None and not shape.common_handle and len(shape.physical_ids) == 1
    if KEY not in given and not is_known and not has_rowid:
        raise InvalidInput(
            f"{file}: the keys of these rows cannot be derived from their columns (a partition, a collation, a "
            f"prefix, or no clustered key). Add a column {ROWID} if the table has one, or {KEY} with the record keys.",
            file=file,
        )


def _stored(spec: ColumnSpec, values: Sequence[Any], file: str, in_text: bool) -> list[Any]:
    out: list[Any] = []
    for n, value in enumerate(values):
        try:
            if value is None and spec.not_null:
                raise ValueError("NULL in a NOT NULL column")
            out.append(None if value is None else stored(spec, value, in_text=in_text))
        except (ValueError, OverflowError) as e:
            raise InvalidInput(
                f"{file}, row {n + 1}, column {spec.name}: {e}.", file=file, row=n + 1, column=spec.name
            ) from e
    return out


def _key(
    shape: Shape,
    by_id: Mapping[int, ColumnSpec],
    given: Mapping[str, Sequence[Any]],
    cells: Mapping[int, Sequence[Any]],
    n: int,
    file: str,
    in_text: bool,
) -> bytes:
    name = KEY
    try:
        if KEY in given:
            value = given[KEY][n]
            return bytes.fromhex(value) if in_text else bytes(value)
        if shape.int_handle is not None:
            return record_key(shape.physical_ids[0], _signed(cells[shape.int_handle][n]))
        if not shape.common_handle:
            name = ROWID
            return record_key(shape.physical_ids[0], _signed(int(given[ROWID][n])))
        handle = b""
        for id_ in shape.common_handle:
            name = by_id[id_].name
            handle += _datum(by_id[id_], cells[id_][n])
        return record_key(shape.physical_ids[0], handle)
    except (ValueError, TypeError, OverflowError) as e:
        raise InvalidInput(f"{file}, row {n + 1}, column {name}: {e}.", file=file, row=n + 1, column=name) from e


def _signed(handle: int) -> int:
    """Handles are 64 bits: an unsigned value above the signed maximum is the negative one with the same bits."""
    return handle - (1 << 64) if handle >= 1 << 63 else handle


def _datum(spec: ColumnSpec, value: Any) -> bytes:
    if value is None:
        raise ValueError("NULL in a primary key")
    if kind_of(spec) is ValueKind.TEXT and value.endswith(" "):
        raise ValueError(f"the key of a text that ends with a space is ambiguous; add {KEY}")
    return key_datum(spec, value)
