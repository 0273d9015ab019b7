"""TiDB's meta JSON (DBInfo, TableInfo) to `schemas.model`.

Unknown fields are ignored and missing ones take zero values, as TiDB itself does. Names keep their original spelling.
A definition without a table id or with a broken column raises DecodeError: a half-understood table is never used.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from schemas.model import STATE_PUBLIC, Column, Database, Index, IndexColumn, Table
from schemas.partitions import read_definitions
from tistream.errors import DecodeError

Json = Mapping[str, Any]


def original_name(name: Any) -> str:
    """The spelling the user chose, of a `{"O": ..., "L": ...}` pair (or of a plain string)."""
    if isinstance(name, str):
        return name
    return str(name.get("O") or "") if isinstance(name, Mapping) else ""


def database(info: Json) -> Database:
    """A DBInfo."""
    try:
        return Database(
            id=int(info["id"]),
            name=original_name(info.get("db_name")),
            charset=info.get("charset") or "",
            collate=info.get("collate") or "",
            state=int(info.get("state") or 0),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DecodeError("a database definition cannot be read", database=info.get("id")) from error


def table(info: Json, *, db_id: int, db: str) -> Table:
    """A TableInfo. `db_id` and `db` come from outside: the definition does not name its database."""
    try:
        return _table(info, db_id, db)
    except (KeyError, TypeError, ValueError, AttributeError, binascii.Error) as error:
        name = original_name(info.get("name")) if isinstance(info, Mapping) else ""
        raise DecodeError("a table definition cannot be read", database=db, table=name, reason=str(error)) from error


def _table(info: Json, db_id: int, db: str) -> Table:
    definitions = read_definitions(info.get("partition") or {})
    columns = sorted((_column(c) for c in info.get("cols") or ()), key=lambda c: c.offset)
    return Table(
        id=int(info["id"]),
        db_id=db_id,
        db=db,
        name=original_name(info.get("name")),
        charset=info.get("charset") or "",
        collate=info.get("collate") or "",
        columns=tuple(columns),
        indexes=tuple(_index(i) for i in info.get("index_info") or ()),
        pk_is_handle=bool(info.get("pk_is_handle")),
        is_common_handle=bool(info.get("is_common_handle")),
        common_handle_version=int(info.get("common_handle_version") or 0),
        partition_ids=tuple(int(d["id"]) for d in definitions),
        partition_names=tuple(original_name(d.get("name")) for d in definitions),
        update_ts=int(info.get("update_timestamp") or 0),
        kind="view" if info.get("view") else "sequence" if info.get("sequence") else "table",
        comment=info.get("comment") or "",
    )


def _column(info: Json) -> Column:
    kind = info.get("type") or {}
    return Column(
        id=int(info["id"]),
        name=original_name(info.get("name")),
        offset=int(info.get("offset") or 0),
        tp=int(kind.get("Tp") or 0),
        flag=int(kind.get("Flag") or 0),
        flen=int(kind.get("Flen") or 0),
        decimal=int(kind.get("Decimal") or 0),
        charset=kind.get("Charset") or "",
        collate=kind.get("Collate") or "",
        elems=tuple(kind.get("Elems") or ()),
        origin_default=_scalar(info.get("origin_default")),
        origin_default_bit=_bits(info.get("origin_default_bit")),
        default=info.get("default"),
        default_bit=_bits(info.get("default_bit")),
        default_is_expr=bool(info.get("default_is_expr")),
        generated=bool(info.get("generated_expr_string")),
        generated_stored=bool(info.get("generated_stored")),
        generated_expr=info.get("generated_expr_string") or "",
        hidden=bool(info.get("hidden")),
        state=int(info.get("state") or 0),
        version=int(info.get("version") or 0),
        comment=info.get("comment") or "",
    )


def _scalar(value: Any) -> str | int | float | None:
    """A default value. TiDB writes texts and, in old tables, numbers; of anything else its text is kept."""
    return value if value is None or isinstance(value, str | int | float) else str(value)


def _bits(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text, validate=True)


def _index(info: Json) -> Index:
    return Index(
        id=int(info["id"]),
        name=original_name(info.get("idx_name")),
        columns=tuple(
            IndexColumn(
                name=original_name(c.get("name")), offset=int(c.get("offset") or 0), length=int(c.get("length") or 0)
            )
            for c in info.get("idx_cols") or ()
        ),
        unique=bool(info.get("is_unique")),
        primary=bool(info.get("is_primary")),
        state=int(info.get("state") or 0),
    )


def is_dropped(info: Json) -> bool:
    """Whether the definition is what a DROP leaves behind (state none) rather than a table in use."""
    return int(info.get("state", STATE_PUBLIC) or 0) == 0
