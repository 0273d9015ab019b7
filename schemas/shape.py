"""The columns and key of a table version as plain JSON, for writers of its rows (pure)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from schemas.layout import key_layout, row_layout
from schemas.model import Table
from tistream.codec.row.layout import ColumnSpec
from tistream.errors import DecodeError


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    table_id: int
    physical_ids: tuple[int, ...]
    columns: tuple[ColumnSpec, ...]  #: what is delivered, in order
    int_handle: int | None  #: id of the column that is the integer row key
    common_handle: tuple[int, ...]  #: ids of the clustered primary key's columns, in its order
    key_is_whole: bool  #: the columns determine the record key: no prefixes, no collations


def shape_of(table: Table) -> Shape:
    layout = row_layout(table)
    in_key = {column.id for column in key_layout(table).columns}
    return Shape(
        table_id=table.id,
        physical_ids=table.physical_ids,
        columns=layout.columns,
        int_handle=layout.int_handle,
        common_handle=layout.common_handle,
        key_is_whole=set(layout.common_handle) <= in_key and not table.partition_ids,
    )


def to_json(shape: Shape) -> dict[str, Any]:
    """The shape as JSON, without origin defaults, because writers write all columns."""
    columns = [asdict(column) for column in shape.columns]
    for column in columns:
        del column["origin_default"], column["origin_default_bit"]
    return {**asdict(shape), "columns": columns}


def of_json(parsed: dict[str, Any]) -> Shape:
    """The shape that `to_json` wrote. DecodeError for anything else."""
    try:
        columns = tuple(ColumnSpec(**{**column, "elems": tuple(column["elems"])}) for column in parsed["columns"])
        lists = {name: tuple(parsed[name]) for name in ("physical_ids", "common_handle")}
        return Shape(**{**parsed, **lists, "columns": columns})
    except (KeyError, TypeError) as e:
        raise DecodeError("the shape of a table cannot be read", cause=repr(e)) from e
