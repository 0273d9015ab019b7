"""Options and progress of a push that follows a live cluster (`tikv_push`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pusher.tikv.core.feed import SCANS_MAX
from pusher.tikv.history import CAP_S
from tistream.tikv.channels import Tls
from tistream.tikv.kv_scan import RATE_BYTES_S


@dataclass(frozen=True, slots=True, kw_only=True)
class TikvPushOptions:
    tls: Tls | None = None
    names: tuple[str, ...] = ()  #: databases, and tables as db.table, that a new tenant follows; empty = all
    keyspace: str | None = None  #: follow only this keyspace
    index_keys: bool = True  #: also index entries of the tables that exist at the start
    store_ids: frozenset[int] = frozenset()  #: only these; empty = all, also later ones
    schema_snapshot: bytes | None = None  #: of a new tenant; None = read from the cluster
    start_ts: int | None = None  #: of a new tenant; None = now
    seed: bool = False  #: also push the rows that existed then
    spill: Path | None = None  #: folder for waiting files that do not fit in memory; None = memory only
    spill_bytes_max: int = 1 << 30  #: per store
    cap_s: float = CAP_S  #: history is protected from GC for at most this long
    scans_max: int = SCANS_MAX  #: concurrent opening scans per store
    flush_interval_s: float = 1.0
    idle_interval_s: float | None = None  #: while nothing is written in the whole cluster; None = the same
    filter_loop: bool = False  #: skip rows written by another change feed
    rate_bytes_s: int = RATE_BYTES_S  #: read rate for schema and seed; of a keyspace: of a store's opening scans
    resolve_locks: bool = True  #: resolve locks of dead clients that hold a resolved ts back


@dataclass(frozen=True, slots=True, kw_only=True)
class TikvPushProgress:
    phase: str  #: connecting, schema (being read), waiting (for the frontier), pushing, stopping, stopped
    stores: tuple[int, ...] = ()  #: followed
    frontier_ts: int = 0  #: the tenant's durable watermark
    held_ts: int = 0  #: history above it is protected from GC; 0 = none
    rows: int = 0  #: written to files
    files: int = 0  #: durable
    bytes: int = 0  #: durable
    overflows: int = 0  #: how often a stream was dropped because uploads could not keep up
    seed_rows: int = 0  #: read for the seed
    seed_tables_left: int = 0
    problems: tuple[str, ...] = ()  #: current problems and waits
