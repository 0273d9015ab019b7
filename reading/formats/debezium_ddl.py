"""`tableChanges` of debezium DDL messages: the table as the DDL left it, column by column.

Lengths and defaults of time columns come from the statement where it defines the column: `DATETIME` without digits has
no length there, but length 0 in a later message about the table. Comments are given only for columns that the statement
does not define.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from reading.formats.rows import handle_columns, public_columns, single_action
from schemas.model import Column, DdlEvent
from schemas.types import type_name
from tistream.codec.row import layout

_TRUNCATE, _DROP_TABLE, _RENAME, _RENAMES, _EXCHANGE = 11, 4, 14, 47, 42
_DDL_TYPES = {
    "CREATE": (1, 3, 21),
    "ALTER": (5, 6, 7, 12, 13, 14, 15, 17, 18, 19, 20, 22, 23, 26, 32, 33, 41, 42, 61, 64, 71, 72),
    "DROP": (2, 4, 8, 11, 24),
}
_DDL_TYPE_OF = {action: type_ for type_, actions in _DDL_TYPES.items() for action in actions}
_ZEROFILL, _AUTO_INCREMENT, _ON_UPDATE_NOW = 64, 512, 8192
_JDBC_ZONED = 2014
_JDBC = {
    layout.TINY: 5,
    layout.SHORT: 5,
    layout.INT24: 4,
    layout.LONG: 4,
    layout.LONGLONG: -5,
    layout.FLOAT: 6,
    layout.DOUBLE: 8,
    layout.DECIMAL: 3,
    layout.YEAR: 4,
    layout.BIT: -7,
    layout.DATE: 91,
    layout.NEWDATE: 91,
    layout.DATETIME: 93,
    layout.TIMESTAMP: _JDBC_ZONED,
    layout.TIME: 92,
    layout.ENUM: 1,
    layout.SET: 1,
    layout.JSON: 1111,
    layout.VECTOR: 12,
}
_JDBC_TEXT = {layout.STRING: 1}
_JDBC_BYTES = {layout.STRING: -2, layout.VARCHAR: -3, layout.VARSTRING: -3}
_BLOBS = frozenset({layout.TINYBLOB, layout.MEDIUMBLOB, layout.LONGBLOB, layout.BLOB})
_STRINGS = frozenset({layout.VARCHAR, layout.VARSTRING, layout.STRING})
_TIMES = frozenset({layout.DATETIME, layout.TIMESTAMP, layout.TIME})
#: default display lengths, which are not written
_USUAL_LENGTH = {
    layout.BIT: 1,
    layout.VARCHAR: 5,
    layout.VARSTRING: 5,
    layout.STRING: 1,
    layout.VECTOR: -1,
    layout.LONGLONG: 20,
    layout.FLOAT: 12,
    layout.DOUBLE: 22,
    layout.TINY: 4,
    layout.SHORT: 6,
    layout.INT24: 9,
    layout.LONG: 11,
}
_SHORTER_UNSIGNED = frozenset({layout.TINY, layout.SHORT, layout.INT24, layout.LONG})
_BARE_NAMES = frozenset({layout.YEAR, layout.BIT, layout.VARCHAR, layout.STRING, layout.DECIMAL})
_WITH_CHARSET = frozenset({layout.STRING, layout.VARCHAR, layout.ENUM, layout.SET, *_BLOBS})

_STRING = r"'(?:[^'\\]|\\.|'')*'"
_TYPE_WORDS = (
    r"DATETIME|TIMESTAMP|DATE|TIME|YEAR|BIT|BOOL(?:EAN)?|(?:TINY|SMALL|MEDIUM|BIG)?INT|INTEGER|SERIAL|FLOAT|DOUBLE|REAL"
    r"|DEC(?:IMAL)?|NUMERIC|FIXED|(?:VAR)?CHAR|(?:VAR)?BINARY|(?:TINY|MEDIUM|LONG)?(?:BLOB|TEXT)|JSON|VECTOR"
    r"|ENUM(?=\s*\()|SET(?=\s*\()"
)
_DEFINITION = re.compile(
    rf"""(?:`(?P<quoted>(?:[^`]|``)+)`|(?<![\w$@'"`])(?P<name>[\w$]+))
         \s+(?P<type>{_TYPE_WORDS})\b\s*(?:\(\s*(?P<digits>\d+)\s*\))?
         (?P<options>(?:{_STRING}|"(?:[^"\\]|\\.|"")*"|`(?:[^`]|``)*`|\([^()]*\)|[^,()'"`])*)""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
_OPAQUE = re.compile(rf"{_STRING}|\"(?:[^\"\\]|\\.|\"\")*\"|/\*(?!T?!).*?\*/|--[ \t][^\n]*|\#[^\n]*", re.DOTALL)
_DEFAULT = re.compile(rf"\bDEFAULT\s+(?:_\w+\s*)?(?:(?P<text>{_STRING})|(?P<word>-?[\w.]+))", re.IGNORECASE | re.DOTALL)
_NOW = frozenset({"CURRENT_TIMESTAMP", "NOW", "LOCALTIME", "LOCALTIMESTAMP"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """The definition of a column in a statement."""

    digits: int  #: in parentheses; -1 = none
    default: str | None  #: None = no default or NULL
    has_default: bool


def ddl_type(action: int) -> str | None:
    """CREATE, ALTER or DROP by TiDB's action number; None for a DDL that Debezium has no message for."""
    return _DDL_TYPE_OF.get(single_action(action))


def table_changes(event: DdlEvent, type_: str) -> list[dict[str, object]]:
    """The only change, or none: of database DDL and TRUNCATE TABLE."""
    table = event.version
    if not event.table or event.type == _TRUNCATE:
        return []
    name = f'"{event.db}"."{event.table}"'
    if event.type == _DROP_TABLE or table is None:
        return [{"type": type_, "id": name, "table": None}]
    if event.type in (_RENAME, _RENAMES):
        name = f'"{event.old_db}"."{event.old_table}",{name}'
    elif event.type == _EXCHANGE:
        name = f'"{table.db}"."{table.name}"'
    stated = stated_columns(event.query)
    shown = [c for c in public_columns(table) if not c.hidden]
    described = {
        "defaultCharsetName": table.charset,
        "primaryKeyColumnNames": [c.name for c in handle_columns(table)],
        "columns": [_column(c, n, stated.get(c.name.lower())) for n, c in enumerate(shown, 1)],
        "comment": None,
    }
    return [{"type": type_, "id": name, "table": described}]


def stated_columns(query: str) -> dict[str, Stated]:
    """The column definitions in `query`, by lower-case name."""
    hidden = [(m.start(), m.end()) for m in _OPAQUE.finditer(query)]
    columns: dict[str, Stated] = {}
    for match in _DEFINITION.finditer(query):
        if any(begin <= match.start("type") < end for begin, end in hidden):
            continue
        name = match["quoted"].replace("``", "`") if match["quoted"] else match["name"]
        columns[name.lower()] = _stated(match["digits"], match["options"])
    return columns


def _stated(digits: str | None, options: str) -> Stated:
    default = _DEFAULT.search(options)
    value: str | None = None
    if default is not None:
        text, word = default["text"], default["word"]
        value = text[1:-1].replace("''", "'") if text else word
        if word and word.upper() in _NOW:
            value = "CURRENT_TIMESTAMP"
        elif word and word.upper() == "NULL":
            value = None
    return Stated(digits=int(digits) if digits else -1, default=value, has_default=default is not None)


def _column(column: Column, position: int, stated: Stated | None) -> dict[str, object]:
    jdbc = _jdbc(column)
    numbered = bool(column.flag & _AUTO_INCREMENT) or (bool(column.flag & _ON_UPDATE_NOW) and jdbc == _JDBC_ZONED)
    name, expression = _type_words(column)
    scale = column.decimal if column.tp in (layout.DECIMAL, layout.FLOAT, layout.DOUBLE) else -1
    return {
        "name": column.name,
        "jdbcType": jdbc,
        "nativeType": None,
        "comment": (column.comment or None) if stated is None else None,
        "defaultValueExpression": _default(column, stated),
        "enumValues": [f"'{label}'" for label in column.elems] or None,
        "typeName": name,
        "typeExpression": expression,
        "charsetName": column.charset if column.tp in _WITH_CHARSET and not column.binary and column.charset else None,
        "length": _length(column, stated),
        "scale": None if scale == -1 else scale,
        "position": position,
        "optional": not column.not_null,
        "autoIncremented": numbered,
        "generated": numbered,
    }


def _jdbc(column: Column) -> int:
    if column.tp in _BLOBS:
        return 2004 if column.binary else 12
    if column.tp in _STRINGS:
        return (_JDBC_BYTES if column.binary else _JDBC_TEXT).get(column.tp, 12)
    return _JDBC.get(column.tp, 12)


def _type_words(column: Column) -> tuple[str, str]:
    """(type name, type expression)."""
    name = type_name(column).upper() if column.tp else "UNSPECIFIED"
    if column.tp in _BARE_NAMES:
        return name, name
    suffix = ""
    if column.tp == layout.DOUBLE and column.decimal not in (0, -1):
        suffix = f"({column.flen},{column.decimal})"
    elif column.tp == layout.VECTOR and column.flen != -1:
        suffix = f"({column.flen})"
    sign = " UNSIGNED ZEROFILL" if column.flag & _ZEROFILL else " UNSIGNED" if column.unsigned else ""
    return name + sign, name + suffix + sign


def _default(column: Column, stated: Stated | None) -> object:
    value = column.default
    if stated is not None and stated.has_default and (column.tp in _TIMES or column.tp == layout.YEAR):
        value = stated.default
    if column.tp == layout.BIT and column.default_bit is not None:
        return _bit_digits(column.default_bit, column.flen)
    if isinstance(value, str) and value.upper() == "CURRENT_TIMESTAMP":
        return "1970-01-01 00:00:00"
    return value


def _bit_digits(value: bytes, bits: int) -> str:
    """Binary digits, of the first byte no leading zeros beyond `bits` modulo 8."""
    first = f"{value[0]:0{bits % 8 or 1}b}" if value else ""
    return first + "".join(f"{byte:08b}" for byte in value[1:])


def _length(column: Column, stated: Stated | None) -> int | None:
    tp, flen = column.tp, column.flen
    if tp in _TIMES:
        length = column.decimal if stated is None else stated.digits
    elif tp == layout.YEAR:
        length = flen if stated is None else stated.digits
    elif tp == layout.DECIMAL:
        length = flen
    elif tp == layout.SET:
        length = 2 * len(column.elems) - 1
    elif tp == layout.ENUM:
        length = 1
    elif tp in _USUAL_LENGTH:
        usual = _USUAL_LENGTH[tp]
        if tp in _SHORTER_UNSIGNED and column.unsigned:
            usual -= 1
        if tp == layout.TINY and column.flag & _ZEROFILL:
            usual += 1
        length = -1 if flen == usual else flen
    else:
        length = -1
    return None if length == -1 else length
