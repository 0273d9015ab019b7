"""A control plane in memory, for tests of pushers: incarnations, a frontier that the test sets, and outages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from pusher.control import ControlUnavailable, IncarnationGrant, PushBundle, WantedSeed
from pusher.frontier import FrontierEntry
from tistream.errors import Fenced
from tistream.ids import Tenant


class MemoryControl:
    """Implements `pusher.control.CaptureControl`."""

    def __init__(self, tenant: Tenant, frontier: Sequence[FrontierEntry] = ()) -> None:
        self._tenant = tenant
        self.start_ts, self.snapshot_refused = 0, False
        self.entries = list(frontier)  #: the published frontier; empty while the tenant awaits its snapshot
        self.max_cut_ts: dict[int, int] = defaultdict(int)  #: store -> largest cut_ts known
        self.incarnations: dict[int, int] = defaultdict(int)  #: store -> newest one issued
        self.ends: dict[int, int] = {}  #: store -> the end of its stream, until it gets an incarnation
        self.seeds: set[tuple[int, int]] = set()  #: (ts, table id) of those that were said to be complete
        self.wanted: list[WantedSeed] = []  #: tables that need a seed, until they have one
        self.away = False  #: nothing is answered while it is set
        self.fail_next = 0  #: so many requests fail
        self.requests = 0
        self.upstream_id: int | None = None  #: of the cluster, as the pusher has said

    @property
    def tenant(self) -> Tenant:
        return self._tenant

    def issue_incarnation(self, store_id: int) -> IncarnationGrant:
        self._request()
        self.incarnations[store_id] += 1
        self.ends.pop(store_id, None)
        return IncarnationGrant(incarnation=self.incarnations[store_id], max_cut_ts=self.max_cut_ts[store_id])

    def end_stream(self, store_id: int, incarnation: int, end_ts: int) -> None:
        self._request()
        if incarnation != self.incarnations[store_id]:
            raise Fenced("a newer incarnation of the store has started")
        self.ends[store_id] = end_ts

    def newest_incarnation(self, store_id: int) -> int:
        self._request()
        return self.incarnations[store_id]

    def frontier(self) -> Sequence[FrontierEntry]:
        self._request()
        return list(self.entries)

    def begin(self, keyspace_id: int | None, start_ts: int = 0, upstream_id: int | None = None) -> PushBundle:
        self.upstream_id = upstream_id
        return self.push_bundle()

    def push_bundle(self) -> PushBundle:
        self._request()
        return PushBundle(
            object_store="memory://",
            state="ACTIVE" if self.entries else "AWAITING_SNAPSHOT",
            start_ts=self.start_ts,
            snapshot_refused=self.snapshot_refused,
        )

    def has_seed(self, ts: int, table_id: int) -> bool:
        self._request()
        return (ts, table_id) in self.seeds

    def add_seed(self, ts: int, table_id: int) -> None:
        self._request()
        self.seeds.add((ts, table_id))

    def wanted_seeds(self) -> Sequence[WantedSeed]:
        self._request()
        return [w for w in self.wanted if not any((read.ts, w.table_id) in self.seeds for read in w.reads)]

    def _request(self) -> None:
        self.requests += 1
        if self.fail_next:
            self.fail_next -= 1
            raise ControlUnavailable(cause="told to fail")
        if self.away:
            raise ControlUnavailable(cause="away")
