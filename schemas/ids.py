"""Why rows of a physical id are not delivered: the status of ids that no table reads (pure).

Ids are allocated in ascending order and never reused. So an id above all those that the start of a history knew belongs
to something defined later, and the meta range names it before any row is written under it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

_RESERVED_FROM = (1 << 48) - 1001  # TiDB gives its own tables fixed ids up to 2^48 - 1
SYSTEM = 0  #: the table of ids that belong to TiDB itself


class IdStatus(StrEnum):
    """The status of a physical id at a timestamp."""

    LIVE = "live"  #: a table reads it
    RETIRED = "retired"  #: a table read it once: dropped, truncated, replaced or exchanged away
    COPY = "copy"  #: a partition DDL fills it with copies of rows until it takes effect
    SYSTEM = "system"  #: of one of TiDB's own tables
    OLDER = "older"  #: gone before the history begins
    UNNAMED = "unnamed"  #: no definition names it, though it is younger than the history


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedIds:
    """Ids that definitions name without reading them. Immutable."""

    table_of: Mapping[int, int] = field(default_factory=dict)  #: physical id -> the table that names it, or SYSTEM
    highest: int = 0  #: of all ids that the start of the history knew

    @classmethod
    def at_start(cls, table_of: Mapping[int, int], read: Iterable[int]) -> NamedIds:
        """The ids named at the start of a history; `read` are all ids of databases, tables and partitions."""
        return cls(table_of=table_of, highest=max(filter(_is_given_out, (*read, *table_of)), default=0))

    def with_names(self, names: Iterable[tuple[int, int]]) -> NamedIds:
        """The same with more (physical id, table id)."""
        more = dict(names)
        if not more:
            return self
        return NamedIds(table_of=MappingProxyType({**self.table_of, **more}), highest=self.highest)

    def raised(self, known: Iterable[int]) -> NamedIds:
        """For a history that begins later, when these ids were known."""
        return NamedIds(
            table_of=self.table_of, highest=max(filter(_is_given_out, (self.highest, *known, *self.table_of)))
        )

    def status(self, physical_id: int) -> IdStatus:
        """The status of an id that no table has read yet."""
        table_id = self.table_of.get(physical_id)
        if table_id == SYSTEM or not _is_given_out(physical_id):
            return IdStatus.SYSTEM
        if table_id is not None:
            return IdStatus.COPY
        return IdStatus.OLDER if physical_id <= self.highest else IdStatus.UNNAMED


def _is_given_out(physical_id: int) -> bool:
    return physical_id < _RESERVED_FROM
