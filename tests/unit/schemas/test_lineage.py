"""Which column was made of which, from versions that follow each other."""

from __future__ import annotations

from schemas.lineage import Version, column_lineages
from schemas.model import Column
from tests.kit.recording import recorded_history
from tests.kit.schema_models import a_column, a_table, an_event


def column(id_: int, name: str, state: int = 5) -> Column:
    return a_column(0, name, id=id_, state=state)


def version(ts: int, type_: int, query: str, *columns: Column) -> Version:
    event = an_event(commit_ts=ts, type=type_, query=query)
    return Version(start_ts=ts, table=a_table(*columns, pk_is_handle=True), events=(event,))


def shown(*versions: Version) -> dict[int, list[tuple[int | None, int]]]:
    lines = column_lineages(versions)
    return {i: [(a.column.id if a.column else None, a.ddl_ts) for a in line] for i, line in lines.items()}


A, B = column(1, "a"), column(2, "b")


def test_a_modified_column_descends_from_the_one_of_its_name() -> None:
    after = version(20, 12, "alter table t modify a bigint", column(3, "A"), B)
    assert shown(version(10, 3, "create", A, B), after) == {3: [(1, 10 * 2)]}


def test_a_changed_column_descends_from_the_one_that_is_gone() -> None:
    assert shown(version(10, 3, "", A, B), version(20, 12, "alter table t change a c int", column(3, "c"), B)) == {
        3: [(1, 20)]
    }


def test_a_line_grows_with_every_change_and_ends_with_its_column() -> None:
    steps = [
        version(10, 3, "", A, B),
        version(20, 12, "", column(3, "a"), B),
        version(30, 12, "", column(3, "renamed"), B),
        version(40, 12, "", column(4, "renamed"), B),
    ]
    assert shown(*steps) == {4: [(1, 20), (3, 40)]}
    assert shown(*steps, version(50, 6, "", B)) == {}


def test_added_and_dropped_columns_are_no_kin() -> None:
    start = version(10, 3, "", A, B)
    assert shown(start, version(20, 5, "add column c", A, B, column(3, "c"))) == {}
    assert shown(start, version(20, 6, "drop column a", B)) == {}
    both = version(20, 61, "alter table t drop column a, add column c int", B, column(3, "c"))
    assert shown(start, both) == {}


def test_a_possible_change_among_other_parts_is_unknown() -> None:
    start = version(10, 3, "", A, B)
    parts = version(20, 61, "alter table t CHANGE a c text, add column d int", B, column(3, "c"), column(4, "d"))
    assert shown(start, parts) == {3: [(None, 20)], 4: [(None, 20)]}
    named = version(20, 61, "alter table t change b b text, drop column a", column(3, "b"))
    assert shown(start, named) == {3: [(2, 20)]}


def test_two_changes_by_an_unknown_job_are_not_known() -> None:
    assert shown(version(10, 3, "", A, B), version(20, 99, "", B, column(3, "c"))) == {3: [(None, 20)]}


def test_columns_that_are_not_public_do_not_count() -> None:
    start = version(10, 3, "", A, column(9, "_Col$_a_0", state=1))
    assert shown(start, version(20, 12, "", column(9, "a"))) == {9: [(1, 20)]}


def test_columns_of_the_recording_are_traced() -> None:
    history = recorded_history()
    table = history.find("shop_arch", "rnd_3", history.resolved_ts)
    intervals = history.version_intervals(table.id)
    versions = [
        Version(start_ts=int(s), table=v, events=history.events(int(s) - 1, int(s)) if n else ())
        for n, (s, v) in enumerate(zip(intervals.starts.tolist(), intervals.versions, strict=True))
        if v is not None
    ]
    lines = column_lineages(versions)
    by_name = {c.name: [a.column.tp for a in lines.get(c.id, ()) if a.column] for c in table.columns}
    assert {name: line for name, line in by_name.items() if line} == {"ß9": [248], "c10": [252]}
