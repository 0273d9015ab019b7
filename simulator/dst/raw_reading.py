"""The log of a RawKV tenant: pages of any size, from any place, each handed to the rules (`raw_rules`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reading.log.reader import LogReader
from simulator.dst.database import SimCatalog
from simulator.dst.raw_floors import judge
from simulator.dst.raw_rules import RawRules
from simulator.dst.replication import Replication
from simulator.dst.running import TENANT, Running, SimClock
from simulator.dst.store import FarStore
from tistream.catalog.rows.kinds import Keyspace, TenantKind
from tistream.catalog.tenancy.tenants import get_tenant, register_tenant
from tistream.catalog.work.tasks import frontier
from tistream.codec.raw.keys import KeyMode, keyspace_range
from tistream.errors import BeyondQuarantine, ErrorKind, TiStreamError, TsExpired
from tistream.objectstore.protocol import ObjectStore

if TYPE_CHECKING:
    from simulator.dst.world import World

_KEYSPACE = 1
RAW_KEYS = keyspace_range(KeyMode.RAW, _KEYSPACE)  #: of the tenant


def raw_rules(world: World) -> RawRules:
    """The rules that the keyspace of a run must keep."""
    return RawRules(world.workload.versions, RAW_KEYS, world.oracle.violated)


class RawLog:
    """The log of one run."""

    raw_keys = RAW_KEYS  #: that pushers follow

    def __init__(self, world: World) -> None:
        if world.raw is None:
            raise ValueError("the scenario has no keyspace")
        self._world, self._rules = world, world.raw

    def register(self, catalog: SimCatalog) -> None:
        """The tenant is a keyspace; there may be others in the cluster."""
        register_tenant(catalog, TENANT, kind=TenantKind.RAW, keyspace=Keyspace(id=_KEYSPACE))

    def read(self, running: Running) -> None:
        """Read pages from where the last one ended, or from an older place."""
        rand, far = running.rand, FarStore(self._world.bucket, self._world.profile.reader_slow_s, running.rand)
        store = self._world.way_to_bucket(running.role, far)
        reader = LogReader(running.catalog, store, running.clock)
        places = [0]
        while not running.stopping.wait(0.3 + rand.random() * 2):
            after = rand.choice((places[-1], rand.choice(places), places[0]))
            try:
                places.append(
                    self._read_page(running.name, running.catalog, reader, after, rand.choice((1, 3, 10_000)))
                )
            except TsExpired as e:
                places = [int(str(e.facts["earliest_ts"]))]
            except BeyondQuarantine:
                continue
            except TiStreamError as e:
                if e.kind not in (ErrorKind.RETRY, ErrorKind.CORRUPT):
                    raise

    def read_whole(self, catalog: SimCatalog, store: ObjectStore, clock: SimClock, upto: int) -> None:
        """Read all of the log, and judge it."""
        reader = LogReader(catalog, store, clock)
        at = floor_ts = get_tenant(catalog, TENANT).floor_ts
        while True:
            try:
                at = self._read_page("final reader", catalog, reader, at, 100_000)
            except TsExpired:  # by a process that had not heard yet that all rest
                at = floor_ts = get_tenant(catalog, TENANT).floor_ts
                continue
            if at >= upto:
                break
        if not floor_ts:
            self._rules.at_rest()
        judge(self._world, catalog, store, reader, self._rules.truth, upto)

    def _read_page(self, who: str, catalog: SimCatalog, reader: LogReader, after: int, rows: int) -> int:
        """Read one page of the log as far as it is written; where it ends."""
        durable_ts = min(row.durable_ts for row in frontier(catalog, TENANT))
        if after > durable_ts:  # a restored catalog is not there again yet
            return after
        page = reader.page(TENANT, after=after, upto=durable_ts, rows=rows)
        self._rules.read(who, page.rows, after, page.upto)
        self._world.oracle.served(durable_ts, page.rows.num_rows)
        if (replication := self._world.find(Replication)) is not None:
            replication.rules.paged(who, page.rows, after, page.upto)
        return page.upto
