"""Errors over HTTP: RFC 9457 `application/problem+json`, the same from every server.

One table maps the kind of an error to a status. 64-bit numbers are text, because JSON readers round them; bytes are
hexadecimal; long texts are cut, because they may repeat what was sent. Other exceptions become a 500 without details;
the log has them.
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson
import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from tistream import errors
from tistream.errors import ErrorKind, TiStreamError
from tistream.http import error_reference
from tistream.limits import PROBLEM_FACT_CHARS_MAX, PROBLEM_TEXT_CHARS_MAX
from tistream.objectstore.generations import CatalogReplaced

log = structlog.get_logger(__name__)

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 1

#: on every answer: no foreign content, no framing, no referrer to other sites
SECURITY_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with no-referrer browsers call the origin of our own forms null
}

_NOT_FOUND_HINT = (
    "GET /v1/tenants lists the tenants; .../databases and .../databases/{database}/tables what one has; "
    "GET /openapi.json lists all paths."
)


class ServerStops(TiStreamError):
    """The server is stopping and has given the request up. Ask again: another one answers."""

    kind = ErrorKind.RETRY
    code = "TS-1024"


STATUS: Mapping[ErrorKind, int] = {
    ErrorKind.INVALID: 400,
    ErrorKind.NOT_FOUND: 404,
    ErrorKind.RETRY: 503,
    ErrorKind.FENCED: 409,
    ErrorKind.CORRUPT: 500,
    ErrorKind.INTERNAL: 500,
}
_BY_CLASS: Mapping[type[TiStreamError], int] = {
    CatalogReplaced: 503,  # the next process answers
    errors.TsExpired: 410,
    errors.TableRenamed: 410,
    errors.SnapshotLost: 410,
    errors.TenantDeleted: 410,
    errors.AheadOfWatermark: 409,
    errors.SeedNeeded: 409,
    errors.StateNotKnown: 409,
    errors.StillInFlight: 409,
    errors.AnotherRequest: 422,
    errors.Unauthenticated: 401,
    errors.NotAllowed: 403,
    errors.CertificateNeeded: 403,
    errors.RateLimited: 429,
    errors.TooLarge: 413,
    errors.StateForbids: 409,
    errors.BeyondQuarantine: 409,
    errors.ChangedMeanwhile: 412,
}


def status_of(error: TiStreamError) -> int:
    """The HTTP status: by class, else by kind."""
    for kind, status in _BY_CLASS.items():
        if isinstance(error, kind):
            return status
    return STATUS[error.kind]


def problem_body(error: TiStreamError) -> dict[str, object]:
    """The members of the problem document."""
    return {
        "type": error_reference.type_of(type(error)),
        "title": error_reference.first_line(type(error)),
        "status": status_of(error),
        "detail": _cut(error.message, PROBLEM_TEXT_CHARS_MAX),
        "code": error.code,
        "hint": error.hint or (_NOT_FOUND_HINT if isinstance(error, errors.NotFound) else ""),
        "facts": {name: _plain(value) for name, value in error.facts.items()},
    }


def problem_response(error: TiStreamError, status: int | None = None) -> Response:
    """The answer; `status` overrides the table's."""
    body = problem_body(error)
    if status is not None:
        body["status"] = status
    code = int(str(body["status"]))
    headers = dict(SECURITY_HEADERS)
    if code in (429, 503) or isinstance(error, errors.StillInFlight):
        headers["Retry-After"] = str(error.facts.get("retry_after_s", RETRY_AFTER_S))
    if isinstance(error, errors.Unauthenticated):
        headers["WWW-Authenticate"] = 'Bearer realm="TiStream"'
    return Response(orjson.dumps(body), code, headers, MEDIA_TYPE)


def install(app: FastAPI, *, where: str = "") -> None:
    """Answer every error of the app with a problem document, and serve the error reference. `where`: the hint for an
    address that the app does not have."""

    async def known(request: Request, error: Exception) -> Response:
        assert isinstance(error, TiStreamError)
        if status_of(error) == 500:
            log.error("request failed", path=request.url.path, exc_info=error)
        return problem_response(error)

    async def malformed(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return problem_response(errors.InvalidInput(f"{where}: {first['msg']}", where=where))

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        request_line = f"{request.method} {request.url.path}"
        if error.status_code == 404:
            missing = errors.NotFound(f"{request_line} not found.")
            missing.hint = where
            return problem_response(missing)
        return problem_response(errors.InvalidInput(f"{request_line}: {error.detail}."), error.status_code)

    async def unknown(request: Request, error: Exception) -> Response:
        log.error("request failed", path=request.url.path, exc_info=error)
        return problem_response(TiStreamError())

    app.add_exception_handler(TiStreamError, known)
    app.add_exception_handler(RequestValidationError, malformed)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(Exception, unknown)
    app.include_router(error_reference.router())


def _plain(value: object) -> object:
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return _cut(value.hex() if isinstance(value, bytes) else str(value), PROBLEM_FACT_CHARS_MAX)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."
