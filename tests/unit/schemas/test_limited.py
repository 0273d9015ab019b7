"""A limited history answers no question that the whole one answers with tables outside the limit."""

from __future__ import annotations

from reading.served.key_limit import limited
from schemas.history import History
from schemas.limited import LimitedHistory, whole_of
from schemas.queried import Queried
from tests.kit.column_run import START, ColumnRun, TableRun

#: what names no table, and what a history that is only read is never asked
NAMES_NO_TABLE = {
    *("start_ts", "resolved_ts", "status_at", "status_before", "is_followed", "is_older", "was_named_at"),
    *("requested_at", "unlogged"),
}
WRITES = {"advance", "follow", "take", "apply", "copy", "pruned", "changes_since", "extend", "load", "open"}
SAVES = {"dump", "dump_increment", "current"}
#: ask the ones above and those that the limited history has itself
BUILT_ON_OTHERS = {"find", "find_base_table"}


def public(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


def test_every_query_of_a_history_is_limited() -> None:
    """A new query must be added to the limited history, or to one of the lists above."""
    own = public(LimitedHistory) - {"whole", "ids"}
    queries = public(History) | public(Queried)
    assert queries - own - NAMES_NO_TABLE - WRITES - SAVES - BUILT_ON_OTHERS == set()
    assert own <= queries, "each one overrides a query"


def test_a_limited_history_advances_with_the_one_that_it_is_made_of() -> None:
    """The registry advances a history in place while no DDL comes."""
    run = ColumnRun([TableRun(name="t"), TableRun(name="u")])
    run.history._resolved_ts = START + 10
    before = limited(run.history, ("d.t",))
    assert [table.name for table in before.tables("d", START + 10)] == ["t"]
    assert len(whole_of(before).tables("d", START + 10)) == 2
    run.history.advance(START + 20)
    after = limited(run.history, ("d.t",))
    assert [table.name for table in after.tables("d", START + 20)] == ["t"]
    assert len(whole_of(after).tables("d", START + 20)) == 2
    assert after.events(START, START + 20) == []
