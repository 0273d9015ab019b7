"""Readers that follow the log through every API server in turn, and have each page judged.

A reader keeps its cursor: when a server does not answer, or answers "not now", it tries the next one. Any other problem
is a finding, because no fault of the deployment may invalidate a cursor.
"""

from __future__ import annotations

import io
import itertools
import threading
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from simulator.judging.core.judge import Judge
from tistream.client import Page, connect
from tistream.clock import Clock
from tistream.errors import ErrorKind, TiStreamError
from tistream.ids import Tenant

_WAIT_S = 1.0
_PAUSE_S = 0.2
_PAGE_ROWS = 5000
_SERVED_LONG = 3  #: pages of one server before the next one is asked: a cursor belongs to no server


def read_again(
    urls: Sequence[str], tenant: Tenant, clock: Clock, table_ids: range, upto_ts: int, *, within_s: float
) -> list[Judge]:
    """Read the whole log from its beginning, once from each server: what a server has kept of it for others does not
    hide what the log has lost. A finding of the judge when it is not complete up to `upto_ts` in time."""
    readers = [Reader(f"again-{n + 1}", [url], tenant, clock, table_ids) for n, url in enumerate(urls)]
    for reader in readers:
        reader.start()
    deadline, never = clock.monotonic() + within_s, threading.Event()
    while min(reader.judge.complete_ts for reader in readers) < upto_ts and clock.monotonic() < deadline:
        clock.wait(never, _PAUSE_S)
    for reader in readers:
        reader.stop()
        if reader.judge.complete_ts < upto_ts:
            reader.judge.broke(f"read again only up to {reader.judge.complete_ts}, not {upto_ts}, in {within_s:.0f} s")
    return [reader.judge for reader in readers]


class Reader:
    """One cursor, followed in its own thread until `stop`."""

    def __init__(self, name: str, urls: Sequence[str], tenant: Tenant, clock: Clock, table_ids: range) -> None:
        """`table_ids`: only rows of these tables are judged."""
        self.judge = Judge(name)
        self.switches = 0  #: how often a server did not answer
        self._urls, self._tenant, self._clock, self._table_ids = urls, tenant, clock, table_ids
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask it to end, and wait until it has."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        cursor: str | None = None
        clients = [connect(url, retry_s=0) for url in self._urls]
        for client in itertools.cycle(clients):
            for _ in range(_SERVED_LONG):
                if self._stop.is_set():
                    for each in clients:
                        each.close()
                    return
                try:
                    page = client.tenant(self._tenant.cluster_id, self._tenant.tenant_id).page(
                        cursor=cursor,
                        format="raw-arrow",
                        limit=_PAGE_ROWS,
                        wait_s=_WAIT_S,
                    )
                except TiStreamError as e:
                    if e.kind is not ErrorKind.RETRY:
                        self.judge.broke(f"{client.url}: {e} [{e.code}]")
                    self.switches += 1
                    self._clock.wait(self._stop, _PAUSE_S)
                    break
                cursor = page.next_cursor
                self._take(page)

    def _take(self, page: Page) -> None:
        rows = pa.ipc.open_stream(io.BytesIO(page.content)).read_all()
        ids = rows["table_id"]
        mine = pc.and_(pc.greater_equal(ids, self._table_ids.start), pc.less(ids, self._table_ids.stop))
        self.judge.page(rows.filter(mine), page.resolved_ts, page.has_more)
