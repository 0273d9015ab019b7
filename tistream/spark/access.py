"""The two ways to the log: through the API, or straight to catalog and bucket. Both give the same pages and plans.

The direct way runs the API's own pull in the Python of the executor. It scales with the executors and needs addresses
of catalog and bucket that lead there from each of them; the API stays out of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import pyarrow as pa

from tistream.client import Client, connect
from tistream.spark.core.options import ReadOptions
from tistream.spark.core.pages import LogPage, Scope


class ChangeLog(Protocol):
    """Pages and plans, as the API has them."""

    def page(self, scope: Scope, *, cursor: str, end_ts: int, limit: int) -> LogPage:
        """The next page, up to `end_ts`."""
        ...

    def columns(self, scope: Scope, *, ts: str) -> tuple[pa.Schema, int]:
        """The columns of the table as of a timestamp, as pages have them, and the served watermark."""
        ...

    def splits(self, scope: Scope, **params: str | int | None) -> dict[str, Any]:
        """A plan, see `Client.splits`."""
        ...


@contextmanager
def open_log(options: ReadOptions) -> Iterator[ChangeLog]:
    """The way that the options choose."""
    if options.is_direct:
        from tistream.spark.direct import DirectLog

        yield DirectLog(options)
        return
    shown = {} if options.key is None else {"key": options.key}
    with connect(options.url, **shown) as client:
        yield _OverHttp(client, options)


class _OverHttp:
    def __init__(self, client: Client, options: ReadOptions) -> None:
        self._client, self._options = client, options
        self._format = "arrow" if options.decodes else "raw-arrow"

    def page(self, scope: Scope, *, cursor: str, end_ts: int, limit: int) -> LogPage:
        of = self._options
        page = self._client.page(
            of.cluster,
            of.tenant,
            database=scope.database,
            table=scope.table,
            cursor=cursor,
            end_ts=end_ts,
            format=self._format,
            limit=limit,
        )
        return LogPage(
            rows=page.arrow(),
            next_cursor=page.next_cursor,
            resolved_ts=page.resolved_ts,
            has_more=page.has_more,
            quarantined=page.quarantined,
        )

    def columns(self, scope: Scope, *, ts: str) -> tuple[pa.Schema, int]:
        of = self._options
        page = self._client.page(
            of.cluster,
            of.tenant,
            database=scope.database,
            table=scope.table,
            start_ts=ts,
            end_ts=ts,
            format=self._format,
            limit=1,
        )
        return page.arrow().schema, page.resolved_ts

    def splits(self, scope: Scope, **params: str | int | None) -> dict[str, Any]:
        of = self._options
        return self._client.splits(of.cluster, of.tenant, database=scope.database, table=scope.table, **params)
