"""Pages inside the changes of one commit_ts against the changes themselves: each once, in order, whatever holds them.

Between two pages the rows are laid out in other segments, as compaction and a server that starts again would. Each
mutant of the position breaks one rule of `reading.core.inside` and is noticed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from reading.core.inside import Inside
from reading.core.page_rows import bytes_of
from reading.filters import Selected
from reading.log import inside
from reading.log.inside import Manner, Room, read_inside
from reading.rows.scope import Scope
from reading.served import position
from tests.kit.made_rows import log_row, log_table
from tistream.catalog.rows.segments import SegmentRow
from tistream.ids import Tenant
from tistream.model.change import Op

COMMIT_TS = 1000
SCOPE = Scope(tenant=Tenant(1, 1))
Message = tuple[int, int, int, bytes]  # (start_ts, table_id, rank, key)
Mutate = Callable[[Inside], Inside]


def drawn(rng: random.Random) -> pa.Table:
    """Rows of a commit, of some transactions and tables."""
    places = {(rng.randint(1, 3), b"%03d" % rng.randint(0, 20)) for _ in range(rng.randint(1, 40))}
    starts = rng.sample(range(1, 900), rng.randint(1, 3))
    rows = []
    for table_id, key in sorted(places):
        value, old = rng.choice([(b"v" * rng.randint(1, 9), None), (b"v", b"o" * rng.randint(1, 9)), (None, b"o")])
        op = Op.DELETE if value is None else Op.PUT
        images = {"op": int(op), "value": value, "old_value": old}
        rows.append(log_row(table_id, COMMIT_TS, key, start_ts=rng.choice(starts), **images))
    return log_table(*sorted(rows, key=lambda row: (row["table_id"], row["start_ts"], row["key"])))


def laid_out(rows: pa.Table, rng: random.Random) -> dict[int, tuple[SegmentRow, pa.Table]]:
    """The rows in segments: cut by place, or scattered over some that overlap."""
    count = rng.randint(1, 4)
    owners = sorted(rng.choices(range(count), k=rows.num_rows))
    if rng.random() < 0.5:
        rng.shuffle(owners)
    owner = np.array(owners)
    segments = {}
    for number in np.unique(owner).tolist():
        part = rows.filter(pa.array(owner == number))
        ids, keys = part["table_id"].to_pylist(), part["key"].to_pylist()
        segment = SegmentRow(
            number=number,
            kind="data",
            table_lo=ids[0],
            table_hi=ids[-1],
            start_key=min(keys),
            end_key=max(keys),
            lo_ts=COMMIT_TS,
            hi_ts=COMMIT_TS,
            rows=len(keys),
            offset=0,
            length=100,
            raw_length=100,
            crc=0,
            object_key="o",
        )
        segments[number] = (segment, part)
    return segments


def rank_of(row: dict[str, Any]) -> int:
    """Deletes come before updates, and these before inserts."""
    if row["value"] is None:
        return 0
    return 2 if row["old_value"] is None else 1


def messages(rows: pa.Table, *, ranked: bool, second: bool = False) -> list[Message]:
    def rank(row: dict[str, Any]) -> int:
        return 3 if second else rank_of(row) if ranked else 0

    return [(row["start_ts"], row["table_id"], rank(row), row["key"]) for row in rows.to_pylist()]


def expected(rows: pa.Table, *, ranked: bool, splits: bool) -> list[Message]:
    whole = messages(rows, ranked=ranked)
    return sorted([*whole, *((s, t, 3, k) for s, t, rank, k in whole if splits and rank == 1)])


def walk(seed: int, mutate: Mutate = lambda at: at) -> tuple[list[Message], list[Message]]:
    """(what pages delivered, what they should have)."""
    rng = random.Random(seed)
    rows, ranked = drawn(rng), rng.random() < 0.8
    splits = ranked and rng.random() < 0.5
    manner = Manner(
        mode="m", ranked=ranked, splits=splits, select=lambda r: Selected(rows=r, quarantined=()), sizes=bytes_of
    )
    room = Room(rows=rng.choice([1, 4, 1000]), bytes=rng.choice([30, 100, 1 << 20]))
    at: Inside | None = Inside(commit_ts=COMMIT_TS, mode="m")
    delivered: list[Message] = []
    for _ in range(10 * rows.num_rows + 50):
        assert at is not None
        held = laid_out(rows, rng)
        segments = [segment for segment, _ in held.values()]
        page = read_inside(at, segments, lambda s, held=held: held[s.number][1], manner, room)  # type: ignore[misc]
        on_page = [*messages(page.rows, ranked=ranked), *messages(page.second, ranked=ranked, second=True)]
        assert len(on_page) <= room.rows
        delivered += sorted(on_page)
        if page.next is None:
            return delivered, expected(rows, ranked=ranked, splits=splits)
        text = position.encode_inside(SCOPE, mutate(page.next))
        at = position.read_cursor(text, SCOPE).inside
    return delivered, expected(rows, ranked=ranked, splits=splits)


@pytest.mark.parametrize("few", [False, True])
def test_pages_hold_each_change_once_and_in_order(monkeypatch: pytest.MonkeyPatch, few: bool) -> None:
    monkeypatch.setattr(inside, "_LOOKED_AT_BYTES_MAX", 100 if few else 1 << 30)
    for seed in range(12):
        delivered, want = walk(seed)
        assert delivered == want, seed


MUTANTS: dict[str, Mutate] = {
    "forgets the key": lambda at: replace(at, key=b""),
    "forgets the table": lambda at: replace(at, table_id=0),
    "forgets the rank": lambda at: replace(at, rank=at.first_rank) if at.start_ts else at,
    "forgets which ranks there are": lambda at: replace(at, ranks=1 << at.rank) if at.start_ts else at,
    "forgets the next transaction": lambda at: replace(at, next_start_ts=0),
    "begins with another transaction": lambda at: replace(at, start_ts=at.next_start_ts or at.start_ts),
    "passes a key": lambda at: replace(at, key=at.key + b"\0"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_position_that_forgets_something_is_noticed(name: str) -> None:
    def differs(seed: int) -> bool:
        delivered, want = walk(seed, MUTANTS[name])
        return delivered != want

    assert any(differs(seed) for seed in range(60))


def test_a_page_is_as_large_as_asked() -> None:
    rows = drawn(random.Random(3))
    ((segment, table),) = next(log for n in range(99) if len(log := laid_out(rows, random.Random(n))) == 1).values()
    manner = Manner(
        mode="m", ranked=False, splits=False, select=lambda r: Selected(rows=r, quarantined=()), sizes=bytes_of
    )
    at: Inside | None = Inside(commit_ts=COMMIT_TS, mode="m")
    while at is not None:
        page = read_inside(at, [segment], lambda _: table, manner, Room(rows=1000, bytes=50))
        assert bytes_of(page.rows).sum() <= 50
        at = page.next
