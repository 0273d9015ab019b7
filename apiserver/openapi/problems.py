"""Which problems a route may answer with: it follows from its path, its parameters and its body (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from apiserver.negotiate import NotAcceptable
from tistream.errors import (
    AheadOfWatermark,
    CatalogUnavailable,
    CorruptObject,
    CursorInvalid,
    Fenced,
    InvalidInput,
    NotConvertible,
    NotFound,
    RateLimited,
    SeedNeeded,
    StoreUnavailable,
    TiStreamError,
    TooLarge,
    TooManyOpen,
    TsExpired,
    TsOutOfRange,
)
from tistream.problem import status_of

_PROBES = ("/livez", "/readyz", "/healthz", "/version")


def problems_of(path: str, operation: Mapping[str, Any]) -> Iterator[tuple[type[TiStreamError], int]]:
    """(error, status) of what may go wrong, by status and then by code."""
    found = {error: status_of(error()) for error in _of(path, operation)}
    if NotAcceptable in found:
        found[NotAcceptable] = 406
    yield from sorted(found.items(), key=lambda item: (item[1], item[0].code))


def _of(path: str, operation: Mapping[str, Any]) -> Iterator[type[TiStreamError]]:
    yield TiStreamError
    if path in _PROBES:
        return
    names = {p["name"] for p in operation.get("parameters", [])}
    yield from (RateLimited, CatalogUnavailable)
    if names or "requestBody" in operation:
        yield InvalidInput
    if "requestBody" in operation:
        yield TooLarge
    if "{" in path:
        yield NotFound
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
