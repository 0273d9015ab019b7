"""Turns TTL off in the text of a DDL that this package does not restore as a whole (pure).

A table whose rows TiDB deletes must not do so at a destination as well: the deletes arrive as changes. So a
statement that stays as the user wrote it, or as SHOW CREATE TABLE, a dump or BR has it, gets TTL_ENABLE = 'OFF' like
one that is restored. Only options of a table are looked at: names and texts in quotes, comments, and what is in
parentheses stay.
"""

from __future__ import annotations

import re

_TABLE = re.compile(r"(?:\s|/\*.*?\*/|--[^\n]*\n|#[^\n]*\n)*(?:CREATE|ALTER)\b", re.IGNORECASE | re.DOTALL)
_SKIPPED = r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\"|`(?:[^`]|``)*`|/\*(?![T!]).*?\*/|--\s[^\n]*|\#[^\n]*"
_VALUE = r"(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[\w.]+)"
_TOKEN = re.compile(
    rf"(?P<enable>\bTTL_ENABLE\s*=?\s*(?:'\w*'|\"\w*\"))"
    rf"|(?P<ttl>\bTTL\b\s*=?\s*(?:`(?:[^`]|``)*`|[\w$]+)\s*\+\s*INTERVAL\s+-?{_VALUE}\s+\w+)"
    rf"|(?P<paren>[()])|{_SKIPPED}",
    re.IGNORECASE | re.DOTALL,
)
_OFF = "TTL_ENABLE='OFF'"


def without_ttl(query: str) -> str:
    """The statement with TTL off where it has a TTL; the same text otherwise."""
    if "ttl" not in query.lower() or _TABLE.match(query) is None:
        return query
    parts: list[str] = []
    depth, at, enabled, after_ttl = 0, 0, False, -1
    for token in _TOKEN.finditer(query):
        if token["paren"]:
            depth += 1 if token["paren"] == "(" else -1
        elif depth or not (token["enable"] or token["ttl"]):
            continue
        elif token["enable"]:
            enabled = True
            parts += [query[at : token.start()], _OFF]
            at = token.end()
        else:
            parts.append(query[at : token.end()])
            at, after_ttl = token.end(), len(parts)
    if after_ttl >= 0 and not enabled:
        parts.insert(after_ttl, f" {_OFF}")
    return "".join([*parts, query[at:]])
