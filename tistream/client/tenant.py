"""What a tenant, a database or a table can be asked, synchronously.

    tenant = connect(url).tenant(1, 1)
    tenant.changes()                                what was committed, up to the watermark
    tenant.follow()                                 the same, and what comes
    tenant.table("shop.customers").rows(as_of=...)  the rows as they were
    tenant.consumer("warehouse")                    changes from where the service knows that the consumer is

These objects hold names only; a request is made when a result is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Unpack

from tistream.client.core.keys import KeyFilter, history_query, state_query
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
    from tistream.client.api import Client
    from tistream.client.consumers import Consumer
    from tistream.client.entries import Entries
    from tistream.client.frames import Progress
    from tistream.client.results import Changes, KeyChanges, Rows, TableChanges


class Scope:
    """A tenant, or one of its databases or tables."""

    def __init__(self, client: Client, target: Target) -> None:
        self._client, self._target = client, target

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._target)!r} at {shown_url(self._client.url)})"

    def changes(self, *, store: CursorStore | None = None, **asked: Unpack[ChangeOptions]) -> Changes:
        """The changes from where `asked` begins to its `end`, or to what is served when they are read."""
        from tistream.client.results import Changes

        return Changes(self._client, self._target, asked, store=store, follow=False)

    def follow(self, *, store: CursorStore | None = None, **asked: Unpack[ChangeOptions]) -> Changes:
        """As `changes`, and then what comes, for ever or until everything up to `end` has been delivered.

        With a `store` it resumes at the cursor that the store holds; `start` and `snapshot` apply until something is
        saved. The cursor of a page is saved when the loop asks for what follows the page, so a page whose body did not
        finish (a kill, an exception, a `break`) comes again. With a `SqlCursorStore` the body's rows and the cursor are
        one transaction: exactly once."""
        from tistream.client.results import Changes

        return Changes(self._client, self._target, asked, store=store, follow=True)

    def page(
        self,
        *,
        format: str = "ndjson",
        options: Mapping[str, str] | None = None,
        wait_s: float = 0,
        **asked: Unpack[ChangeOptions],
    ) -> Page:
        """One page. `options` of the format; `wait_s`: seconds to wait while there is nothing new."""
        walk = Walk(self._target, asked, format=format, options=options, wait_s=wait_s)
        answer = self._client.request("GET", walk.path, params=walk.params(), timeout_s=wait_s + TIMEOUT_S)
        return page_of(answer.content, answer.headers)

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
        found: dict[str, Any] = self._client.get(f"{self._target.path}/changes/splits", **params)
        return found

    def files(
        self, *, start: Moment | None = None, end: Moment | None = None, format: str | None = None
    ) -> dict[str, Any]:
        """The files of the log with their addresses. See docs/files.md."""
        params = given({"start_ts": start, "end_ts": end, "format": format})
        found: dict[str, Any] = self._client.get(f"{self._target.path}/files", **params)
        return found


class Tenant(Scope):
    """A tenant."""

    def database(self, name: str) -> Scope:
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

    def databases(self, *, as_of: Moment = "latest") -> list[dict[str, Any]]:
        """Its databases as of a moment, as ListDBs has them."""
        answer = self._client.get(f"{self._target.path}/databases", start_ts=str(as_of))
        return [*answer["items"]]

    def tables(self, database: str, *, as_of: Moment = "latest") -> list[dict[str, Any]]:
        """The tables of a database as of a moment, as ListTables has them."""
        of = Target(self.cluster_id, self.tenant_id, database)
        return [*(self._client.get(f"{of.path}/tables", start_ts=str(as_of)))["items"]]

    def table(self, name: str, *, database: str | None = None) -> Table:
        """The table "database.table"; with `database`, the table of exactly this name."""
        database, table = table_names(name) if database is None else (database, name)
        return Table(self._client, Target(self.cluster_id, self.tenant_id, database, table))

    def within(self, database: str | None, table: str | None) -> Scope:
        """A table or a database by exact names, or the tenant; None leaves a name out."""
        if database is None:
            return self
        if table is not None:
            return self.table(table, database=database)
        return Scope(self._client, Target(self.cluster_id, self.tenant_id, database))

    def consumer(
        self,
        name: str,
        *,
        member: str = "default",
        lease_s: float = 30,
        format: str = "ndjson",
        limit: int | None = None,
        options: Mapping[str, str] | None = None,
    ) -> Consumer:
        """A member of a registered consumer. `lease_s`: seconds without a pull after which other members take over.
        Make it longer than a batch takes to process."""
        from tistream.client.consumers import Consumer
        from tistream.client.core.membership import Membership

        return Consumer(
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
    ) -> Keys:
        """The keys and values of a raw or txn tenant: those from `start` and below `end`, with the `prefix`, and with
        matches of the patterns (docs/filters.md). Keys are without mode and keyspace."""
        wanted = KeyFilter(start=start, end=end, prefix=prefix, key_pattern=key_pattern, value_pattern=value_pattern)
        return Keys(self._client, Target(self.cluster_id, self.tenant_id, kv=True), wanted)

    def register(
        self, *, kind: str = "tidb", keyspace: int | str | None = None, start_key: bytes = b"", end_key: bytes = b""
    ) -> dict[str, Any]:
        """Register the tenant; idempotent. The first answer holds a key for its pushers. `kind`: tidb, raw or txn; the
        last two are a keyspace (its id or name, default 0), or a range of its keys."""
        body = new_tenant(self.cluster_id, self.tenant_id, kind, keyspace, start_key, end_key)
        found: dict[str, Any] = self._client.post("/v1/tenants", body)
        return found


class Table(Scope):
    """A table."""

    def rows(
        self,
        *,
        as_of: Moment = "latest",
        columns: str | None = None,
        where: str | None = None,
        wait_s: float = 0,
    ) -> Rows:
        """The rows as of a moment. `columns`: names separated by commas; `where`: an expression as filters have it;
        `wait_s`: seconds to wait until the moment is served."""
        from tistream.client.results import Rows

        return Rows(self._client, self._target, as_of=as_of, columns=columns, where=where, wait_s=wait_s)

    def changes(
        self,
        *,
        store: CursorStore | None = None,
        progress: Callable[[Progress], None] | None = None,
        **asked: Unpack[ChangeOptions],
    ) -> TableChanges:
        """As of every scope, with Arrow and data frames. `progress` is called after each page of these."""
        from tistream.client.results import TableChanges

        return TableChanges(self._client, self._target, asked, store=store, follow=False, progress=progress)

    def follow(
        self,
        *,
        store: CursorStore | None = None,
        progress: Callable[[Progress], None] | None = None,
        **asked: Unpack[ChangeOptions],
    ) -> TableChanges:
        """As of every scope, with Arrow."""
        from tistream.client.results import TableChanges

        return TableChanges(self._client, self._target, asked, store=store, follow=True, progress=progress)

    def definition(self, *, as_of: Moment = "latest", dialect: str = "mysql") -> dict[str, Any]:
        """The CREATE statements of the table as of a moment, and notes on omissions."""
        path = f"{self._target.path}/definition"
        found: dict[str, Any] = self._client.get(path, as_of=str(as_of), dialect=dialect)
        return found


class Keys:
    """Keys and values of a raw or txn tenant."""

    def __init__(self, client: Client, target: Target, keys: KeyFilter) -> None:
        self._client, self._target, self._keys = client, target, keys

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._target)!r} at {shown_url(self._client.url)})"

    def changes(
        self,
        *,
        store: CursorStore | None = None,
        progress: Callable[[Progress], None] | None = None,
        **asked: Unpack[ChangeOptions],
    ) -> KeyChanges:
        """The writes from where `asked` begins to its `end`, or to what is served when they are read."""
        from tistream.client.results import KeyChanges

        return KeyChanges(self._client, self._target, self._keys, asked, store=store, follow=False, progress=progress)

    def follow(
        self,
        *,
        store: CursorStore | None = None,
        progress: Callable[[Progress], None] | None = None,
        **asked: Unpack[ChangeOptions],
    ) -> KeyChanges:
        """As `changes`, and then what comes; see `Scope.follow`."""
        from tistream.client.results import KeyChanges

        return KeyChanges(self._client, self._target, self._keys, asked, store=store, follow=True, progress=progress)

    def page(
        self,
        *,
        format: str = "ndjson",
        options: Mapping[str, str] | None = None,
        wait_s: float = 0,
        **asked: Unpack[ChangeOptions],
    ) -> Page:
        """One page. `options`: `key_format`; `wait_s`: seconds to wait while there is nothing new."""
        walk = Walk(self._target, asked, format=format, options=self._keys.params(options), wait_s=wait_s)
        answer = self._client.request("GET", walk.path, params=walk.params(), timeout_s=wait_s + TIMEOUT_S)
        return page_of(answer.content, answer.headers)

    def rows(
        self, *, as_of: Moment = "latest", allow_state: bool = False, limit: int | None = None, wait_s: float = 0
    ) -> Entries:
        """The entries as of a moment. StateNotKnown when the log may lack versions of a key around it; with
        `allow_state` its newest known version instead, with `exact` false. `limit`: keys of a page; `wait_s`: seconds
        to wait until the moment is served."""
        from tistream.client.entries import Entries

        query = state_query(self._keys, as_of, limit=limit, allow_state=allow_state, wait_s=wait_s)
        return Entries(self._client, self._target, query)

    def history(
        self, key: bytes, *, start: Moment | None = None, end: Moment | None = None, limit: int | None = None
    ) -> Entries:
        """All versions of one key above `start` (the beginning of the log by default) and up to `end`, oldest first."""
        from tistream.client.entries import Entries

        return Entries(self._client, self._target, history_query(key, start, end, limit))
