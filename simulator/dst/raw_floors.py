"""Gives up the log of a RawKV tenant from its old end, faster than retention does, and judges what is left.

each round    a base of the keys, sometimes a floor at one of the bases, files below it deleted; the compactors
              collect what is at or below the floor
at rest       from the floor on, every key as of every moment is what its store had, unless a marked row leaves that
              open
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from compactor.base_job import BaseSettings, build_tenant_bases
from compactor.core.base_plan import BasePlanSettings
from compactor.local import LocalExecutor
from reading.log.reader import LogReader
from schemas.bases import Base, of_range
from schemas.registry.log_start import holds_of
from schemas.registry.retention import floor_of_keys
from schemas.registry.schema_registry import SchemaRegistry
from simulator.dst.database import SimCatalog
from simulator.dst.replication import Replication
from simulator.dst.running import TENANT, Running
from simulator.raw_workload import RawRow
from tistream import ts as tso
from tistream.catalog.log.bases import base_segments_of, list_bases
from tistream.catalog.log.retention import raise_floor, retire_below_floor
from tistream.catalog.rows.bases import KEY_RANGE, BaseRow
from tistream.catalog.tenancy.tenants import get_tenant
from tistream.codec.newest import KEY_VERSION
from tistream.errors import ErrorKind, TiStreamError, TsExpired
from tistream.log.table_rows import base_rows
from tistream.model.change import FLAG_SCANNED
from tistream.objectstore.protocol import ObjectStore

if TYPE_CHECKING:
    from simulator.dst.world import World

_WHAT_MAY_HAPPEN = (ErrorKind.RETRY, ErrorKind.CORRUPT, ErrorKind.NOT_FOUND, ErrorKind.FENCED)
_EVER_MS = 1 << 40
_MOMENTS = 60  #: that are judged

_Known = defaultdict[bytes, list[dict[str, Any]]]


def raise_floors(world: World, running: Running) -> None:
    """Until the upstream rests. A round that fails is dropped."""
    catalog, rand = running.catalog, running.rand
    replicates = world.find(Replication) is not None
    registry = SchemaRegistry(catalog, running.store, clock=running.clock)
    while not running.stopping.wait(world.profile.floor_s * (0.3 + rand.random())):
        if world.resting:
            continue
        plan = BasePlanSettings(tail_bytes_min=rand.choice((0, 1 << 40)), tail_ratio=0)
        window_ms = rand.choice((500, _EVER_MS)) if not replicates else _EVER_MS  # a floor is at a base
        settings = BaseSettings(lag_ms=rand.choice((0, 0, 300)), window_ms=window_ms, due_ms=1, plan=plan)
        try:
            build_tenant_bases(catalog, registry, TENANT, LocalExecutor(running.store).bases, settings, running.clock)
            if rand.random() < 0.5:
                _raise(world, catalog, rand)
            while retire_below_floor(catalog, TENANT, limit=rand.choice((2, 200))).objects:
                pass
        except TiStreamError as e:
            if e.kind not in _WHAT_MAY_HAPPEN:
                raise


def _raise(world: World, catalog: SimCatalog, rand: random.Random) -> None:
    row, bases = get_tenant(catalog, TENANT), list_bases(catalog, TENANT)
    highest = max((base.ts for base in bases), default=0)
    wanted_ts = highest - tso.compose(rand.choice((0, 500, 2000)))
    holds = holds_of(catalog, TENANT) if world.find(Replication) is not None and rand.random() < 0.5 else []
    floor = floor_of_keys(wanted_ts, holds, earliest_ts=row.earliest_ts, bases=bases)
    if floor.ts > row.earliest_ts and raise_floor(catalog, TENANT, seen_floor=row.floor_ts, to_ts=floor.ts):
        world.tell(f"the floor is {floor.ts - world.start_ts}")


def judge(
    world: World,
    catalog: SimCatalog,
    store: ObjectStore,
    reader: LogReader,
    every: Mapping[bytes, Sequence[RawRow]],
    upto: int,
) -> None:
    """At rest: keys as of some moments from the floor on. `every` write of the upstream, by key."""
    row = get_tenant(catalog, TENANT)
    truth = {key: writes for key, writes in every.items() if key in row.range}
    written = {write.commit_ts - early for writes in truth.values() for write in writes for early in (0, 1)}
    ends = {tso.compose(write.expire_ts * 1000) for writes in truth.values() for write in writes}
    moments = sorted(ts for ts in written | ends if row.earliest_ts <= ts <= upto)
    some = random.Random(upto).sample(moments, min(_MOMENTS, len(moments)))
    read: dict[Base, _Known] = {}
    for as_of in (row.earliest_ts, *some, upto):
        try:
            base = of_range(list_bases(catalog, TENANT), as_of, start_ts=row.start_ts, floor_ts=row.floor_ts)
            if base not in read:  # all rest: it is the same for every moment that begins with it
                read[base] = _versions(catalog, store, reader, base, upto)
        except TsExpired as e:
            if as_of < get_tenant(catalog, TENANT).floor_ts:  # it has risen meanwhile
                continue
            world.oracle.violated(f"raw floor: as of {as_of}, at or above the floor {row.floor_ts}: {e.message}")
            return
        for key, writes in truth.items():
            if wrong := _wrong(read[base][key], writes, as_of):
                world.oracle.violated(f"raw as of {as_of}, the floor is {row.floor_ts}: {key!r} {wrong}")


def _versions(catalog: SimCatalog, store: ObjectStore, reader: LogReader, base: Base, upto: int) -> _Known:
    """What a reader has who begins with this base, by key."""
    known = _Known(list)
    if isinstance(base.source, BaseRow):
        for segment in base_segments_of(catalog, base.source) or ():
            for row in base_rows(store, segment, base.ts, KEY_VERSION).to_pylist():
                known[row["key"]].append({**row, "flags": 0})
    for part in reader.versions(TENANT, after=base.ts, upto=upto, table_ids=[KEY_RANGE]):
        for row in part.to_pylist():
            known[row["key"]].append(row)
    return known


def _wrong(mine: list[dict[str, Any]], writes: Any, as_of: int) -> str:
    """What is wrong with a key as of then; empty when nothing is. `mine` are its rows."""
    newest = max((row for row in mine if row["commit_ts"] <= as_of), key=lambda r: int(r["commit_ts"]), default=None)
    is_open = any(row["flags"] & FLAG_SCANNED and row["start_ts"] < as_of < row["commit_ts"] for row in mine)
    if is_open and (newest is None or newest["commit_ts"] < as_of):
        return ""
    actual = None if newest is None else (newest["commit_ts"], newest["value"], newest["expire_ts"])
    there = max((w for w in writes if w.commit_ts <= as_of), key=lambda w: int(w.commit_ts), default=None)
    wanted = None if there is None else (there.commit_ts, there.value, there.expire_ts)
    actual, wanted = _alive(actual, as_of), _alive(wanted, as_of)
    return "" if actual == wanted else f"is {actual} instead of {wanted}"


def _alive(entry: tuple[int, bytes | None, int] | None, as_of: int) -> tuple[int, bytes | None, int] | None:
    if entry is None or entry[1] is None or 0 < entry[2] * 1000 <= tso.physical_ms(as_of):
        return None
    return entry
