"""What a read as of a timestamp starts from: for each physical table a complete set of rows at or below it (pure).

Today such a set is a seed, or nothing at all for a table that was created after the log began. A compacted set of one
table at a timestamp would be a third kind: whoever reads only needs its timestamp and its rows in key order.

A seed counts if the log and the schema history reach back to it: every change since is then in the log, and every
change of a column since is known. A table for which nothing counts is refused; a part of it is never served.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from schemas.history import History
from schemas.model import Table
from tistream.catalog.seeds import SeedRow
from tistream.errors import SeedNeeded, TsExpired


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The rows of one physical table at `ts`. `seed` None: none, because it was created after the log began."""

    physical_id: int
    ts: int
    seed: SeedRow | None


def choose(history: History, table: Table, as_of: int, seeds: Sequence[SeedRow], log_start_ts: int) -> tuple[Base, ...]:
    """The newest base of each physical table. `seeds` are the tenant's, the newest first.

    TsExpired when all bases lie above `as_of`, SeedNeeded when there is none."""
    floor = max(log_start_ts, history.start_ts)
    usable = [seed for seed in seeds if floor <= seed.ts <= history.resolved_ts]
    found = []
    for physical_id in table.physical_ids:
        covering = [seed for seed in usable if _covers(history, seed, physical_id)]
        newest = next((seed for seed in covering if seed.ts <= as_of), None)
        if newest is not None:
            found.append(Base(physical_id=physical_id, ts=newest.ts, seed=newest))
        elif _created_later(history, physical_id):
            found.append(Base(physical_id=physical_id, ts=log_start_ts, seed=None))
        elif covering:
            raise TsExpired(
                f"The rows of {table.db}.{table.name} are known from {covering[-1].ts} on, not as of {as_of}.",
                earliest_ts=str(covering[-1].ts),
                database=table.db,
                table=table.name,
            )
        else:
            raise SeedNeeded(
                f"{table.db}.{table.name} is older than the log, and there is no seed of the rows that it had then.",
                database=table.db,
                table=table.name,
                table_id=table.id,
                physical_id=physical_id,
                log_start_ts=str(log_start_ts),
            )
    return tuple(found)


def _covers(history: History, seed: SeedRow, physical_id: int) -> bool:
    if seed.table_id == 0:
        return True
    then = history.table_at(physical_id, seed.ts)
    return then is not None and then.id == seed.table_id


def _created_later(history: History, physical_id: int) -> bool:
    """Whether the id became known after the history began: then all its rows are in the log."""
    starts = history.version_intervals(physical_id).starts
    return len(starts) > 0 and int(starts[0]) > history.start_ts
