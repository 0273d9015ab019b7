"""What reads as of a timestamp still need of the log, and how far its floor may advance (pure).

A read of a table as of a timestamp needs the seed or base that `schemas.bases` chooses, and the log above it. So for
every table that exists at the oldest timestamp to stay readable, the log is needed above its seed or base, or above its
creation if it has none and all its rows are in the log. A table that cannot be read there needs nothing.

A physical id becomes known at its DDL's commit, but some of its rows may be older, because a partition DDL copies rows
while it runs. If the log began in between, the id would seem younger than the log and rows would be missing. So a floor
never lies in a `Birth`, the time from the user's request of the DDL to its commit. A DDL that runs longer than the
retention is known too late for that; `schemas.bases` refuses its ids until there is a seed of them.

Schema histories are kept whole: a row in a base may be older than the base, and have a much older version.

A tenant without tables has one base for all its keys, and its floor is always at one (or at its start): so its keys can
be read as of every moment from the floor on, whatever holds the floor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from schemas.bases import is_whole_in_log, source_of
from schemas.history import History
from tistream.catalog.log.retention import Hold, HoldKind
from tistream.catalog.rows.bases import BaseRow
from tistream.catalog.rows.seeds import SeedRow

_BUILDS = "the maintenance scheduler builds it when it is due, tistream compact at once"
_FIRST_BASE = f"its first base, because all its rows are in the log since its CREATE: {_BUILDS}"
_NEWER_BASE = f"a newer base of it: {_BUILDS}"
_DDL_END = "the retention passes the end of the DDL that created it, whose rows may be older"


@dataclass(frozen=True, slots=True, kw_only=True)
class Birth:
    """Rows of a physical id may lie in (from_ts, born_ts], below the DDL that made it known."""

    physical_id: int
    from_ts: int
    born_ts: int
    table: str

    def hold(self, release: str) -> Hold:
        """The log is kept from the request of the DDL on."""
        return _table_hold(self.from_ts, self.table, self.physical_id, release)


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """Where the log may begin, and what keeps it from beginning higher."""

    ts: int
    held_by: Hold | None


def births(history: History, earliest_ts: int) -> dict[int, Birth]:
    """By physical id, of those that became known above `earliest_ts`."""
    births_by_id: dict[int, Birth] = {}
    for change in history.changes(earliest_ts):
        requested = history.requested_at(change.commit_ts)
        for table in change.put_tables:
            if table.kind != "table":
                continue
            for physical_id in table.physical_ids:
                starts = history.version_intervals(physical_id).starts
                if len(starts) and int(starts[0]) == change.commit_ts:
                    births_by_id[physical_id] = Birth(
                        physical_id=physical_id,
                        from_ts=max(earliest_ts, requested - 1),
                        born_ts=change.commit_ts,
                        table=f"{table.db}.{table.name}",
                    )
    return births_by_id


def needs_of_reads(
    history: History,
    at_ts: int,
    *,
    earliest_ts: int,
    seeds: Sequence[SeedRow],
    bases: Sequence[BaseRow],
    born: Mapping[int, Birth],
) -> Iterator[Hold]:
    """What each table needs to be readable as of `at_ts` and later. `seeds` and `bases` are the tenant's, newest first;
    the log begins at `earliest_ts`."""
    sown = [seed for seed in seeds if seed.ts >= earliest_ts]
    of_table: dict[int, list[BaseRow]] = {}
    for base in bases:
        if base.ts >= earliest_ts:
            of_table.setdefault(base.table_id, []).append(base)
    for table in history.snapshot(at_ts).tables.values():
        if table.kind != "table" or not all(map(history.is_followed, table.physical_ids)):
            continue
        for physical_id in table.physical_ids:
            source = source_of(history, physical_id, at_ts, seeds=sown, bases=of_table.get(physical_id, []))
            if source is not None:
                yield _table_hold(source.ts, f"{table.db}.{table.name}", physical_id, _NEWER_BASE)
            elif physical_id in born and is_whole_in_log(history, physical_id, earliest_ts):
                yield born[physical_id].hold(_FIRST_BASE)


def lowest_floor(wanted_ts: int, holds: Sequence[Hold], born: Mapping[int, Birth]) -> Floor:
    """The highest permitted floor at or below `wanted_ts`."""
    lowest = min(holds, key=lambda hold: hold.ts, default=None)
    floor = Floor(ts=wanted_ts, held_by=None)
    if lowest is not None and lowest.ts < wanted_ts:
        floor = Floor(ts=lowest.ts, held_by=lowest)
    while True:
        inside = [birth for birth in born.values() if birth.from_ts < floor.ts < birth.born_ts]
        if not inside:
            return floor
        first = min(inside, key=lambda birth: birth.from_ts)
        floor = Floor(ts=first.from_ts, held_by=first.hold(_DDL_END))


def floor_of_keys(wanted_ts: int, holds: Sequence[Hold], *, earliest_ts: int, bases: Sequence[BaseRow]) -> Floor:
    """The floor of a tenant without tables: its newest base at or below `wanted_ts` and the holds, else `earliest_ts`.
    The base itself is what holds it if no newer one is there to follow."""
    lowest = min((hold for hold in holds if hold.ts < wanted_ts), key=lambda hold: hold.ts, default=None)
    at = wanted_ts if lowest is None else lowest.ts
    ts = max((base.ts for base in bases if earliest_ts < base.ts <= at), default=earliest_ts)
    if lowest is None and ts < wanted_ts and not any(base.ts > ts for base in bases):
        lowest = need_of_keys(earliest_ts=earliest_ts, bases=bases)
    return Floor(ts=ts, held_by=lowest)


def need_of_keys(*, earliest_ts: int, bases: Sequence[BaseRow]) -> Hold:
    """What reads as of the newest moments need of the log of a tenant without tables."""
    ts = max((base.ts for base in bases), default=earliest_ts)
    release = f"the next base of all keys: {_BUILDS}"
    return Hold(ts=max(ts, earliest_ts), kind=HoldKind.KEYS, name="keys", who="the base of the keys", release=release)


def _table_hold(ts: int, table: str, physical_id: int, release: str) -> Hold:
    who = f"table {table} (physical id {physical_id})"
    return Hold(ts=ts, kind=HoldKind.TABLE, name=table, who=who, release=release)
