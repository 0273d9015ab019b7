"""Access to the log from Spark: over the API, or directly from catalog and bucket. Both give the same pages and plans.

Direct access runs the API's own pull in the Python of the executor. It scales with the executors, which must reach the
catalog and the bucket; the API is not involved.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from tistream.client import Client, connect
from tistream.client.core.requests import TIMEOUT_S, given, page_of
from tistream.spark.core.options import Keys, ReadOptions, Scope

if TYPE_CHECKING:
    from reading.kv.selection import Selection
    from reading.pages.request import PullAnswer
    from reading.rows.scope import Scope as PullScope
    from reading.served.services import Services
    from tistream.client.core.requests import Page


@dataclass(frozen=True, slots=True, kw_only=True)
class PageForm:
    """Which columns the pages of decoded rows have."""

    schema_ts: str | None = None  #: those of this timestamp
    names: tuple[str, ...] | None = None  #: of these only these and those of the key; None: all

    @property
    def columns(self) -> str | None:
        """The rules of a pull."""
        quoted = (f"`{name.replace('`', '``')}`" for name in self.names or ())
        return None if self.names is None else ",".join(quoted)


WHOLE = PageForm()


@dataclass(frozen=True, slots=True)
class ReadSpan:
    """What is read, from `start_ts` or `cursor`."""

    scope: Scope
    end_ts: str | int | None
    start_ts: str | None = None
    cursor: str | None = None

    @property
    def params(self) -> dict[str, str]:
        """The query of the API."""
        return given({"start_ts": self.start_ts, "cursor": self.cursor, "end_ts": self.end_ts})


class ChangeLog(Protocol):
    """The log of one tenant."""

    def pull(self, span: ReadSpan, limit: int, form: PageForm = WHOLE) -> Page | PullAnswer:
        """A page. The content is an Arrow stream. `form`: of decoded rows."""
        ...

    def splits(self, span: ReadSpan, *, rows: int | None = None, parts: int = 1, part_bytes: int = 1) -> dict[str, Any]:
        """A plan, see `splits` of the client."""
        ...


@contextmanager
def open_log(options: ReadOptions) -> Iterator[ChangeLog]:
    """The access that the options choose."""
    if options.is_direct:
        yield _Direct(options)
        return
    with connect(options.url, key=options.key, ca=options.ca, cert=options.cert) as client:
        yield _OverHttp(client, options) if options.keys is None else _KeysOverHttp(client, options, options.keys)


def _format(options: ReadOptions) -> str:
    return "arrow" if options.decodes or options.keys is not None else "raw-arrow"


class _OverHttp:
    def __init__(self, client: Client, options: ReadOptions) -> None:
        self._tenant, self._format = client.tenant(options.cluster, options.tenant), _format(options)

    def pull(self, span: ReadSpan, limit: int, form: PageForm = WHOLE) -> Page:
        return self._tenant.within(span.scope.database, span.scope.table).page(
            format=self._format, start=span.start_ts, cursor=span.cursor, end=span.end_ts, limit=limit,
            schema_ts=form.schema_ts, columns=form.columns,
        )  # fmt: skip

    def splits(self, span: ReadSpan, *, rows: int | None = None, parts: int = 1, part_bytes: int = 1) -> dict[str, Any]:
        return self._tenant.within(span.scope.database, span.scope.table).splits(
            start=span.start_ts, end=span.end_ts, cursor=span.cursor, rows=rows, parts=parts, part_bytes=part_bytes
        )


class _KeysOverHttp:
    """Changes of the keys of a raw or txn tenant."""

    def __init__(self, client: Client, options: ReadOptions, keys: Keys) -> None:
        self._client = client
        self._path = f"/v1/clusters/{options.cluster}/tenants/{options.tenant}/kv/changes"
        self._params = given(asdict(keys)) | {"format": _format(options)}

    def pull(self, span: ReadSpan, limit: int, form: PageForm = WHOLE) -> Page:
        params = {**self._params, **span.params, "limit": str(limit)}
        answer = self._client.request("GET", self._path, params=params, timeout_s=TIMEOUT_S)
        return page_of(answer.content, answer.headers)

    def splits(self, span: ReadSpan, *, rows: int | None = None, parts: int = 1, part_bytes: int = 1) -> dict[str, Any]:
        params = span.params | given({"rows": rows, "parts": parts, "part_bytes": part_bytes})
        plan: dict[str, Any] = self._client.get(f"{self._path}/splits", **params)
        return plan


@cache
def _services(catalog: str, store: str) -> Services:
    """One for each Python process: it keeps connections, the schema history and recent segments."""
    from reading.served.services import Services
    from tistream.catalog.database.engine import Catalog
    from tistream.clock import SystemClock
    from tistream.objectstore.factory import open_store

    opened = Catalog(catalog)
    opened.refuse_galera()
    opened.refuse_older()
    return Services.create(opened, open_store(store), SystemClock())


class _Direct:
    """Safe to use from several threads."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._services = _services(options.catalog, options.object_store)

    def pull(self, span: ReadSpan, limit: int, form: PageForm = WHOLE) -> PullAnswer:
        from reading.filters import parse_filter
        from reading.pages.pull import pull
        from reading.pages.request import PullRequest

        request = PullRequest(
            scope=self._scope(span.scope), format=_format(self._options), options={}, start_ts=span.start_ts,
            cursor=span.cursor, end_ts=str(span.end_ts), limit=limit, keys=self._selection(), schema_ts=form.schema_ts,
            filter=parse_filter({} if form.columns is None else {"columns": form.columns}),
        )  # fmt: skip
        return pull(self._services, request)

    def splits(self, span: ReadSpan, *, rows: int | None = None, parts: int = 1, part_bytes: int = 1) -> dict[str, Any]:
        from reading.pages.splits import SplitRequest, plan, shown

        request = SplitRequest(
            scope=self._scope(span.scope), start_ts=span.start_ts, cursor=span.cursor,
            end_ts=None if span.end_ts is None else str(span.end_ts), rows=rows, parts=parts, part_bytes=part_bytes,
            keys=self._options.keys is not None,
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
        from reading.rows.scope import Scope as PullScope
        from tistream.ids import Tenant

        tenant = Tenant(self._options.cluster, self._options.tenant)
        return PullScope(tenant=tenant, database=scope.database, table=scope.table)
