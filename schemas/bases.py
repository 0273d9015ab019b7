"""Chooses where a read as of a timestamp starts: for each physical table, a complete set of rows at or below it (pure).

Such a set is a seed, a base built by compaction (`tistream.catalog.log.bases`), or empty for an id that a DDL allocated
after the log began, because then all its rows are in the log. Building the next base starts from one as well.

- A seed or base is usable if the log (above retention's floor) and the schema history reach back to it: every later
  change of a row and of a column is then known.
- The newest usable one is chosen, but a base only if no seed newer than its own lies at or below it. A seed may hold
  what the log does not, such as rows rewritten by MODIFY COLUMN, and a base built without it lacks them.
- A DDL may also make an id known that is older: RECOVER and FLASHBACK of what was dropped before the start, a RENAME
  out of `mysql`, a restore. The log lacks its older rows, and so does a seed from before: it holds the ids that were
  read then.
- After FLASHBACK CLUSTER, and while TiDB imports into a table, only a later set counts: no feed carries those rows.
- A table with a physical id that has none, or that the tenant does not follow, is refused as a whole.

A tenant without tables has one set for all its keys (`of_range`), which only compaction builds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from schemas.history import History
from schemas.model import Table
from tistream import ts as tso
from tistream.catalog.rows.bases import KEY_RANGE, BaseRow
from tistream.catalog.rows.seeds import SeedRow
from tistream.errors import SeedNeeded, TsExpired


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The rows of one physical table at `ts`. `source` None: no rows, it was created after the log began."""

    physical_id: int  #: or KEY_RANGE
    ts: int
    source: SeedRow | BaseRow | None


def choose(
    history: History, table: Table, as_of: int, *, seeds: Sequence[SeedRow], bases: Sequence[BaseRow], log_start_ts: int
) -> tuple[Base, ...]:
    """The newest base of each physical table. `seeds` are the tenant's, `bases` include the table's, both newest first.

    TsExpired when all of them lie above `as_of`, SeedNeeded when there is none, or one is needed at or above a change
    that the feed does not carry."""
    log_floor = max(log_start_ts, history.start_ts)
    chosen = []
    for physical_id in table.physical_ids:
        if not history.is_followed(physical_id):
            raise _not_followed(table, physical_id)
        past_feed = unlogged(history, physical_id, as_of)
        floor = log_floor if past_feed is None else max(log_floor, past_feed.upto_ts)
        sown = [seed for seed in seeds if floor <= seed.ts <= history.resolved_ts]
        built = [base for base in bases if floor <= base.ts <= history.resolved_ts]
        covering = [seed for seed in sown if _covers(history, seed, physical_id)]
        mine = [base for base in built if base.table_id == physical_id]
        newest = _newest(covering, mine, as_of)
        if newest is not None:
            chosen.append(Base(physical_id=physical_id, ts=newest.ts, source=newest))
        elif past_feed is None and is_whole_in_log(history, physical_id, log_floor):
            chosen.append(Base(physical_id=physical_id, ts=log_start_ts, source=None))
        elif covering or mine:
            earliest = min([seed.ts for seed in covering] + [base.ts for base in mine])
            raise TsExpired(
                f"The rows of {table.db}.{table.name} are known from {tso.described(earliest)} on, not as of "
                f"{tso.described(as_of)}.",
                earliest_ts=str(earliest),
                earliest_time=tso.to_text(earliest),
                database=table.db,
                table=table.name,
            )
        elif past_feed is not None:
            raise _seed_after(table, physical_id, past_feed)
        else:
            said = f"{table.db}.{table.name} is older than the log, and there is no seed of its older rows: add one."
            raise _seed_needed(said, table, physical_id, log_start_ts=str(log_start_ts))
    return tuple(chosen)


def of_range(bases: Sequence[BaseRow], as_of: int, *, start_ts: int, floor_ts: int) -> Base:
    """The start of a read of a tenant without tables: its newest base at or below `as_of`, else the start of its log if
    nothing of that was deleted. `bases` are the tenant's, in any order.

    TsExpired when there is neither."""
    usable = [base for base in bases if base.ts >= max(start_ts, floor_ts)]
    newest = max((base for base in usable if base.ts <= as_of), key=lambda base: base.ts, default=None)
    if newest is not None:
        return Base(physical_id=KEY_RANGE, ts=newest.ts, source=newest)
    if floor_ts <= start_ts <= as_of:
        return Base(physical_id=KEY_RANGE, ts=start_ts, source=None)
    earliest = min((base.ts for base in usable), default=max(start_ts, floor_ts))
    raise TsExpired(
        f"The keys of this tenant are known from {tso.described(earliest)} on, not as of {tso.described(as_of)}.",
        earliest_ts=str(earliest),
        earliest_time=tso.to_text(earliest),
    )


def is_overtaken(base: BaseRow, history: History, seeds: Sequence[SeedRow]) -> bool:
    """Whether a seed newer than its own lies at or below the base, which is then never read."""
    return any(base.seed_ts < seed.ts <= base.ts and _covers(history, seed, base.table_id) for seed in seeds)


def _newest(covering: Sequence[SeedRow], mine: Sequence[BaseRow], as_of: int) -> SeedRow | BaseRow | None:
    seed = next((seed for seed in covering if seed.ts <= as_of), None)
    for base in mine:
        if base.ts <= as_of and (seed is None or base.seed_ts >= seed.ts):
            return base
    return seed


def _covers(history: History, seed: SeedRow, physical_id: int) -> bool:
    """Whether the seed has all rows of the id at its timestamp: some table read it then. A tenant's seed includes ids
    that a DDL was filling then, a table's seed only ids that the table read."""
    if not (history.start_ts <= seed.ts <= history.resolved_ts and history.is_followed(physical_id)):
        return False
    then = history.table_at(physical_id, seed.ts)
    if seed.table_id == 0:
        return then is not None or history.was_named_at(physical_id, seed.ts)
    return then is not None and then.id == seed.table_id


def seeded_after(history: History, table: Table, as_of: int, seeds: Sequence[SeedRow]) -> int | None:
    """The first timestamp above `as_of` for which seeds hold all rows of the table; None when there is none."""
    later = sorted(seed.ts for seed in seeds if as_of < seed.ts <= history.resolved_ts)
    for ts in later:
        there = [seed for seed in seeds if seed.ts == ts]
        if all(any(_covers(history, seed, id_) for seed in there) for id_ in table.physical_ids):
            return ts
    return None


def source_of(
    history: History, physical_id: int, as_of: int, *, seeds: Sequence[SeedRow], bases: Sequence[BaseRow]
) -> SeedRow | BaseRow | None:
    """The start of a read of this id as of a timestamp, from usable seeds and bases, both newest first."""
    return _newest([seed for seed in seeds if _covers(history, seed, physical_id)], bases, as_of)


def is_whole_in_log(history: History, physical_id: int, log_start_ts: int) -> bool:
    """Whether all rows of the id are in the log: it is followed, and a DDL allocated it after the log began. A
    partition DDL copies rows before a table reads the id, so the DDL, too, must have begun after the log: at the
    history's start, the schema lists the ids being filled; with a later floor, the DDL must have been requested above
    it."""
    starts = history.version_intervals(physical_id).starts
    if not len(starts) or int(starts[0]) <= log_start_ts:
        return False
    if history.is_older(physical_id) or not history.is_followed(physical_id):
        return False
    if log_start_ts <= history.start_ts:
        return not history.was_named_at(physical_id, history.start_ts)
    return history.requested_at(int(starts[0])) > log_start_ts


@dataclass(frozen=True, slots=True, kw_only=True)
class Unlogged:
    """An interval in which rows change that no change feed carries."""

    why: str
    from_ts: int
    upto_ts: int  #: a read as of `from_ts` or later needs a seed or a base at or above this


def unlogged(history: History, physical_id: int, as_of: int) -> Unlogged | None:
    """The newest such interval of an id that begins at or below `as_of`."""
    tables = []
    change = history.unlogged(as_of)
    if change is not None:
        tables.append(Unlogged(why=change.unlogged, from_ts=change.created_ts, upto_ts=change.commit_ts))
    versions = history.version_intervals(physical_id)
    ends = [*versions.starts[1:].tolist(), history.resolved_ts + 1]
    for start, end, table in zip(versions.starts.tolist(), ends, versions.versions, strict=False):
        if table is not None and table.mode and start <= as_of:
            tables.append(Unlogged(why=f"TiDB's {table.mode}", from_ts=start, upto_ts=end))
    return max(tables, key=lambda each: each.upto_ts, default=None)


def _seed_needed(said: str, table: Table, physical_id: int, **facts: object) -> SeedNeeded:
    names = {"database": table.db, "table": table.name, "table_id": table.id}
    return SeedNeeded(said, **names, physical_id=physical_id, **facts)


def _not_followed(table: Table, physical_id: int) -> SeedNeeded:
    error = _seed_needed(f"This tenant does not follow all of {table.db}.{table.name}.", table, physical_id)
    error.hint = "It was started with --table or --database. Create another tenant to follow other tables."
    return error


def _seed_after(table: Table, physical_id: int, past_feed: Unlogged) -> SeedNeeded:
    error = _seed_needed(
        f"{past_feed.why} has changed rows of {table.db}.{table.name} that no change feed carries: a seed of them is "
        f"needed at or after {tso.described(past_feed.upto_ts)}.",
        table,
        physical_id,
        unlogged_from_ts=str(past_feed.from_ts),
        seed_from_ts=str(past_feed.upto_ts),
    )
    error.hint = "Add a seed of the table at or after seed_from_ts with tistream seed, or read below unlogged_from_ts."
    return error
