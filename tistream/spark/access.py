"""Access to the log from Spark: over the API, or directly from catalog and bucket. Both give the same pages and plans.

Direct access runs the API's own pull in the Python of the executor. It scales with the executors, which must reach the
catalog and the bucket; the API is not involved.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from tistream.client import Client, connect
from tistream.client.core.requests import TIMEOUT_S, given, page_of
from tistream.spark.core.options import Keys, ReadOptions, Scope

if TYPE_CHECKING:
    from reading.deps import Services
    from reading.kv.selection import Selection
    from reading.pull import PullAnswer
    from reading.scope import Scope as PullScope
    from tistream.client.core.requests import Page


class ChangeLog(Protocol):
    """The log of one tenant."""

    def pull(
        self, scope: Scope, *, end_ts: str | int, limit: int, start_ts: str | None = None, cursor: str | None = None
    ) -> Page | PullAnswer:
        """A page from `start_ts` or `cursor`. The content is an Arrow stream."""
        ...

    def splits(
        self,
        scope: Scope,
        *,
        end_ts: str | int | None,
        start_ts: str | int | None = None,
        cursor: str | None = None,
        rows: int | None = None,
        parts: int = 1,
        part_bytes: int = 1,
    ) -> dict[str, Any]:
        """A plan, see `splits` of the client."""
        ...


@contextmanager
def open_log(options: ReadOptions) -> Iterator[ChangeLog]:
    """The access that the options choose."""
    if options.is_direct:
        yield _Direct(options)
        return
    with connect(options.url, key=options.key) as client:
        yield _OverHttp(client, options) if options.keys is None else _KeysOverHttp(client, options, options.keys)


def _format(options: ReadOptions) -> str:
    return "arrow" if options.decodes or options.keys is not None else "raw-arrow"


class _OverHttp:
    def __init__(self, client: Client, options: ReadOptions) -> None:
        self._tenant, self._format = client.tenant(options.cluster, options.tenant), _format(options)

    def pull(
        self, scope: Scope, *, end_ts: str | int, limit: int, start_ts: str | None = None, cursor: str | None = None
    ) -> Page:
        read = self._tenant.within(scope.database, scope.table)
        return read.page(format=self._format, start=start_ts, cursor=cursor, end=end_ts, limit=limit)

    def splits(
        self,
        scope: Scope,
        *,
        end_ts: str | int | None,
        start_ts: str | int | None = None,
        cursor: str | None = None,
        rows: int | None = None,
        parts: int = 1,
        part_bytes: int = 1,
    ) -> dict[str, Any]:
        read = self._tenant.within(scope.database, scope.table)
        return read.splits(start=start_ts, end=end_ts, cursor=cursor, rows=rows, parts=parts, part_bytes=part_bytes)


class _KeysOverHttp:
    """Changes of the keys of a raw or txn tenant."""

    def __init__(self, client: Client, options: ReadOptions, keys: Keys) -> None:
        self._client = client
        self._path = f"/v1/clusters/{options.cluster}/tenants/{options.tenant}/kv/changes"
        self._asked = given(asdict(keys)) | {"format": _format(options)}

    def pull(
        self, scope: Scope, *, end_ts: str | int, limit: int, start_ts: str | None = None, cursor: str | None = None
    ) -> Page:
        where = given({"start_ts": start_ts, "cursor": cursor, "end_ts": end_ts, "limit": limit})
        answer = self._client.request("GET", self._path, params={**self._asked, **where}, timeout_s=TIMEOUT_S)
        return page_of(answer.content, answer.headers)

    def splits(
        self,
        scope: Scope,
        *,
        end_ts: str | int | None,
        start_ts: str | int | None = None,
        cursor: str | None = None,
        rows: int | None = None,
        parts: int = 1,
        part_bytes: int = 1,
    ) -> dict[str, Any]:
        where = given({"start_ts": start_ts, "cursor": cursor, "end_ts": end_ts, "rows": rows})
        found: dict[str, Any] = self._client.get(
            f"{self._path}/splits", **where, parts=str(parts), part_bytes=str(part_bytes)
        )
        return found


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

    def pull(
        self, scope: Scope, *, end_ts: str | int, limit: int, start_ts: str | None = None, cursor: str | None = None
    ) -> PullAnswer:
        from reading.pull import PullRequest, pull

        request = PullRequest(
            scope=self._scope(scope), format=_format(self._options), options={}, start_ts=start_ts, cursor=cursor,
            end_ts=str(end_ts), limit=limit, keys=self._selection(),
        )  # fmt: skip
        return pull(self._services, request)

    def splits(
        self,
        scope: Scope,
        *,
        end_ts: str | int | None,
        start_ts: str | int | None = None,
        cursor: str | None = None,
        rows: int | None = None,
        parts: int = 1,
        part_bytes: int = 1,
    ) -> dict[str, Any]:
        from reading.splits import SplitRequest, plan, shown

        request = SplitRequest(
            scope=self._scope(scope), start_ts=None if start_ts is None else str(start_ts),
            end_ts=None if end_ts is None else str(end_ts), cursor=cursor, rows=rows, parts=parts,
            part_bytes=part_bytes, keys=self._options.keys is not None,
        )  # fmt: skip
        return shown(plan(self._services, request))

    def _selection(self) -> Selection | None:
        from reading.kv.selection import parse_selection
        from tistream.codec.key_format import KeyFormat

        keys = self._options.keys
        if keys is None:
            return None
        form = KeyFormat(keys.key_format)
        return parse_selection(form, start_key=keys.start_key, end_key=keys.end_key, prefix=keys.prefix)

    def _scope(self, scope: Scope) -> PullScope:
        from reading.scope import Scope as PullScope
        from tistream.ids import Tenant

        tenant = Tenant(self._options.cluster, self._options.tenant)
        return PullScope(tenant=tenant, database=scope.database, table=scope.table)
