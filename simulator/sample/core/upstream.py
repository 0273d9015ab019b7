"""The modelled cluster that the shop writes to, and the clock by which it does.

    step n happens at its session's start + (n - first step of the session + 1) * STEP_MS, a little later by chance

A session is a time without a break: a service that was stopped, or a machine that slept, begins a new one. So the same
seed and the same sessions give the same commits, byte for byte, and a restart repeats what may have been pushed.

Relations: timestamps of a step lie in its millisecond; those of different steps never meet; all keys of a transaction
are prewritten with their old values, then committed; a DDL is queued, runs, is done and leaves, as in TiDB.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise

from simulator.core.cluster import Cluster, Region
from simulator.core.mvcc import Lock, Version
from simulator.ddl import QUEUED, SCHEMA_VERSION_KEY, Ddl, definitions
from simulator.partition_jobs import DONE, RUNNING
from simulator.rows import row_v2
from simulator.sample.core.dice import Dice
from simulator.sample.core.shop import Row, Shop, Write
from simulator.sample.core.tables import TABLES, Schema
from tistream import ts
from tistream.codec.table_key import DDL_JOB_TABLE_ID, META_RANGE, record_key, table_prefix
from tistream.errors import invariant
from tistream.keyrange import KeyRange
from tistream.model.change import Op

STORES = 3
STEP_MS = 400  #: two to three transactions a second
_LATE_MS = 300  # at most


@dataclass(frozen=True, slots=True)
class Session:
    """A time without a break."""

    first_step: int
    opened_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """All that a shop is, as of a timestamp: nothing happens at it, everything of an earlier step is in the rows."""

    step: int  #: the next one
    ts: int
    rows: Mapping[int, Sequence[tuple[Row, bytes]]]  #: with the bytes that the stores have, columns of before too
    last_ids: Mapping[int, int]
    meta: Mapping[bytes, bytes]  #: the meta range: databases and tables as TiDB keeps them


class Upstream:
    """The cluster with the shop in it."""

    def __init__(self, seed: int, state: State, sessions: Sequence[Session]) -> None:
        """`sessions`: at least one; the first one is that of the state's step."""
        self._seed = seed
        self.schema = Schema(state.step)
        self.shop = Shop(seed, self.schema)
        self.cluster = Cluster(_regions(), floor_ts=state.ts)
        self.sessions = list(sessions)
        self.step = state.step  #: the next one
        self.now_ms = ts.physical_ms(state.ts)  #: everything that is due before has happened
        self.transactions = 0
        self._load(state)

    def advance(self, until_ms: int) -> None:
        """Everything happens that is due before this Unix time."""
        while (at_ms := self._due_ms(self.step)) < until_ms:
            self._do(at_ms)
            self.step += 1
        self.now_ms = max(self.now_ms, until_ms)

    def open_session(self, now_ms: int) -> None:
        """A break has ended: the next step is due soon after `now_ms`."""
        self.sessions.append(Session(self.step, now_ms))

    def state(self) -> State:
        """As of `now_ms`: what is kept, and what a cluster at this time is built from."""
        now_ts = ts.compose(self.now_ms)
        rows = {
            table_id: tuple((row, self._stored(table_id, row_id, now_ts)) for row_id, row in rows.items())
            for table_id, rows in self.shop.rows.items()
        }
        pairs = self.cluster.snapshot(META_RANGE, now_ts)
        meta = {key: value for key, value in pairs if isinstance(value, bytes)}  # no lock outlives a step
        return State(step=self.step, ts=now_ts, rows=rows, last_ids=dict(self.shop.last_ids), meta=meta)

    def forget(self, state: State) -> None:
        """No pusher asks for anything below this state any more."""
        self.cluster.forget(state.ts)
        while len(self.sessions) > 1 and self.sessions[1].first_step <= state.step:
            del self.sessions[0]

    # -- inside ----------------------------------------------------------------------------------------------------

    def _due_ms(self, step: int) -> int:
        session = next(s for s in reversed(self.sessions) if s.first_step <= step)
        late = Dice(self._seed + 1, step).below(_LATE_MS)
        return session.opened_ms + (step - session.first_step + 1) * STEP_MS + late

    def _do(self, at_ms: int) -> None:
        first_ts = ts.compose(at_ms)
        if (ddl := self.schema.ddl_of(self.step)) is not None:
            return self._run(ddl, first_ts)
        now = datetime.fromtimestamp(at_ms / 1000, UTC).replace(tzinfo=None)
        writes = self.shop.step(self.step, now)
        self._commit({_key(w): self._value(w.table_id, w.new) for w in writes}, first_ts)
        return None

    def _run(self, ddl: Ddl, first_ts: int) -> None:
        key, version = record_key(DDL_JOB_TABLE_ID, ddl.job_id), self.schema.version + 1
        for n, state in enumerate((QUEUED, RUNNING, DONE)):
            start_ts = first_ts + 2 * n
            row = ddl.row(state=state, schema_version=version, start_ts=start_ts, old_format=False)
            changed = ddl.definitions(state=state, start_ts=start_ts)
            meta = {SCHEMA_VERSION_KEY: b"%d" % version, **changed} if changed else {}
            self._commit({key: row, **meta}, start_ts)
        before = {i: set(self.schema.names(i)) for i in ddl.tables if i in self.schema.tables}
        ddl.apply()
        for table_id, names in before.items():
            for name in names - set(self.schema.names(table_id)):
                self.shop.drop_column(table_id, name)
        self._commit({key: None}, first_ts + 6)

    def _commit(self, values: Mapping[bytes, bytes | None], start_ts: int) -> None:
        for key, value in values.items():
            op = Op.DELETE if value is None else Op.PUT
            self.cluster.prewrite(key, Lock(start_ts, op, value, self.cluster.read(key, start_ts)))
        for key in values:
            self.cluster.commit(key, start_ts=start_ts, commit_ts=start_ts + 1)
        self.transactions += 1

    def _load(self, state: State) -> None:
        for key, value in state.meta.items():
            self.cluster.load(key, Version(state.ts - 1, state.ts, Op.PUT, value, None))
        self.shop.last_ids.update(state.last_ids)
        for table_id, rows in state.rows.items():
            for row, value in rows:
                self.shop.rows[table_id][row["id"]] = row
                self.cluster.load(record_key(table_id, row["id"]), Version(state.ts - 1, state.ts, Op.PUT, value, None))

    def _stored(self, table_id: int, row_id: int, at_ts: int) -> bytes:
        value = self.cluster.read(record_key(table_id, row_id), at_ts)
        invariant(value is not None, "the shop has a row that the stores lack", table_id=table_id, row_id=row_id)
        return value or b""

    def _value(self, table_id: int, row: Row | None) -> bytes | None:
        if row is None:
            return None
        columns = self.schema.tables[table_id]["cols"][1:]
        return row_v2([(c, row[c["name"]["O"]]) for c in columns if c["name"]["O"] in row])


def first_state(at_ms: int) -> State:
    """An empty shop."""
    none: dict[int, Sequence[tuple[Row, bytes]]] = dict.fromkeys(TABLES, ())
    first_ts = ts.compose(at_ms)
    meta = definitions(Schema().snapshot(first_ts))
    return State(step=0, ts=first_ts, rows=none, last_ids=dict.fromkeys(TABLES, 0), meta=meta)


def _key(write: Write) -> bytes:
    return record_key(write.table_id, write.row_id)


def _regions() -> list[Region]:
    """A region for each table, one before and one after them."""
    bounds = [b"", META_RANGE.end, *(table_prefix(table_id) for table_id in TABLES), b""]
    return [
        Region(region_id=i + 1, version=1, store_id=i % STORES + 1, range=KeyRange(start, end))
        for i, (start, end) in enumerate(pairwise(bounds))
    ]
