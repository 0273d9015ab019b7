"""Which errors a route may answer with, from its path, parameters and body (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from apiserver.negotiate import NotAcceptable
from tistream.errors import (
    AheadOfWatermark,
    AnotherRequest,
    CatalogUnavailable,
    ChangedMeanwhile,
    CorruptObject,
    CursorInvalid,
    Fenced,
    InvalidInput,
    NotAllowed,
    NotConvertible,
    NotFound,
    RateLimited,
    SeedNeeded,
    StateForbids,
    StillInFlight,
    StoreUnavailable,
    TenantDeleted,
    TiStreamError,
    TooLarge,
    TooManyOpen,
    TsExpired,
    TsOutOfRange,
    Unauthenticated,
)
from tistream.http.problem import status_of

_PROBES = ("/livez", "/readyz", "/healthz", "/version", "/metrics")


def problems_of(path: str, method: str, operation: Mapping[str, Any]) -> Iterator[tuple[type[TiStreamError], int]]:
    """(error, status), by status and code."""
    found = {error: status_of(error()) for error in _of(path, method, operation)}
    if NotAcceptable in found:
        found[NotAcceptable] = 406
    yield from sorted(found.items(), key=lambda item: (item[1], item[0].code))


def _of(path: str, method: str, operation: Mapping[str, Any]) -> Iterator[type[TiStreamError]]:
    yield TiStreamError
    if path in _PROBES:
        return
    names = {p["name"] for p in operation.get("parameters", [])}
    yield from (RateLimited, CatalogUnavailable, Unauthenticated, NotAllowed)
    if names or "requestBody" in operation or method != "get":
        yield InvalidInput
    if method == "post":
        yield from (AnotherRequest, StillInFlight)
    if method != "get":
        yield StateForbids
    if "if-match" in {name.lower() for name in names}:
        yield ChangedMeanwhile
    if (
        names & {"from_ts", "to_ts"}
        or path.endswith(("/changefeeds", "/ddl", "/schema-diff"))
        or "changefeed_id" in path
    ):
        yield from (TsOutOfRange, TsExpired)
    if "requestBody" in operation:
        yield TooLarge
    if "{" in path:
        yield NotFound
    if "{tenant_id}" in path:
        yield TenantDeleted
    if "cursor" in names:
        yield CursorInvalid
    if names & {"start_ts", "at_ts"}:
        yield from (TsOutOfRange, TsExpired)
    if names & {"as_of", "ts"}:
        yield from (AheadOfWatermark, TsExpired, SeedNeeded, NotConvertible)
    if "accept" in names:
        yield NotAcceptable
    if "wait" in names or path.endswith(":stream"):
        yield TooManyOpen
    if names & {"start_ts", "at_ts", "as_of", "ts", "name"}:
        yield from (StoreUnavailable, CorruptObject)
    if path.endswith(":retry"):
        yield Fenced
