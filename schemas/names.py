"""Errors for names that do not exist, with suggestions; name comparison as in TiDB."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from difflib import get_close_matches

from tistream.errors import NotFound

_NAMES_SHOWN_MAX = 20
_NAMES_COMPARED_MAX = 400  # comparing takes tens of microseconds per name, and a database may have 50,000


def no_database(name: str, known: Sequence[str], *, ts: int) -> NotFound:
    """The facts are `database`, `ts`, `did_you_mean` (may be empty) and `known` names."""
    return _unknown(f"there is no database {name!r}", name, known, database=name, ts=ts)


def no_table(db: str, name: str, known: Sequence[str], *, ts: int) -> NotFound:
    """The facts are `database`, `table`, `ts`, `did_you_mean` (may be empty) and `known` names."""
    return _unknown(f"there is no table {name!r} in database {db!r}", name, known, database=db, table=name, ts=ts)


def not_followed(db: str, table: str, *, ts: int) -> NotFound:
    """For a table that exists upstream, of a tenant that was started without it. The fact `followed` says so."""
    error = NotFound(
        f"this tenant does not follow {f'{db}.{table}'!r}", database=db, table=table, ts=ts, followed=False
    )
    error.hint = "It was started with --table or --database. Create another tenant to follow other tables."
    return error


def no_column(db: str, table: str, name: str, known: Sequence[str]) -> NotFound:
    """The facts are `database`, `table`, `column`, `did_you_mean` (may be empty) and `known` names."""
    said = f"there is no column {name!r} in table {f'{db}.{table}'!r}"
    return _unknown(said, name, known, database=db, table=table, column=name)


def _unknown(said: str, name: str, known: Sequence[str], **facts: object) -> NotFound:
    near = similar(name, known)
    guess = f", did you mean {near[0]!r}?" if near else ""
    return NotFound(said + guess, **facts, did_you_mean=near, known=known[:_NAMES_SHOWN_MAX])


def similar(name: str, known: Sequence[str]) -> list[str]:
    """Up to three known names that look alike, best first, whatever their case."""
    spelled, wanted = {folded(each): each for each in known}, folded(name)
    return [spelled[each] for each in get_close_matches(wanted, _nearby(wanted, list(spelled)), n=3)]


def folded(name: str) -> str:
    """The name in lower case as TiDB compares names: letter by letter. Python's `lower` depends on
    context and may expand letters, so it merges names that TiDB keeps apart."""
    return name.lower() if name.isascii() else "".join("i" if c == "\u0130" else c.lower() for c in name)


def _nearby(wanted: str, names: list[str]) -> list[str]:
    """Of many names those that begin or end most like the wanted one."""
    if len(names) <= _NAMES_COMPARED_MAX:
        return names
    half = _NAMES_COMPARED_MAX // 4
    forward, backward = sorted(names), sorted(each[::-1] for each in names)
    at, back = bisect_left(forward, wanted), bisect_left(backward, wanted[::-1])
    near = forward[max(0, at - half) : at + half]
    return [*dict.fromkeys([*near, *(each[::-1] for each in backward[max(0, back - half) : back + half])])]
