"""TiDB's meta JSON (DBInfo, TableInfo) to `schemas.model`.

Unknown fields are ignored and missing ones take zero values, as TiDB itself does. Names keep their original spelling.
A definition without a table id, or with a field of another type, raises DecodeError naming the field: a table is
never used in part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from schemas import fields
from schemas.model import STATE_PUBLIC, Column, Database, Index, IndexColumn, Table
from schemas.partitions import read_definitions
from tistream.errors import DecodeError

Json = Mapping[str, Any]
T = TypeVar("T")
_MODES = {1: "IMPORT INTO", 2: "restore"}  # of newer servers


def original_name(name: Any) -> str:
    """The spelling the user chose, of a `{"O": ..., "L": ...}` pair (or of a plain string)."""
    if isinstance(name, str):
        return name
    return str(name.get("O") or "") if isinstance(name, Mapping) else ""


def database(info: Json) -> Database:
    try:
        return Database(
            id=fields.integer(info, "id", least=0, needed=True),
            name=fields.original_name(info, "db_name"),
            charset=fields.text(info, "charset"),
            collate=fields.text(info, "collate"),
            state=fields.integer(info, "state"),
        )
    except (TypeError, ValueError, AttributeError) as error:
        db_id = info.get("id") if isinstance(info, Mapping) else None
        raise DecodeError("a database definition cannot be read", database=db_id, reason=str(error)) from error


def table(info: Json, *, db_id: int, db: str) -> Table:
    """A TableInfo. `db_id` and `db` are given because the definition does not name its database."""
    try:
        return _table(info, db_id, db)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        name = original_name(info.get("name")) if isinstance(info, Mapping) else ""
        raise DecodeError("a table definition cannot be read", database=db, table=name, reason=str(error)) from error


def _table(info: Json, db_id: int, db: str) -> Table:
    definitions = read_definitions(fields.mapping(info, "partition"))
    columns = sorted(_each(info, "cols", _column), key=lambda c: c.offset)
    return Table(
        id=fields.integer(info, "id", least=1, needed=True),
        db_id=db_id,
        db=db,
        name=fields.original_name(info, "name"),
        charset=fields.text(info, "charset"),
        collate=fields.text(info, "collate"),
        columns=tuple(columns),
        indexes=tuple(_each(info, "index_info", _index)),
        pk_is_handle=fields.flag(info, "pk_is_handle"),
        is_common_handle=fields.flag(info, "is_common_handle"),
        common_handle_version=fields.integer(info, "common_handle_version"),
        partition_ids=tuple(fields.integer(d, "id", least=1, needed=True) for d in definitions),
        partition_names=tuple(fields.original_name(d, "name") for d in definitions),
        update_ts=fields.integer(info, "update_timestamp"),
        kind="view" if info.get("view") else "sequence" if info.get("sequence") else "table",
        mode=_MODES.get(fields.integer(info, "mode"), ""),
        comment=fields.text(info, "comment"),
    )


def _each(info: Json, name: str, read: Callable[[Json], T]) -> Iterator[T]:
    """The items of a list, each parsed by `read`."""
    for n, item in enumerate(fields.mappings(info, name)):
        try:
            yield read(item)
        except fields.WrongField as error:
            raise error.inside(f"{name}[{n}]") from error


def _column(info: Json) -> Column:
    kind = fields.mapping(info, "type")
    return Column(
        id=fields.integer(info, "id", needed=True),
        name=fields.original_name(info, "name"),
        offset=fields.integer(info, "offset"),
        tp=fields.integer(kind, "Tp"),
        flag=fields.integer(kind, "Flag"),
        flen=fields.integer(kind, "Flen"),
        decimal=fields.integer(kind, "Decimal"),
        charset=fields.text(kind, "Charset"),
        collate=fields.text(kind, "Collate"),
        elems=fields.texts(kind, "Elems"),
        origin_default=_origin_default(info),
        origin_default_bit=fields.bits(info, "origin_default_bit"),
        default=fields.scalar(info, "default"),
        default_bit=fields.bits(info, "default_bit"),
        default_is_expr=fields.flag(info, "default_is_expr"),
        generated=bool(fields.text(info, "generated_expr_string")),
        generated_stored=fields.flag(info, "generated_stored"),
        generated_expr=fields.text(info, "generated_expr_string"),
        hidden=fields.flag(info, "hidden"),
        state=fields.integer(info, "state"),
        version=fields.integer(info, "version"),
        comment=fields.text(info, "comment"),
    )


def _origin_default(info: Json) -> object:
    """The default of rows that were written before the column. TiDB writes texts and, in old tables, numbers; of other
    values the text is kept, and only rows that lack the column fail."""
    value = info.get("origin_default")
    return str(value) if isinstance(value, bool | list | Mapping) else fields.scalar(info, "origin_default")


def _index(info: Json) -> Index:
    return Index(
        id=fields.integer(info, "id", needed=True),
        name=fields.original_name(info, "idx_name"),
        columns=tuple(_each(info, "idx_cols", _index_column)),
        unique=fields.flag(info, "is_unique"),
        primary=fields.flag(info, "is_primary"),
        state=fields.integer(info, "state"),
    )


def _index_column(info: Json) -> IndexColumn:
    return IndexColumn(
        name=fields.original_name(info, "name"),
        offset=fields.integer(info, "offset"),
        length=fields.integer(info, "length"),
    )


def view_select(info: Json) -> str:
    """The SELECT of a view as TiDB stored it; empty for anything else."""
    return fields.text(info.get("view") or {}, "view_select")


def is_dropped(info: Json) -> bool:
    """Whether the definition is what a DROP leaves behind (state none) rather than a table in use."""
    return int(info.get("state", STATE_PUBLIC) or 0) == 0
