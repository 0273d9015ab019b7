"""The physical ids that a table definition reads, and the others that it names (pure).

While a DDL of partitions runs, a definition (TableInfo) holds more than the partitions in use:

    definitions             what sessions of this version read and write, except those that a DROP PARTITION blocks
    adding_definitions      what a reorganisation or ADD PARTITION fills; not read before it is among `definitions`
    new_partition_ids       the same for TRUNCATE PARTITION, as bare ids
    dropping_definitions    being removed; a reorganisation still copies writes into them

A DROP PARTITION begins with a version in which the dropped partitions are still among `definitions`, but sessions
neither read nor write them. See docs/schemas.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from schemas import fields

_DROP_PARTITION = 20
_STATE_WRITE_ONLY = 2
_NEW_IDS = ("new_partition_ids", "NewPartitionIDs")


def read_definitions(partition: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The partitions that sessions of this version read, in their order; none when the table has no partitions."""
    if not fields.flag(partition, "enable", missing=True):
        return ()
    definitions = fields.mappings(partition, "definitions")
    if (partition.get("ddl_action"), partition.get("ddl_state")) != (_DROP_PARTITION, _STATE_WRITE_ONLY):
        return definitions
    blocked = set(_ids(partition, "dropping_definitions"))
    return [d for d in definitions if _id(d) not in blocked]


def read_ids(info: Mapping[str, Any]) -> tuple[int, ...]:
    """The physical ids that sessions of this version of a table read."""
    read = read_definitions(fields.mapping(info, "partition"))
    return tuple(_id(d) for d in read) or (_id(info),)


def named_ids(info: Mapping[str, Any]) -> set[int]:
    """Every physical id that the definition of a table names: those it reads, and those of a DDL under way."""
    return {*read_ids(info), *_of_running_ddl(fields.mapping(info, "partition"))}


def _of_running_ddl(partition: Mapping[str, Any]) -> Iterator[int]:
    for part in ("adding_definitions", "dropping_definitions"):
        yield from _ids(partition, part)
    for name in _NEW_IDS:
        yield from fields.integers(partition, name)


def _ids(partition: Mapping[str, Any], name: str) -> list[int]:
    return [_id(definition) for definition in fields.mappings(partition, name)]


def _id(definition: Mapping[str, Any]) -> int:
    return fields.integer(definition, "id", least=1, needed=True)
