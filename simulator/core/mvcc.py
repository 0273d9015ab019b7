"""The records a store keeps of a key, and the rows of its change feed as columns.

`Version` and `Lock` are the records of the model. `RowColumns` collects what a subscriber is sent, a list per column of
`change.ROWS`, so that a source builds a record batch without an object per row; `scan` marks rows of the opening scan.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tistream.codec.raw.keys import KeyMode
from tistream.model.change import Op, RowKind

LOSSY_TXN_SOURCE = 0xFF00  #: a write whose txn_source has any of these bits never leaves the store
RAW_MODE = KeyMode.RAW.value  #: the first byte of the keys of RawKV
SHORT_VALUE_BYTES = 255  #: a value up to this length is in the lock and in the write record


@dataclass(frozen=True, slots=True)
class Version:
    """A committed version of a key. `value` is None for a delete, `old_value` None where there was none before."""

    start_ts: int
    commit_ts: int
    op: Op
    value: bytes | None
    old_value: bytes | None
    txn_source: int = 0
    expire_ts: int = 0  #: of RawKV: Unix seconds; 0 = never

    @property
    def is_sent(self) -> bool:
        """Whether subscribers get to see it."""
        return not self.txn_source & LOSSY_TXN_SOURCE


@dataclass(frozen=True, slots=True)
class Lock:
    """A prewritten, undecided change of a key."""

    start_ts: int
    op: Op
    value: bytes | None
    old_value: bytes | None
    generation: int = 0
    txn_source: int = 0

    @property
    def is_sent(self) -> bool:
        """Whether subscribers get to see it."""
        return not self.txn_source & LOSSY_TXN_SOURCE


@dataclass(slots=True)
class RowColumns:
    """Rows of a subscription since they were last taken, a list per column of `change.ROWS`."""

    kind: list[int] = field(default_factory=list)
    op: list[int] = field(default_factory=list)
    key: list[bytes] = field(default_factory=list)
    start_ts: list[int] = field(default_factory=list)
    commit_ts: list[int] = field(default_factory=list)
    generation: list[int] = field(default_factory=list)
    value: list[bytes | None] = field(default_factory=list)
    old_value: list[bytes | None] = field(default_factory=list)
    txn_source: list[int] = field(default_factory=list)
    expire_ts: list[int] = field(default_factory=list)
    scan: list[bool] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.key)

    def add_prewrite(self, key: bytes, lock: Lock, *, scan: bool = False) -> None:
        self._add(RowKind.PREWRITE, lock.op, key, lock.start_ts, 0, lock.txn_source, scan=scan)
        self._say(lock.value, lock.old_value, lock.generation)

    def add_commit(
        self, key: bytes, op: Op, start_ts: int, commit_ts: int, value: bytes | None, txn_source: int = 0
    ) -> None:
        self._add(RowKind.COMMIT, op, key, start_ts, commit_ts, txn_source)
        self._say(value, None)

    def add_committed(self, key: bytes, v: Version, *, scan: bool = False) -> None:
        self._add(RowKind.COMMITTED, v.op, key, v.start_ts, v.commit_ts, v.txn_source, scan=scan)
        self._say(v.value, v.old_value, expire_ts=v.expire_ts)

    def add_rollback(self, key: bytes, start_ts: int, txn_source: int = 0) -> None:
        self._add(RowKind.ROLLBACK, Op.NONE, key, start_ts, 0, txn_source)
        self._say(None, None)

    def _add(
        self, kind: RowKind, op: Op, key: bytes, start_ts: int, commit_ts: int, txn_source: int, *, scan: bool = False
    ) -> None:
        self.kind.append(int(kind))
        self.op.append(int(op))
        self.key.append(key)
        self.start_ts.append(start_ts)
        self.commit_ts.append(commit_ts)
        self.txn_source.append(txn_source)
        self.scan.append(scan)

    def _say(self, value: bytes | None, old_value: bytes | None, generation: int = 0, expire_ts: int = 0) -> None:
        self.value.append(value)
        self.old_value.append(old_value)
        self.generation.append(generation)
        self.expire_ts.append(expire_ts)
