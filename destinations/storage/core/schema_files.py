"""Schema files: a table version, or what a DDL made, as JSON in TiCDC's form.

The hash in the name is the CRC32 of TiCDC: of the definition without version and statement, columns by name. The
columns are those of the data files, in their order. TiCDC writes the length of strings as ColumnPrecision, its
documentation says ColumnLength; both are here.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from destinations.storage.core.names import meta_folder, schema_file
from reading.formats.rows import single_action
from schemas.actions import Action
from schemas.layout import ByIdentity
from schemas.model import Column, DdlEvent, Table
from schemas.types import UNSPECIFIED, type_name

_BIT, _ENUM, _SET, _DECIMAL = 16, 247, 248, 246
_TIMES = frozenset({7, 11, 12})
_FLOATS = frozenset({4, 5})
_STRINGS = frozenset({15, 249, 250, 251, 252, 253, 254})
_WIDTHS = frozenset({1, 2, 3, 8, 9, 13, _BIT, *_STRINGS})
#: shown where the definition leaves the length open
_DEFAULT_LENGTH = {
    **{1: 4, 2: 6, 3: 11, 8: 20, 9: 9, 4: 12, 5: 22, _DECIMAL: 10, _BIT: 1, 13: 4, 15: 5, 253: 5, 254: 1},
    **{249: 255, 250: 16_777_215, 251: 4_294_967_295, 252: 65_535},
}
_HTML = str.maketrans({c: f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"})
_OURS = "ColumnLength"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaFile:
    """One schema file. `described` None: it has no columns, as that of a database."""

    db: str
    table: str
    described: Table | None
    version: int
    query: str
    type: int

    @property
    def folder(self) -> str:
        return meta_folder(self.db, self.table)

    @property
    def digest(self) -> int:
        """TiCDC's checksum of names and columns."""
        return _digest(self.db, self.table, []) if self.described is None else _digest_of(ByIdentity(self.described))

    @property
    def key(self) -> str:
        return schema_file(self.folder, self.version, self.digest)

    @property
    def data(self) -> bytes:
        header = {"Version": 1, "TableVersion": self.version, "Query": self.query, "Type": self.type}
        columns = None if self.described is None else columns_of(self.described)
        return _text(_definition(self.db, self.table, columns, header))


def of_table(table: Table, version: int, query: str = "", type_: int = 0) -> SchemaFile:
    """The file of a table version. `query`, `type_`: of the DDL that made it, where that is known."""
    return SchemaFile(db=table.db, table=table.name, described=table, version=version, query=query, type=type_)


def of_events(events: Sequence[DdlEvent]) -> list[SchemaFile]:
    """The files of DDL. One RENAME of several tables may give a table several names on the way: its file has all their
    statements."""
    files: dict[str, SchemaFile] = {}
    for event in events:
        for file in _of_event(event):
            earlier = files.get(file.key)
            if earlier is not None and earlier.query:
                file = replace(file, query=f"{earlier.query.rstrip(';')}; {file.query}")
            files[file.key] = file
    return list(files.values())


def _of_event(event: DdlEvent) -> list[SchemaFile]:
    """The file of a DDL; two of an EXCHANGE PARTITION, which changes two tables."""
    type_, query, ts = single_action(event.type), event.statement, event.commit_ts
    if event.version is None or not event.table:
        return [SchemaFile(db=event.db, table=event.table, described=None, version=ts, query=query, type=type_)]
    schema_files = [of_table(event.version, ts, query, type_)]
    if event.type == Action.EXCHANGE_PARTITION and event.exchanged is not None:
        schema_files.append(of_table(event.exchanged, ts))
    return schema_files


def columns_of(table: Table) -> list[dict[str, Any]]:
    """TableColumns."""
    return [column_of(column) for column in table.visible_columns]


@lru_cache(maxsize=16_384)
def _digest_of(key: ByIdentity) -> int:
    return _digest(key.table.db, key.table.name, columns_of(key.table))


def _definition(db: str, table: str, columns: list[dict[str, Any]] | None, header: dict[str, Any]) -> dict[str, Any]:
    total = len(columns or ())
    return {"Table": table, "Schema": db, **header, "TableColumns": columns, "TableColumnsTotal": total}


def _digest(db: str, table: str, columns: list[dict[str, Any]]) -> int:
    by_name = sorted(columns, key=lambda column: str(column["ColumnName"]))
    plain = [{name: value for name, value in column.items() if name != _OURS} for column in by_name]
    return zlib.crc32(_text(_definition(db, table, plain, {"Version": 0})))


def _text(value: object) -> bytes:
    """JSON as Go indents and escapes it."""
    return json.dumps(value, indent=4, ensure_ascii=False).translate(_HTML).encode()


def column_of(column: Column) -> dict[str, Any]:
    """A member of TableColumns; numbers are texts, and what is empty is left out."""
    tp = column.tp
    length = column.flen if column.flen != UNSPECIFIED else _DEFAULT_LENGTH.get(tp, UNSPECIFIED)
    fraction = str(column.decimal) if column.decimal not in (0, UNSPECIFIED) else ""
    described: dict[str, Any] = {
        "ColumnName": column.name,
        "ColumnType": type_name(column).upper() + " UNSIGNED" * column.unsigned,
        "ColumnDefault": column.default
        if column.default_bit is None
        else column.default_bit.decode("utf-8", "replace"),
        _OURS: str(length) if tp in _STRINGS else "",
        "ColumnPrecision": str(length) if tp in _WIDTHS or tp in _FLOATS or tp == _DECIMAL else "",
        "ColumnScale": "",
        "ColumnNullable": "false" if column.not_null else "",
        "ColumnIsPk": "true" if column.primary else "",
        "ColumnElems": list(column.elems) if tp in (_ENUM, _SET) else [],
    }
    if tp in _TIMES or tp in _FLOATS:
        described["ColumnScale"] = fraction
    elif tp == _DECIMAL:
        described["ColumnScale"] = str(max(column.decimal, 0))
    default = described.pop("ColumnDefault")
    kept = {name: value for name, value in described.items() if value not in ("", [])}
    head = {name: described[name] for name in ("ColumnName", "ColumnType")}
    return {**head, **({} if default is None else {"ColumnDefault": default}), **kept}
