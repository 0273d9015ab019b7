"""Random tables, DDL, filters and page sizes: a snapshot and the changes above it are the table as of the end.

The reference folds the changes of the whole log, decoded by a pull, and asks the filter's expression of each row in
plain Python. The log grows while the snapshot is read, DDL included, and any page may come twice, from another server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import count
from random import Random
from typing import Any

import orjson
import pytest

from metaserver.initial_ranges import lay_out
from reading.filters import parse_filter
from reading.pages import pull as pulling
from reading.pages import snapshot
from reading.pages.pull import pull
from reading.pages.request import PullRequest
from reading.rows.scope import Scope
from reading.served.services import Services
from schemas.history import History
from schemas.snapshot import SchemaSnapshot
from simulator.dst.mutants import reworded
from tests.kit.catalog_cases import new_catalog
from tests.kit.column_run import START, ColumnRun, Ddl, TableRun
from tests.kit.filter_cases import KINDS, NAMES, SORTS, Case, Maker, Row
from tests.kit.log_builder import LogBuilder
from tests.kit.manual_clock import ManualClock
from tests.kit.open_folder import OpenFolder
from tests.kit.tidb_columns import column_info
from tistream.catalog.database.engine import Catalog
from tistream.catalog.tenancy.tenants import activate_tenant
from tistream.codec.seed_file import SEED
from tistream.codec.table_key import SYSTEM_IDS_FROM
from tistream.ids import Tenant

DROP_COLUMN, ADD_COLUMN = 6, 5
PARTS: list[list[str]] = [[], ["where"], ["columns"], ["columns", "where"], ["tables", "where"], ["ops"]]
EXTRA = 9  # id of a column that comes and goes
SEEDS = 24
Event = dict[str, Any]
State = dict[tuple[str, str], Row]  #: (table, key) -> columns


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalog]:
    new = new_catalog(tmp_path_factory.mktemp("snapshots"))
    yield new
    new.close()


_NUMBERS = count(1)


@dataclass
class Histories:
    """The schemas as they are known."""

    known: History

    def history(self, tenant: Tenant) -> History:
        return self.known


class World:
    """One log, and a filter."""

    def __init__(self, catalog: Catalog, seed: int, parts: Sequence[str] = ()) -> None:
        """`parts`: the parameters of the filter; without them any."""
        self.rand = Random(seed)
        self.maker = Maker(self.rand, parts or self.rand.choice(PARTS))
        self.run = self._with_ddl(self.maker.run())
        self.case = self._case()
        self.end = int(self.run.rows["commit_ts"].to_numpy().max()) + 2
        self.as_of = self.rand.randint(START + 10, self.end - 2)
        self.tenant = Tenant(7, next(_NUMBERS))
        self.log = LogBuilder(catalog, OpenFolder(), tenant=self.tenant, rows=self.run.rows).register()
        jobs = replace(self.run.history.job_table, id=SYSTEM_IDS_FROM)
        tasks = lay_out(History(SchemaSnapshot(ts=START, databases={}, tables={}), jobs), 1)
        assert activate_tenant(catalog, self.tenant, START, tasks)
        self.log.seed(SEED.empty_table(), ts=START)
        self.histories = Histories(self.run.history)
        services = [Services.create(catalog, self.log.store, ManualClock(1)) for _ in range(2)]
        self.servers = [replace(each, registry=self.histories) for each in services]  # type: ignore[arg-type]

    def _with_ddl(self, run: ColumnRun) -> ColumnRun:
        """One more column, which comes and perhaps goes."""
        self.extra = self.rand.choice(sorted(SORTS.keys() - set(self.maker.columns.values())))
        info = column_info(SORTS[self.extra].type, EXTRA, self.extra, len(self.maker.columns) + 1)
        tables = [replace(table) for table in run.tables.values()]
        for table in tables:
            ((first),) = table.ddls
            comes = self.rand.randint(121, 140)
            added = Ddl(commit_ts=comes, type=ADD_COLUMN, columns=(*first.columns, info))
            dropping = Ddl(commit_ts=comes + self.rand.randint(1, 10), type=DROP_COLUMN, columns=first.columns)
            table.ddls = [first, added, *([dropping] if self.rand.random() < 0.5 else [])]
        extended = ColumnRun(tables)
        extended.rows = run.rows
        return extended

    def _case(self) -> Case:
        while "ghost" in (case := self.maker.case(self.run)).given.get("where", "") or set(case.given) & {
            "changed", "event_filters",
        }:  # fmt: skip
            pass
        return case

    def before(self, ts: int) -> History:
        """The schemas as they are known at `ts`."""
        tables = [
            TableRun(name=t.name, ddls=[d for d in t.ddls if d.commit_ts <= ts]) for t in self.run.tables.values()
        ]
        return ColumnRun(tables).history

    def delivered(self) -> tuple[list[Event], list[Event]]:
        """(rows, changes) of a pull during which the log reaches its end."""
        at = self.rand.randint(self.as_of, self.end)
        self.histories.known = self.before(at)
        self.log.flush(at)
        grows_at, cursor = self.rand.randint(1, 4), None
        rows, changes = list[Event](), list[Event]()
        for number in range(1000):
            if number == grows_at:
                self.histories.known = self.run.history
                self.log.flush(self.end)
            request = self._request(snapshot=True, as_of=str(self.as_of), cursor=cursor, limit=self.rand.randint(1, 4))
            answer = pull(self.rand.choice(self.servers), request)
            if self.rand.random() < 0.2:
                assert pull(self.servers[0], request).content == answer.content
            (changes if answer.snapshot_ts is None else rows).extend(events_of(answer.content.to_pybytes()))
            cursor = answer.next_cursor
            if not answer.has_more and number >= grows_at:
                return rows, changes
        raise AssertionError("the pull does not end")

    def changes_alone(self) -> list[Event]:
        """The changes above the snapshot, in one page, by a pull without one."""
        request = self._request(start_ts=str(self.as_of), limit=200_000)
        return events_of(pull(self.servers[0], request).content.to_pybytes())

    def _request(self, **more: Any) -> PullRequest:
        given = {"start_ts": None, "cursor": None, "format": "ndjson", "options": {}, **more}
        return PullRequest(scope=Scope(tenant=self.tenant), filter=parse_filter(self.case.given), **given)

    # ---- the reference

    def state(self, ts: int) -> State:
        """The rows that pass, as of `ts`."""
        rows: State = {}
        for event in self.run.events():
            if event["type"] in KINDS.values() and int(event["commit_ts"]) <= ts:
                applied(rows, event)
        return {at: row for at, row in self._in_columns(rows, ts).items() if at[0] in self.case.tables}

    def _in_columns(self, rows: State, ts: int) -> State:
        shown_rows: State = {}
        for name in NAMES:
            table, batch = self.run.as_of(name, ts)
            stored = {row["id"]: row for row in ([] if batch is None else batch.to_pylist())}
            for (of, key), row in rows.items():
                if of == name and self._passes(stored[row["id"]]):
                    shown = [c.name for c in table.visible_columns if self._is_shown(c.name)]
                    shown_rows[of, key] = {column: row.get(column) for column in shown}
        return shown_rows

    def _passes(self, stored: Row) -> bool:
        row = {n: v if v is None or n == "id" else SORTS[n].compared(v) for n, v in stored.items()}
        return self.case.where is None or self.case.where(row) is True

    def _is_shown(self, name: str) -> bool:
        names = self.case.given.get("columns", "*")
        return (
            name == "id" or names == "*" or name in (self.case.shown or ()) or (names[0] == "*" and name == self.extra)
        )


def applied(state: State, event: Event) -> None:
    at = event["table"], event["key"]
    state.pop(at, None)
    if event["columns"] is not None:
        state[at] = event["columns"]


def events_of(content: bytes) -> list[Event]:
    lines = [orjson.loads(line) for line in content.splitlines()]
    return [line for line in lines if line["type"] in KINDS.values()]


def check(world: World) -> None:
    rows, changes = world.delivered()
    expected = world.state(world.as_of) if "insert" in world.case.ops else {}
    state: State = {(row["table"], row["key"]): row["columns"] for row in rows}
    assert state == expected, world.case.given
    assert len(state) == len(rows), "each row once"
    assert {(row["type"], row["commit_ts"]) for row in rows} <= {("insert", str(world.as_of))}
    assert changes == world.changes_alone()
    if world.case.ops == frozenset(KINDS.values()):
        for change in changes:
            applied(state, change)
        end = world.state(world.end)
        assert {at: {n: row.get(n) for n in end.get(at, row)} for at, row in state.items()} == end, world.case.given


def check_all(catalog: Catalog, seeds: Iterable[int], parts: Sequence[str] = ()) -> None:
    for seed in seeds:
        check(World(catalog, seed, parts))


@pytest.mark.parametrize("part", range(3))
def test_a_snapshot_and_its_changes_are_the_table_as_of_the_end(catalog: Catalog, part: int) -> None:
    check_all(catalog, range(part, SEEDS, 3))


Mutant = Callable[[], AbstractContextManager[object]]
MUTANTS: dict[str, tuple[Sequence[str], Mutant]] = {
    "rows that do not pass are delivered": (
        ["where"],
        lambda: reworded(
            snapshot, "_selected", ("passing_rows(filter, state.table, batch)", "np.ones(len(batch), bool)")
        ),
    ),
    "columns that are only asked are delivered": (
        ["columns", "where"],
        lambda: reworded(snapshot, "_rows", ("filter.shown(table)", "filter.asked(table)")),
    ),
    "tables are those that are known when the page is read": (
        [],
        lambda: reworded(
            pulling, "snapshot_page", ("_tables(history, scope, filter, ts)", "_tables(history, scope, filter, upto)")
        ),
    ),
    "the last row of a page comes again": (
        ["columns"],
        lambda: reworded(snapshot, "_head", ('"key"][count - 1]', '"key"][max(0, count - 2)]')),
    ),
    "the changes start before the snapshot": (
        ["columns"],
        lambda: reworded(
            pulling,
            "_snapshot",
            ("request.scope, place.ts)", "request.scope, place.ts - 1)"),
        ),
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_noticed(catalog: Catalog, name: str) -> None:
    parts, mutant = MUTANTS[name]
    with mutant(), pytest.raises(AssertionError):
        check_all(catalog, range(SEEDS), parts)
