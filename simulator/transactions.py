"""Random transactions on the modelled cluster, and the ground truth of what they commit.

A transaction goes through WRITING (prewrites, a key or a batch at a time), then COMMITTING or ROLLING_BACK (key by key,
by itself or by a reader that finds its locks). It moves when it is asked to; between two moves anything may happen.

    optimistic, huge    prewrite where nothing newer than start_ts is committed, else a write conflict; commit_ts fresh
    pessimistic         prewrites at a fresh for_update_ts, so it may overwrite what is newer than its start_ts
    async               as optimistic; commit_ts is the smallest that no reader and no resolved ts has passed
    one_phase           all keys of one region at once, no lock, commit_ts as with async
    pipelined           flushes a key several times; `generation` counts the flushes, or says 0
    lossy               txn_source of a lossy reorganisation: changes keys, and is never sent

Relations:

- the truth has a row from the moment at which the transaction cannot be rolled back any more: before that its locks
  hold back the resolved ts of every region concerned, so no watermark can have passed its commit_ts;
- a transaction has one commit_ts, above its start_ts. Two transactions may have the same one, and a commit_ts may be
  the start_ts of another transaction: async and one-phase commits do that in a real cluster too;
- every value is different from every other, so a wrong one is noticed.
"""

from __future__ import annotations

import random
from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import Enum, auto

from simulator.core.cluster import Cluster
from simulator.core.mvcc import SHORT_VALUE_BYTES, Lock, Version
from simulator.ddl import UpstreamSchema
from simulator.partitions import HANDLES, Json, handles, physical_id
from simulator.profiles import WorkloadProfile
from simulator.rows import DOUBLE, VARCHAR, Column, Value, row_v2
from tistream.codec.table_key import parse_key, record_key
from tistream.model.change import Op

_LOSSY = 0x100
BATCH = 40  #: keys that a huge transaction moves in one step
LOOKS = 40  #: places at which a transaction looks for a key that it can write to
CONFLICT = 0.1  #: optimistic writes that do not look whether they can succeed


@dataclass(frozen=True, slots=True, order=True)
class CommittedRow:
    """A committed change of a key, ordered as the committed log is."""

    commit_ts: int
    start_ts: int
    key: bytes
    op: Op
    value: bytes | None
    old_value: bytes | None


class Tso:
    """The timestamp oracle: every call gives a larger timestamp, and one above all that the cluster has seen."""

    def __init__(self, cluster: Cluster, rand: random.Random) -> None:
        self._cluster = cluster
        self._rand = rand
        self.last = cluster.now_ts
        self.ticked_ts = cluster.now_ts  #: the last one that was given for a tick

    def next(self) -> int:
        self.last = max(self.last, self._cluster.now_ts) + self._rand.choice((1, 1, 2, 5))
        return self.last

    def tick(self) -> int:
        self.ticked_ts = self.next()
        return self.ticked_ts

    @property
    def promised_ts(self) -> int:
        """No commit at or below it may come."""
        return max(self.ticked_ts, self._cluster.ticked_ts)


class State(Enum):
    WRITING = auto()
    COMMITTING = auto()
    ROLLING_BACK = auto()


@dataclass(slots=True, eq=False)
class Txn:
    """An open transaction."""

    number: int
    kind: str
    start_ts: int
    wants: int  #: prewrites still to do
    due: int = 0  #: step before which it does nothing
    numbered: bool = False  #: its flushes carry a generation
    state: State = State.WRITING
    keys: list[bytes] = field(default_factory=list)  #: prewritten, the primary first
    tables: set[int] = field(default_factory=set)  #: logical tables of the keys
    left: list[bytes] = field(default_factory=list)  #: to be committed or rolled back
    for_update_ts: int = 0
    commit_ts: int = 0
    generation: int = 0

    @property
    def txn_source(self) -> int:
        return _LOSSY if self.kind == "lossy" else 0


class Transactions:
    """The open transactions. Methods that return a text did one thing; "" = there was nothing to do."""

    def __init__(
        self, cluster: Cluster, profile: WorkloadProfile, rand: random.Random, schema: UpstreamSchema, tso: Tso
    ) -> None:
        self._cluster = cluster
        self._profile = profile
        self._rand = rand
        self._schema = schema
        self._tso = tso
        self._number = self._values = 0
        self._rolled_back: list[tuple[bytes, int]] = []
        self._places: dict[int, list[tuple[bytes, int]]] = {}  # rows of a table -> keys with their logical tables
        self._places_of = -1  # schema version
        self._table_of: dict[bytes, int] = {}  # key -> logical table
        self._apart: set[int] = set()  # start_ts of each `prewrite_all`
        self.open: list[Txn] = []
        self.committed: list[CommittedRow] = []  #: in order; rows a subscriber must get
        self.unsent: list[CommittedRow] = []  #: rows it must not get
        self.notes: dict[bytes, str] = {}  #: value of a row -> its column `note`
        self.schema_ts = 0  #: commit_ts of the last change of the schema
        self.counts: Counter[str] = Counter()
        self._load()

    # -- steps ----------------------------------------------------------------------------------------

    def begin(self, step: int) -> str:
        """A new transaction gets its start_ts."""
        if len(self.open) >= self._profile.open_max:
            return ""
        names, weights = zip(*self._profile.transactions, strict=True)
        kind = self._rand.choices(names, weights)[0]
        patience = self._profile.patience
        is_interactive = self._rand.random() < self._profile.interactive
        if is_interactive:
            patience *= 10
        self._number += 1
        wants = self._profile.huge_keys if kind == "huge" else self._rand.randint(1, self._profile.keys_max)
        txn = Txn(
            self._number,
            kind,
            self._tso.next(),
            wants=wants * 3 if kind == "pipelined" else wants,
            due=step + self._rand.randint(0, patience),
            numbered=self._rand.random() < self._profile.generations,
        )
        self.open.append(txn)
        return self._did("interactive" if is_interactive else "begin", f"txn {txn.number} ({kind}) begins")

    def advance(self, step: int, blocked: Set[int]) -> str:
        """One of the transactions that are due moves on. Tables in `blocked` are not written to."""
        due = [t for t in self.open if t.due <= step]
        return self.move(self._rand.choice(due), blocked) if due else ""

    def move(self, txn: Txn, blocked: Set[int]) -> str:
        """One move of a transaction."""
        if txn.state is State.WRITING:
            if txn.wants <= 0:
                return self._decide(txn)
            return self._one_phase(txn, blocked) if txn.kind == "one_phase" else self._write(txn, blocked)
        return self._resolve(txn)

    def rewrite_lock(self) -> str:
        """The record of some lock is written again."""
        locked = [(t, k) for t in self.open for k in t.keys if self._has_lock(t, k)]
        if not locked:
            return ""
        txn, key = self._rand.choice(locked)
        lock = self._cluster.lock(key)
        is_long = lock is not None and len(lock.value or b"") > SHORT_VALUE_BYTES
        was_sent = self._cluster.rewrite_lock(key, fake=self._profile.fakes)
        what = "" if not was_sent else ", without its value" if is_long else ", with its value"
        kind = "rewrite.unheard" if not was_sent else "rewrite.fake" if is_long else "rewrite.repeated"
        return self._did(kind, f"the lock of txn {txn.number} on {self._place(key)} is written again{what}")

    def roll_back_unseen(self) -> str:
        """A rollback of a transaction that never prewrote the key, or that was rolled back there before."""
        if self._rolled_back and self._rand.random() < 0.3:
            key, start_ts = self._rand.choice(self._rolled_back)
            self._cluster.rollback(key, start_ts=start_ts)
            return self._did("rollback.again", f"{self._place(key)} rolls back {start_ts} once more")
        key, _ = self._rand.choice(self.places())
        start_ts = self._tso.next()
        self._cluster.rollback(key, start_ts=start_ts)
        return self._did("rollback.unseen", f"{self._place(key)} rolls back {start_ts}, which never prewrote there")

    def roll_back_committed(self) -> str:
        """An overlapped rollback: of a transaction whose start_ts is the commit_ts of a version of the key."""
        if not self.committed:
            return ""
        row = self._rand.choice(self.committed[-50:])
        lock, versions = self._cluster.lock(row.key), self._cluster.versions(row.key)
        is_there = any(v.commit_ts == row.commit_ts for v in versions)
        is_own = any(v.start_ts == row.commit_ts for v in versions) or (lock and lock.start_ts == row.commit_ts)
        if not is_there or is_own or any(t.start_ts == row.commit_ts for t in self.open):
            return ""
        self._cluster.rollback(row.key, start_ts=row.commit_ts)
        return self._did(
            "rollback.overlapped", f"{self._place(row.key)} rolls back {row.commit_ts}, where it has a commit"
        )

    def places(self, blocked: Set[int] = frozenset(), *, rows: int = 0) -> list[tuple[bytes, int]]:
        """The keys that can be written to, each with its logical table: the first rows of each table or partition."""
        rows = rows or self._profile.rows
        if self._places_of != self._schema.version:
            self._places.clear()
            self._table_of.clear()
            self._places_of = self._schema.version
        if rows not in self._places:
            self._places[rows] = [
                (record_key(physical, handle), table_id)
                for table_id, (_, info) in self._schema.tables.items()
                for handle in handles(info, rows)
                if (physical := physical_id(info, handle)) is not None
            ]
            self._table_of.update(self._places[rows])
        return [p for p in self._places[rows] if p[1] not in blocked] if blocked else self._places[rows]

    def lag(self) -> bool:
        """Whether an open transaction uses an older version of a table than the newest."""
        return False

    def copy_rows(self, copied: Sequence[tuple[bytes, bytes]]) -> bool:
        """A reorganisation copies rows from keys to others, as one transaction. False while one of the keys is locked;
        then nothing is copied."""
        if any(self._cluster.lock(key) is not None for pair in copied for key in pair):
            return False

        def values_at(ts: int) -> dict[bytes, bytes | None]:
            read = {to: self._cluster.read(key, ts) for key, to in copied}
            return {to: value for to, value in read.items() if value is not None}

        self.commit_all(self.prewrite_all(values_at))
        self.counts["rows copied"] += len(copied)
        return True

    def is_alive(self, start_ts: int) -> bool:
        """Whether its client still writes the transaction, and renews its locks."""
        return start_ts in self._apart or any(txn.start_ts == start_ts for txn in self.open)

    def holds(self, tables: Set[int]) -> bool:
        """Whether an open transaction has written to one of the tables."""
        return any(txn.tables & tables for txn in self.open)

    # -- transactions of others, for who needs them whole ----------------------------------------------------------

    def prewrite_all(self, values_at: Callable[[int], Mapping[bytes, bytes | None]]) -> Txn:
        """A separate transaction that has prewritten the values of these keys, identified by its start_ts."""
        self._number += 1
        txn = Txn(self._number, "optimistic", self._tso.next(), wants=0)
        self._apart.add(txn.start_ts)
        for key, value in values_at(txn.start_ts).items():
            self._prewrite(txn, key, value)
        return txn

    def commit_all(self, txn: Txn) -> int:
        """Commit a `prewrite_all`; its commit_ts."""
        self._commits(txn, self._tso.next())
        for key in txn.left:
            self._cluster.commit(key, start_ts=txn.start_ts, commit_ts=txn.commit_ts, with_value=True)
        self._apart.discard(txn.start_ts)
        return txn.commit_ts

    # -- moves -----------------------------------------------------------------------------------------------------

    def _write(self, txn: Txn, blocked: Set[int]) -> str:
        keys = []
        for _ in range(BATCH if txn.kind == "huge" else 1):
            again = txn.kind == "pipelined" and txn.keys and self._rand.random() < 0.5
            place = (self._rand.choice(txn.keys), 0) if again else self._free(txn, blocked)
            if place is None:
                txn.wants = 0
                break
            key, table_id = place
            if self._newest(key) > txn.start_ts and txn.kind != "pessimistic":
                return self._start_rollback(
                    txn, [*txn.keys, key], "conflict", f"meets a newer commit on {name_of(key)}"
                )
            if not again:
                txn.tables.add(table_id)
            keys.append(key)
            self._prewrite(txn, key, self._value(key))
            txn.wants -= 1
            self._count_write(txn, key, again=bool(again))
        if not keys:
            return f"txn {txn.number} finds no more rows to write"
        where = self._place(keys[0]) if len(keys) == 1 else f"{len(keys)} keys, the first {self._place(keys[0])}"
        return self._did("huge" if len(keys) > 1 else "prewrite", f"txn {txn.number} prewrites {where}")

    def _prewrite(self, txn: Txn, key: bytes, value: bytes | None) -> None:
        if txn.kind == "pessimistic":
            txn.for_update_ts = self._tso.next()
        txn.generation += txn.kind == "pipelined"
        old = self._cluster.read(key, max(txn.start_ts, txn.for_update_ts))
        op = Op.DELETE if value is None else Op.PUT
        generation = txn.generation if txn.numbered else 0
        self._cluster.prewrite(key, Lock(txn.start_ts, op, value, old, generation, txn.txn_source))
        if key not in txn.keys:
            txn.keys.append(key)

    def _one_phase(self, txn: Txn, blocked: Set[int]) -> str:
        first = self._free(txn, blocked)
        if first is None:
            return self._decide(txn)
        region = self._cluster.region_of(first[0])
        near = [k for k, _ in self.places(blocked) if k in region.range and k != first[0] and self._is_free(txn, k)]
        near = [k for k in near if self._newest(k) <= txn.start_ts]
        keys = [first[0], *self._rand.sample(near, min(len(near), txn.wants - 1))]
        if self._newest(first[0]) > txn.start_ts:
            return self._start_rollback(txn, keys, "conflict", f"meets a newer commit on {name_of(first[0])}")
        txn.commit_ts = self._least_commit_ts(txn)
        rows = []
        for key in keys:
            value, old = self._value(key), self._cluster.read(key, txn.start_ts)
            op = Op.DELETE if value is None else Op.PUT
            self._cluster.commit_one_phase(key, Version(txn.start_ts, txn.commit_ts, op, value, old))
            rows.append(CommittedRow(txn.commit_ts, txn.start_ts, key, op, value, old))
        self._note(txn, rows)
        self.open.remove(txn)
        return self._did("one_phase", f"txn {txn.number} commits {len(keys)} keys at once, {self._place(keys[0])}")

    def _decide(self, txn: Txn) -> str:
        if not txn.keys:
            self.open.remove(txn)
            return f"txn {txn.number} ends without a change"
        if self._rand.random() < self._profile.rollbacks:
            unseen = [k for k, _ in self.places() if k not in txn.keys and self._rand.random() < 0.02]
            return self._start_rollback(txn, [*txn.keys, *unseen], "rollback", "gives up")
        is_async = txn.kind == "async"
        self._commits(txn, self._least_commit_ts(txn) if is_async else self._tso.next())
        if is_async or self._rand.random() < 0.3:
            return self._did("commit.async" if is_async else "commit.later", f"txn {txn.number} is bound to commit")
        return self._resolve(txn)

    def _commits(self, txn: Txn, commit_ts: int) -> None:
        """The point of no return."""
        txn.commit_ts, txn.state, txn.left = commit_ts, State.COMMITTING, list(txn.keys)
        locks = ((key, self._cluster.lock(key)) for key in txn.keys)
        self._note(
            txn,
            [
                CommittedRow(commit_ts, txn.start_ts, k, lock.op, lock.value, lock.old_value)
                for k, lock in locks
                if lock
            ],
        )

    def _start_rollback(self, txn: Txn, keys: list[bytes], kind: str, why: str) -> str:
        txn.state, txn.left, txn.wants = State.ROLLING_BACK, keys, 0
        return self._did(kind, f"txn {txn.number} {why}")

    def _resolve(self, txn: Txn) -> str:
        """Commit or roll back the primary, or any other of the keys that are left."""
        commits, done = txn.state is State.COMMITTING, []
        for _ in range(BATCH if txn.kind == "huge" else 1):
            primary = not commits or len(txn.left) == len(txn.keys)
            key = txn.left.pop(0 if primary else self._rand.randrange(len(txn.left)))
            done.append(key)
            if commits:
                self._cluster.commit(key, start_ts=txn.start_ts, commit_ts=txn.commit_ts, with_value=True)
            else:
                self._cluster.rollback(key, start_ts=txn.start_ts, txn_source=txn.txn_source)
                self._rolled_back.append((key, txn.start_ts))
            if not txn.left:
                self._end(txn)
                break
        what = "commits" if commits else "rolls back"
        where = self._place(done[0]) if len(done) == 1 else f"{len(done)} keys"
        return self._did(what, f"txn {txn.number} {what} {where}")

    # -- inside ----------------------------------------------------------------------------------------------------

    def _end(self, txn: Txn) -> None:
        if txn in self.open:
            self.open.remove(txn)
        del self._rolled_back[:-30]

    def _least_commit_ts(self, txn: Txn) -> int:
        return max(txn.start_ts, txn.for_update_ts, self._tso.promised_ts, self.schema_ts) + 1

    def _note(self, txn: Txn, rows: Iterable[CommittedRow]) -> None:
        truth = self.unsent if txn.txn_source else self.committed
        for row in rows:
            insort(truth, row)
            self.counts["delete of nothing"] += row.op is Op.DELETE and row.old_value is None
            self.counts["delete"] += row.op is Op.DELETE
            self.counts["lossy"] += bool(txn.txn_source)
            self.counts["commit without value"] += len(row.value or b"") > SHORT_VALUE_BYTES

    def _count_write(self, txn: Txn, key: bytes, *, again: bool) -> None:
        self.counts["prewrite below the resolved ts"] += txn.start_ts <= self._tso.promised_ts
        self.counts["prewrite over a newer commit"] += self._newest(key) > txn.start_ts
        self.counts["flush again"] += again
        self.counts[f"flush again, {'numbered' if txn.numbered else 'not numbered'}"] += again

    def _did(self, kind: str, sentence: str) -> str:
        self.counts[kind] += 1
        return sentence

    def _free(self, txn: Txn, blocked: Set[int]) -> tuple[bytes, int] | None:
        """A key that the transaction can lock, with its table; mostly one without a newer commit."""
        places = self.places(blocked, rows=HANDLES if txn.kind == "huge" else 0)
        careless = txn.kind == "pessimistic" or (txn.kind != "huge" and self._rand.random() < CONFLICT)
        hot = [p for p in places if p[0][-1] % HANDLES == 0] if self._rand.random() < self._profile.hot else []
        for number in range(LOOKS if places else 0):
            key, table_id = self._rand.choice(hot if hot and not number else places)
            if self._is_free(txn, key) and (careless or self._newest(key) <= txn.start_ts):
                return key, table_id
        return None

    def _is_free(self, txn: Txn, key: bytes) -> bool:
        return self._cluster.lock(key) is None and key not in txn.keys

    def _has_lock(self, txn: Txn, key: bytes) -> bool:
        lock = self._cluster.lock(key)
        return lock is not None and lock.start_ts == txn.start_ts

    def _newest(self, key: bytes) -> int:
        versions = self._cluster.versions(key)
        return versions[-1].commit_ts if versions else 0

    def _value(self, key: bytes, columns: list[Json] | None = None) -> bytes | None:
        """A new row for the key, or None for a delete."""
        if self._rand.random() < self._profile.deletes and (self._exists(key) or self._rand.random() < 0.3):
            return None
        return self._row(key, columns)

    def _exists(self, key: bytes) -> bool:
        return self._cluster.read(key, self._tso.last) is not None

    def _row(self, key: bytes, columns: list[Json] | None = None) -> bytes:
        self._values += 1
        length = (
            self._rand.randint(SHORT_VALUE_BYTES + 1, 600) if self._rand.random() < self._profile.long_values else 0
        )
        text = f"{self._values}:".ljust(length, "x")
        columns = self._columns(key) if columns is None else columns
        value = row_v2([(c, self._cell(c, text)) for c in columns[1:]])
        self.notes[value] = text
        return value

    def _cell(self, column: Column, text: str) -> Value:
        if column["name"]["O"] == "note":
            return text
        if self._rand.random() < 0.2:
            return None
        number = self._rand.choice((0, 1, -1, 127, -129, 40000, -(1 << 31)))
        tp = column["type"]["Tp"]
        return f"s{number}" if tp == VARCHAR else number / 4 if tp == DOUBLE else number

    def _columns(self, key: bytes) -> list[Json]:
        if key not in self._table_of:  # written before a DDL of another table, by a transaction that writes it again
            self.places()
            self.places(rows=HANDLES)
        columns: list[Json] = self._schema.tables[self._table_of[key]][1]["cols"]
        return columns

    def _load(self) -> None:
        """Half of the rows exist before the feed starts."""
        ts = self._cluster.floor_ts
        for key, _ in self.places():
            if self._rand.random() < 0.5 and not self._cluster.versions(key):
                self._cluster.load(key, Version(ts - 1, ts, Op.PUT, self._row(key), None))

    def _place(self, key: bytes) -> str:
        return f"{name_of(key)} on store {self._cluster.region_of(key).store_id}"


def name_of(key: bytes) -> str:
    """Table and handle, for people."""
    if not key.startswith(b"t"):
        return repr(key)
    parsed = parse_key(key)
    return f"t{parsed.table_id}/r{getattr(parsed, 'handle', '?')}"
