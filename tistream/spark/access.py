"""Access to the log from Spark: over the API, or directly from catalog and bucket. Both give the same pages and plans.

Direct access runs the API's own pull in the Python of the executor. It scales with the executors, which must reach the
catalog and the bucket; the API is not involved.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from tistream.client import Client, connect
from tistream.spark.core.options import ReadOptions, Scope

if TYPE_CHECKING:
    from reading.deps import Services
    from reading.pull import PullAnswer
    from reading.scope import Scope as PullScope
    from tistream.client.core.requests import Page


class ChangeLog(Protocol):
    """The log of one tenant."""

    def pull(self, scope: Scope, **params: Any) -> Page | PullAnswer:
        """A page. `params`: start_ts or cursor, end_ts, limit. The content is an Arrow stream."""
        ...

    def splits(self, scope: Scope, **params: str | int | None) -> dict[str, Any]:
        """A plan, see `Client.splits`."""
        ...


@contextmanager
def open_log(options: ReadOptions) -> Iterator[ChangeLog]:
    """The access that the options choose."""
    if options.is_direct:
        yield _Direct(options)
        return
    shown = {} if options.key is None else {"key": options.key}
    with connect(options.url, **shown) as client:
        yield _OverHttp(client, options)


def _format(options: ReadOptions) -> str:
    return "arrow" if options.decodes else "raw-arrow"


class _OverHttp:
    def __init__(self, client: Client, options: ReadOptions) -> None:
        self._client, self._options = client, options

    def pull(self, scope: Scope, **params: Any) -> Page:
        of = self._options
        params |= {"database": scope.database, "table": scope.table, "format": _format(of)}
        return self._client.page(of.cluster, of.tenant, **params)

    def splits(self, scope: Scope, **params: str | int | None) -> dict[str, Any]:
        of = self._options
        return self._client.splits(of.cluster, of.tenant, database=scope.database, table=scope.table, **params)


@cache
def _services(catalog: str, store: str) -> Services:
    """One for each Python process: it keeps connections, the schema history and recent segments."""
    from reading.deps import Services
    from tistream.catalog.database.engine import Catalog
    from tistream.clock import SystemClock
    from tistream.objectstore.factory import open_store

    return Services.create(Catalog(catalog), open_store(store), SystemClock())


class _Direct:
    """Safe to use from several threads."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._services = _services(options.catalog, options.object_store)

    def pull(self, scope: Scope, **params: Any) -> PullAnswer:
        from reading.pull import PullRequest, pull

        asked = {"start_ts": None, "cursor": None} | params | {"end_ts": str(params["end_ts"])}
        request = PullRequest(scope=self._scope(scope), format=_format(self._options), options={}, **asked)
        return pull(self._services, request)

    def splits(self, scope: Scope, **params: str | int | None) -> dict[str, Any]:
        from reading.splits import SplitRequest, plan, shown

        asked: dict[str, Any] = {"start_ts": None, "cursor": None, "end_ts": None, "rows": None, "parts": 1}
        asked |= {"part_bytes": 1} | params
        for name in ("start_ts", "end_ts"):
            asked[name] = None if asked[name] is None else str(asked[name])
        return shown(plan(self._services, SplitRequest(scope=self._scope(scope), **asked)))

    def _scope(self, scope: Scope) -> PullScope:
        from reading.scope import Scope as PullScope
        from tistream.ids import Tenant

        tenant = Tenant(self._options.cluster, self._options.tenant)
        return PullScope(tenant=tenant, database=scope.database, table=scope.table)
