"""Renders a column's type: the bare name, and the full text of SHOW CREATE TABLE.

    base_type    int unsigned zerofill, varchar, decimal unsigned, enum
    full_type    int(6) unsigned zerofill, varchar(40), decimal(12,2) unsigned, enum('a','b')
    sql_type     full_type for a statement: every character of a label is escaped

Whether a string column is text or bytes is decided by its charset alone.
"""

from __future__ import annotations

from schemas.model import Column

UNSPECIFIED = -1

_ZEROFILL = 64
_BIT, _YEAR, _ENUM, _SET, _DECIMAL, _VECTOR, _NULL = 16, 13, 247, 248, 246, 225, 6
_INTEGERS = frozenset({1, 2, 3, 8, 9})
_BLOBS = frozenset({249, 250, 251, 252})
_STRINGS = frozenset({15, 253, 254})
_FRACTIONAL_TIME = frozenset({7, 11, 12})
_FLOATS = frozenset({4, 5})
_NAMES = {
    1: "tinyint",
    2: "smallint",
    3: "int",
    4: "float",
    5: "double",
    6: "null",
    7: "timestamp",
    8: "bigint",
    9: "mediumint",
    10: "date",
    11: "time",
    12: "datetime",
    13: "year",
    15: "varchar",
    16: "bit",
    225: "vector",
    245: "json",
    246: "decimal",
    247: "enum",
    248: "set",
    249: "tinyblob",
    250: "mediumblob",
    251: "longblob",
    252: "blob",
    253: "var_string",
    254: "char",
    255: "geometry",
}
#: shown length and fraction where the definition leaves them open
_DEFAULT_FLEN = {1: 4, 2: 6, 3: 11, 8: 20, 9: 9, 4: 12, 5: 22, 246: 10, 16: 1, 13: 4, 15: 5, 253: 5, 254: 1}
_ESCAPES = str.maketrans({"\0": "\\0", "'": "''", "\n": "\\n", "\r": "\\r"})  # as TiDB does: no backslashes
_SQL_ESCAPES = _ESCAPES | str.maketrans({"\\": "\\\\", "\x1a": "\\Z"})


def type_name(column: Column) -> str:
    """The bare name of the type, for example `varbinary`; `type N` for an unknown number."""
    name = _NAMES.get(column.tp, f"type {column.tp}")
    if column.tp in _BLOBS and not column.binary:
        return name.replace("blob", "text")
    if column.tp in _STRINGS and column.binary:
        return name.replace("char", "binary")
    return name


def base_type(column: Column) -> str:
    """The bare name with `unsigned` and `zerofill`."""
    return type_name(column) + _sign(column)


def full_type(column: Column) -> str:
    """The type as TiDB prints it in messages, without charset and without NULL or DEFAULT. Not for
    statements: TiDB does not escape the backslashes of labels."""
    return type_name(column) + _length(column, _ESCAPES) + _sign(column)


def sql_type(column: Column) -> str:
    return type_name(column) + _length(column, _SQL_ESCAPES) + _sign(column)


def literal(text: str) -> str:
    return "'" + text.translate(_SQL_ESCAPES) + "'"


def _sign(column: Column) -> str:
    unsigned = column.unsigned and column.tp not in (_BIT, _YEAR)
    zerofill = bool(column.flag & _ZEROFILL) and column.tp != _YEAR
    return " unsigned" * unsigned + " zerofill" * zerofill


def _length(column: Column, escapes: dict[int, str]) -> str:
    tp = column.tp
    flen = column.flen if column.flen != UNSPECIFIED else _DEFAULT_FLEN.get(tp, UNSPECIFIED)
    has_fraction = column.decimal not in (0, UNSPECIFIED)
    if tp in (_ENUM, _SET):
        return "('" + "','".join(label.translate(escapes) for label in column.elems) + "')"
    if tp in _FRACTIONAL_TIME:
        return f"({column.decimal})" if has_fraction else ""
    if tp in _FLOATS:
        return f"({flen},{column.decimal})" if has_fraction else ""
    if tp == _DECIMAL:
        return f"({flen},{max(column.decimal, 0)})"
    if tp in _INTEGERS or tp in _STRINGS or tp in (_BIT, _YEAR):
        return f"({flen})"
    if tp == _VECTOR:
        return f"({column.flen})" if column.flen != UNSPECIFIED else ""
    return "(0)" if tp == _NULL else ""
