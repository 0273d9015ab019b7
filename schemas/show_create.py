"""CREATE statements for old table versions, to restore their rows into a server.

Types, character sets, collations, NULL and DEFAULT, keys and comments are those of the version. What a server cannot
take is omitted with a note: partitions, indexes over expressions and vectors, defaults of functions that it lacks. What
the schema history does not keep is omitted: foreign keys and checks, AUTO_RANDOM and shard bits, invisibility of
indexes. Stored generated columns become ordinary ones with their values; virtual ones, which have no value in a row,
are omitted. The note has the expression.

    tidb       as TiDB prints it
    mysql      the same without VECTOR (JSON text instead)
    mariadb    also: collations that MariaDB lacks become binary ones without padding, so that no key collides
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from schemas.model import STATE_PUBLIC, Column, Database, Index, Table
from schemas.queries import quoted
from schemas.types import full_type, literal, sql_type

_TIMESTAMP, _DATE, _DATETIME, _NEWDATE, _BIT, _VECTOR = 7, 10, 12, 14, 16, 225
_TEXTS = frozenset({15, 247, 248, 249, 250, 251, 252, 253, 254})
_AUTO_INCREMENT, _ON_UPDATE_NOW, _NO_DEFAULT_VALUE = 512, 8192, 4096
_NOW, _TODAY = "CURRENT_TIMESTAMP", "CURRENT_DATE"
_STRING = re.compile(r"'(?:[^']|'')*'")
_CALL = re.compile(r"`?(\w+)`?\s*\(", re.ASCII)
#: functions of TiDB's defaults that other servers have
_FUNCTIONS = frozenset(
    {
        *("rand", "uuid", "date_format", "now", "str_to_date", "curdate", "current_date", "current_timestamp", "user"),
        *("upper", "lower", "substring_index", "replace", "concat", "json_object", "json_array", "json_quote"),
    }
)
_WORD = re.compile(r"\w+", re.ASCII)
#: tokens allowed in an expression: no comment, semicolon, backslash or open string
_TOKENS = re.compile(r"(?:'(?:[^'\\]|'')*'|`(?:[^`]|``)*`|[\w\s.,+*%=<>!()@:]|-(?!-)|/(?!\*))*")
_MARIADB_HAS = frozenset({"bin", "general_ci", "unicode_ci", "chinese_ci", "swedish_ci"})


class Dialect(StrEnum):
    """The target server."""

    TIDB = "tidb"
    MYSQL = "mysql"
    MARIADB = "mariadb"


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateStatements:
    """A table's CREATE statements, and notes on what they omit."""

    create_database: str
    create_table: str
    notes: tuple[str, ...]


def define(database: Database, table: Table, dialect: Dialect) -> CreateStatements:
    """The statements, without a final semicolon."""
    notes: list[str] = []
    columns = [_column(c, table, dialect, notes) for c in table.visible_columns]
    lines = [*columns, *_keys(table, notes)]
    if dialect is not Dialect.TIDB and not table.is_common_handle and any(index.primary for index in table.indexes):
        notes.append("primary key NONCLUSTERED: clustered")
    for column in table.columns:
        if column.generated and column.state == STATE_PUBLIC and not column.hidden:
            became = "an ordinary column" if column.generated_stored else "left out"
            notes.append(f"column {column.name}, generated as {column.generated_expr}: {became}")
    if table.partition_ids:
        notes.append(f"{len(table.partition_ids)} partitions: {', '.join(table.partition_names)}")
    charset, collate = _options(table, dialect, notes)
    db_charset, db_collate = _options(database, dialect, [])
    comment = f" COMMENT={literal(table.comment)}" if table.comment else ""
    body = ",\n  ".join(lines)
    return CreateStatements(
        create_database=f"CREATE DATABASE IF NOT EXISTS {quoted(database.name)} "
        f"DEFAULT CHARACTER SET {db_charset} COLLATE {db_collate}",
        create_table=f"CREATE TABLE {quoted(table.db, table.name)} (\n  {body}\n) ENGINE=InnoDB "
        f"DEFAULT CHARSET={charset} COLLATE={collate}{comment}",
        notes=tuple(notes),
    )


def _options(holder: Table | Database, dialect: Dialect, notes: list[str]) -> tuple[str, str]:
    return _known_to(dialect, holder.charset or "utf8mb4", holder.collate or "utf8mb4_bin", notes)


def _known_to(dialect: Dialect, charset: str, collate: str, notes: list[str]) -> tuple[str, str]:
    """The server's character set and collation."""
    if not _WORD.fullmatch(charset) or not _WORD.fullmatch(collate):  # never a part of a statement
        notes.append(f"charset {charset!r}, collation {collate!r}: utf8mb4_bin")
        charset, collate = "utf8mb4", "utf8mb4_bin"
    if dialect is not Dialect.MARIADB:
        return charset, collate
    if charset == "gb18030":
        notes.append("charset gb18030: utf8mb4")
        return "utf8mb4", "utf8mb4_nopad_bin"
    if collate.partition("_")[2] not in _MARIADB_HAS:
        notes.append(f"collation {collate}: {charset}_nopad_bin")
        return charset, f"{charset}_nopad_bin"
    return charset, collate


def _column(column: Column, table: Table, dialect: Dialect, notes: list[str]) -> str:
    parts = [quoted(column.name), _type(column, dialect, notes)]
    if column.tp in _TEXTS and not column.binary and column.charset:
        charset, collate = _known_to(dialect, column.charset, column.collate, notes)
        if column.charset != table.charset:
            parts.append(f"CHARACTER SET {charset}")
        if column.collate != table.collate or not column.collate.endswith("_bin"):
            parts.append(f"COLLATE {collate}")
    if column.not_null:
        parts.append("NOT NULL")
    elif column.tp == _TIMESTAMP:
        parts.append("NULL")
    if not column.generated:
        parts += _default(column, dialect, notes)
        if column.flag & _ON_UPDATE_NOW:
            parts.append(f"ON UPDATE {_now(column)}")
        if column.flag & _AUTO_INCREMENT:
            parts.append("AUTO_INCREMENT")
    if column.comment:
        parts.append(f"COMMENT {literal(column.comment)}")
    return " ".join(parts)


def _type(column: Column, dialect: Dialect, notes: list[str]) -> str:
    if column.tp == _VECTOR and dialect is not Dialect.TIDB:
        notes.append(f"column {column.name}, {full_type(column)}: json")
        return "json"
    return sql_type(column)


def _default(column: Column, dialect: Dialect, notes: list[str]) -> list[str]:
    if column.flag & _AUTO_INCREMENT:
        return []
    if column.default_is_expr and column.default is not None:
        if not _is_expression(str(column.default)) or not _has_functions(str(column.default), dialect):
            notes.append(f"column {column.name}: no default, which was {column.default}")
            return []
        return [f"DEFAULT ({column.default})"]
    if column.tp == _BIT and column.default_bit is not None:
        return [f"DEFAULT b'{int.from_bytes(column.default_bit, 'big'):b}'"]
    if column.default is None:
        return [] if column.not_null or column.flag & _NO_DEFAULT_VALUE else ["DEFAULT NULL"]
    text = str(column.default)
    if column.tp in (_DATE, _NEWDATE) and text.upper().startswith((_TODAY, _NOW)):
        return [f"DEFAULT {_TODAY}" if dialect is Dialect.TIDB else f"DEFAULT ({_TODAY})"]
    if column.tp in (_TIMESTAMP, _DATETIME) and text.upper().startswith(_NOW):
        return [f"DEFAULT {_now(column)}"]
    return [f"DEFAULT {literal(text)}"]


def _is_expression(text: str) -> bool:
    """Whether the text stays inside its parentheses, however a server treats backslashes. TiDB does not escape those of
    an expression's strings."""
    if not _TOKENS.fullmatch(text):
        return False
    depth = 0
    for part in re.findall(r"'(?:[^']|'')*'|`(?:[^`]|``)*`|[()]", text):
        depth += (part == "(") - (part == ")")
        if depth < 0:
            return False
    return depth == 0


def _has_functions(text: str, dialect: Dialect) -> bool:
    """Whether the server has all functions that the expression calls."""
    if dialect is Dialect.TIDB:
        return True
    called = {name.lower() for name in _CALL.findall(_STRING.sub("''", text))}
    return called <= (_FUNCTIONS | {"uuid_to_bin"} if dialect is Dialect.MYSQL else _FUNCTIONS)


def _now(column: Column) -> str:
    return f"{_NOW}({column.decimal})" if column.decimal > 0 else _NOW


def _keys(table: Table, notes: list[str]) -> list[str]:
    """Indexes whose columns are all restored."""
    shown = {c.offset for c in table.visible_columns}
    vectors = {c.offset for c in table.columns if c.tp == _VECTOR}
    keys = []
    if table.pk_is_handle:
        names = ",".join(quoted(c.name) for c in table.columns if c.primary)
        keys.append(f"PRIMARY KEY ({names}) /*T![clustered_index] CLUSTERED */")
    for index in table.indexes:
        if index.state != STATE_PUBLIC:
            continue
        if any(c.offset in vectors for c in index.columns):
            notes.append(f"index {index.name}: over a vector")
        elif all(c.offset in shown for c in index.columns):
            keys.append(_key(index, table))
        else:
            notes.append(f"index {index.name}: over an expression or a virtual column")
    return keys


def _key(index: Index, table: Table) -> str:
    columns = ",".join(_part(table.columns, c.offset, c.length) for c in index.columns)
    if index.primary:
        kind = "CLUSTERED" if table.is_common_handle else "NONCLUSTERED"
        return f"PRIMARY KEY ({columns}) /*T![clustered_index] {kind} */"
    return f"{'UNIQUE ' if index.unique else ''}KEY {quoted(index.name)} ({columns})"


def _part(columns: Sequence[Column], offset: int, length: int) -> str:
    name = next(c.name for c in columns if c.offset == offset)
    return quoted(name) + (f"({length})" if length > 0 else "")
