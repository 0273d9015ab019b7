"""The log without the API between: catalog rows and range requests from where Spark runs."""

from __future__ import annotations

from functools import cache
from typing import Any

import pyarrow as pa

from reading.deps import Services
from reading.pull import PullAnswer, PullRequest, pull
from reading.scope import Scope as PullScope
from reading.splits import SplitRequest, plan, shown
from tistream.catalog.database.engine import Catalog
from tistream.clock import SystemClock
from tistream.ids import Tenant
from tistream.objectstore.factory import open_store
from tistream.spark.core.options import ReadOptions
from tistream.spark.core.pages import LogPage, Scope


@cache
def _services(catalog: str, store: str) -> Services:
    """One for all that a Python process reads there: it keeps connections, the schema history and recent segments."""
    return Services.create(Catalog(catalog), open_store(store), SystemClock())


class DirectLog:
    """A ChangeLog over a catalog and a bucket. Safe to use from several threads."""

    def __init__(self, options: ReadOptions) -> None:
        self._services = _services(options.catalog, options.object_store)
        self._tenant = Tenant(options.cluster, options.tenant)
        self._format = "arrow" if options.decodes else "raw-arrow"

    def page(self, scope: Scope, *, cursor: str, end_ts: int, limit: int) -> LogPage:
        answer = self._pull(scope, start_ts=None, cursor=cursor, end_ts=str(end_ts), limit=limit)
        return LogPage(
            rows=pa.ipc.open_stream(answer.content).read_all(),
            next_cursor=answer.next_cursor,
            resolved_ts=answer.resolved_ts,
            has_more=answer.has_more,
            quarantined=answer.quarantined,
        )

    def columns(self, scope: Scope, *, ts: str) -> tuple[pa.Schema, int]:
        answer = self._pull(scope, start_ts=ts, cursor=None, end_ts=ts, limit=1)
        return pa.ipc.open_stream(answer.content).schema, answer.resolved_ts

    def splits(self, scope: Scope, **params: str | int | None) -> dict[str, Any]:
        asked: dict[str, Any] = {"start_ts": None, "cursor": None, "end_ts": None, "rows": None, "parts": 1}
        asked |= {"part_bytes": 1} | params
        for name in ("start_ts", "end_ts"):
            asked[name] = None if asked[name] is None else str(asked[name])
        return shown(plan(self._services, SplitRequest(scope=self._scope(scope), **asked)))

    def _pull(self, scope: Scope, *, start_ts: str | None, cursor: str | None, end_ts: str, limit: int) -> PullAnswer:
        return pull(
            self._services,
            PullRequest(
                scope=self._scope(scope),
                start_ts=start_ts,
                cursor=cursor,
                end_ts=end_ts,
                format=self._format,
                options={},
                limit=limit,
            ),
        )

    def _scope(self, scope: Scope) -> PullScope:
        return PullScope(tenant=self._tenant, database=scope.database, table=scope.table)
