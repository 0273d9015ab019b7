"""Pushes a live cluster: its stores' change feeds into a tenant, until stopped.

    first start:  hold history at S -> read the schema at S -> schema_snap/ -> wait for the tenant's frontier
    a keyspace:   find its id -> bind the tenant to it -> hold history at a TSO taken then
    always:       PD client, region cache, a thread with source and pusher for each store, a GC barrier

- No state is kept here: every start asks the service for the frontier, and each store continues as a new incarnation
  whose subscriptions start there;
- stores that join are followed, those that left end once their data is durable, unavailable ones are waited for;
- history is held at what the frontier and the opening scans need (`tikv.history`); nothing is registered without that;
- service, object store, PD and stores may be unavailable for any time. Memory is bounded by the queues of source and
  uploader, the spill by its limit; overflow is dropped and read again from the frontier, as a new incarnation;
- a final error ends the whole push: a supervisor restarts it, which costs opening scans and loses nothing. Everything
  else is retried and reported in the progress.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from math import inf
from typing import TypeVar

import structlog

from pusher.control import ClusterControl, PushBundle
from pusher.core.excluded_ranges import ExcludedRangesSource
from pusher.core.table_filter import check_table_filter, filter_snapshot, queued_ids, read_table_filter
from pusher.flush_schedule import FlushSchedule
from pusher.frontier import lowest_durable_ts
from pusher.keyspace import Followed, check_options, followed_keys, keyspace_of
from pusher.push_run import WAIT_S, PushRun
from pusher.schema_push import put_schema_snapshot, snapshot_ts, unpacked, usable_snapshots
from pusher.schema_scan import read_jobs, read_schema
from pusher.seed_scan import SeedScan
from pusher.store_push import StorePush, described
from pusher.tikv.history import GcBarrier, HeldFrontier
from pusher.tikv.locks import LockResolver
from pusher.tikv.source import SourceOptions, TikvSource
from pusher.tikv_options import TikvPushOptions, TikvPushProgress
from pusher.upload_spill import UploadSpill
from pusher.worker import PusherWorker
from tistream.clock import Clock, Due, SystemClock
from tistream.errors import ErrorKind, InvalidInput, StoreUnavailable, TiStreamError, TsExpired
from tistream.ids import Tenant
from tistream.objectstore.layout import SchemaSnapKey, parse, schema_snap_prefix
from tistream.objectstore.protocol import ObjectStore
from tistream.runtime.service import Repeating
from tistream.tikv.core.keyspaces import WHOLE
from tistream.tikv.core.pd_messages import StoreState
from tistream.tikv.kv_scan import KvReader
from tistream.tikv.pd import PdClient
from tistream.tikv.region_cache import RegionCache

T = TypeVar("T")
log = structlog.get_logger(__name__)

_AWAITING = "AWAITING_SNAPSHOT"
_STORES_S = 5.0  # interval of store list refreshes
_LOCK_CHECK_S = 10.0  # interval of lock checks where a resolved ts is stalled
_BARRIER_S = 10.0  # interval of GC barrier renewals
_REPORT_AFTER_S = 30.0  # how long a page is retried before the read is reported and restarted
_PD_PATIENCE_S = 5.0  # how long a request looks for PD's leader before it fails and is retried
_FRONTIER_POLL_S = 1.0
_FRONTIER_STALL_S = 600.0  # a frontier below PD's safe point that has not risen for this long is stalled
_DRAIN_S = 10.0  # time for queued files to become durable after a stop


def push_cluster(
    endpoints: Sequence[str],
    control: ClusterControl,
    open_store: Callable[[str], ObjectStore],
    options: TikvPushOptions,
    *,
    progress: Callable[[TikvPushProgress], None] = lambda _: None,
    stop: threading.Event | None = None,
    clock: Clock | None = None,
) -> TikvPushProgress:
    """Follow the cluster whose PD is at `endpoints` until `stop` is set; returns the last progress.

    TsExpired when the history that the tenant needs was collected, Fenced and ObjectConflict when a store has another
    pusher, InvalidInput for what cannot be followed. Transient faults are waited for."""
    push = _TikvPush(endpoints, control, options, progress, stop, clock or SystemClock())
    return push.run(open_store)


class _TikvPush(PushRun):
    def __init__(
        self,
        endpoints: Sequence[str],
        control: ClusterControl,
        options: TikvPushOptions,
        progress: Callable[[TikvPushProgress], None],
        stop: threading.Event | None,
        clock: Clock,
    ) -> None:
        if options.seed and options.store_ids:
            raise InvalidInput("only a pusher of all stores can push a seed: remove the store ids")
        if options.idle_interval_s is not None and options.store_ids:
            raise InvalidInput("only a pusher of all stores can use an idle interval: remove the store ids")
        super().__init__(control, stop, clock)
        self._endpoints, self._control, self._options, self._progress = endpoints, control, options, progress
        self._schedule = FlushSchedule.for_tenant(
            control.tenant, clock, flush_s=options.flush_interval_s, idle_s=options.idle_interval_s
        )
        self._pd = PdClient(endpoints, tls=options.tls, clock=clock, patience_s=_PD_PATIENCE_S)
        self._keys = WHOLE  # of the keyspace, once it is known
        self._region_cache: RegionCache | None = None
        self._locks: LockResolver | None = None
        self._lock_checks: Repeating | None = None
        self._stores: dict[int, StorePush] = {}
        self._never = threading.Event()
        self._barrier: GcBarrier | None = None
        self._seed: SeedScan | None = None
        self._seed_stop = threading.Event()
        self._departed = TikvPushProgress(phase="")  # totals of stores that are no longer followed
        self._stores_due, self._renewal_due = Due(_STORES_S), Due(_BARRIER_S)
        self._pd_problem = ""

    def run(self, open_store: Callable[[str], ObjectStore]) -> TikvPushProgress:
        self._report("connecting")
        try:
            bundle = self._retry(self._control.push_bundle)
            cluster_id = self._retry(lambda: self._pd.cluster_id)
            if bundle is None or cluster_id is None:
                return self._report("stopped")
            store, barrier = open_store(bundle.object_store), self._new_barrier(bundle.object_store)
            self._barrier = barrier
            if bundle.kind != "tidb":
                self._follow_keyspace(bundle, store, barrier, cluster_id)
                return self._report("stopped")
            if self._retry(lambda: self._control.begin(None, 0, cluster_id)) is None or not self._find_keyspace():
                return self._report("stopped")
            if bundle.state == _AWAITING and not self._start_tenant(usable_snapshots(store, bundle), barrier):
                return self._report("stopped")
            if not self._wait_for_frontier(bundle.state) or not self._protect_frontier(barrier):
                return self._report("stopped")
            began = self._retry(self._control.push_bundle)
            schema = None if began is None else self._schema(usable_snapshots(store, began))
            if schema is None:
                return self._report("stopped")
            table_filter = read_table_filter(schema)
            check_table_filter(table_filter, self._options.names, self._options.index_keys, self._keys.id)
            if self._options.seed:
                self._start_seed(store, self._new_barrier(bundle.object_store, "-seed"), schema)
            self._follow(store, barrier, Followed(wanted=table_filter.wanted, excluded=table_filter.excluded))
        finally:
            self._end()
        return self._report("stopped")

    def _follow_keyspace(self, bundle: PushBundle, store: ObjectStore, barrier: GcBarrier, cluster_id: int) -> None:
        """Follow the keyspace of a raw or txn tenant, which has no schema, until stopped."""
        check_options(self._options, bundle)
        keyspace_id = self._retry(lambda: keyspace_of(self._pd, bundle, self._options.keyspace))
        begun = None if keyspace_id is None else self._retry(lambda: self._control.begin(keyspace_id, 0, cluster_id))
        # The first scan reads from 0, so that only what is collected from now on could be missed.
        now_ts = self._retry(self._pd.tso)
        if keyspace_id is None or begun is None or now_ts is None or not self._wait_for_frontier(begun.state):
            return
        barrier.floor_ts = now_ts
        if self._protect_frontier(barrier):
            self._follow(store, barrier, followed_keys(begun, keyspace_id))

    def _find_keyspace(self) -> bool:
        """False when stopped."""
        name = self._options.keyspace
        if name is not None:
            keys = self._retry(lambda: self._pd.enter_keyspace(name))
            if keys is None:
                return False
            self._keys = keys
        return True

    def _new_barrier(self, bucket: str, purpose: str = "") -> GcBarrier:
        """A barrier whose name is unique to this installation, tenant and set of stores."""
        tenant = self._control.tenant
        at = hashlib.sha256(bucket.encode()).hexdigest()[:8]
        name = f"tistream-{at}-{tenant.cluster_id}-{tenant.tenant_id}{purpose}"
        if self._options.store_ids:
            name += "-store-" + "-".join(map(str, sorted(self._options.store_ids)))
        return GcBarrier(self._pd, name, clock=self._clock, cap_s=self._options.cap_s)

    # -- starting a tenant -----------------------------------------------------------------------------------------

    def _start_tenant(self, store: ObjectStore, barrier: GcBarrier) -> bool:
        """Push the schema snapshot that the tenant awaits; False when stopped."""
        known = self._retry(lambda: _first_snapshot(store, self._control.tenant))
        if known is None:
            return False
        given = self._options.schema_snapshot
        begin_ts = known or (snapshot_ts(given) if given is not None else self._options.start_ts)
        now_ts = self._retry(self._pd.tso)
        if now_ts is None:
            return False
        begin_ts = now_ts if begin_ts is None else begin_ts
        if begin_ts > now_ts:
            raise _begins_in_future(begin_ts, now_ts)
        if not self._renew(barrier, begin_ts):
            return False
        if known:  # the service is processing it
            return True
        schema = given if given is not None else self._read_at(lambda reader: read_schema(reader, begin_ts))
        jobs = self._read_at(lambda reader: read_jobs(reader, begin_ts)) if self._options.names else []
        if schema is None or jobs is None:
            return False
        if not self._renew(barrier, begin_ts):  # TsExpired if GC ran meanwhile
            return False
        text = filter_snapshot(schema, self._options.names, self._options.index_keys, self._keys.id, queued_ids(jobs))
        other = self._retry(lambda: _first_snapshot(store, self._control.tenant))
        if other:  # another store's pusher was faster
            return self._renew(barrier, other)
        key = SchemaSnapKey(tenant=self._control.tenant, ts=begin_ts)
        return self._retry(lambda: put_schema_snapshot(store, key, text)) is not None

    def _read_at(self, read: Callable[[KvReader], T]) -> T | None:
        """The result of reading the cluster; None when stopped."""
        reader = self._new_reader(self._stop, _REPORT_AFTER_S, lambda why: self._report("schema", problem=why))
        self._report("schema")
        try:
            return self._retry(lambda: read(reader), "schema")
        finally:
            reader.close()

    def _new_reader(
        self, stop: threading.Event, patience_s: float = float("inf"), notice: Callable[[str], object] = lambda _: None
    ) -> KvReader:
        return KvReader(
            self._pd,
            keyspace=self._keys,
            clock=self._clock,
            stop=stop,
            tls=self._options.tls,
            rate_bytes_s=self._options.rate_bytes_s,
            patience_s=patience_s,
            notice=notice,
        )

    def _renew(self, barrier: GcBarrier, ts: int) -> bool:
        """Hold history at `ts`, waiting for PD; False when stopped. TsExpired when it cannot be held."""

        def once() -> bool:
            barrier.renew(ts)
            return True

        if self._retry(once) is None:
            return False
        if not barrier.covers(ts):
            error = TsExpired(barrier.problem, ts=ts)
            error.hint = "If PD still has that history, set a larger --history-cap so that the tenant can catch up."
            raise error
        return True

    def _schema(self, store: ObjectStore) -> bytes | None:
        """The tenant's first schema snapshot; None when stopped."""
        begin_ts = self._retry(lambda: _first_snapshot(store, self._control.tenant))
        if begin_ts is None:
            return None
        if not begin_ts:
            raise InvalidInput("the tenant's schema snapshot is missing from the bucket")
        name = str(SchemaSnapKey(tenant=self._control.tenant, ts=begin_ts))
        packed = self._retry(lambda: store.get(name))
        return None if packed is None else unpacked(name, packed)

    def _protect_frontier(self, barrier: GcBarrier) -> bool:
        """Hold history at the frontier; False when stopped. A frontier below PD's safe point may still rise above it by
        files in the bucket. TsExpired when it has been stalled for a while."""
        highest, since = -1, self._clock.monotonic()
        while (needed := lowest_durable_ts(self._frontier.read())) is not None:
            if needed > highest:
                highest, since = needed, self._clock.monotonic()
            try:
                return self._renew(barrier, needed)
            except TsExpired as e:
                if self._clock.monotonic() - since >= _FRONTIER_STALL_S:
                    raise
                self._report("waiting", problem=str(e))
            if self._clock.wait(self._stop, _FRONTIER_POLL_S):
                break
        return False

    # -- following -------------------------------------------------------------------------------------------------

    def _follow(self, store: ObjectStore, barrier: GcBarrier, followed: Followed) -> None:
        region_cache = self._region_cache = RegionCache(self._pd, followed.wanted, clock=self._clock)
        region_cache.start()
        if followed.has_locks:
            self._locks = LockResolver(
                self._pd,
                keyspace=self._keys,
                api_keyspace=followed.keyspace_id,
                tls=self._options.tls,
                resolve=self._options.resolve_locks,
            )
            self._lock_checks = Repeating("locks", self._check_locks, interval_s=_LOCK_CHECK_S, clock=self._clock)
            self._lock_checks.start()

        def make(store_id: int) -> StorePush:
            return self._new_store(store_id, store, barrier, followed, region_cache)

        while not self._stop.is_set():
            now = self._clock.monotonic()
            try:
                if self._stores_due.take(now):
                    self._follow_stores(make)
                if self._renewal_due.take(now):
                    self._renew_barrier(barrier)
                self._pd_problem = ""
            except TiStreamError as e:
                if e.kind is not ErrorKind.RETRY:
                    raise
                self._pd_problem = str(e)
            self._check()
            self._report("pushing")
            self._clock.wait(self._stop, WAIT_S)

    def _follow_stores(self, make: Callable[[int], StorePush]) -> None:
        """Start new stores, end those that left."""
        only = self._options.store_ids
        listed = self._pd.stores()
        if not listed:
            raise StoreUnavailable("PD lists no store", endpoints=",".join(self._endpoints))
        current = {
            s.id for s in listed if not s.columnar and s.state != StoreState.TOMBSTONE and (not only or s.id in only)
        }
        for store_id, push in list(self._stores.items()):
            if store_id not in current:
                push.leave()
            if push.over and push.error is None:
                self._departed = self._totals([push])
                del self._stores[store_id]
        for store_id in sorted(current - self._stores.keys()):
            log.info("following a store", store=store_id)
            self._stores[store_id] = make(store_id)
            self._stores[store_id].start()

    def _new_store(
        self, store_id: int, bucket: ObjectStore, barrier: GcBarrier, followed: Followed, region_cache: RegionCache
    ) -> StorePush:
        def make(frontier: HeldFrontier) -> tuple[PusherWorker, TikvSource]:
            numbers = count(1)
            options = SourceOptions(
                kv_api=followed.kv_api,
                filter_loop=self._options.filter_loop,
                keyspace=self._keys,
                tls=self._options.tls,
                scans_max=self._options.scans_max,
                scan_bytes_s=inf if followed.keyspace_id is None else self._options.rate_bytes_s,
            )
            source = TikvSource(
                store_id,
                options,
                pd=self._pd,
                region_cache=region_cache,
                ranges=followed.wanted,
                clock=self._clock,
                schedule=self._schedule,
                numbers=numbers,
                history_held=barrier.covers,
            )
            worker = PusherWorker(
                source=ExcludedRangesSource(source, followed.excluded, numbers) if followed.excluded else source,
                control=self._control,
                frontier=frontier,
                store=bucket,
                clock=self._clock,
                spill=self._new_spill(store_id, barrier.name),
            )
            return worker, source

        return StorePush(store_id, make, HeldFrontier(self._control, self._clock, barrier), barrier, clock=self._clock)

    def _new_spill(self, store_id: int, hold_name: str) -> UploadSpill | None:
        """A folder of this installation, tenant and store (as a GC barrier is named); its newest pusher owns it."""
        if self._options.spill is None:
            return None
        return UploadSpill(self._options.spill / f"{hold_name}-folder-{store_id}", self._options.spill_bytes_max)

    def _renew_barrier(self, barrier: GcBarrier) -> None:
        """Hold history at the lowest timestamp that any store needs; never above one that is still unknown."""
        wanted = [s.needed for s in self._stores.values() if not s.over]
        lowest = lowest_durable_ts(self._frontier.read())
        if lowest is None:
            return
        known = [ts for ts in wanted if ts is not None]
        if len(known) < len(wanted) and barrier.held_ts:
            known.append(barrier.held_ts)
        with suppress(TsExpired):  # live streams continue, and the barrier reports the problem
            barrier.renew(min([lowest, *known]))

    def _check_locks(self) -> None:
        assert self._locks is not None
        self._locks.check([part for push in list(self._stores.values()) for part in push.held_back()])

    def _check(self) -> None:
        if self._region_cache is not None and (failure := self._region_cache.failure) is not None:
            raise failure
        for push in self._stores.values():
            if push.error is not None:
                raise push.error

    # -- the seed --------------------------------------------------------------------------------------------------

    def _start_seed(self, store: ObjectStore, barrier: GcBarrier, schema: bytes) -> None:
        self._seed = SeedScan(
            self._new_reader(self._seed_stop),
            self._control,
            store,
            schema,
            barrier,
            stop=self._seed_stop,
            clock=self._clock,
        )
        self._seed.start()

    # -- stopping --------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """Give queued files some time to become durable, then stop everything."""
        self._seed_stop.set()
        pushes = list(self._stores.values())
        for push in pushes:
            push.leave()
        until = self._clock.monotonic() + (_DRAIN_S if self._stop.is_set() else 0.0)
        while any(not push.over for push in pushes) and self._clock.monotonic() < until:
            self._report("stopping")
            self._clock.wait(self._never, 0.05)
        for push in pushes:
            push.ask_to_stop()
        for push in pushes:
            push.join()
        if self._seed is not None:
            self._seed.join()
        if self._lock_checks is not None and self._locks is not None:
            self._locks.stop()
            self._lock_checks.stop()
            self._locks.close()
        if self._region_cache is not None:
            self._region_cache.stop()
        self._pd.close()

    # -- progress --------------------------------------------------------------------------------------------------

    def _totals(self, pushes: Sequence[StorePush]) -> TikvPushProgress:
        """Totals of these stores and those that left."""
        done = [push.uploads() for push in pushes]
        return replace(
            self._departed,
            rows=self._departed.rows + sum(push.rows for push in pushes),
            files=self._departed.files + sum(u.files for u in done),
            bytes=self._departed.bytes + sum(u.bytes for u in done),
            overflows=self._departed.overflows + sum(push.overflows for push in pushes),
        )

    def _report(self, phase: str, *, problem: str = "") -> TikvPushProgress:
        pushes = list(self._stores.values())
        barrier, seed = self._barrier, self._seed
        problems = [problem, self._pd_problem, barrier.problem if barrier else "", seed.problem if seed else ""]
        problems.append(str(self._frontier.error or ""))
        problems += [described(p) for p in self._region_cache.problems()] if self._region_cache else []
        problems += self._locks.problems if self._locks else ()
        problems += [described(p) for p in self._lock_checks.problems()] if self._lock_checks else []
        problems += [text for push in pushes for text in push.problems()]
        result = replace(
            self._totals(pushes),
            phase=phase,
            stores=tuple(sorted(self._stores)),
            frontier_ts=max((push.frontier_ts for push in pushes), default=0),
            held_ts=barrier.held_ts if barrier else 0,
            seed_rows=seed.rows if seed else 0,
            seed_tables_left=seed.tables_left if seed else 0,
            problems=tuple(dict.fromkeys(p for p in problems if p)),
        )
        self._progress(result)
        return result


def _begins_in_future(begin_ts: int, now_ts: int) -> InvalidInput:
    error = InvalidInput("a tenant cannot start in the future of its cluster", begin_ts=begin_ts, tso=now_ts)
    error.hint = "--start-ts and the ts of a schema snapshot must be PD timestamps (TSO) at or below its newest one."
    return error


def _first_snapshot(store: ObjectStore, tenant: Tenant) -> int:
    """The timestamp of the tenant's first snapshot; 0 when there is none yet."""
    for info in store.list(schema_snap_prefix(tenant)):
        key = parse(info.key)
        if isinstance(key, SchemaSnapKey):
            return key.ts
    return 0
