"""The tables that an API key is limited to: rules as `tables=` has them, and a schema history cut by them.

    checked_limit    the rules of a new key, or FilterInvalid
    limited          what a key with these rules sees of a schema history

Every read of a limited key is of such a history (`Served.within`), so that names, ids, rows and DDL outside of the
limit do not exist for it. Rules are asked about the name that a table has at each version, as a filter asks them.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from weakref import WeakKeyDictionary

from reading.filters.core.rules import TableRules, parse_table_rules
from schemas.history import History
from schemas.limited import LimitedHistory, Within

_LIMITS_KEPT = 64  # of one history

_KNOWN: WeakKeyDictionary[History, dict[tuple[str, ...], LimitedHistory]] = WeakKeyDictionary()


@lru_cache(maxsize=1024)
def parse_limit(tables: tuple[str, ...]) -> TableRules:
    """The rules. FilterInvalid for anything else, also for none."""
    return parse_table_rules(",".join(tables))


def checked_limit(tables: Iterable[str] | None) -> tuple[str, ...] | None:
    """The rules of a new key; None = no limit. FilterInvalid for a wrong one, and for a list without any."""
    if tables is None:
        return None
    limit = tuple(tables)
    parse_limit(limit)
    return limit


def limited(history: History, tables: tuple[str, ...]) -> LimitedHistory:
    """The history as far as these rules go. One object for one history, so that what is derived from it is kept."""
    known = _KNOWN.setdefault(history, {})
    limited_history = known.get(tables)
    if limited_history is None:
        rules = parse_limit(tables)
        if len(known) >= _LIMITS_KEPT:
            known.clear()
        within = Within(table=rules.matches, database=rules.may_match_in)
        limited_history = known[tables] = LimitedHistory(history, within)
    limited_history.advance(history.resolved_ts)  # the registry advances a history in place while no DDL comes
    return limited_history
