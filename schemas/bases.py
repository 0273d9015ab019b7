"""What a read as of a timestamp starts from: for each physical table a complete set of rows at or below it (pure).

Such a set is a seed, a base that compaction has built (`tistream.catalog.log.bases`), or nothing at all for a table
that was created after the log began, because then all its rows are in the log. The next base starts from one as well.

- A seed or base counts if the log (from where retention lets it begin) and the schema history reach back to it: every
  change since is then in the log, and every change of a column since is known.
- The newest one counts, but a base only if no newer seed than its own lies at or below it. A seed may hold what the log
  does not, such as rows that a MODIFY COLUMN rewrote: a base that was built past it, without it, never saw that.
- A table for which nothing counts is refused; a part of it is never served.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from schemas.history import History
from schemas.model import Table
from tistream import ts as tso
from tistream.catalog.log.bases import BaseRow
from tistream.catalog.log.seeds import SeedRow
from tistream.errors import SeedNeeded, TsExpired


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The rows of one physical table at `ts`. `source` None: none, because it was created after the log began."""

    physical_id: int
    ts: int
    source: SeedRow | BaseRow | None


def choose(
    history: History,
    table: Table,
    as_of: int,
    *,
    seeds: Sequence[SeedRow],
    bases: Sequence[BaseRow],
    log_start_ts: int,
) -> tuple[Base, ...]:
    """The newest base of each physical table. `seeds` are the tenant's, `bases` at least the table's, both the newest
    first.

    TsExpired when all of them lie above `as_of`, SeedNeeded when there is none."""
    floor = max(log_start_ts, history.start_ts)
    sown = [seed for seed in seeds if floor <= seed.ts <= history.resolved_ts]
    built = [base for base in bases if floor <= base.ts <= history.resolved_ts]
    found = []
    for physical_id in table.physical_ids:
        covering = [seed for seed in sown if _covers(history, seed, physical_id)]
        mine = [base for base in built if base.table_id == physical_id]
        newest = _newest(covering, mine, as_of)
        if newest is not None:
            found.append(Base(physical_id=physical_id, ts=newest.ts, source=newest))
        elif _created_later(history, physical_id, floor):
            found.append(Base(physical_id=physical_id, ts=log_start_ts, source=None))
        elif covering or mine:
            earliest = min([seed.ts for seed in covering] + [base.ts for base in mine])
            raise TsExpired(
                f"The rows of {table.db}.{table.name} are known from {earliest} on, not as of {as_of}.",
                earliest_ts=str(earliest),
                earliest_time=tso.to_text(earliest),
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


def is_overtaken(base: BaseRow, history: History, seeds: Sequence[SeedRow]) -> bool:
    """Whether a newer seed than its own lies at or below the base: then it is never read."""
    return any(base.seed_ts < seed.ts <= base.ts and _covers(history, seed, base.table_id) for seed in seeds)


def _newest(covering: Sequence[SeedRow], mine: Sequence[BaseRow], as_of: int) -> SeedRow | BaseRow | None:
    seed = next((seed for seed in covering if seed.ts <= as_of), None)
    for base in mine:
        if base.ts <= as_of and (seed is None or base.seed_ts >= seed.ts):
            return base
    return seed


def _covers(history: History, seed: SeedRow, physical_id: int) -> bool:
    """Whether the seed has all rows that the id had at its timestamp. One of the whole tenant has those of the ids that
    a DDL was filling then, too; one of a table has those of the ids that the table read."""
    if seed.table_id == 0:
        return True
    then = history.table_at(physical_id, seed.ts)
    return then is not None and then.id == seed.table_id


def source_of(
    history: History, physical_id: int, as_of: int, *, seeds: Sequence[SeedRow], bases: Sequence[BaseRow]
) -> SeedRow | BaseRow | None:
    """What a read of this id as of a timestamp starts from, of the tenant's seeds and the id's bases that the log
    reaches back to, both the newest first."""
    return _newest([seed for seed in seeds if _covers(history, seed, physical_id)], bases, as_of)


def _created_later(history: History, physical_id: int, log_start_ts: int) -> bool:
    """Whether the id became known after the log began: then all its rows are in the log. A partition DDL copies rows
    before a table reads the id: it must have begun after the log. At the history's start, the schema says which ids
    are being filled; where retention let the log begin later, the DDL must have been asked for after that."""
    starts = history.version_intervals(physical_id).starts
    if not len(starts) or int(starts[0]) <= log_start_ts:
        return False
    if log_start_ts <= history.start_ts:
        return not history.was_filled_at_start(physical_id)
    return history.asked_for(int(starts[0])) > log_start_ts
