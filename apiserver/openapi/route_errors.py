"""Which errors a route may answer with, from its path, parameters and body (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from apiserver.negotiate import NotAcceptable
from reading.log.memory import ReadsFull
from tistream import errors
from tistream.catalog.rows.kinds import AnotherKind
from tistream.codec.key_format import NotInFormat
from tistream.errors import TiStreamError
from tistream.http.problem import status_of

_PROBES = ("/livez", "/readyz", "/healthz", "/version", "/metrics")


def problems_of(path: str, method: str, operation: Mapping[str, Any]) -> Iterator[tuple[type[TiStreamError], int]]:
    """(error, status), by status and code."""
    statuses = {error: status_of(error()) for error in _of(path, method, operation)}
    if NotAcceptable in statuses:
        statuses[NotAcceptable] = 406
    yield from sorted(statuses.items(), key=lambda item: (item[1], item[0].code))


def _of(path: str, method: str, operation: Mapping[str, Any]) -> Iterator[type[TiStreamError]]:
    yield TiStreamError
    if path in _PROBES:
        return
    names = {p["name"] for p in operation.get("parameters", [])}
    yield from (errors.RateLimited, errors.CatalogUnavailable, errors.Unauthenticated, errors.NotAllowed)
    if names or "requestBody" in operation or method != "get":
        yield errors.InvalidInput
    if method == "post":
        yield from (errors.AnotherRequest, errors.StillInFlight)
    if method != "get":
        yield errors.StateForbids
    if "if-match" in {name.lower() for name in names}:
        yield errors.ChangedMeanwhile
    if (
        names & {"from_ts", "to_ts"}
        or path.endswith(("/changefeeds", "/consumers", "/ddl", "/schema-diff"))
        or "changefeed_id" in path
    ):
        yield from (errors.TsOutOfRange, errors.TsExpired)
    if "requestBody" in operation:
        yield errors.TooLarge
    of_tenant = "{tenant_id}" in path or "tenant_id" in names
    if "{" in path or of_tenant:
        yield errors.NotFound
    if of_tenant:
        yield errors.TenantDeleted
    if "cursor" in names:
        yield errors.CursorInvalid
    if "cursor" in names and "{table}" in path:
        yield errors.TableRenamed
    if names & {"where", "key_pattern"}:
        yield errors.FilterInvalid
    if "key_format" in names:
        yield from (NotInFormat, AnotherKind)
    if "snapshot" in names or {"as_of", "cursor"} <= names:
        yield errors.SnapshotLost
    if "allow_state" in names:
        yield errors.StateNotKnown
    if "start_ts" in names:
        yield from (errors.TsOutOfRange, errors.TsExpired, errors.BeyondQuarantine)
    if names & {"as_of", "ts"}:
        yield from (errors.AheadOfWatermark, errors.BeyondQuarantine, errors.TsExpired)
        yield from (errors.SeedNeeded, errors.NotConvertible)
    if "schema_ts" in names:
        yield errors.NotConvertible
    if "columns" in names:
        yield errors.ColumnNotStored
    if "accept" in names:
        yield NotAcceptable
    if "wait" in names or path.endswith(":stream"):
        yield from (ReadsFull, errors.TooManyOpen)
    if names & {"start_ts", "as_of", "ts", "name"}:
        yield from (errors.StoreUnavailable, errors.CorruptObject)
    if path.endswith((":retry", ":acknowledge", ":leave")) or "session" in names:
        yield errors.Fenced
    if path.endswith(":acknowledge"):
        yield errors.CursorInvalid
    if "session" in names:
        yield from (errors.StateForbids, errors.BeyondQuarantine)
        yield from (errors.StoreUnavailable, errors.CorruptObject)
