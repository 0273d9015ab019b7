"""Listings of the log's files, for tools that read Parquet themselves.

A listing is one state of the log: each row is in exactly one of its files. It opens a read lease, so its files can be
fetched for FILE_URL_MS despite compaction and collection; listings close in time share a lease. A listing fails when
its lease cannot be opened.

`parquet_upto_ts` joins files and pull: every change at or below it is in a Parquet file, so a reader takes the Parquet
files up to there and pulls the rest.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections.abc import Collection
from dataclasses import dataclass

from reading.rows.scope import Scope
from reading.served.services import Services
from tistream import ts as tso
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.files import FileRow, list_files
from tistream.catalog.log.read_leases import open_lease
from tistream.catalog.log.retention import check_listing
from tistream.catalog.rows.segments import SegmentFormat
from tistream.clock import Clock
from tistream.errors import InvalidInput, NotFound
from tistream.ids import Tenant
from tistream.limits import FILE_URL_MS, FILES_LISTED_MAX
from tistream.objectstore.layout import committed_prefix, compacted_prefix

_SHARED_MS = 60_000  # listings of this period share a read lease


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The files that may hold changes in (start_ts, end_ts]."""

    files: tuple[FileRow, ...]  #: of the requested formats
    start_ts: int
    end_ts: int
    resolved_ts: int
    parquet_upto_ts: int  #: changes in (start_ts, this] are in Parquet files
    table_ids: tuple[int, ...] | None  #: physical ids of the scope; None for all of the tenant
    good_until_ms: int  #: Unix milliseconds by this process's clock


class ListingLeases:
    """The read leases of listings; they end by expiry. Safe to use from several threads."""

    def __init__(self, catalog: Catalog, clock: Clock) -> None:
        self._catalog, self._clock = catalog, clock
        self._lock = threading.Lock()
        self._opened: float | None = None

    def hold(self) -> None:
        """Keep files listed from now on for FILE_URL_MS. CatalogUnavailable when that fails."""
        with self._lock:
            now = self._clock.monotonic()
            if self._opened is None or (now - self._opened) * 1000 >= _SHARED_MS:
                open_lease(self._catalog, secrets.token_hex(12), FILE_URL_MS + 2 * _SHARED_MS)
                self._opened = now


def listing(
    services: Services,
    leases: ListingLeases,
    scope: Scope,
    *,
    start_ts: str,
    end_ts: str,
    formats: Collection[SegmentFormat],
) -> Listing:
    """List the current files. Timestamps have the forms of a pull."""
    served, now_ms = services.served(scope.tenant), services.clock.unix_ms()
    resolved = served.resolved
    after, upto = served.parse_ts(start_ts, now_ms), min(served.parse_ts(end_ts, now_ms), resolved)
    if served.row.has_log:
        served.check_start(after, now_ms)
    table_ids = None
    if scope.database is not None:
        ids = served.known_history.physical_ids(scope.database, scope.table, min(after, resolved), resolved)
        table_ids = tuple(sorted(ids))
        if not table_ids:
            raise NotFound(f"{scope} did not exist at any time of the interval.", scope=str(scope))
    leases.hold()
    files = list_files(
        services.catalog,
        scope.tenant,
        after_ts=after,
        upto_ts=upto,
        table_ids=table_ids,
        limit=FILES_LISTED_MAX + 1,
    )
    check_listing(services.catalog, scope.tenant, after, upto)
    if len(files) > FILES_LISTED_MAX:
        raise InvalidInput(
            f"There are more than {FILES_LISTED_MAX} files: list a shorter interval, or run a compaction."
        )
    not_parquet = min((f.lo_ts for f in files if f.format is not SegmentFormat.PARQUET), default=upto + 1)
    return Listing(
        files=tuple(f for f in files if f.format in formats),
        start_ts=after,
        end_ts=upto,
        resolved_ts=resolved,
        parquet_upto_ts=max(after, not_parquet - 1),
        table_ids=table_ids,
        good_until_ms=now_ms + FILE_URL_MS,
    )


def file_name(tenant: Tenant, object_key: str) -> str:
    """The part of a file's path after `files/`."""
    for folder, prefix in _folders(tenant):
        if object_key.startswith(prefix):
            return folder + object_key[len(prefix) :]
    raise InvalidInput("not a file of the tenant's log", object=object_key)


def object_key_of(tenant: Tenant, name: str) -> str | None:
    """The object of a file name; None for an invalid name."""
    for folder, prefix in _folders(tenant):
        if name.startswith(folder):
            return prefix + name[len(folder) :]
    return None


def etag_of(object_key: str) -> str:
    """The ETag of a file: files are immutable and keys are not reused."""
    return f'"{hashlib.blake2b(object_key.encode(), digest_size=12).hexdigest()}"'


def described(tenant: Tenant, file: FileRow, base_url: str) -> dict[str, object]:
    """A file as JSON; timestamps are text, keys hexadecimal."""
    name = file_name(tenant, file.object_key)
    return {
        "name": name,
        "url": f"{base_url}/{name}",
        "format": str(file.format),
        "rows": file.rows,
        "bytes": file.stored_bytes,
        "row_groups": file.segments,
        "lo_ts": str(file.lo_ts),
        "hi_ts": str(file.hi_ts),
        "lo_time": tso.to_text(file.lo_ts),
        "hi_time": tso.to_text(file.hi_ts),
        "start_key": file.start_key.hex(),
        "end_key": file.end_key.hex(),
        "table_lo": file.table_lo,
        "table_hi": file.table_hi,
    }


def _folders(tenant: Tenant) -> tuple[tuple[str, str], ...]:
    return (("compacted/", compacted_prefix(tenant)), ("committed/", committed_prefix(tenant)))
