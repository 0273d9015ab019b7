"""Histories that are opened lazily: what is fetched, what is copied, what is refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from schemas import saved
from schemas.ddl import Job
from schemas.history import History
from schemas.model import Database, Table
from schemas.snapshot import PushedSchema, SchemaSnapshot
from tests.kit.schema_models import a_column, a_table
from tistream.errors import CorruptObject, NotFound

TABLES = 1000
START = 100


class Part:
    """An object that notes which parts of it are fetched."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.fetched: list[tuple[int, int]] = []

    def __call__(self, offset: int, length: int) -> bytes:
        self.fetched.append((offset, length))
        return self.data[offset : offset + length]

    def open(self) -> History:
        return History.open(saved.open_object("schemas/object", self), self)


def table(n: int) -> Table:
    """One in ten is partitioned, one in a hundred is a view."""
    return a_table(
        *(a_column(i, f"c{i + 1}") for i in range(4)),
        id=100 + n,
        db_id=1 + n % 3,
        db=f"Db{1 + n % 3}",
        name=f"Table{n}",
        partition_ids=(5000 + 2 * n, 5001 + 2 * n) if n % 10 == 0 else (),
        partition_names=("a", "b") if n % 10 == 0 else (),
        kind="view" if n % 100 == 5 else "table",
    )


@pytest.fixture(scope="module")
def many() -> History:
    databases = {i: Database(id=i, name=f"Db{i}") for i in (1, 2, 3)}
    tables = {t.id: t for t in map(table, range(TABLES))}
    return History(SchemaSnapshot(ts=START, databases=databases, tables=tables, schema_version=3), table(0))


def drop(job_id: int, ts: int, n: int) -> Job:
    """DROP TABLE Table{n}."""
    return Job(
        id=job_id,
        type=4,
        state=4,
        schema_id=1 + n % 3,
        table_id=100 + n,
        schema_name="",
        query="drop",
        start_ts=ts - 1,
        commit_ts=ts,
        schema_version=ts,
        db_info=None,
        table_info=None,
        table_infos=(),
        args=None,
    )


def test_opening_and_one_lookup_fetch_one_block(many: History) -> None:
    part = Part(many.dump())
    history = part.open()
    assert len(part.fetched) == 2
    first = history.find("db2", "table7", START)
    assert first == table(7)
    assert history.table_at(107, START) is first
    assert len(part.fetched) == 3
    assert sum(length for _, length in part.fetched) < len(part.data) // 2


def test_every_question_has_the_answer_of_a_history_in_memory(many: History) -> None:
    history = Part(many.dump()).open()
    for n in range(0, TABLES, 7):
        for physical_id in table(n).physical_ids:
            assert history.table_at(physical_id, START) == many.table_at(physical_id, START)
    assert history.table_at(5, START) is None
    for db in ("Db1", "db2"):
        assert history.physical_ids(db, None, START, START) == many.physical_ids(db, None, START, START)
        assert history.tables(db, START) == many.tables(db, START)
    assert history.physical_ids("db3", "table50", START, START) == {5100, 5101}
    with pytest.raises(NotFound, match="did you mean 'Table7'"):
        history.find("Db2", "Tabel7", START)
    assert history.snapshot(START) == many.snapshot(START)


def test_a_copy_shares_the_start_and_asks_of_ids_parse_nothing(many: History) -> None:
    part = Part(many.dump())
    history = part.open()
    copy = history.copy()
    assert len(history.physical_ids("db1", None, START, START)) > 300
    assert len(part.fetched) == 2
    copy.apply(drop(1, 200, 7))
    copy.advance(300)
    assert history.find("db2", "table7", START) is copy.find("db2", "table7", 150)
    assert copy.table_at(107, 200) is None
    assert 107 not in copy.physical_ids("db2", None, 201, 300)
    assert 107 in copy.physical_ids("db2", None, 100, 300)
    assert len(part.fetched) == 3


def test_a_pruned_history_keeps_untouched_blocks_as_they_are(many: History) -> None:
    part = Part(many.dump())
    history = part.open()
    for n, ts in ((7, 200), (8, 210), (500, 220)):
        history.apply(drop(ts, ts, n))
    history.advance(300)
    pruned = history.pruned(215)
    assert pruned.start_ts == 215
    expected = History(history.snapshot(215), history.job_table)
    expected.apply(drop(220, 220, 500))
    expected.advance(300)
    assert pruned.snapshot(215) == expected.snapshot(215)
    assert pruned.dump() == expected.dump()
    assert pruned.physical_ids("db3", None, 215, 300) == expected.physical_ids("db3", None, 215, 300)
    assert Part(pruned.dump()).open().tables("db1", 300) == expected.tables("db1", 300)


def test_dropping_a_database_parses_none_of_its_tables(many: History) -> None:
    part = Part(many.dump())
    history = part.open()
    history.apply(replace(drop(1, 200, 0), type=2, table_id=0, schema_id=3))
    history.advance(250)
    assert history.physical_ids("db3", None, 200, 250) == set()
    assert [db.name for db in history.databases(250)] == ["Db1", "Db2"]


def test_a_damaged_block_is_refused_with_object_and_table(many: History) -> None:
    data = bytearray(many.dump())
    data[-20] ^= 0x40  # in the last block
    history = Part(bytes(data)).open()
    assert history.find("db1", "table0", START) == table(0)
    with pytest.raises(CorruptObject) as caught:
        history.find("db1", "table999", START)
    assert caught.value.facts["object_key"] == "schemas/object"
    assert caught.value.facts["table"] == "Table999"
    with pytest.raises(CorruptObject):
        history.pruned(START).dump()  # nor is it copied


def test_no_flipped_byte_goes_unnoticed(many: History) -> None:
    small = History(
        SchemaSnapshot(ts=START, databases={1: Database(id=1, name="Db1")}, tables={100: table(0)}), table(0)
    )
    good = small.dump()
    for at in range(len(good)):
        data = good[:at] + bytes([good[at] ^ 0x10]) + good[at + 1 :]
        try:
            opened = Part(data).open()
            same = opened.snapshot(START) == small.snapshot(START)
        except CorruptObject:
            continue
        assert same, at  # a bit of a frame's header that has no meaning


def test_a_cut_block_is_refused(many: History) -> None:
    history = Part(many.dump()[:-5]).open()
    with pytest.raises(CorruptObject, match="cut short") as caught:
        history.find("db1", "table999", START)
    assert caught.value.facts["table_id"] == 1099


def test_increments_end_where_the_whole_history_does(
    pushed: PushedSchema, jobs: list[Job], history_of_jobs: History
) -> None:
    grown = History(pushed.snapshot, pushed.job_table)
    extended = History.load(grown.dump())
    cuts = [0, 100, 101, 500, len(jobs)]
    for first, last in pairwise(cuts):
        after_ts = grown.resolved_ts
        for job in jobs[first:last]:
            grown.apply(job)
        grown.advance(jobs[last - 1].commit_ts)
        data = grown.dump_increment(saved.Chain(base=after_ts, base_bytes=1), after_ts)
        increment = saved.increment_of(saved.open_object("increment", Part(data)))
        assert increment is not None
        extended.extend(increment)
        with pytest.raises(CorruptObject, match="gap"):
            extended.extend(increment)
    extended.advance(history_of_jobs.resolved_ts)
    assert extended.dump() == history_of_jobs.dump()
