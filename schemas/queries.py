"""Texts of DDL statements: splits batches, writes simple statements with qualified names.

A user's text depends on the session's database and may name several tables at once (`DROP TABLE a, b`). For the
statements that names alone describe, a consumer gets one statement per table, fully qualified.
"""

from __future__ import annotations

import re
from itertools import pairwise

_TOKEN = re.compile(
    r"""'(?:[^'\\]|\\.|'')*'        # strings, with both ways of escaping a quote
      | "(?:[^"\\]|\\.|"")*"
      | `(?:[^`]|``)*`              # names
      | /\*.*?\*/                   # comments
      | (?:--[ \t]|\#)[^\n]*
      | ;
    """,
    re.VERBOSE | re.DOTALL,
)
#: the same under the SQL mode NO_BACKSLASH_ESCAPES
_TOKEN_PLAIN = re.compile(_TOKEN.pattern.replace(r"[^'\\]|\\.", "[^']").replace(r'[^"\\]|\\.', '[^"]'), _TOKEN.flags)
_NO_BACKSLASH_ESCAPES = 1 << 20
_EXCHANGE = re.compile(r"\bEXCHANGE\s+PARTITION\s+(`(?:[^`]|``)+`|[^\s`]+)\s+WITH\s+TABLE\b", re.IGNORECASE)
_UNCHECKED = re.compile(r"\bWITHOUT\s+VALIDATION\s*;?\s*$", re.IGNORECASE)


def split_statements(text: str, sql_mode: int = 0) -> list[str]:
    """The statements of a text, split at semicolons outside of strings, names and comments; without empty ones."""
    token = _TOKEN_PLAIN if sql_mode & _NO_BACKSLASH_ESCAPES else _TOKEN
    cuts = [match.start() for match in token.finditer(text) if match.group() == ";"]
    bounds = [-1, *cuts, len(text)]
    pieces = (text[a + 1 : b].strip() for a, b in pairwise(bounds))
    return [piece for piece in pieces if piece]


def quoted(*names: str) -> str:
    """Names in backticks, joined by dots."""
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)


def drop(what: str, *names: str) -> str:
    return f"DROP {what} {quoted(*names)}"


def truncate(db: str, table: str) -> str:
    return f"TRUNCATE TABLE {quoted(db, table)}"


def truncate_partition(db: str, table: str, partition: str) -> str:
    return f"ALTER TABLE {quoted(db, table)} TRUNCATE PARTITION {quoted(partition)}"


def exchange(text: str, partitioned: tuple[str, str], plain: tuple[str, str]) -> str:
    """The user's EXCHANGE PARTITION with qualified names; the text itself if the partition's name is not found."""
    match = _EXCHANGE.search(text)
    if match is None:
        return text
    name = match[1].strip()
    name = name[1:-1].replace("``", "`") if name.startswith("`") else name
    without = " WITHOUT VALIDATION" if _UNCHECKED.search(text) else ""
    swapped = f"EXCHANGE PARTITION {quoted(name)} WITH TABLE {quoted(*plain)}"
    return f"ALTER TABLE {quoted(*partitioned)} {swapped}{without}"


def rename(old_db: str, old_table: str, db: str, table: str) -> str:
    return f"RENAME TABLE {quoted(old_db, old_table)} TO {quoted(db, table)}"
