"""Names in the catalog: ids of workers, changefeeds and services, object keys, and enum values.

A name is printable ASCII and does not end with a space. MariaDB and MySQL refuse to compare a column of ASCII with
other characters (error 1267), treat "a " and "a" as equal, and sort control characters as if the shorter name were
padded with spaces; SQLite does none of that. So names are validated before they reach the database, for storing and for
queries.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Dialect, String, TypeDecorator
from sqlalchemy.dialects import mysql

from tistream.errors import InvalidInput


def is_name(text: str, length: int) -> bool:
    """Whether the text is a valid name of at most `length` characters."""
    return text.isascii() and text.isprintable() and len(text) <= length and not text.endswith(" ")


def name_of(text: str, length: int) -> str:
    """The text as a name, for unchecked texts: cut, and with `?` for characters that no name has."""
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in text[:length]).rstrip(" ")


class Name(TypeDecorator[str]):
    """A column of names, compared byte by byte. InvalidInput for a value that is not a name."""

    impl = String
    cache_ok = True

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.length = length

    def load_dialect_impl(self, dialect: Dialect) -> Any:
        if dialect.name in ("mysql", "mariadb"):
            return dialect.type_descriptor(mysql.VARCHAR(self.length, charset="ascii", collation="ascii_bin"))
        return dialect.type_descriptor(String(self.length))

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        if value is not None and not is_name(value, self.length):
            raise InvalidInput(
                f"a name has at most {self.length} printable ASCII characters and does not end with a space",
                name=value,
            )
        return value
