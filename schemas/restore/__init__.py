"""Texts of DDL statements as TiDB's parser restores them, which is how TiCDC gives them.

    restored("create table t (a int default 1)", ...)  ->  "CREATE TABLE `t` (`a` INT DEFAULT 1)"

Keywords are in upper case, names in backquotes, types and clauses in their full form and fixed order. A statement with
anything that this package does not know stays as the user wrote it: it is correct either way, and half of a rewritten
statement is not. Only a TTL is turned off in it (`restore.ttl`).
"""

from __future__ import annotations

from functools import lru_cache

from schemas.restore.parser import Parser, Unsupported
from schemas.restore.statements import statement
from schemas.restore.ttl import without_ttl
from schemas.restore.views import view

__all__ = ["restored"]

_TEXT_MAX = 1 << 20


@lru_cache(maxsize=1024)
def restored(query: str, *, sql_mode: int = 0, charset: str = "", schema: str = "", view_select: str = "") -> str:
    """The statement as the parser restores it, or the text itself.

    `sql_mode` and `charset` are the session's. Of a view: its `schema`, and the SELECT that TiDB stored, in which all
    tables have their databases; it replaces the user's when it reads another database."""
    if len(query) > _TEXT_MAX:
        return without_ttl(query)
    try:
        text = view(query, sql_mode, charset, schema, view_select)
        return text if text is not None else _statement(query, sql_mode, charset)
    except Unsupported:
        return without_ttl(query)


def _statement(query: str, sql_mode: int, charset: str) -> str:
    parser = Parser(query, sql_mode=sql_mode, charset=charset)
    text = statement(parser)
    parser.finish()
    return text
