"""Table filter: which keys a tenant follows if not all: databases and tables by name, with or without indexes.

    schema snapshot at S, names  ->  the snapshot with the excluded ranges

- The exclusion is decided once, at S, by table ids, and stored in the tenant's first snapshot, where later starts read
  it. A tenant that followed more later would have gaps below its watermark;
- ids that did not exist at S are all followed: a TRUNCATE or a new partition gives a chosen table a new id, and a new
  table may be renamed to a chosen one. TiDB allocates ids in increasing order, so they lie above the known ones;
- except ids allocated before S by an unfinished job: a TRUNCATE may wait for days behind an ADD INDEX. Such ids are in
  the job queue or in table definitions; an allocated id that is not yet written anywhere lies within `_QUEUED_IDS` of
  the highest. All of these are followed, whichever table they belong to;
- the meta range and the DDL job table are always followed.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from schemas.snapshot import is_system_database
from tistream.codec.table_key import (
    DDL_JOB_TABLE_ID,
    INDEX,
    META_RANGE,
    RECORD,
    SYSTEM_IDS_FROM,
    table_prefix,
    table_range,
)
from tistream.errors import CorruptObject, InvalidInput
from tistream.keyrange import KeyRange, gaps
from tistream.tikv.core.ranges import joined

_TABLES = KeyRange(b"t", b"u")
_QUEUED_IDS = 1000  # a table being created at S may have an id this far below the highest
_FOLLOWED = "followed"
_PARTITIONS = ("definitions", "adding_definitions", "dropping_definitions")
_NUMBER = re.compile(rb"[0-9]{1,15}(?![0-9])")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFilter:
    """The followed tables. `excluded` and `wanted` together cover all tables; `wanted` also has the meta range."""

    names: tuple[str, ...] = ()  #: db or db.table, in lower case, sorted; empty = all
    index_keys: bool = True
    excluded: tuple[KeyRange, ...] = ()
    keyspace_id: int | None = None

    @property
    def wanted(self) -> tuple[KeyRange, ...]:
        return (META_RANGE, *gaps(_TABLES, self.excluded))


def queued_ids(jobs: Iterable[bytes]) -> frozenset[int]:
    """All possible table ids in these rows of the DDL job queue (values of mysql.tidb_ddl_job).

    Every number counts, because the place of an id depends on the job's kind and TiDB's version, and a wrong id only
    adds an empty key range."""
    ids = {int(text) for job in jobs for text in _NUMBER.findall(job)}
    return frozenset(i for i in ids if 0 < i < SYSTEM_IDS_FROM)


def filter_snapshot(
    snapshot: bytes,
    names: Sequence[str],
    index_keys: bool,
    keyspace_id: int | None = None,
    queued: Collection[int] = (),
) -> bytes:
    """The snapshot with the filter in it; unchanged when a whole cluster is followed. It keeps the tables that are not
    chosen: DDL over both kinds names them. `queued`: ids that jobs have allocated.

    InvalidInput for an unknown name."""
    asked = tuple(sorted({name.lower() for name in names}))
    if not asked and index_keys and keyspace_id is None:
        return snapshot
    schema = orjson.loads(snapshot)
    of_db = {db["id"]: db["db_name"]["L"] for db in schema["dbs"]}
    known = [(of_db[t["db_id"]], t["info"]["name"]["L"], t) for t in schema["tables"]]
    for name in asked:
        if not any(name in (db, f"{db}.{table}") for db, table, _ in known) and name not in of_db.values():
            raise InvalidInput(f"There is no database or table {name} to follow.", ts=schema["ts"])
    chosen = [
        t for db, table, t in known if not is_system_database(db) and (not asked or {db, f"{db}.{table}"} & set(asked))
    ]
    others = [t for db, _, t in known if not is_system_database(db)] if asked else []
    system = [t for db, _, t in known if is_system_database(db)]
    oldest = min((db_id for db_id, name in of_db.items() if not is_system_database(name)), default=0)
    taken = frozenset(i for i in queued if i >= oldest)
    excluded = list(_excluded(chosen, [*others, *system], oldest, taken, whole=not asked, index_keys=index_keys))
    followed = {
        "names": list(asked),
        "index_keys": index_keys,
        "left_out": [[part.start.hex(), part.end.hex()] for part in excluded],
        "keyspace_id": keyspace_id,
    }
    return orjson.dumps({**schema, _FOLLOWED: followed})


def read_table_filter(snapshot: bytes) -> TableFilter:
    """The filter of a snapshot. CorruptObject when it cannot be read."""
    try:
        followed = orjson.loads(snapshot).get(_FOLLOWED)
        if followed is None:
            return TableFilter()
        excluded = [KeyRange(bytes.fromhex(start), bytes.fromhex(end)) for start, end in followed["left_out"]]
        return TableFilter(
            names=tuple(followed["names"]),
            index_keys=bool(followed["index_keys"]),
            excluded=joined(excluded),
            keyspace_id=followed.get("keyspace_id"),
        )
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as e:
        raise CorruptObject("the table filter of a schema snapshot cannot be read", cause=repr(e)) from e


def check_table_filter(
    table_filter: TableFilter, names: Sequence[str], index_keys: bool, keyspace_id: int | None = None
) -> None:
    """InvalidInput when the request differs from the tenant's filter. The keyspace must be named each time: the same
    keys mean other rows in another keyspace."""
    if table_filter.keyspace_id != keyspace_id:
        raise InvalidInput("The tenant follows another keyspace.", followed=table_filter.keyspace_id, asked=keyspace_id)
    asked = tuple(sorted({name.lower() for name in names}))
    if (asked or not index_keys) and (asked, index_keys) != (table_filter.names, table_filter.index_keys):
        raise InvalidInput(
            "The tables of a tenant cannot be changed. Create another tenant to follow others.",
            followed=", ".join(table_filter.names) or "everything",
            index_keys=table_filter.index_keys,
        )


def _excluded(
    chosen: Sequence[dict[str, Any]],
    others: Sequence[dict[str, Any]],
    oldest: int,
    taken: frozenset[int],
    *,
    whole: bool,
    index_keys: bool,
) -> Iterator[KeyRange]:
    """The ranges, disjoint and in key order. `oldest`: the lowest id of a user database, below those of its tables.
    `taken`: ids allocated by jobs. `whole`: tables that are not chosen are followed too."""
    mine = {i for table in chosen for i in _ids(table)}
    parts: list[KeyRange] = []
    if not whole:
        theirs = {i for table in others for i in _ids(table)} - mine - {DDL_JOB_TABLE_ID}
        highest = max((i for i in mine | theirs if i < SYSTEM_IDS_FROM), default=0)
        new_from = max(highest - _QUEUED_IDS, oldest)
        if new_from:
            kept = sorted(table_range(i) for i in (mine | taken) - theirs if i < new_from)
            parts += gaps(KeyRange(b"t", table_prefix(new_from)), kept)
        parts += [table_range(i) for i in theirs if i >= new_from]
    if not index_keys:
        parts += [KeyRange(table_prefix(i) + INDEX, table_prefix(i) + RECORD) for i in mine]
    return iter(joined(parts))


def _ids(table: dict[str, Any]) -> set[int]:
    """The ids under which a table has keys: its own (also for global indexes) and those of its partitions, including
    partitions that a job is adding or removing."""
    info = table["info"]
    partition = info.get("partition") or {}
    lists = (partition.get(name) or () for name in _PARTITIONS)
    return {
        info["id"],
        *(d["id"] for definitions in lists for d in definitions),
        *(partition.get("new_partition_ids") or ()),
    }
