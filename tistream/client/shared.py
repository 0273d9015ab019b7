"""What both clients share: objects that hold names and options, and make no request.

The classes of each client add the methods that wait for an answer; `core` judges the answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack

import httpx2

from tistream.client.core.keys import EntryQuery, KeyFilter, history_query, state_query
from tistream.client.core.membership import Membership
from tistream.client.core.requests import (
    TIMEOUT_S,
    ChangeOptions,
    Moment,
    Target,
    check_arguments,
    rows_params,
    shown_url,
    table_names,
)
from tistream.client.core.walk import Walk
from tistream.client.cursors import CursorStore
from tistream.runtime.proxies import reach
from tistream.runtime.tls import ClientFiles

if TYPE_CHECKING:
    from tistream.client.frames import Progress

ALL_KEYS = KeyFilter()


class ConnectionBase:
    """The address of a service, and requests to it."""

    def __init__(
        self, url: str, http: type[Any], key: str | None, transport: object, files: ClientFiles | None
    ) -> None:
        """`http`: the class of the connections; `files`: of TLS, None = as `reach` finds them; the others as
        `Connection` has them."""
        self.url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        how: dict[str, Any] = reach(self.url, files=files) if transport is None else {"transport": transport}
        self._http = http(timeout=TIMEOUT_S, headers=headers, **how)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({shown_url(self.url)!r})"

    def _request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float,
    ) -> httpx2.Request:
        sent = None if body is None else dict(body)
        timeout = httpx2.Timeout(TIMEOUT_S, read=timeout_s)
        request: httpx2.Request = self._http.build_request(
            method, self.url + path, params=params, json=sent, headers=headers, timeout=timeout
        )
        return request


class ChangesBase:
    """Which changes are read."""

    def __init__(
        self,
        connection: ConnectionBase,
        target: Target,
        asked: ChangeOptions,
        *,
        store: CursorStore | None,
        follow: bool,
        progress: Callable[[Progress], None] | None = None,
        keys: KeyFilter = ALL_KEYS,
    ) -> None:
        check_arguments(asked)
        self._connection, self._target, self._asked, self._store = connection, target, asked, store
        self._follows, self._progress, self._keys = follow, progress, keys

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._target)!r})"

    def _walk(self, cursor: str | None, format: str, options: Mapping[str, str] | None) -> Walk:
        """A pull from the cursor that a store holds, if it holds one."""
        asked = self._asked.copy()
        if cursor is not None:
            asked["cursor"] = cursor
        return Walk(self._target, asked, format=format, options=self._keys.params(options), follow=self._follows)


class RowsBase:
    """Which rows of a table are read."""

    def __init__(
        self,
        connection: ConnectionBase,
        target: Target,
        *,
        as_of: Moment,
        columns: str | None,
        where: str | None,
        wait_s: float,
        continued: bool,
    ) -> None:
        self._connection, self._target, self._wait_s = connection, target, wait_s
        self._params = rows_params(as_of, columns, where, wait_s, continued=continued)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._target)!r} as of {self._params['as_of']})"


class EntriesBase:
    """Which entries of a raw or txn tenant are read."""

    def __init__(self, connection: ConnectionBase, target: Target, query: EntryQuery) -> None:
        self._connection, self._target, self._query = connection, target, query

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._query.what} of {str(self._target)!r})"


class ConsumerBase:
    """A member of a consumer."""

    def __init__(self, connection: ConnectionBase, membership: Membership) -> None:
        self._connection, self._membership = connection, membership

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._membership.name!r}, member={self._membership.member!r})"


class Source:
    """A tenant or a part of it."""

    def __init__(self, connection: ConnectionBase, target: Target, keys: KeyFilter = ALL_KEYS) -> None:
        self._connection, self._target, self._keys = connection, target, keys

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._target)!r} at {shown_url(self._connection.url)})"


ChangesT = TypeVar("ChangesT", bound=ChangesBase)
RowsT = TypeVar("RowsT", bound=RowsBase)
EntriesT = TypeVar("EntriesT", bound=EntriesBase)
ConsumerT = TypeVar("ConsumerT", bound=ConsumerBase)
ScopeT = TypeVar("ScopeT", bound=Source)
TableT = TypeVar("TableT", bound=Source)
KeysT = TypeVar("KeysT", bound=Source)


class ScopeBase(Source, Generic[ChangesT]):
    """A tenant, or one of its databases or tables."""

    _changes: type[ChangesT]

    def changes(self, *, store: CursorStore | None = None, **asked: Unpack[ChangeOptions]) -> ChangesT:
        """The changes from where `asked` begins to its `end`, or to what is served when they are read."""
        return self._changes(self._connection, self._target, asked, store=store, follow=False)

    def follow(self, *, store: CursorStore | None = None, **asked: Unpack[ChangeOptions]) -> ChangesT:
        """As `changes`, and then what comes, for ever or until everything up to `end` has been delivered.

        With a `store` it resumes at the cursor that the store holds; `start` and `snapshot` apply until something is
        saved. The cursor of a page is saved when the loop asks for what follows the page, so a page whose body did not
        finish (a kill, an exception, a `break`) comes again. With a `SqlCursorStore` the body's rows and the cursor are
        one transaction: exactly once. `AsyncClient` calls a store in a thread, except a SqlCursorStore: its connection
        belongs to the loop's thread and transaction."""
        return self._changes(self._connection, self._target, asked, store=store, follow=True)


class ArrowBase(Source, Generic[ChangesT]):
    """A table, or keys and values: their changes can be read as Arrow."""

    _changes: type[ChangesT]

    def changes(
        self,
        *,
        store: CursorStore | None = None,
        progress: Callable[[Progress], None] | None = None,
        **asked: Unpack[ChangeOptions],
    ) -> ChangesT:
        """As of every scope, with Arrow and data frames. `progress` is called after each page of these."""
        return self._changes(
            self._connection, self._target, asked, store=store, follow=False, progress=progress, keys=self._keys
        )

    def follow(
        self,
        *,
        store: CursorStore | None = None,
        progress: Callable[[Progress], None] | None = None,
        **asked: Unpack[ChangeOptions],
    ) -> ChangesT:
        """As of every scope, with Arrow."""
        return self._changes(
            self._connection, self._target, asked, store=store, follow=True, progress=progress, keys=self._keys
        )


class TableBase(ArrowBase[ChangesT], Generic[ChangesT, RowsT]):
    """A table."""

    _rows: type[RowsT]

    def rows(
        self,
        *,
        as_of: Moment = "latest",
        columns: str | None = None,
        where: str | None = None,
        wait_s: float = 0,
        continued: bool = False,
    ) -> RowsT:
        """The rows as of a moment. `columns`: names separated by commas; `where`: an expression as filters have it;
        `wait_s`: seconds to wait until the moment is served. `continued`: changes will be pulled from the moment on, so
        a DDL under way there counts from its event on."""
        connection, target = self._connection, self._target
        return self._rows(
            connection, target, as_of=as_of, columns=columns, where=where, wait_s=wait_s, continued=continued
        )


class KeysBase(ArrowBase[ChangesT], Generic[ChangesT, EntriesT]):
    """Keys and values of a raw or txn tenant."""

    _entries: type[EntriesT]

    def rows(
        self, *, as_of: Moment = "latest", allow_state: bool = False, limit: int | None = None, wait_s: float = 0
    ) -> EntriesT:
        """The entries as of a moment. StateNotKnown when the log may lack versions of a key around it; with
        `allow_state` its newest known version instead, with `exact` false. `limit`: keys of a page; `wait_s`: seconds
        to wait until the moment is served."""
        query = state_query(self._keys, as_of, limit=limit, allow_state=allow_state, wait_s=wait_s)
        return self._entries(self._connection, self._target, query)

    def history(
        self, key: bytes, *, start: Moment | None = None, end: Moment | None = None, limit: int | None = None
    ) -> EntriesT:
        """All versions of one key above `start` (the beginning of the log by default) and up to `end`, oldest first."""
        return self._entries(self._connection, self._target, history_query(key, start, end, limit))


class TenantBase(Source, Generic[ScopeT, TableT, KeysT, ConsumerT]):
    """A tenant: what it holds, by names."""

    _scope: type[ScopeT]
    _table: type[TableT]
    _key_range: type[KeysT]
    _consumer: type[ConsumerT]

    @property
    def cluster_id(self) -> int:
        """The upstream cluster."""
        return self._target.cluster_id

    @property
    def tenant_id(self) -> int:
        """The tenant within the cluster."""
        return self._target.tenant_id

    def database(self, name: str) -> ScopeT:
        """One of its databases."""
        return self._scope(self._connection, Target(self.cluster_id, self.tenant_id, name))

    def table(self, name: str, *, database: str | None = None) -> TableT:
        """The table "database.table"; with `database`, the table of exactly this name."""
        database, table = table_names(name) if database is None else (database, name)
        return self._table(self._connection, Target(self.cluster_id, self.tenant_id, database, table))

    def consumer(
        self,
        name: str,
        *,
        member: str = "default",
        lease_s: float = 30,
        format: str = "ndjson",
        limit: int | None = None,
        options: Mapping[str, str] | None = None,
    ) -> ConsumerT:
        """A member of a registered consumer. `lease_s`: seconds without a pull after which other members take over.
        Make it longer than a batch takes to process."""
        return self._consumer(
            self._connection,
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
    ) -> KeysT:
        """The keys and values of a raw or txn tenant: those from `start` and below `end`, with the `prefix`, and with
        matches of the patterns (docs/filters.md). Keys are without mode and keyspace."""
        keys = KeyFilter(start=start, end=end, prefix=prefix, key_pattern=key_pattern, value_pattern=value_pattern)
        return self._key_range(self._connection, Target(self.cluster_id, self.tenant_id, kv=True), keys)
