"""Which physical ids a tenant follows, if not all, and what its DDL means to those who see only these (pure).

A pusher that was started with `--table` or `--database` sends no rows of the other tables. Their definitions are kept
all the same: a RENAME or an EXCHANGE PARTITION names them, and what one of their names means must be known. A
table is *shown* while at least one of its physical ids is followed. The DDL of the tables that are shown:

    of a table that is not shown, before or after     no event
    the first followed id of a table                  CREATE TABLE; rows that it had before are not in the log
    the last one is gone                              DROP TABLE
    EXCHANGE PARTITION with an id that is not followed
        leaves a partition that was followed          TRUNCATE PARTITION

The exclusion is by id and never changes (see `pusher.core.table_filter`), so the status of a table follows from its
definition alone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import replace

from schemas import queries
from schemas.actions import Action
from schemas.ddl import Change, SchemaState
from schemas.events import created, dropped, of_table
from schemas.model import DdlEvent, Table
from tistream.codec.table_key import record_range
from tistream.keyrange import KeyRange

_CREATES = frozenset(
    {Action.CREATE_TABLE, Action.CREATE_TABLES, Action.CREATE_VIEW, Action.CREATE_SEQUENCE, Action.RECOVER_TABLE}
)
_DROPS = frozenset({Action.DROP_TABLE, Action.DROP_VIEW, Action.DROP_SEQUENCE})


class Followed:
    """The physical ids whose rows reach the log. Immutable."""

    def __init__(self, left_out: Iterable[KeyRange] = ()) -> None:
        """`left_out`: the key ranges that the tenant does not follow."""
        self.left_out = tuple(sorted(left_out))
        self._starts = [part.start for part in self.left_out]

    def has(self, physical_id: int) -> bool:
        """Whether the records under this id are followed."""
        if not self.left_out:
            return True
        records = record_range(physical_id)
        place = bisect_right(self._starts, records.start) - 1
        return place < 0 or records.start not in self.left_out[place]

    def shows(self, table: Table) -> bool:
        """Whether some of its ids are followed. Those of a view and a sequence are their own."""
        return not self.left_out or any(self.has(i) for i in table.physical_ids)

    def shown(self, table: Table | None) -> Table | None:
        return table if table is not None and self.shows(table) else None

    def delivered(self, change: Change, state: SchemaState) -> Change:
        """The change with the events that are delivered. `state`: the schema before it."""
        if not self.left_out or not change.events:
            return change
        events = [event for given in change.events for event in self._events(given, change, state)]
        return replace(change, events=tuple(events))

    def _events(self, event: DdlEvent, change: Change, state: SchemaState) -> Iterator[DdlEvent]:
        table = event.version
        if table is None:
            yield event
        elif event.exchanged is not None:
            yield from self._exchange(event, table, event.exchanged, state)
        elif event.type in _CREATES or event.type in _DROPS:
            if self.shows(table):
                yield event
        else:
            before = state.table(table.id) or state.named(table.db, table.name)
            yield from self._one(event, before or table, table, change, state)

    def _one(
        self, event: DdlEvent, before: Table, after: Table, change: Change, state: SchemaState
    ) -> Iterator[DdlEvent]:
        match self.shows(before), self.shows(after):
            case True, True:
                yield event
            case True, False:
                yield dropped(event, before)
            case False, True:
                databases = {**state.databases, **{db.id: db for db in change.put_databases}}
                yield created(event, after, databases[after.db_id])

    def _exchange(self, event: DdlEvent, partitioned: Table, plain: Table, state: SchemaState) -> Iterator[DdlEvent]:
        """`partitioned` is the table after the exchange, `plain` the other one before it."""
        before = state.table(partitioned.id) or partitioned
        given_up = next(iter(set(before.partition_ids) - set(partitioned.partition_ids)), plain.id)
        leaves, comes = self.has(given_up), self.has(plain.id)
        if leaves == comes:
            if leaves:
                yield event
            return
        if comes:
            yield dropped(event, plain)
            if not self.shows(before):
                yield replace(created(event, partitioned, state.databases[partitioned.db_id]), sub=event.sub + 1)
            return
        if self.shows(partitioned):
            yield _emptied(event, partitioned, before.partition_names[before.partition_ids.index(given_up)])
        else:
            yield dropped(event, before)
        swapped = replace(plain, id=given_up)
        yield replace(created(event, swapped, state.databases[plain.db_id]), sub=event.sub + 1)


def _emptied(event: DdlEvent, table: Table, partition: str) -> DdlEvent:
    query = queries.truncate_partition(table.db, table.name, partition)
    return of_table(event, table, Action.TRUNCATE_PARTITION, query)
