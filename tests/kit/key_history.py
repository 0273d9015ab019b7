"""Histories of keys without tables, as RawKV writes them, and what a read as of a timestamp says by the definition."""

from __future__ import annotations

import random
from typing import NamedTuple

import pyarrow as pa

from tistream import ts as tso
from tistream.model.change import COMMITTED, FLAG_OLD_VALUE_UNKNOWN, FLAG_SCANNED, Op

PREFIX = b"r\0\0\1"  # of keyspace 1
_PUT, _DELETE = int(Op.PUT), int(Op.DELETE)


class Row(NamedTuple):
    """A version, as the log has it."""

    key: bytes
    commit_ts: int
    start_ts: int
    value: bytes | None
    expire_ts: int


class Answer(NamedTuple):
    """What a read says about a key."""

    value: bytes | None
    commit_ts: int  #: of the value
    expire_ts: int
    exact: bool


NOTHING = Answer(None, 0, 0, True)


def answer(rows: list[Row], key: bytes, as_of: int) -> Answer:
    """By the definition, one row at a time."""
    versions = [row for row in rows if row.key == key]
    there = any(row.commit_ts == as_of for row in versions)
    exact = there or not any(row.start_ts < as_of < row.commit_ts for row in versions)
    newest = max((row for row in versions if row.commit_ts <= as_of), key=lambda row: row.commit_ts, default=None)
    if newest is None or newest.value is None or 0 < newest.expire_ts * 1000 <= tso.physical_ms(as_of):
        return NOTHING._replace(exact=exact)
    return Answer(newest.value, newest.commit_ts, newest.expire_ts, exact)


def write(rand: random.Random, ts: int, count: int, keys: int, pause_ms: int) -> tuple[list[Row], int]:
    """(`count` random versions after `ts`, timestamp of the last)."""
    rows = []
    for _ in range(count):
        before = ts
        ts += rand.choice([1, tso.compose(pause_ms)])
        start_ts = rand.choice([ts, ts, max(0, before - tso.compose(rand.randint(0, 2 * pause_ms)))])
        value = None if rand.random() < 0.3 else b"%d" % ts
        expire_ts = 0 if value is None or rand.random() < 0.5 else (tso.physical_ms(ts) + 3 * pause_ms) // 1000
        rows.append(Row(PREFIX + b"%d" % rand.randrange(keys), ts, start_ts, value, expire_ts))
    return rows, ts


def table(rows: list[Row]) -> pa.Table:
    """As the log has them."""
    marks = [FLAG_OLD_VALUE_UNKNOWN | FLAG_SCANNED * (row.start_ts != row.commit_ts) for row in rows]
    columns = {name: [getattr(row, name) for row in rows] for name in Row._fields}
    ops = [_DELETE if row.value is None else _PUT for row in rows]
    rest = {"table_id": [0] * len(rows), "op": ops, "old_value": [None] * len(rows), "flags": marks}
    return pa.table({name: (columns | rest)[name] for name in COMMITTED.names}, schema=COMMITTED)


def rows_of(log: pa.Table) -> list[Row]:
    """The opposite of `table`, of rows that have these columns."""
    return [Row(*row.values()) for row in log.select(list(Row._fields)).to_pylist()]
