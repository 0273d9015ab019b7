"""Which physical ids the definition of a table reads, and which others it names.

While a DDL of partitions runs, a definition (TableInfo) holds more than the partitions in use:

    definitions             what sessions of this version read and write, but for those that a DROP PARTITION blocks
    adding_definitions      what a reorganisation or ADD PARTITION fills; not read before it is among `definitions`
    new_partition_ids       the same for TRUNCATE PARTITION, as bare ids
    dropping_definitions    what is on its way out; a reorganisation still copies writes into it

A DROP PARTITION begins with a version in which the dropped partitions are still among `definitions`, but sessions
neither read nor write them. docs/schemas.md says why. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_DROP_PARTITION = 20
_STATE_WRITE_ONLY = 2
_NEW_IDS = ("new_partition_ids", "NewPartitionIDs")


def read_definitions(partition: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The partitions that sessions of this version read, in their order; none when the table has no partitions."""
    if not partition.get("enable", True):
        return ()
    definitions: Sequence[Mapping[str, Any]] = partition.get("definitions") or ()
    if (partition.get("ddl_action"), partition.get("ddl_state")) != (_DROP_PARTITION, _STATE_WRITE_ONLY):
        return definitions
    blocked = {int(d["id"]) for d in partition.get("dropping_definitions") or ()}
    return [d for d in definitions if int(d["id"]) not in blocked]


def read_ids(info: Mapping[str, Any]) -> tuple[int, ...]:
    """The physical ids that sessions of this version of a table read."""
    return tuple(int(d["id"]) for d in read_definitions(info.get("partition") or {})) or (int(info["id"]),)


def named_ids(info: Mapping[str, Any]) -> set[int]:
    """Every physical id that the definition of a table names: those it reads, and those of a DDL under way."""
    return {*read_ids(info), *_of_running_ddl(info.get("partition") or {})}


def _of_running_ddl(partition: Mapping[str, Any]) -> Iterator[int]:
    for part in ("adding_definitions", "dropping_definitions"):
        yield from (int(d["id"]) for d in partition.get(part) or ())
    for name in _NEW_IDS:
        yield from map(int, partition.get(name) or ())
