"""Reads the upstream's meta range: definitions of databases and tables, and jobs stored there (pure).

    DBs        DB:{id}                   DBInfo          put and deleted as databases come and go
    DB:{id}    Table:{id}                TableInfo       rewritten at every step of a DDL job
    DDLJobHistory        {job id}        the finished job, once it has left the job table
    DDLJobList, DDLJobAddIdxList         jobs under way, of servers older than the job table

Everything else in the range (id allocators, schema versions and diffs, policies) does not affect decoding.

A *step* is all of this that one transaction committed, with the job rows that it wrote. A DDL job changes definitions
and its own row in the same transaction, so a step tells which job a definition belongs to.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas import fields
from schemas.ddl import STATE_QUEUEING, Job, parse_job
from tistream.codec.memcomparable import decode_bytes, encode_bytes
from tistream.errors import DecodeError
from tistream.keyrange import prefix_range
from tistream.model.change import FLAG_NOT_A_CHANGE, Op

_HASH, _LIST = ord("h"), ord("l")
_FLAG_BYTES = 8
_DATABASES = b"DBs"
_DATABASE = b"DB:"
_TABLE = b"Table:"
_JOB_HISTORY = b"DDLJobHistory"
_JOB_LISTS = frozenset({b"DDLJobList", b"DDLJobAddIdxList"})
_PREFIXES = ("mDB", "mDDLJob")  # of the keys of all of these, as they are encoded


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A database or a table as one transaction left it."""

    start_ts: int
    commit_ts: int
    db_id: int
    table_id: int = 0  #: 0: the database itself
    info: bytes | None  #: DBInfo or TableInfo as JSON; None when it was deleted

    def unreadable(self, cause: str) -> DecodeError:
        """The error of a definition that cannot be used."""
        facts = {"database_id": self.db_id, "table_id": self.table_id, "commit_ts": self.commit_ts}
        return DecodeError(f"a definition of the meta range {cause}", **facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaCommit:
    """What one transaction committed about schemas."""

    start_ts: int
    commit_ts: int
    jobs: tuple[Job, ...] = ()
    definitions: tuple[Definition, ...] = ()

    @property
    def order(self) -> tuple[int, int, int]:
        """Steps are taken in this order."""
        return (self.commit_ts, max((job.schema_version for job in self.jobs), default=0), self.start_ts)

    @property
    def owner(self) -> int:
        """The id of the job that wrote the definitions, 0 for none. Jobs that are only queued write none."""
        running = [job.id for job in self.jobs if job.state != STATE_QUEUEING]
        return running[0] if running else 0


def database_key(db_id: int) -> bytes:
    """Where a DBInfo is kept."""
    return _hash_key(_DATABASES, _DATABASE + b"%d" % db_id)


def table_key(db_id: int, table_id: int) -> bytes:
    """Where a TableInfo is kept."""
    return _hash_key(_DATABASE + b"%d" % db_id, _TABLE + b"%d" % table_id)


def _hash_key(name: bytes, field: bytes) -> bytes:
    return b"m" + encode_bytes(name) + _HASH.to_bytes(_FLAG_BYTES, "big") + encode_bytes(field)


#: where the current schema version is kept, as decimal digits
SCHEMA_VERSION_KEY = b"m" + encode_bytes(b"SchemaVersionKey") + ord("s").to_bytes(_FLAG_BYTES, "big")
#: contains all definitions
DEFINITIONS = prefix_range(b"mDB")


def defined_at(key: bytes) -> tuple[int, int] | None:
    """(database, table) whose definition is stored under a key of the meta range, table 0 for the database itself; None
    for other keys. DecodeError for an unreadable key."""
    name, at = decode_bytes(key, 1)
    flag, at = int.from_bytes(key[at : at + _FLAG_BYTES], "big"), at + _FLAG_BYTES
    if flag != _HASH or not name.startswith((_DATABASE, _DATABASES)):
        return None
    field, _ = decode_bytes(key, at)
    try:
        if name == _DATABASES:
            return int(field.removeprefix(_DATABASE)), 0
        if field.startswith(_TABLE):
            return int(name.removeprefix(_DATABASE)), int(field.removeprefix(_TABLE))
    except ValueError as error:
        raise DecodeError("a key of the meta range cannot be read", key=key) from error
    return None


def steps_of(jobs: Iterable[Job], definitions: Iterable[Definition]) -> list[MetaCommit]:
    """The steps, one per transaction, in apply order."""
    grouped: defaultdict[tuple[int, int], tuple[list[Job], list[Definition]]] = defaultdict(lambda: ([], []))
    for job in jobs:
        grouped[job.start_ts, job.commit_ts][0].append(job)
    for definition in definitions:
        grouped[definition.start_ts, definition.commit_ts][1].append(definition)
    steps = (
        MetaCommit(start_ts=start_ts, commit_ts=commit_ts, jobs=tuple(theirs), definitions=tuple(written))
        for (start_ts, commit_ts), (theirs, written) in grouped.items()
    )
    return sorted(steps, key=lambda step: step.order)


def read_meta(rows: pa.Table, after_ts: int, upto_ts: int) -> Iterator[Definition | Job]:
    """Definitions and jobs in committed rows of the meta range (schema change.COMMITTED) with commit_ts in (after_ts,
    upto_ts]. DecodeError for an unreadable key or job."""
    commit_ts = rows["commit_ts"].to_numpy()
    wanted = (commit_ts > np.uint64(after_ts)) & (commit_ts <= np.uint64(upto_ts))
    wanted &= rows["flags"].to_numpy() & FLAG_NOT_A_CHANGE == 0
    named = pc.or_(*(pc.starts_with(rows["key"], prefix) for prefix in _PREFIXES))
    picked = rows.filter(pc.and_(named, pa.array(wanted)))
    columns = (picked[name].to_pylist() for name in ("key", "op", "value", "start_ts", "commit_ts"))
    for key, op, value, start_ts, row_commit_ts in zip(*columns, strict=True):
        read = _read(key, value if op == Op.PUT else None, start_ts, row_commit_ts)
        if read is not None:
            yield read


def _read(key: bytes, value: bytes | None, start_ts: int, commit_ts: int) -> Definition | Job | None:
    name, at = decode_bytes(key, 1)
    flag = int.from_bytes(key[at : at + _FLAG_BYTES], "big")
    if (flag == _LIST and name in _JOB_LISTS) or (flag == _HASH and name == _JOB_HISTORY):
        return None if value is None else _job(value, start_ts, commit_ts)
    of = defined_at(key)
    if of is None:
        return None
    return Definition(start_ts=start_ts, commit_ts=commit_ts, db_id=of[0], table_id=of[1], info=value)


def _job(value: bytes, start_ts: int, commit_ts: int) -> Job:
    try:
        data = fields.parsed(value)
    except ValueError as error:
        raise DecodeError("a DDL job of the meta range is not JSON", commit_ts=commit_ts, reason=str(error)) from error
    return parse_job(data, start_ts=start_ts, commit_ts=commit_ts)
