"""How a living cluster is pushed, and how such a push stands: what `tikv_push` takes and tells."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pusher.tikv.core.feed import SCANS_MAX
from pusher.tikv.history import CAP_S
from tistream.tikv.channels import Tls
from tistream.tikv.kv_scan import RATE_BYTES_S


@dataclass(frozen=True, slots=True, kw_only=True)
class TikvPushOptions:
    """How a cluster is pushed."""

    tls: Tls | None = None
    names: tuple[str, ...] = ()  #: databases, and tables as db.table, that a new tenant follows; empty = all
    keyspace: str | None = None  #: only the keys of this keyspace
    index_keys: bool = True  #: also the index entries of the tables that are there at the beginning
    store_ids: frozenset[int] = frozenset()  #: only these; empty = all, also those to come
    schema_snapshot: bytes | None = None  #: the schema that a new tenant begins with; None = it is read
    start_ts: int | None = None  #: where a new tenant begins; None = now
    seed: bool = False  #: also push the rows that lived then
    spill: Path | None = None  #: a folder for files that wait and do not fit the memory; None = the memory only
    spill_bytes_max: int = 1 << 30  #: of each store
    cap_s: float = CAP_S  #: history is held for no longer than this
    scans_max: int = SCANS_MAX  #: opening scans of one store at once
    flush_interval_s: float = 1.0
    idle_interval_s: float | None = None  #: the same while nothing is written in the whole cluster; None = no other
    filter_loop: bool = False  #: leave out what another change feed wrote
    rate_bytes_s: int = RATE_BYTES_S  #: of the schema and the seed
    resolve_locks: bool = True  #: end locks of lost clients that hold a resolved ts back


@dataclass(frozen=True, slots=True, kw_only=True)
class TikvPushProgress:
    """How a push stands."""

    phase: str  #: connecting, schema (is being read), waiting (for the frontier), pushing, stopping, stopped
    stores: tuple[int, ...] = ()  #: that are followed
    frontier_ts: int = 0  #: the service has everything up to here
    held_ts: int = 0  #: history above it is held; 0 = it is not
    rows: int = 0  #: written to files
    files: int = 0  #: durable
    bytes: int = 0  #: durable
    overflows: int = 0  #: how often a stream was given up because uploads could not keep up
    seed_rows: int = 0  #: read for the seed
    seed_tables_left: int = 0
    problems: tuple[str, ...] = ()  #: what is wrong now, or awaited
