"""What a tenant, a database or a table can be asked, synchronously.

    tenant = connect(url).tenant(1, 1)
    tenant.changes()                                what was committed, up to the watermark
    tenant.follow()                                 the same, and what comes
    tenant.table("shop.customers").rows(as_of=...)  the rows as they were
    tenant.consumer("warehouse")                    changes from where the service knows that the consumer is

These objects hold names only; a request is made when a result is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

from tistream.client.connection import Connection
from tistream.client.consumers import Consumer
from tistream.client.core.requests import ChangeOptions, Moment, Page, Target, continued_params, given, new_tenant
from tistream.client.core.walk import Walk
from tistream.client.entries import Entries
from tistream.client.results import Changes, KeyChanges, Rows, TableChanges, read_page
from tistream.client.shared import KeysBase, ScopeBase, Source, TableBase, TenantBase


class Paged(Source):
    """What is read page by page."""

    _connection: Connection

    def page(
        self,
        *,
        format: str = "ndjson",
        options: Mapping[str, str] | None = None,
        wait_s: float = 0,
        **asked: Unpack[ChangeOptions],
    ) -> Page:
        """One page. `options` of the format; `wait_s`: seconds to wait while there is nothing new."""
        walk = Walk(self._target, asked, format=format, options=self._keys.params(options), wait_s=wait_s)
        return read_page(self._connection, walk)


class Scope(Paged, ScopeBase[Changes]):
    """A tenant, or one of its databases or tables."""

    _changes = Changes

    def splits(
        self,
        *,
        start: Moment | None = None,
        end: Moment | None = None,
        cursor: str | None = None,
        rows: int | None = None,
        parts: int | None = None,
        part_bytes: int | None = None,
    ) -> dict[str, Any]:
        """The parts of a long pull, each with its cursor and end. See docs/api.md."""
        params = given({"start_ts": start, "end_ts": end, "cursor": cursor, "rows": rows, "parts": parts,
                        "part_bytes": part_bytes})  # fmt: skip
        answer: dict[str, Any] = self._connection.get(f"{self._target.path}/changes/splits", **params)
        return answer

    def files(
        self, *, start: Moment | None = None, end: Moment | None = None, format: str | None = None
    ) -> dict[str, Any]:
        """The files of the log with their addresses. See docs/files.md."""
        params = given({"start_ts": start, "end_ts": end, "format": format})
        answer: dict[str, Any] = self._connection.get(f"{self._target.path}/files", **params)
        return answer


class Table(TableBase[TableChanges, Rows], Scope):
    """A table."""

    _changes = TableChanges
    _rows = Rows

    def definition(
        self, *, as_of: Moment = "latest", dialect: str = "mysql", continued: bool = False
    ) -> dict[str, Any]:
        """The CREATE statements of the table as of a moment, and notes on omissions. `continued`: as of `rows`."""
        params = {"as_of": str(as_of), "dialect": dialect, **continued_params(continued)}
        answer: dict[str, Any] = self._connection.get(f"{self._target.path}/definition", **params)
        return answer


class Keys(Paged, KeysBase[KeyChanges, Entries]):
    """Keys and values of a raw or txn tenant. The option of their pages is `key_format`."""

    _changes = KeyChanges
    _entries = Entries


class Tenant(TenantBase[Scope, Table, Keys, Consumer], Scope):
    """A tenant."""

    _scope, _table, _key_range, _consumer = Scope, Table, Keys, Consumer

    def within(self, database: str | None, table: str | None) -> Scope:
        """A table or a database by exact names, or the tenant; None leaves a name out."""
        if database is None:
            return self
        return self.database(database) if table is None else self.table(table, database=database)

    def databases(self, *, as_of: Moment = "latest", continued: bool = False) -> list[dict[str, Any]]:
        """Its databases as of a moment, as ListDBs has them. `continued`: as of `Table.rows`."""
        params = {"start_ts": str(as_of), **continued_params(continued)}
        return [*self._connection.get(f"{self._target.path}/databases", **params)["items"]]

    def tables(self, database: str, *, as_of: Moment = "latest", continued: bool = False) -> list[dict[str, Any]]:
        """The tables of a database as of a moment, as ListTables has them. `continued`: as of `Table.rows`."""
        path = Target(self.cluster_id, self.tenant_id, database).path
        params = {"start_ts": str(as_of), **continued_params(continued)}
        return [*self._connection.get(f"{path}/tables", **params)["items"]]

    def register(
        self, *, kind: str = "tidb", keyspace: int | str | None = None, start_key: bytes = b"", end_key: bytes = b""
    ) -> dict[str, Any]:
        """Register the tenant; idempotent. The first answer holds a key for its pushers. `kind`: tidb, raw or txn; the
        last two are a keyspace (its id or name, default 0), or a range of its keys."""
        body = new_tenant(self.cluster_id, self.tenant_id, kind, keyspace, start_key, end_key)
        answer: dict[str, Any] = self._connection.post("/v1/tenants", body)
        return answer
