"""A limited history answers no question that the whole one answers with tables outside the limit."""

from __future__ import annotations

from schemas.history import History
from schemas.limited import LimitedHistory

#: what names no table, and what a history that is only read is never asked
NAMES_NO_TABLE = {"start_ts", "resolved_ts", "status_at", "status_before", "was_filled_at_start", "requested_at"}
WRITES = {"advance", "follow", "take", "apply", "copy", "pruned", "changes_since", "extend", "load", "open"}
SAVES = {"dump", "dump_increment", "current"}
#: ask the ones above and those that the limited history has itself
BUILT_ON_OTHERS = {"find", "find_base_table"}


def public(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


def test_every_query_of_a_history_is_limited() -> None:
    """A new query must be added to the limited history, or to one of the lists above."""
    own = public(LimitedHistory) - {"whole", "ids"}
    assert public(History) - own - NAMES_NO_TABLE - WRITES - SAVES - BUILT_ON_OTHERS == set()
    assert own <= public(History), "each one overrides a query"
