"""Errors for names that do not exist, with what the caller may have meant."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from tistream.errors import NotFound

_NAMES_SHOWN_MAX = 20


def no_database(name: str, known: Sequence[str], *, ts: int) -> NotFound:
    """The facts are `database`, `ts`, `did_you_mean` (may be empty) and `known` names."""
    return NotFound(
        f"there is no database {name!r}{_guess(name, known)}",
        database=name,
        ts=ts,
        did_you_mean=similar(name, known),
        known=known[:_NAMES_SHOWN_MAX],
    )


def no_table(db: str, name: str, known: Sequence[str], *, ts: int) -> NotFound:
    """The facts are `database`, `table`, `ts`, `did_you_mean` (may be empty) and `known` names."""
    return NotFound(
        f"there is no table {name!r} in database {db!r}{_guess(name, known)}",
        database=db,
        table=name,
        ts=ts,
        did_you_mean=similar(name, known),
        known=known[:_NAMES_SHOWN_MAX],
    )


def similar(name: str, known: Sequence[str]) -> list[str]:
    """Up to three known names that look alike, best first, whatever their case."""
    spelled = {each.lower(): each for each in known}
    return [spelled[each] for each in get_close_matches(name.lower(), list(spelled), n=3)]


def _guess(name: str, known: Sequence[str]) -> str:
    found = similar(name, known)
    return f", did you mean {found[0]!r}?" if found else ""
