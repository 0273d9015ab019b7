"""Names the tables whose rows a MODIFY COLUMN has rewritten and that no seed has covered since (pure).

TiDB rewrites every row when a column gets another type, and the change feed does not carry the rewritten rows. Not all
values can be converted with certainty (`tistream.codec.row.cast`), so a pusher that seeds reads such a table again from
the cluster: just above the DDL where the cluster still has that history, else at the newest timestamp that is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from schemas.actions import Action
from schemas.bases import seeded_after
from schemas.history import History
from schemas.lineage import column_lineages, versions_of
from schemas.model import Table
from tistream.catalog.log.seeds import SeedRow

_REWRITING = (Action.MODIFY_COLUMN, Action.MULTI_SCHEMA_CHANGE)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRead:
    """A snapshot read that gives all rows of a table."""

    ts: int
    physical_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedSeed:
    """A table that needs a seed."""

    table: Table
    ddl_ts: int  #: when its newest rewritten column took effect
    reads: tuple[TableRead, ...]  #: any of them will do; the first is the best


def wanted_seeds(history: History, seeds: Sequence[SeedRow]) -> list[WantedSeed]:
    """The tables that need one, by id. `seeds`: those of the tenant."""
    upto = history.resolved_ts
    found = {}
    for event in history.events(history.start_ts, upto):
        rewritten = event.version.physical_ids if event.version is not None and event.type in _REWRITING else ()
        table = next((now for id_ in rewritten if (now := history.table_at(id_, upto)) is not None), None)
        if table is not None and table.id not in found and (wanted := _wanted(history, table, seeds)) is not None:
            found[table.id] = wanted
    return [found[table_id] for table_id in sorted(found)]


def _wanted(history: History, table: Table, seeds: Sequence[SeedRow]) -> WantedSeed | None:
    upto = history.resolved_ts
    lines = [
        line[-1].ddl_ts
        for physical_id in table.physical_ids
        for line in column_lineages(versions_of(history, physical_id, upto)).values()
    ]
    ddl_ts = max(lines, default=upto)
    if ddl_ts >= upto or seeded_after(history, table, ddl_ts, seeds) is not None:
        return None
    reads = []
    for ts in dict.fromkeys((ddl_ts + 1, upto)):
        then = next((t for i in table.physical_ids if (t := history.table_at(i, ts)) is not None), None)
        if then is not None and then.id == table.id:
            reads.append(TableRead(ts=ts, physical_ids=then.physical_ids))
    return WantedSeed(table=table, ddl_ts=ddl_ts, reads=tuple(reads))
