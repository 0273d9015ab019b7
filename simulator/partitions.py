"""Where the rows of a modelled table lie: what TiDB reads and writes for each state of a partition DDL.

A TableInfo of any schema version says it alone, by `definitions`, `adding_definitions`, `dropping_definitions`,
`ddl_action` and `ddl_state` of its partition:

    readable      the physical ids that hold the table's rows for who reads with this version
    physical_id   the id that a session of this version reads and writes for a handle; None: TiDB refuses the write
    copy_of       the id to which the session writes the same change a second time, during a reorganisation

Relations:

- definitions are what sessions read, but for DROP PARTITION in WRITE_ONLY: there they still contain the dropped ones,
  which no session reads or writes any more;
- a reorganisation copies from `dropping_definitions` to `adding_definitions` while it reads the old ones, and the other
  way round once it reads the new ones, for the sessions of the version before;
- rows are placed by their handle: RANGE by bounds, LIST by the handle's bucket, HASH and KEY by the number of
  partitions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Any

HANDLES = 100  #: of a bucket: those of a RANGE partition as the workload makes it, and those with one LIST value

Json = dict[str, Any]


class Scheme(IntEnum):
    """How rows are dealt out to partitions, by TiDB's numbers."""

    NONE = 0  #: one partition, during a reorganisation from or to a table without partitions
    RANGE = 1
    HASH = 2
    LIST = 3
    KEY = 4


class SchemaState(IntEnum):
    """How far a job has come, by TiDB's numbers."""

    NONE = 0
    DELETE_ONLY = 1
    WRITE_ONLY = 2
    WRITE_REORGANIZATION = 3
    DELETE_REORGANIZATION = 4
    PUBLIC = 5
    REPLICA_ONLY = 6


class Action(IntEnum):
    """Types of DDL jobs, by TiDB's numbers."""

    TRUNCATE_TABLE = 11
    ADD_PARTITION = 19
    DROP_PARTITION = 20
    TRUNCATE_PARTITION = 23
    EXCHANGE_PARTITION = 42
    REORGANIZE_PARTITION = 64  #: also ADD and COALESCE PARTITION of HASH and KEY
    PARTITION_BY = 71
    REMOVE_PARTITIONING = 72


REORGANISES = frozenset({Action.REORGANIZE_PARTITION, Action.PARTITION_BY, Action.REMOVE_PARTITIONING})
_READS_NEW = frozenset({SchemaState.DELETE_REORGANIZATION, SchemaState.PUBLIC})
_ONLY_DELETES = frozenset({SchemaState.DELETE_ONLY, SchemaState.PUBLIC})
_EXPRESSIONS = {Scheme.NONE: "", Scheme.LIST: f"`id` div {HANDLES}"}
MAXVALUE = "MAXVALUE"


def definition(part_id: int, name: str, *, below: int | str | None = None, values: Sequence[int] = ()) -> Json:
    """A PartitionDefinition. `below` of RANGE, `values` (numbers of buckets) of LIST."""
    return {
        "id": part_id,
        "name": {"O": name, "L": name.lower()},
        "less_than": None if below is None else [str(below)],
        "in_values": [[str(v)] for v in values],
        "policy_ref_info": None,
    }


def partition_info(scheme: Scheme, definitions: list[Json]) -> Json:
    """A PartitionInfo while no DDL runs."""
    return {
        "type": int(scheme),
        "expr": _EXPRESSIONS.get(scheme, "`id`"),
        "columns": None,
        "enable": True,
        "is_empty_columns": False,
        "definitions": definitions,
        "adding_definitions": None,
        "dropping_definitions": None,
        "states": None,
        "num": len(definitions),
        "ddl_state": 0,
    }


def readable(info: Json) -> list[int]:
    """The physical ids that hold the table's rows for readers of this version."""
    part = info["partition"]
    if not part:
        return [int(info["id"])]
    gone = _dropped(part)
    return [int(d["id"]) for d in part["definitions"] if d["id"] not in gone]


def physical_id(info: Json, handle: int) -> int | None:
    """Where a session of this version reads and writes a handle; None where no partition takes it."""
    part = info["partition"]
    if not part:
        return int(info["id"])
    at = located(Scheme(part["type"]), part["definitions"], handle)
    if at is None:
        return None
    id_ = int(part["definitions"][at]["id"])
    return None if id_ in _dropped(part) else id_


def copy_of(info: Json, handle: int) -> tuple[int, bool] | None:
    """(the id to which a session of this version writes the change of a handle once more, whether it only deletes
    there); None when it writes it once."""
    part = info["partition"]
    if not part or part.get("ddl_action", 0) not in REORGANISES:
        return None
    state, mine = SchemaState(part["ddl_state"]), physical_id(info, handle)
    to_new = state not in _READS_NEW
    here, there = ("dropping_definitions", "adding_definitions")[:: 1 if to_new else -1]
    if mine not in {d["id"] for d in part[here]}:
        return None
    scheme = Scheme(part.get("ddl_type", 0))  # of the other side: the one to come, then the one before
    at = located(scheme, part[there], handle)
    return None if at is None else (int(part[there][at]["id"]), state in _ONLY_DELETES)


def located(scheme: Scheme, definitions: Sequence[Json], handle: int) -> int | None:
    """The place of the partition that takes a handle."""
    match scheme:
        case Scheme.NONE:
            return 0
        case Scheme.HASH:
            return handle % len(definitions)
        case Scheme.KEY:
            return (7 * handle + 3) % len(definitions)
        case Scheme.LIST:
            wanted = [str(handle // HANDLES)]
            return next((n for n, d in enumerate(definitions) if wanted in d["in_values"]), None)
    bounds = [d["less_than"][0] for d in definitions]
    return next((n for n, b in enumerate(bounds) if b == MAXVALUE or handle < int(b)), None)


def handles(info: Json, rows: int) -> list[int]:
    """The handles of a table that the workload uses: the first `rows` of each bucket, or fewer if it has fewer."""
    part = info["partition"]
    if not part:
        return list(range(rows))
    scheme = Scheme(part["type"])
    if scheme in (Scheme.RANGE, Scheme.LIST):
        return [HANDLES * b + n for b in buckets(scheme, part["definitions"]) for n in range(min(rows, HANDLES))]
    return list(range(rows if scheme is Scheme.NONE else 2 * rows))


def buckets(scheme: Scheme, definitions: Sequence[Json]) -> Iterator[int]:
    """The buckets of RANGE or LIST partitions, each with its handles as the workload uses them."""
    if scheme is Scheme.LIST:
        yield from (int(value) for d in definitions for (value,) in d["in_values"])
        return
    low = 0
    for d in definitions:
        bound = d["less_than"][0]
        high = low + 1 if bound == MAXVALUE else int(bound) // HANDLES
        yield from range(low, high)
        low = high


def _dropped(part: Json) -> set[int]:
    """The definitions that neither reads nor writes use."""
    if part.get("ddl_action", 0) != Action.DROP_PARTITION or part["ddl_state"] != SchemaState.WRITE_ONLY:
        return set()
    return {d["id"] for d in part["dropping_definitions"] or ()}
