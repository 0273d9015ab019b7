"""A backup of a cluster: what it is, what is read of it and how, and up to which timestamp the backup has every write.

    API version     V2: the change feed from 0        V1TTL: RawScan and RawGetKeyTTL        V1: RawScan
    backup_ts       before the scan: the served watermark of the tenant that captures the keyspace, else PD's time less
                    the safe interval

A store stamps RawKV writes with timestamps that it took from PD earlier, so writes below a fresh timestamp may still
arrive when a scan begins. The safe interval is longer than stores keep timestamps. A served watermark needs none: all
that is at or below it was captured, so it was applied.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass

import structlog

from backup.core.manifest import Manifest, check_conversion
from backup.job import Progress, Scan, check_empty, write_backup
from backup.scans import FeedScan, RawScan
from tistream import ts as tso
from tistream.clock import Clock
from tistream.errors import InvalidInput, TiStreamError
from tistream.keyrange import KeyRange
from tistream.objectstore.protocol import ObjectStore
from tistream.runtime.rate_limiter import RateLimiter
from tistream.runtime.service import Repeating
from tistream.tikv.channels import Tls
from tistream.tikv.core.api_versions import Api
from tistream.tikv.core.raw_messages import RawSpace
from tistream.tikv.pd import PdClient
from tistream.tikv.raw_client import RawClient, WriteLimits, learn_api

log = structlog.get_logger(__name__)
_PATIENCE_S = 600.0  # how long one region is retried


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterBackup:
    """What is wanted."""

    keyspace: str | None = None  #: name or id, of an API V2 cluster
    range: KeyRange = KeyRange()  # noqa: RUF009
    api: Api | None = None  #: of the files; None = the cluster's
    bytes_s: float = float("inf")
    threads: int = 4
    safe_interval_s: float = 60.0
    watermark: Callable[[int], int] | None = None  #: what is served of the tenant of a keyspace id
    patience_s: float = _PATIENCE_S


def back_up_cluster(
    pd: PdClient,
    store: ObjectStore,
    backup: ClusterBackup,
    *,
    clock: Clock,
    stop: threading.Event,
    tls: Tls | None = None,
    progress: Progress = lambda done, parts: None,
) -> Manifest:
    """Write a complete backup. InvalidInput for what cannot be backed up so, StoreUnavailable when stopped or when a
    region cannot be read for long."""
    check_empty(store)
    source = learn_api(pd, clock=clock, tls=tls)
    check_conversion(source, backup.api or source)
    keyspace_id = keyspace_id_of(pd, source, backup.keyspace)
    safe_ts = pd.tso() - (int(backup.safe_interval_s * 1000) << tso.LOGICAL_BITS)
    backup_ts = safe_ts if backup.watermark is None else backup.watermark(keyspace_id)
    about = Manifest(
        made_from="cluster",
        cluster_id=pd.cluster_id,
        keyspace_id=keyspace_id,
        source_api=source,
        api=backup.api or source,
        range=backup.range,
        backup_ts=backup_ts,
        files=(),
    )
    rate, limits = RateLimiter(backup.bytes_s, clock, stop), WriteLimits(patience_s=backup.patience_s)
    with (
        closing(
            RawClient(pd, RawSpace(source, keyspace_id), clock=clock, tls=tls, limits=limits, notice=_notice)
        ) as client,
        ExitStack() as held,
    ):
        scan: Scan = RawScan(client).scan
        if source is Api.V2:
            held.enter_context(held_history(pd, f"tistream-backup-{secrets.token_hex(8)}", backup_ts, clock))
            scan = FeedScan(
                pd, keyspace_id, clock=clock, stop=stop, tls=tls, patience_s=backup.patience_s, notice=_notice
            ).scan
        parts = parts_of(client, backup.range)
        return write_backup(store, parts, scan, about, rate=rate, stop=stop, threads=backup.threads, progress=progress)


def keyspace_id_of(pd: PdClient, api: Api, keyspace: str | None) -> int:
    """The id of a keyspace by its name or id; 0 is the default one. InvalidInput where there are none."""
    if api is not Api.V2:
        if keyspace not in (None, "0"):
            raise InvalidInput(f"A cluster of API {api} has no keyspaces: leave --keyspace out.", option="keyspace")
        return 0
    if keyspace is None or keyspace.isdecimal():
        return int(keyspace or 0)
    return pd.enabled_keyspace(keyspace)


def parts_of(client: RawClient, range_: KeyRange) -> list[KeyRange]:
    """The range cut where PD's regions begin. What is cut wrongly is read all the same, in more steps."""
    starts = {region.start for region in client.regions(range_)}
    cuts = [range_.start, *sorted(start for start in starts if start in range_ and start > range_.start)]
    return [KeyRange(start, end) for start, end in zip(cuts, [*cuts[1:], range_.end], strict=True)]


def _notice(why: str) -> None:
    log.info("a region is read again", cause=why)


TTL_S = 300
_RENEW_S = 60.0


@contextmanager
def held_history(pd: PdClient, name: str, ts: int, clock: Clock) -> Iterator[None]:
    """Keep everything above `ts` for as long as the block runs. TsExpired when some of it was collected already."""
    pd.hold_history(name, ts, TTL_S)
    renewing = Repeating("history", lambda: pd.hold_history(name, ts, TTL_S), interval_s=_RENEW_S, clock=clock)
    renewing.start()
    try:
        yield
    finally:
        renewing.stop()
        try:
            pd.release_history(name)
        except TiStreamError as e:
            log.warning("releasing the GC barrier failed, it will expire", name=name, error=str(e))
