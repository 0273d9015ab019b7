"""A tenant that follows some tables only: no DDL stops its schema history, and no answer lacks rows.

The upstream's DDL comes from the model of `simulator` and, for what that lacks, from a matrix of every type of job over
tables on both sides of the filter. A consumer that applies the delivered DDL must know exactly the tables that are
shown; what a read as of a timestamp starts from is compared with the ids whose rows are in the log.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest

from pusher.core import table_filter as filters
from pusher.core.table_filter import TableFilter, read_table_filter
from schemas import bases, history
from schemas.actions import EVENTS, IGNORED, SILENT, Action
from schemas.bases import choose
from schemas.ddl import Job, parse_job
from schemas.followed import Followed
from schemas.history import History
from schemas.meta import Definition, MetaCommit, defined_at
from schemas.model import DdlEvent, Table
from schemas.names import folded
from schemas.snapshot import parse_pushed
from simulator.ddl import UpstreamSchema
from simulator.dst.mutants import replaced, reworded
from simulator.partition_jobs import DONE, RUNNING
from simulator.partitions import readable
from tests.kit.log_builder import TENANT
from tests.kit.schema_jobs import info, name
from tistream.catalog.rows.seeds import SeedRow
from tistream.codec.table_key import DDL_JOB_TABLE_ID, record_key
from tistream.errors import SeedNeeded, TiStreamError, TsExpired

Json = dict[str, Any]
START = 100
SEEDS = range(12)


def begun(snapshot: Json, names: Sequence[str]) -> tuple[History, TableFilter]:
    text = filters.filter_snapshot(orjson.dumps(snapshot), names, True)
    pushed = parse_pushed(orjson.loads(text))
    return History(pushed.snapshot, pushed.job_table), read_table_filter(text)


@dataclass
class Consumer:
    """The tables that somebody knows who sees the DDL alone, by (database, table) in lower case."""

    known: set[tuple[str, str]]
    emptied: list[str] = field(default_factory=list)

    def apply(self, event: DdlEvent) -> None:
        named = folded(event.db), folded(event.table)
        match event.type:
            case Action.DROP_SCHEMA:
                self.known = {each for each in self.known if each[0] != named[0]}
            case Action.DROP_TABLE | Action.DROP_VIEW:
                self.known.remove(named)
            case Action.CREATE_TABLE | Action.CREATE_TABLES | Action.RECOVER_TABLE | Action.CREATE_VIEW:
                assert named not in self.known or event.type == Action.CREATE_VIEW, f"{event.query} is there already"
                self.known.add(named)
            case Action.RENAME_TABLE | Action.RENAME_TABLES:
                self.known.remove((folded(event.old_db), folded(event.old_table)))
                self.known.add(named)
            case _ if event.table:
                assert named in self.known, f"{event.query} is about a table that nobody was told of"


def shown(served: History, ts: int) -> set[tuple[str, str]]:
    return {(folded(t.db), folded(t.name)) for t in served.snapshot(ts).tables.values()}


# ---- the model's DDL


class Upstream:
    """The model's schema, its jobs as steps, and the ids under which rows were before the start."""

    def __init__(self, seed: int) -> None:
        self.rand = random.Random(f"followed {seed}")
        self.schema = UpstreamSchema(7, partition_ddl=True, fits=lambda *_: True)
        for _ in range(self.rand.randint(0, 6)):
            for _ in self.job():
                pass
        self.ts = START
        self.snapshot = self.schema.snapshot(START)

    ts = 0

    def names(self) -> list[str]:
        """What the pusher is told to follow."""
        tables = [(self.schema.databases[db], i["name"]["O"]) for db, i in self.schema.tables.values()]
        chosen = [f"{db}.{table}" for db, table in tables if self.rand.random() < 0.4]
        return chosen or [".".join(tables[0])]

    def job(self) -> Iterator[MetaCommit]:
        """The steps of the next job."""
        ddl = self.schema.propose(self.rand)
        if ddl.plan is None:
            for state in (RUNNING, DONE):
                self.ts += 10
                written = ddl.definitions(state=state, start_ts=self.ts - 1)
                yield self._step(ddl.job(state=state, schema_version=self.ts, start_ts=self.ts - 9), written)
            ddl.apply()
            return
        for step in ddl.plan.steps:
            self.ts += 10
            said = ddl.job(
                state=step.state, schema_version=self.ts, start_ts=self.ts - 9, schema_state=int(step.schema_state)
            )
            yield self._step(said, self.schema.written(step, self.ts - 1))
            self.schema.publish(ddl.plan, step)
            self.schema.synced()

    def _step(self, said: Json, written: dict[bytes, bytes | None]) -> MetaCommit:
        times = {"start_ts": self.ts - 1, "commit_ts": self.ts}
        places = ((defined_at(key), value) for key, value in written.items())
        definitions = [Definition(**times, db_id=at[0], table_id=at[1], info=value) for at, value in places if at]
        return MetaCommit(**times, jobs=(parse_job(said, **times),), definitions=tuple(definitions))

    def shown(self, table_filter: TableFilter) -> set[tuple[str, str]]:
        """The tables of which the pusher sends rows."""
        sent = [
            (folded(self.schema.databases[db]), folded(i["name"]["O"]))
            for db, i in self.schema.tables.values()
            if any(is_sent(table_filter, physical_id) for physical_id in readable(i))
        ]
        return set(sent)


def is_sent(table_filter: TableFilter, physical_id: int) -> bool:
    return any(record_key(physical_id, 1) in part for part in table_filter.wanted)


def wrong(seed: int, jobs: int = 25) -> str:
    """What is not as it must be, after one of the jobs; empty when all is."""
    upstream = Upstream(seed)
    served, table_filter = begun(upstream.snapshot, upstream.names())
    consumer = Consumer(known=shown(served, START))
    seeds = [seed_at(START)]
    for _ in range(jobs):
        try:
            for event in served.follow(list(upstream.job()), upstream.ts):
                consumer.apply(event)
            if not consumer.known == shown(served, upstream.ts) == upstream.shown(table_filter):
                return f"{consumer.known} {shown(served, upstream.ts)} {upstream.shown(table_filter)}"
            served = History.load(served.dump()) if upstream.rand.random() < 0.2 else served.copy()
            for table in served.snapshot(upstream.ts).tables.values():
                expected = all(is_sent(table_filter, i) for i in table.physical_ids)
                if is_readable(served, table, upstream.ts, seeds) != expected:
                    return f"{table.name} can be read: {not expected}"
        except (TiStreamError, AssertionError, KeyError) as error:
            return repr(error)
    return ""


def is_readable(served: History, table: Table, as_of: int, seeds: Sequence[SeedRow]) -> bool:
    try:
        choose(served, table, as_of, seeds=seeds, bases=(), log_start_ts=START)
    except (SeedNeeded, TsExpired):
        return False
    return True


@pytest.mark.parametrize("seed", SEEDS)
def test_with_ddl_on_both_sides_of_a_filter_the_history_and_its_consumers_go_on(seed: int) -> None:
    assert wrong(seed) == ""


# ---- every type of job, over tables of either side

SHOP, STORE, MYSQL, GONE = 1, 2, 3, 4
CHOSEN, OTHER, PARTS, MIXED, DROPPED, OF_MYSQL, NEW = 10, 11, 20, 30, 40, 41, 900
FILTERS: list[list[str]] = [[], *([f"shop.{table}"] for table in ("chosen", "other", "parts"))]
FILTERS += [["shop.mixed", "shop.other"], ["store"], ["shop"]]
TYPES = sorted({*EVENTS, *SILENT, *IGNORED, 62, 75, 99})
TABLES = {
    CHOSEN: info(CHOSEN, "Chosen"),
    OTHER: info(OTHER, "Other"),
    PARTS: info(PARTS, "Parts", (21, 22)),
    MIXED: info(MIXED, "Mixed", (31, 32)),
}


def start() -> Json:
    dbs = ((SHOP, "Shop"), (STORE, "Store"), (MYSQL, "mysql"))
    of_mysql = [info(DDL_JOB_TABLE_ID, "tidb_ddl_job"), info(OF_MYSQL, "stats")]
    return {
        "ts": str(START),
        "schema_version": 1,
        "dbs": [{"id": i, "db_name": name(n), "state": 5} for i, n in dbs],
        "tables": [
            *({"db_id": MYSQL, "info": i} for i in of_mysql),
            *({"db_id": SHOP, "info": i} for i in TABLES.values()),
        ],
    }


def step(ts: int, type_: int, table_id: int, infos: Sequence[tuple[int, int, Json | None]], **more: Any) -> MetaCommit:
    """The done row of a job, and what it wrote to the meta range: (database, table, definition)."""
    schema_id = more.pop("schema_id", SHOP)
    binlog = {"SchemaVersion": ts, **more.pop("binlog", {})}
    data = {"id": ts, "type": type_, "state": DONE, "schema_id": schema_id, "table_id": table_id, "binlog": binlog}
    data |= {"query": "the user's text", "schema_name": "shop", "start_ts": ts - 5, **more}
    times = {"start_ts": ts - 1, "commit_ts": ts}
    written = [
        Definition(**times, db_id=db, table_id=i, info=None if said is None else orjson.dumps(said))
        for db, i, said in infos
    ]
    return MetaCommit(**times, jobs=(job_of(data, times),), definitions=tuple(written))


def job_of(data: Json, times: dict[str, int]) -> Job:
    return parse_job(data, **times)


def renamed_args(*clauses: tuple[int, str, int, str, int]) -> Json:
    return {
        "rename_table_infos": [
            {
                "old_schema_id": old_db,
                "old_schema_name": name({SHOP: "Shop", STORE: "Store", MYSQL: "mysql"}[old_db]),
                "old_table_name": name(old),
                "new_schema_id": new_db,
                "new_table_name": name(new),
                "table_id": table_id,
            }
            for old_db, old, new_db, new, table_id in clauses
        ]
    }


def jobs_of(type_: int, ts: int) -> Iterator[MetaCommit]:
    """Jobs of a type over every table."""
    match type_:
        case Action.CREATE_SCHEMA | Action.MODIFY_SCHEMA_CHARSET | Action.RECOVER_SCHEMA:
            db = {"id": GONE, "db_name": name("Gone"), "state": 5}
            t = info(50, "Within")
            yield step(ts, type_, 0, [(GONE, 0, db)], schema_id=GONE, binlog={"DBInfo": db})
            if type_ == Action.RECOVER_SCHEMA:
                yield step(ts, type_, 0, [(GONE, 0, db), (GONE, 50, t)], schema_id=GONE, binlog={"DBInfo": db})
        case Action.DROP_SCHEMA:
            yield step(ts, type_, 0, [(SHOP, 0, None)], binlog={"DBInfo": {"id": SHOP, "db_name": name("Shop")}})
        case Action.RENAME_TABLES:
            infos = [info(CHOSEN, "Other"), info(OTHER, "Swapped")]
            args = renamed_args((SHOP, "Other", SHOP, "Swapped", OTHER), (SHOP, "Chosen", SHOP, "Other", CHOSEN))
            yield step(
                ts,
                type_,
                OTHER,
                [(SHOP, i["id"], i) for i in infos],
                raw_args=args,
                binlog={"MultipleTableInfos": infos[::-1]},
            )
            for table_id, table in TABLES.items():
                moved = {**table, "name": name("Moved")}
                args = renamed_args((SHOP, table["name"]["O"], STORE, "Moved", table_id))
                yield step(
                    ts,
                    type_,
                    table_id,
                    [(SHOP, table_id, None), (STORE, table_id, moved)],
                    raw_args=args,
                    binlog={"MultipleTableInfos": [moved]},
                )
        case Action.EXCHANGE_PARTITION:
            for plain in (CHOSEN, OTHER):
                for whole, (left, stays) in {PARTS: (21, 22), MIXED: (31, 32)}.items():
                    after = info(whole, TABLES[whole]["name"]["O"], (plain, stays))
                    swapped = {**TABLES[plain], "id": left}
                    wrote = [(SHOP, whole, after), (SHOP, plain, None), (SHOP, left, swapped)]
                    yield step(ts, type_, plain, wrote, binlog={"TableInfo": after})
        case Action.CREATE_TABLE | Action.CREATE_TABLES | Action.CREATE_VIEW | Action.CREATE_SEQUENCE:
            new = info(NEW, "New")
            binlog = {"MultipleTableInfos": [new]} if type_ == Action.CREATE_TABLES else {"TableInfo": new}
            yield step(ts, type_, NEW, [(SHOP, NEW, new)], binlog=binlog)
        case Action.RECOVER_TABLE:
            back = info(DROPPED, "Dropped")
            yield step(ts, type_, DROPPED, [(SHOP, DROPPED, back)], binlog={"TableInfo": back})
        case Action.RENAME_TABLE:
            out = info(OF_MYSQL, "Stats")
            args = {"old_schema_id": MYSQL, "old_schema_name": name("mysql"), "new_table_name": name("Stats")}
            yield step(
                ts,
                type_,
                OF_MYSQL,
                [(MYSQL, OF_MYSQL, None), (SHOP, OF_MYSQL, out)],
                raw_args=args,
                binlog={"TableInfo": out},
            )
            for table_id, table in TABLES.items():
                moved = {**table, "name": name("Moved")}
                args = {"old_schema_id": SHOP, "old_schema_name": name("Shop"), "new_table_name": name("Moved")}
                wrote = [(SHOP, table_id, moved)]
                yield step(ts, type_, table_id, wrote, raw_args=args, binlog={"TableInfo": moved})
        case Action.DROP_TABLE | Action.DROP_VIEW | Action.DROP_SEQUENCE:
            for table_id, table in TABLES.items():
                yield step(ts, type_, table_id, [(SHOP, table_id, None)], binlog={"TableInfo": {**table, "state": 0}})
        case Action.TRUNCATE_TABLE:
            for table_id, table in TABLES.items():
                new = info(NEW, table["name"]["O"])
                wrote = [(SHOP, table_id, None), (SHOP, NEW, new)]
                yield step(ts, type_, table_id, wrote, binlog={"TableInfo": new})
        case _:
            for table_id, table in TABLES.items():
                yield step(ts, type_, table_id, [(SHOP, table_id, table)], binlog={"TableInfo": table})


def unsound(type_: int) -> str:
    """What is wrong after a job of this type, whatever is followed; empty when nothing is."""
    for names in FILTERS:
        for job_step in jobs_of(type_, 200):
            served, table_filter = begun(start(), names)
            consumer = Consumer(known=shown(served, START))
            try:
                for event in served.follow([job_step], 300):
                    consumer.apply(event)
            except (TiStreamError, AssertionError, KeyError) as error:
                return f"{names} {type_} {error!r}"
            silent = type_ in (*SILENT, Action.CREATE_SEQUENCE, Action.DROP_SEQUENCE)
            if consumer.known != shown(served, 300) and not silent:
                return f"{names} {type_} {consumer.known} {shown(served, 300)}"
            if (said := misread(served, table_filter, type_)) != "":
                return f"{names} {type_} {said}"
    return ""


def misread(served: History, table_filter: TableFilter, type_: int) -> str:
    """A table that can be read and must not, or the other way round; empty when there is none."""
    for as_of in (150, 300):
        past_feed = type_ == Action.FLASHBACK_CLUSTER and as_of == 300
        for table in served.snapshot(as_of).tables.values():
            sent = all(is_sent(table_filter, i) for i in table.physical_ids)
            later, first = seed_at(250, table.id), seed_at(START)
            for seeds in ([], [first], [later, first]):
                seeded = first in seeds and not past_feed
                whole = all(i == NEW or (seeded and i in AT_START) for i in table.physical_ids)
                whole |= later in seeds and as_of == 300
                if is_readable(served, table, as_of, seeds) != (sent and whole):
                    return f"{table.name} as of {as_of} with {len(seeds)} seeds"
    return ""


def seed_at(ts: int, table_id: int = 0) -> SeedRow:
    return SeedRow(tenant=TENANT, ts=ts, table_id=table_id, rows=0, bytes=0, manifest_key="")


AT_START = {CHOSEN, OTHER, 21, 22, 31, 32}


@pytest.mark.parametrize("type_", TYPES)
def test_a_job_of_every_type_over_tables_of_either_side(type_: int) -> None:
    assert unsound(type_) == ""


def test_a_table_that_is_not_followed_is_named_as_such() -> None:
    served, _ = begun(start(), ["shop.chosen"])
    with pytest.raises(TiStreamError, match=r"does not follow 'Shop\.Other'") as e:
        served.find("shop", "other", START)
    assert e.value.facts["followed"] is False
    assert [table.name for table in served.tables("shop", START)] == ["Chosen"]


def test_rows_that_tidb_imports_are_needed_in_a_seed_from_after_the_import() -> None:
    """Newer servers mark the table while IMPORT INTO or a restore fills it past the feed."""
    served, _ = begun(start(), [])
    marked = {**TABLES[CHOSEN], "mode": 1}
    served.follow([step(200, 75, CHOSEN, [(SHOP, CHOSEN, marked)])], 250)
    served.follow([step(300, 75, CHOSEN, [(SHOP, CHOSEN, TABLES[CHOSEN])])], 400)
    seeds = [seed_at(350), seed_at(299), seed_at(START)]
    table = served.find("shop", "chosen", 400)
    readable_at = {ts: is_readable(served, table, ts, seeds) for ts in (199, 200, 349, 350, 400)}
    assert readable_at == {199: True, 200: False, 349: False, 350: True, 400: True}
    assert [is_readable(served, table, ts, seeds[1:]) for ts in (199, 400)] == [True, False]


# ---- mutants


MUTANTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "the snapshot lacks the tables that are not chosen": lambda: reworded(
        filters, "filter_snapshot", ("{**schema, _FOLLOWED", '{**schema, "tables": [*system, *chosen], _FOLLOWED')
    ),
    "all is delivered": lambda: replaced(Followed, "delivered", lambda _, change, __: change),
    "older tables are forgotten": lambda: replaced(history.History, "_not_known", lambda *_: ()),
    "seeds cover all": lambda: reworded(
        bases, "_covers", ("then is not None or history.was_named_at(physical_id, seed.ts)", "True")
    ),
    "rewinds are forgotten": lambda: replaced(bases, "unlogged", lambda *_: None),
    "what is not followed is read": lambda: replaced(history.History, "is_followed", lambda *_: True),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_noticed(name: str) -> None:
    with MUTANTS[name]():
        assert any(unsound(type_) for type_ in TYPES) or any(wrong(seed) for seed in SEEDS)
