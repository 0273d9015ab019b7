"""The log of a TiDB tenant, as the API serves it: its readers pull, and the oracle judges each page."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from reading.pages.pull import pull
from reading.pages.request import PullRequest
from reading.rows.scope import Scope
from reading.served import position
from reading.served.services import Services
from simulator.dst.database import SimCatalog
from simulator.dst.oracle import LOWEST
from simulator.dst.running import TENANT, Running, SimClock
from simulator.dst.store import FarStore
from tistream.catalog.tenancy.tenants import get_tenant, register_tenant
from tistream.errors import BeyondQuarantine, ErrorKind, TiStreamError
from tistream.objectstore.protocol import ObjectStore

if TYPE_CHECKING:
    from simulator.dst.world import World

_SCOPE = Scope(tenant=TENANT)


class TidbLog:
    """The log of one run."""

    raw_keys = None  #: pushers follow tables

    def __init__(self, world: World) -> None:
        self._world = world

    def register(self, catalog: SimCatalog) -> None:
        """The tenant."""
        register_tenant(catalog, TENANT)

    def read(self, running: Running) -> None:
        """Pulls: continues at its cursor, or restarts at an old one or from the beginning."""
        rand, far = running.rand, FarStore(self._world.bucket, self._world.profile.reader_slow_s, running.rand)
        store = self._world.way_to_bucket(running.role, far)
        services = Services.create(running.catalog, store, running.clock)
        cursors: list[str] = []
        while not running.stopping.wait(0.3 + rand.random() * 2):
            start = rand.choice([cursors[-1], rand.choice(cursors), None]) if cursors else None
            try:
                cursor = self._read_once(services, running.name, start, rand.choice([1, 3, 10_000]))
            except BeyondQuarantine:
                cursors.clear()  # the reader waits at the beginning until an operator has decided
                continue
            except TiStreamError as e:
                if e.kind not in (ErrorKind.RETRY, ErrorKind.CORRUPT):
                    raise
                continue
            if cursor is not None:
                cursors.append(cursor)

    def read_whole(self, catalog: SimCatalog, store: ObjectStore, clock: SimClock, upto: int) -> None:
        """Read all of the log."""
        self._read_once(Services.create(catalog, store, clock), "final reader", None, 100_000)

    def _read_once(self, services: Services, who: str, start: str | None, limit: int) -> str | None:
        """One pull, handed to the oracle; the next cursor, None before the tenant has begun."""
        catalog, oracle = services.catalog, self._world.oracle
        assert isinstance(catalog, SimCatalog)
        row = get_tenant(catalog, TENANT)
        if not row.start_ts:
            return None
        after = row.start_ts if start is None else position.decode_cursor(start, _SCOPE)
        seen, good_ts, before = oracle.served_max, oracle.good_ts(), _written(catalog)
        answer = pull(
            services,
            PullRequest(
                scope=_SCOPE,
                start_ts=None if start else "earliest",
                cursor=start,
                format="arrow",
                options={},
                limit=limit,
            ),
        )
        rows = pa.ipc.open_stream(answer.content).read_all()
        upto = position.decode_cursor(answer.next_cursor, _SCOPE)
        written = max(before, _written(catalog))  # of two catalogs, when another was restored meanwhile
        oracle.pulled(who, rows, after, upto, answer.resolved_ts, seen, written)
        oracle.held(who, max(upto, answer.resolved_ts), good_ts)
        return answer.next_cursor


def _written(catalog: SimCatalog) -> int:
    """Up to where each task has written."""
    ((lowest,),) = catalog.query(LOWEST)
    return lowest or 0
