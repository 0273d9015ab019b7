"""Names the tables whose rows a MODIFY COLUMN has rewritten and that no seed has covered since (pure).

TiDB rewrites every row when a column gets another type, and the change feed does not carry the rewritten rows. Not all
values can be converted with certainty (`tistream.codec.row.cast`), so a pusher that seeds reads such a table again from
the cluster: just above the DDL where the cluster still has that history, else at the newest timestamp that is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from schemas.actions import Action
from schemas.bases import seeded_after
from schemas.history import History
from schemas.lineage import column_lineages, versions_of
from schemas.model import Table
from tistream.catalog.rows.bases import BaseRow
from tistream.catalog.rows.seeds import SeedRow

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


def wanted_seeds(
    history: History,
    seeds: Sequence[SeedRow],
    bases_of: Callable[[Sequence[int]], Sequence[BaseRow]] = lambda _: (),
) -> list[WantedSeed]:
    """The tables that need one, by id. `seeds`: those of the tenant; `bases_of` physical ids: theirs, which have the
    rows of seeds that retention has deleted."""
    upto = history.resolved_ts
    seeds_by_table = {}
    for event in history.events(history.start_ts, upto):
        rewritten = event.version.physical_ids if event.version is not None and event.type in _REWRITING else ()
        table = next((now for id_ in rewritten if (now := history.table_at(id_, upto)) is not None), None)
        if (
            table is not None
            and table.id not in seeds_by_table
            and (wanted := _wanted(history, table, seeds)) is not None
        ):
            seeds_by_table[table.id] = wanted
    bases = bases_of([i for each in seeds_by_table.values() for i in each.table.physical_ids]) if seeds_by_table else ()
    newest = {i: max(b.seed_ts for b in bases if b.table_id == i) for i in {base.table_id for base in bases}}
    return [
        each
        for _, each in sorted(seeds_by_table.items())
        if not all(newest.get(i, 0) > each.ddl_ts for i in each.table.physical_ids)
    ]


def _wanted(history: History, table: Table, seeds: Sequence[SeedRow]) -> WantedSeed | None:
    upto = history.resolved_ts
    if not all(map(history.is_followed, table.physical_ids)):  # no seed would make it readable for longer
        return None
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
