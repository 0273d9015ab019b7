"""What a tenant, a database or a table can be asked, with `await`. As `tistream.client.tenant`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Unpack

from tistream.client.aio.consumers import AsyncConsumer
from tistream.client.aio.entries import AsyncEntries
from tistream.client.aio.results import AsyncChanges, AsyncKeyChanges, AsyncRows, AsyncTableChanges
from tistream.client.core.keys import KeyFilter, history_query, state_query
from tistream.client.core.membership import Membership
from tistream.client.core.requests import (
    TIMEOUT_S,
    ChangeOptions,
    Moment,
    Page,
    Target,
    given,
    new_tenant,
    page_of,
    shown_url,
    table_names,
)
from tistream.client.core.walk import Walk
from tistream.client.cursors import CursorStore

if TYPE_CHECKING:
    from tistream.client.aio.api import AsyncClient
    from tistream.client.frames import Progress


class AsyncScope:
    """As `Scope`."""

    def __init__(self, client: AsyncClient, target: Target) -> None:
        self._client, self._target = client, target

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._target)!r} at {shown_url(self._client.url)})"

    def changes(self, *, store: CursorStore | None = None, **asked: Unpack[ChangeOptions]) -> AsyncChanges:
        """As `Scope.changes`."""
        return AsyncChanges(self._client, self._target, asked, store=store, follow=False)

    def follow(self, *, store: CursorStore | None = None, **asked: Unpack[ChangeOptions]) -> AsyncChanges:
        """As `Scope.follow`. Stores are called in a thread, except a SqlCursorStore: its connection belongs to the
        loop's thread and transaction."""
        return AsyncChanges(self._client, self._target, asked, store=store, follow=True)

    async def page(
        self,
        *,
        format: str = "ndjson",
        options: Mapping[str, str] | None = None,
        wait_s: float = 0,
        **asked: Unpack[ChangeOptions],
    ) -> Page:
        """As `Scope.page`."""
        walk = Walk(self._target, asked, format=format, options=options, wait_s=wait_s)
        answer = await self._client.request("GET", walk.path, params=walk.params(), timeout_s=wait_s + TIMEOUT_S)
        return page_of(answer.content, answer.headers)

    async def splits(
        self,
        *,
        start: Moment | None = None,
        end: Moment | None = None,
        cursor: str | None = None,
        rows: int | None = None,
        parts: int | None = None,
        part_bytes: int | None = None,
    ) -> dict[str, Any]:
        """As `Scope.splits`."""
        params = given({"start_ts": start, "end_ts": end, "cursor": cursor, "rows": rows, "parts": parts,
                        "part_bytes": part_bytes})  # fmt: skip
        found: dict[str, Any] = await self._client.get(f"{self._target.path}/changes/splits", **params)
        return found

    async def files(
        self, *, start: Moment | None = None, end: Moment | None = None, format: str | None = None
    ) -> dict[str, Any]:
        """As `Scope.files`."""
        params = given({"start_ts": start, "end_ts": end, "format": format})
        found: dict[str, Any] = await self._client.get(f"{self._target.path}/files", **params)
        return found


class AsyncTenant(AsyncScope):
    """As `Tenant`."""

    def database(self, name: str) -> AsyncScope:
        """One of its databases."""
        return self.within(name, None)

    @property
    def cluster_id(self) -> int:
        """The upstream cluster."""
        return self._target.cluster_id

    @property
    def tenant_id(self) -> int:
        """The tenant within the cluster."""
        return self._target.tenant_id

    async def databases(self, *, as_of: Moment = "latest") -> list[dict[str, Any]]:
        """Its databases as of a moment, as ListDBs has them."""
        answer = await self._client.get(f"{self._target.path}/databases", start_ts=str(as_of))
        return [*answer["items"]]

    async def tables(self, database: str, *, as_of: Moment = "latest") -> list[dict[str, Any]]:
        """The tables of a database as of a moment, as ListTables has them."""
        of = Target(self.cluster_id, self.tenant_id, database)
        return [*(await self._client.get(f"{of.path}/tables", start_ts=str(as_of)))["items"]]

    def table(self, name: str, *, database: str | None = None) -> AsyncTable:
        """The table "database.table"; with `database`, the table of exactly this name."""
        database, table = table_names(name) if database is None else (database, name)
        return AsyncTable(self._client, Target(self.cluster_id, self.tenant_id, database, table))

    def within(self, database: str | None, table: str | None) -> AsyncScope:
        """As `Tenant.within`."""
        if database is None:
            return self
        if table is not None:
            return self.table(table, database=database)
        return AsyncScope(self._client, Target(self.cluster_id, self.tenant_id, database))

    def consumer(
        self,
        name: str,
        *,
        member: str = "default",
        lease_s: float = 30,
        format: str = "ndjson",
        limit: int | None = None,
        options: Mapping[str, str] | None = None,
    ) -> AsyncConsumer:
        """As `Tenant.consumer`."""
        return AsyncConsumer(
            self._client,
            Membership(self._target, name, member=member, lease_s=lease_s, format=format, limit=limit, options=options),
        )

    def keys(
        self,
        *,
        start: bytes | None = None,
        end: bytes | None = None,
        prefix: bytes | None = None,
        key_pattern: str | None = None,
        value_pattern: str | None = None,
    ) -> AsyncKeys:
        """As `Tenant.keys`."""
        wanted = KeyFilter(start=start, end=end, prefix=prefix, key_pattern=key_pattern, value_pattern=value_pattern)
        return AsyncKeys(self._client, Target(self.cluster_id, self.tenant_id, kv=True), wanted)

    async def register(
        self, *, kind: str = "tidb", keyspace: int | str | None = None, start_key: bytes = b"", end_key: bytes = b""
    ) -> dict[str, Any]:
        """As `Tenant.register`."""
        body = new_tenant(self.cluster_id, self.tenant_id, kind, keyspace, start_key, end_key)
        found: dict[str, Any] = await self._client.post("/v1/tenants", body)
        return found


class AsyncTable(AsyncScope):
    """As `Table`."""

    def rows(
        self,
        *,
        as_of: Moment = "latest",
        columns: str | None = None,
        where: str | None = None,
        wait_s: float = 0,
    ) -> AsyncRows:
        """As `Table.rows`."""
        return AsyncRows(self._client, self._target, as_of=as_of, columns=columns, where=where, wait_s=wait_s)

    def changes(
        self,
        *,
        store: CursorStore | None = None,
        progress: Callable[[Progress], None] | None = None,
        **asked: Unpack[ChangeOptions],
    ) -> AsyncTableChanges:
        """As `Table.changes`."""
        return AsyncTableChanges(self._client, self._target, asked, store=store, follow=False, progress=progress)

    def follow(
        self,
        *,
        store: CursorStore | None = None,
        progress: Callable[[Progress], None] | None = None,
        **asked: Unpack[ChangeOptions],
    ) -> AsyncTableChanges:
        """As `Table.follow`."""
        return AsyncTableChanges(self._client, self._target, asked, store=store, follow=True, progress=progress)

    async def definition(self, *, as_of: Moment = "latest", dialect: str = "mysql") -> dict[str, Any]:
        """As `Table.definition`."""
        path = f"{self._target.path}/definition"
        found: dict[str, Any] = await self._client.get(path, as_of=str(as_of), dialect=dialect)
        return found


class AsyncKeys:
    """As `Keys`."""

    def __init__(self, client: AsyncClient, target: Target, keys: KeyFilter) -> None:
        self._client, self._target, self._keys = client, target, keys

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._target)!r} at {shown_url(self._client.url)})"

    def changes(
        self,
        *,
        store: CursorStore | None = None,
        progress: Callable[[Progress], None] | None = None,
        **asked: Unpack[ChangeOptions],
    ) -> AsyncKeyChanges:
        """As `Keys.changes`."""
        return AsyncKeyChanges(
            self._client, self._target, self._keys, asked, store=store, follow=False, progress=progress
        )

    def follow(
        self,
        *,
        store: CursorStore | None = None,
        progress: Callable[[Progress], None] | None = None,
        **asked: Unpack[ChangeOptions],
    ) -> AsyncKeyChanges:
        """As `Keys.follow`."""
        return AsyncKeyChanges(
            self._client, self._target, self._keys, asked, store=store, follow=True, progress=progress
        )

    async def page(
        self,
        *,
        format: str = "ndjson",
        options: Mapping[str, str] | None = None,
        wait_s: float = 0,
        **asked: Unpack[ChangeOptions],
    ) -> Page:
        """As `Keys.page`."""
        walk = Walk(self._target, asked, format=format, options=self._keys.params(options), wait_s=wait_s)
        answer = await self._client.request("GET", walk.path, params=walk.params(), timeout_s=wait_s + TIMEOUT_S)
        return page_of(answer.content, answer.headers)

    def rows(
        self, *, as_of: Moment = "latest", allow_state: bool = False, limit: int | None = None, wait_s: float = 0
    ) -> AsyncEntries:
        """As `Keys.rows`."""
        query = state_query(self._keys, as_of, limit=limit, allow_state=allow_state, wait_s=wait_s)
        return AsyncEntries(self._client, self._target, query)

    def history(
        self, key: bytes, *, start: Moment | None = None, end: Moment | None = None, limit: int | None = None
    ) -> AsyncEntries:
        """As `Keys.history`."""
        return AsyncEntries(self._client, self._target, history_query(key, start, end, limit))
