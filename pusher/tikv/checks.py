"""Checks a cluster before it is pushed: can it be followed, and what would that cost.

Nothing is written to the cluster. PD is asked for lists and a timestamp, each store gets an empty change feed stream,
the leader of one key a read, and the leaders of all regions, for up to _LOCKS_S, a query for old locks.

Estimates are marked as such: PD knows what the stores wrote in their last heartbeat interval, all replicas together.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial

import grpc

from pusher.tikv.locks import BEHIND_S, LockResolver, describe
from pusher.tikv.stream import METADATA, METHOD
from tistream import ts as tso
from tistream.admin.core.units import duration_text
from tistream.clock import Clock
from tistream.diagnostics.findings import Checklist, Finding, clock_skew, fail, least_offset_ms, ok, warn
from tistream.keyrange import KeyRange
from tistream.tikv.channels import Tls, open_channel
from tistream.tikv.core.api_versions import Api, can_follow
from tistream.tikv.core.keyspaces import WHOLE, KeyspaceKeys
from tistream.tikv.core.lock_messages import HeldLock
from tistream.tikv.core.pd_messages import PdRefused, Region, Store, StoreState
from tistream.tikv.core.regions import plain_range, regions_of
from tistream.tikv.kv_scan import KvReader
from tistream.tikv.pd import PdClient
from tistream.tikv.raw_client import WriteLimits, learn_api

_CONNECT_S = 3.0
_SILENCE_S = 0.3  # a server without the method refuses at once
_REPLICAS = 3
_LOCKS_S = 20.0  #: querying every region of a large cluster would take minutes
_STREAM_REGIONS = 100_000  # not tested above this number on one store
_FILES_A_MONTH = 2_592_000  # one a second
_PUT_PRICE = 5e-6  # dollars; S3 Standard, us-east-1, list price
_PROBE_KEYS = KeyRange(b"mSchemaVe", b"mSchemaVf")  # around the schema version


def check_cluster(
    pd: PdClient, ranges: Sequence[KeyRange], *, tls: Tls | None, clock: Clock, keyspace: str | None = None
) -> list[Finding]:
    """Run all checks, each after those that it needs. They stop when PD fails or does not know the keyspace."""
    checklist, spaces = Checklist(), list[KeyspaceKeys]()
    if not checklist.check("pd", lambda: _pd(pd)):
        return checklist.findings
    if keyspace is not None and not checklist.check("keyspace", lambda: _keyspace(pd, keyspace, spaces)):
        return checklist.findings
    keys = spaces[0] if spaces else WHOLE
    checklist.check("clock", lambda: _clock(pd, clock))
    stores: list[Store] = []
    checklist.check("stores", lambda: _stores(pd, stores))
    for store in stores:
        checklist.check(f"store {store.id}", partial(_store, store, tls))
    regions: list[Region] = []
    checklist.check("regions", lambda: _regions(pd, ranges, stores, regions))
    checklist.check("history", lambda: _history(pd))
    stop = threading.Event()
    reader = KvReader(pd, clock=clock, stop=stop, tls=tls, patience_s=_CONNECT_S, keyspace=keys)
    try:
        if keys is WHOLE:
            checklist.check("api version", lambda: _api_version(pd, tls, clock))
        may_lack_tidb = keys is not WHOLE or any(f.facts.get("api_version") == Api.V2.name for f in checklist.findings)
        checklist.check("read", lambda: _read(pd, reader, may_lack_tidb))
    finally:
        reader.close()
    checklist.check("locks", lambda: _locks(pd, regions, keys, tls, clock))
    checklist.check("estimate", lambda: _estimate(pd, stores, regions))
    return checklist.findings


def _pd(pd: PdClient) -> Finding:
    cluster_id = pd.cluster_id
    return ok(f"cluster {cluster_id}", cluster_id=str(cluster_id))


def _clock(pd: PdClient, clock: Clock) -> Finding:
    before = clock.unix_ms()
    stamp = pd.tso()
    there = tso.physical_ms(stamp)
    return clock_skew("PD's", least_offset_ms(there, there + 1, before, clock.unix_ms()), tso=str(stamp))


def _stores(pd: PdClient, into: list[Store]) -> Finding:
    listed = pd.stores()
    into += [s for s in listed if not s.columnar and s.state != StoreState.TOMBSTONE]
    leaving = [s.id for s in into if s.state != StoreState.UP]
    versions = sorted({s.version or "unknown" for s in into})
    words = f"{len(into)} stores of TiKV {', '.join(versions)}"
    if skipped := len(listed) - len(into):
        words += f"; {skipped} of TiFlash, without leaders"
    if leaving:
        words += f"; leaving: {', '.join(map(str, leaving))}"
    facts = [{"id": s.id, "address": s.address, "version": s.version, "state": s.state} for s in into]
    if not into:
        return fail("PD lists no store", stores=facts)
    return (warn if leaving or len(versions) > 1 else ok)(words, stores=facts)


def _store(store: Store, tls: Tls | None) -> Finding:
    facts = {"id": store.id, "address": store.address, "version": store.version}
    channel = open_channel(store.address, tls)
    try:
        grpc.channel_ready_future(channel).result(timeout=_CONNECT_S)
        call = channel.stream_stream(METHOD)(iter(()), metadata=METADATA, timeout=_SILENCE_S)
        try:
            next(call, None)
        except grpc.RpcError as e:
            refused = e.code() not in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
            if refused:
                words = f"{store.address} does not offer the multiplexed change feed: {e.code().name} {e.details()}"
                return fail(words, **facts)
        return ok(f"{store.address} offers the change feed", **facts)
    except grpc.FutureTimeoutError:
        return fail(f"{store.address} cannot be reached (address, firewall, TLS)", **facts)
    finally:
        channel.close()


def _keyspace(pd: PdClient, name: str, into: list[KeyspaceKeys]) -> Finding:
    into.append(pd.enter_keyspace(name))
    return ok(f"{name} has the key prefix {into[0].prefix.hex()}", id=into[0].id)


def _regions(pd: PdClient, ranges: Sequence[KeyRange], stores: Sequence[Store], into: list[Region]) -> Finding:
    into += {region.id: region for part in ranges for region in regions_of(pd, part)}.values()
    leads = {store.id: sum(r.leader_store_id == store.id for r in into) for store in stores}
    without_leader = sum(not r.leader_store_id for r in into)
    dealt = ", ".join(f"{count:,} on store {store_id}" for store_id, count in sorted(leads.items()))
    words = f"{len(into):,} regions would be followed: {dealt}"
    facts = {"regions": len(into), "leaders": leads, "without_leader": without_leader}
    if not into:
        return fail("PD lists no region of the keys to follow", **facts)
    if without_leader:
        return warn(f"{words}; {without_leader:,} have no leader now", **facts)
    return (ok if max(leads.values(), default=0) <= _STREAM_REGIONS else warn)(words, **facts)


def _history(pd: PdClient) -> Finding:
    safe, now = pd.gc_safe_point(), pd.tso()
    if not safe:
        return ok("GC has never run", safe_point="0")
    age_s = (tso.physical_ms(now) - tso.physical_ms(safe)) // 1000
    return ok(f"history goes back {duration_text(age_s * 1000)}, to {safe}", safe_point=str(safe), age_s=age_s)


def _read(pd: PdClient, reader: KvReader, may_lack_tidb: bool) -> Finding:
    pairs = sum(len(page.keys) for page in reader.read(_PROBE_KEYS, pd.tso()))
    if not pairs:
        words = "no schema version found: there is no TiDB, or it has keyspaces and --keyspace must name one"
        return warn(f"{words}; a raw or txn tenant needs none") if may_lack_tidb else fail(words)
    return ok("snapshot reads work")


def _locks(pd: PdClient, regions: Sequence[Region], keys: KeyspaceKeys, tls: Tls | None, clock: Clock) -> Finding:
    """Old locks, each of which holds a watermark back. Regions that do not fit the time limit are counted."""
    now_ts = pd.tso()
    limit_ts = now_ts - (int(BEHIND_S * 1000) << tso.LOGICAL_BITS)
    resolver = LockResolver(pd, keyspace=keys, tls=tls, resolve=False)
    checked, old = 0, list[tuple[int, HeldLock]]()
    ends_at = clock.monotonic() + _LOCKS_S
    try:
        for region in regions:
            if checked and clock.monotonic() >= ends_at:
                break
            checked += 1
            region_range = plain_range(region)
            if region_range is not None:
                at, locks = resolver.locks(region_range, limit_ts)
                old += [(at.id, lock) for lock in locks]
    finally:
        resolver.close()
    scope = f"in {checked:,} of {len(regions):,} regions"
    if checked < len(regions):
        scope += f" (time limit of {_LOCKS_S:g} s)"
    facts: dict[str, object] = {"regions": checked, "regions_left_out": len(regions) - checked, "locks": len(old)}
    if not old:
        return ok(f"none older than {BEHIND_S:g} s, {scope}", **facts)
    region_id, oldest = min(old, key=lambda item: item[1].start_ts)
    facts |= {"region": region_id, "key": oldest.key.hex(), "start_ts": str(oldest.start_ts)}
    words = f"{len(old)} older than {BEHIND_S:g} s, {scope}; {describe(region_id, oldest, now_ts)}"
    return warn(words, **facts)


def _api_version(pd: PdClient, tls: Tls | None, clock: Clock) -> Finding:
    api = learn_api(pd, clock=clock, tls=tls, limits=WriteLimits(patience_s=_CONNECT_S))
    followed, words = can_follow(api)
    return (ok if followed else fail)(words, api_version=api.name)


def _estimate(pd: PdClient, stores: Sequence[Store], regions: Sequence[Region]) -> Finding:
    files = len(stores) * _FILES_A_MONTH
    facts = {"files_per_month": files, "put_dollars_per_month": round(files * _PUT_PRICE, 2)}
    words = f"one file per second and store, {files:,} puts a month (${files * _PUT_PRICE:,.2f} at S3's list price)"
    try:
        stats = [pd.store_stats(store.id) for store in stores]
    except PdRefused:
        return ok(f"{words}; this PD does not report how much is written", **facts)
    rate = sum(s.written_bytes / s.interval_s for s in stats if s.interval_s)
    used = sum(s.used_bytes for s in stats)
    if not rate and not used:
        return ok(f"{words}; PD does not know how much is written", **facts)
    facts |= {"written_bytes_per_s": round(rate / _REPLICAS), "stored_bytes": used // _REPLICAS}
    words += (
        f"; estimated with {_REPLICAS} replicas, from everything that the stores wrote recently:"
        f" {rate / _REPLICAS / 1e6:,.2f} MB/s of changes, {used / _REPLICAS / 1e9:,.2f} GB stored (the size of a seed)"
    )
    return ok(words, **facts)
