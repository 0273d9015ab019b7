"""Dispatcher process: tails the stores that the catalog assigns to it, serves them, and deletes consumed files.

    heartbeat   every HEARTBEAT_MS: renews the lease; when fenced by a newer incarnation, serves nothing
    refresh     every 0.5 s: its stores, their newest incarnations, the largest cut_ts read, the database's clock
    reclaim     every few seconds: deletes what every task has durably consumed

It is stateless. Two dispatchers of one store are harmless, because both send the same and subscribers drop repeats; so
while the catalog is unavailable it continues to serve. It is itself the Feed for sorters in its own process;
`dispatcher.flight_server` serves others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial

import structlog

from dispatcher.admission import LargeFiles
from dispatcher.cache import FileCache
from dispatcher.reclaim import Reclaimer
from dispatcher.reporting import Reporter
from dispatcher.subscription import Subscription
from dispatcher.tail import Tail, TailTiming
from dispatcher.task_owners import TaskOwners
from dispatcher.tenant_pool import TenantPool
from tistream.catalog.database.engine import Catalog
from tistream.catalog.rows.reports import WorkerReport
from tistream.catalog.rows.workers import WorkerKind
from tistream.catalog.work.heartbeat import Heartbeat
from tistream.catalog.work.stores import StoreRow, count_stores_of, list_stores, note_cut_ts, stores_of_dispatcher
from tistream.clock import Clock
from tistream.errors import FeedUnavailable, StoreUnavailable
from tistream.feed.protocol import FeedRequest, Wake
from tistream.ids import Tenant
from tistream.limits import CLOCK_SKEW_MAX_MS, PREFETCH_FILES_MAX
from tistream.model.problem import Problem
from tistream.objectstore.layout import BatchKey
from tistream.objectstore.protocol import ObjectStore
from tistream.runtime import metrics
from tistream.runtime.containment import Containment
from tistream.runtime.service import Repeating, ServiceGroup
from tistream.runtime.service_time import ServiceTime

log = structlog.get_logger(__name__)

CACHE_BYTES = 256 << 20
REFRESH_S = 0.5
SWEEP_S = 600.0
READ_THREADS = 24  #: for all tenants; one tenant gets PREFETCH_FILES_MAX
DELETE_THREADS, DELETES_OF_TENANT = 16, 8
RECLAIM_THREADS = 8  #: tenants whose files are deleted at once
FRUITLESS_MAX = 6  #: after this many rounds without a deletion, a store is reclaimed once in as many rounds

_StoreKey = tuple[Tenant, int]
_Step = tuple[_StoreKey, str]


def _name(step: _Step) -> str:
    (tenant, store_id), name = step
    return f"{tenant}/store-{store_id}/{name}"


class DispatcherWorker:
    """A Service and a Feed."""

    def __init__(
        self,
        catalog: Catalog,
        store: ObjectStore,
        clock: Clock,
        worker_id: str,
        address: str = "",
        *,
        timing: TailTiming = TailTiming(),  # noqa: B008 - frozen
        cache_bytes: int = CACHE_BYTES,
        reclaim_s: float = 5.0,
        skew_max_ms: int = CLOCK_SKEW_MAX_MS,
    ) -> None:
        """`address`: where sorters of other processes reach it (`grpc://host:port`); empty = nowhere. `skew_max_ms`:
        how far timestamps in files may be ahead of the database's clock."""
        self.name = self.worker_id = worker_id
        self._catalog, self._store, self._clock, self._timing = catalog, store, clock, timing
        self._owners = TaskOwners(catalog)
        self._time = ServiceTime(clock, skew_max_ms)
        self._cache, self._large = FileCache(cache_bytes), LargeFiles()
        self._reads = TenantPool(READ_THREADS, PREFETCH_FILES_MAX, f"{worker_id}-read", clock)
        self._deletes = TenantPool(DELETE_THREADS, DELETES_OF_TENANT, f"{worker_id}-delete", clock)
        self._reclaims = TenantPool(RECLAIM_THREADS, 1, f"{worker_id}-reclaim", clock)
        self._reclaiming: set[Tenant] = set()  # a round of theirs runs
        self._lock = threading.Lock()
        self._owned: dict[_StoreKey, StoreRow] = {}
        self._tails: dict[_StoreKey, Tail] = {}
        self._noted: dict[_StoreKey, int] = {}
        self._swept: dict[_StoreKey, tuple[int, float]] = {}  # dispatcher epoch and when
        self._fruitless: dict[_StoreKey, int] = {}  # rounds of reclaiming without a deletion
        self._stopped = threading.Event()
        self._reporter = Reporter()
        self._report: WorkerReport | None = None  # made by `refresh`; immutable
        self._stores: Containment[_Step] = Containment(worker_id, clock, name=_name)
        self._reclaimer = Reclaimer(catalog, store, self._deletes, self._stopped.is_set)
        self._reclaim_s = reclaim_s
        self._heartbeat = Heartbeat(catalog, clock, worker_id, self.kind, address, step=self._beat)
        self._threads = ServiceGroup(
            worker_id,
            (
                self._heartbeat,
                Repeating(f"{worker_id}/refresh", self._refresh, interval_s=REFRESH_S, clock=clock),
                Repeating(f"{worker_id}/reclaim", self.reclaim, interval_s=reclaim_s, clock=clock),
            ),
            clock,
        )

    def start(self) -> None:
        self._threads.start()

    def wait_until_ready(self, timeout_s: float) -> bool:
        return self._threads.wait_until_ready(timeout_s)

    def stop(self) -> None:
        """Stop serving and retire. Open streams raise FeedUnavailable from now on."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        self._threads.stop()
        for pool in (self._reclaims, self._deletes, self._reads):
            pool.close()
        self._heartbeat.retire()

    @property
    def address(self) -> str:
        """Where sorters of other processes reach it. A server that chooses its port sets it before the start."""
        return self._heartbeat.address

    @address.setter
    def address(self, address: str) -> None:
        self._heartbeat.address = address

    @property
    def kind(self) -> WorkerKind:
        return WorkerKind.DISPATCHER

    def begin_drain(self) -> None:
        """Ask for the stores to be moved off, a few at a time; until then they are served."""
        self._heartbeat.drain()

    def drained(self) -> bool:
        return count_stores_of(self._catalog, self.worker_id) == 0

    def problems(self) -> list[Problem]:
        """Problems of its threads, and every file that delays subscribers."""
        with self._lock:
            tails = list(self._tails.values())
        held_up = [
            Problem.of(f"{self.worker_id}/{tail.tenant}/store-{tail.store_id}", error)
            for tail in tails
            for error in tail.errors()
        ]
        late = [
            Problem.of(f"{self.worker_id}/{tenant}", StoreUnavailable(f"{what} take long", tenant=str(tenant)))
            for what, pool in (("reads of batch files", self._reads), ("deletions of batch files", self._deletes))
            for tenant in pool.slow()
        ]
        return self._threads.problems() + self._stores.problems() + held_up + late

    def lease_age_s(self) -> float | None:
        """Seconds since the last successful heartbeat; None before the first."""
        return self._heartbeat.succeeded_age_s

    def measured(self) -> list[metrics.Metric]:
        with self._lock:
            held = sum(tail.held for tail in self._tails.values())
        return [
            metrics.single("tistream_dispatcher_files_held", held),
            metrics.single("tistream_dispatcher_stores", len(self._owned)),
            metrics.single("tistream_dispatcher_cache_bytes", self._cache.bytes),
        ]

    def open(self, request: FeedRequest, wake: Wake) -> Subscription:
        """Open a subscription. FeedUnavailable, with the owner's name, when another dispatcher owns the store; Fenced
        when another worker owns the task."""
        key = request.tenant, request.store_id
        if key not in self._owned:
            self.refresh()  # it may have been assigned a moment ago
        row = self._owned.get(key)
        if row is None:
            rows = list_stores(self._catalog, request.tenant)
            owner = next((row.dispatcher for row in rows if row.store_id == request.store_id), None)
            raise FeedUnavailable(
                store=request.store_id, tenant=str(request.tenant), asked=self.worker_id, owner=owner or "none"
            )
        self._owners.admit(request)
        tail = self._tail(row)
        self._reclaimer.refresh(row, tail)
        return Subscription(tail, request, wake, check=lambda: self._check(request))

    def look(self, files: Sequence[BatchKey]) -> None:
        """Notifications name these files: look for them now, if they are of its stores."""
        for key in files:
            tail = self._tails.get((key.tenant, key.store_id))
            if tail is not None:
                tail.hint(key.incarnation, key.seq)

    def refresh(self) -> None:
        """Read the assigned stores, and report how far their files reach."""
        owned = {(row.tenant, row.store_id): row for row in self._assigned()}
        with self._lock:
            self._owned = owned
            self._tails = {key: tail for key, tail in self._tails.items() if key in owned or tail.has_listeners}
            tenants = {tenant for tenant, _ in self._tails}
            owned_tails = [(key, tail) for key, tail in self._tails.items() if key in owned]
        for key, tail in owned_tails:
            tail.set_newest(owned[key].incarnation)
            if tail.max_cut_ts > max(owned[key].max_cut_ts, self._noted.get(key, 0)):
                self._contained((key, "cut_ts"), partial(self._note, key, tail))
        self._owners.refresh(tenants)
        for kept in (self._noted, self._swept, self._fruitless, self._reclaimer.waiting):
            for key in list(kept):
                if key not in owned:
                    kept.pop(key, None)
        if self._stores.problems():
            self._stores.keep_only({(key, name) for key in owned for name in ("cut_ts", "reclaim")})

    def _note(self, key: _StoreKey, tail: Tail) -> None:
        noted = tail.max_cut_ts
        note_cut_ts(self._catalog, tail.tenant, tail.store_id, noted)
        self._noted[key] = noted

    def _contained(self, step: _Step, run: Callable[[], None]) -> None:
        """Run a step of one store; an error delays no other store."""
        self._stores.run(step, run)

    def _refresh(self) -> None:
        self.refresh()
        with self._lock:
            owned, tails = self._owned, dict(self._tails)
        shown = (problem.shown() for problem in self.problems())
        self._report = self._reporter.look(owned, tails, shown, self._clock.monotonic())

    def _assigned(self) -> list[StoreRow]:
        assigned = stores_of_dispatcher(self._catalog, self.worker_id, self._heartbeat.register())
        if assigned.database_ms is not None:
            self._time.note(assigned.database_ms)
        return assigned.stores

    def reclaim(self) -> None:
        """Delete consumed files of its stores, and now and then sweep leftovers; each store contained. A tenant whose
        deletions are slow delays the others by one interval at most."""
        rounds: dict[Tenant, list[tuple[_StoreKey, StoreRow]]] = {}
        for key, row in self._owned.items():
            rounds.setdefault(row.tenant, []).append((key, row))
        ended, errors = threading.Semaphore(0), list[BaseException]()
        begun = [tenant for tenant in rounds if tenant not in self._reclaiming]
        for tenant in begun:
            self._reclaiming.add(tenant)
            self._reclaims.submit(tenant, partial(self._reclaim_tenant, tenant, rounds[tenant], ended, errors))
        until = self._clock.monotonic() + self._reclaim_s
        for _ in begun:
            if self._stopped.is_set() or not ended.acquire(timeout=max(0.0, until - self._clock.monotonic())):
                break
        if errors:
            raise errors[0]

    def _reclaim_tenant(
        self,
        tenant: Tenant,
        stores: Sequence[tuple[_StoreKey, StoreRow]],
        ended: threading.Semaphore,
        errors: list[BaseException],
    ) -> None:
        try:
            for key, row in stores:
                if self._stopped.is_set() or self._heartbeat.crashed:
                    return
                self._contained((key, "reclaim"), partial(self._reclaim_store, key, row))
        except Exception as e:  # noqa: BLE001 - raised by the round
            errors.append(e)
        finally:
            self._reclaiming.discard(tenant)
            ended.release()

    def _reclaim_store(self, key: _StoreKey, row: StoreRow) -> None:
        tail, now = self._tail(row), self._clock.monotonic()
        epoch, swept_at = self._swept.pop(key, (0, 0.0))
        if epoch != row.dispatcher_epoch or now - swept_at >= SWEEP_S:
            self._reclaimer.sweep(row, tail)
            epoch, swept_at = row.dispatcher_epoch, now
        self._reclaim_if_due(key, row, tail)
        self._swept[key] = epoch, swept_at  # not reached after an error: the next round sweeps again

    def _reclaim_if_due(self, key: _StoreKey, row: StoreRow, tail: Tail) -> None:
        """After many rounds without a deletion, reclaim only every FRUITLESS_MAX rounds."""
        fruitless = self._fruitless.get(key, 0)
        if fruitless < FRUITLESS_MAX or fruitless % FRUITLESS_MAX == 0:
            fruitless = -1 if self._reclaimer.reclaim(row, tail) else fruitless
        self._fruitless[key] = fruitless + 1

    def _beat(self) -> None:
        self._heartbeat.beat(self._report)

    def _tail(self, row: StoreRow) -> Tail:
        key = row.tenant, row.store_id
        with self._lock:
            tail = self._tails.get(key)
            if tail is None:
                tail = self._tails[key] = Tail(
                    *key,
                    store=self._store,
                    cache=self._cache,
                    pool=self._reads.of(row.tenant),
                    clock=self._clock,
                    time=self._time,
                    timing=self._timing,
                    large=self._large,
                )
        tail.set_newest(row.incarnation)
        return tail

    def _check(self, request: FeedRequest) -> None:
        """FeedUnavailable unless this dispatcher serves the store, Fenced unless the worker owns the task."""
        if self._stopped.is_set():
            raise FeedUnavailable("the dispatcher has stopped", dispatcher=self.worker_id)
        if self._heartbeat.crashed:
            raise FeedUnavailable("a newer incarnation of this dispatcher is registered", dispatcher=self.worker_id)
        if (request.tenant, request.store_id) not in self._owned:
            raise FeedUnavailable(store=request.store_id, tenant=str(request.tenant), asked=self.worker_id)
        self._owners.check(request)
