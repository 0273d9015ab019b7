"""What a tenant, a database or a table can be asked, with `await`. As `tistream.client.tenant`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

from tistream.client.aio.connection import AsyncConnection
from tistream.client.aio.consumers import AsyncConsumer
from tistream.client.aio.entries import AsyncEntries
from tistream.client.aio.results import AsyncChanges, AsyncKeyChanges, AsyncRows, AsyncTableChanges, read_page
from tistream.client.core.requests import ChangeOptions, Moment, Page, Target, continued_params, given, new_tenant
from tistream.client.core.walk import Walk
from tistream.client.shared import KeysBase, ScopeBase, Source, TableBase, TenantBase


class AsyncPaged(Source):
    """What is read page by page."""

    _connection: AsyncConnection

    async def page(
        self,
        *,
        format: str = "ndjson",
        options: Mapping[str, str] | None = None,
        wait_s: float = 0,
        **asked: Unpack[ChangeOptions],
    ) -> Page:
        """As `Scope.page`."""
        walk = Walk(self._target, asked, format=format, options=self._keys.params(options), wait_s=wait_s)
        return await read_page(self._connection, walk)


class AsyncScope(AsyncPaged, ScopeBase[AsyncChanges]):
    """As `Scope`."""

    _changes = AsyncChanges

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
        answer: dict[str, Any] = await self._connection.get(f"{self._target.path}/changes/splits", **params)
        return answer

    async def files(
        self, *, start: Moment | None = None, end: Moment | None = None, format: str | None = None
    ) -> dict[str, Any]:
        """As `Scope.files`."""
        params = given({"start_ts": start, "end_ts": end, "format": format})
        answer: dict[str, Any] = await self._connection.get(f"{self._target.path}/files", **params)
        return answer


class AsyncTable(TableBase[AsyncTableChanges, AsyncRows], AsyncScope):
    """As `Table`."""

    _changes = AsyncTableChanges
    _rows = AsyncRows

    async def definition(
        self, *, as_of: Moment = "latest", dialect: str = "mysql", continued: bool = False
    ) -> dict[str, Any]:
        """As `Table.definition`."""
        params = {"as_of": str(as_of), "dialect": dialect, **continued_params(continued)}
        answer: dict[str, Any] = await self._connection.get(f"{self._target.path}/definition", **params)
        return answer


class AsyncKeys(AsyncPaged, KeysBase[AsyncKeyChanges, AsyncEntries]):
    """As `Keys`."""

    _changes = AsyncKeyChanges
    _entries = AsyncEntries


class AsyncTenant(TenantBase[AsyncScope, AsyncTable, AsyncKeys, AsyncConsumer], AsyncScope):
    """As `Tenant`."""

    _scope, _table, _key_range, _consumer = AsyncScope, AsyncTable, AsyncKeys, AsyncConsumer

    def within(self, database: str | None, table: str | None) -> AsyncScope:
        """As `Tenant.within`."""
        if database is None:
            return self
        return self.database(database) if table is None else self.table(table, database=database)

    async def databases(self, *, as_of: Moment = "latest", continued: bool = False) -> list[dict[str, Any]]:
        """As `Tenant.databases`."""
        params = {"start_ts": str(as_of), **continued_params(continued)}
        return [*(await self._connection.get(f"{self._target.path}/databases", **params))["items"]]

    async def tables(self, database: str, *, as_of: Moment = "latest", continued: bool = False) -> list[dict[str, Any]]:
        """As `Tenant.tables`."""
        path = Target(self.cluster_id, self.tenant_id, database).path
        params = {"start_ts": str(as_of), **continued_params(continued)}
        return [*(await self._connection.get(f"{path}/tables", **params))["items"]]

    async def register(
        self, *, kind: str = "tidb", keyspace: int | str | None = None, start_key: bytes = b"", end_key: bytes = b""
    ) -> dict[str, Any]:
        """As `Tenant.register`."""
        body = new_tenant(self.cluster_id, self.tenant_id, kind, keyspace, start_key, end_key)
        answer: dict[str, Any] = await self._connection.post("/v1/tenants", body)
        return answer
