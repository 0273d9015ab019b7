"""Idempotency-Key for every POST of the API: a repeated request is done once and answered again.

    same key, same request       the first answer, with Idempotent-Replayed: true; for 24 hours
    same key, another request    422
    the first is still running   409, retryable

Requests are equal in method, path, query and body; keys of different principals are separate. Only successful answers
are stored: after an error the request is done again. Secrets in an answer are stored as `(shown once)`, and an answer
with `Cache-Control: no-store` is not stored at all. If a process dies during a request, a retry after two minutes does
it again.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping

import structlog
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tistream.catalog.database.engine import Catalog
from tistream.catalog.tenancy.idempotency_keys import KeptAnswer, begin_answer, drop_answer, keep_answer
from tistream.errors import AnotherRequest, CatalogUnavailable, InvalidInput, StillInFlight, TiStreamError
from tistream.http.auth.access import ACCESS
from tistream.http.auth.bodies import read_body, receive_with
from tistream.http.auth.core.keys import without_secrets
from tistream.http.problem import problem_response
from tistream.limits import KEPT_BODY_BYTES_MAX

log = structlog.get_logger(__name__)

_KEY_CHARS_MAX = 255


class Idempotency:
    """ASGI middleware behind AuthMiddleware."""

    def __init__(self, app: ASGIApp, catalog: Catalog) -> None:
        self._app, self._catalog = app, catalog

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = None
        if scope["type"] == "http" and scope["method"] == "POST" and scope["path"].startswith("/v1/"):
            key = HTTPConnection(scope).headers.get("idempotency-key")
        if key is None:
            await self._app(scope, receive, send)
            return
        attempt = secrets.token_hex(16)
        try:
            body = await _body(key, receive)
            digest = _hash(scope[ACCESS].principal.key_id, scope["path"], key)
            request = _hash(scope["path"], scope.get("query_string", b"").decode("latin-1"), body)
            kept = await run_in_threadpool(begin_answer, self._catalog, digest, request, attempt)
            if kept is not None:
                await _stored_response(kept, request)(scope, receive, send)
                return
        except TiStreamError as e:
            await problem_response(e)(scope, receive, send)
            return
        await self._do(digest, attempt, scope, receive_with(body, receive), send)

    async def _do(self, digest: str, attempt: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Do the request; its answer is stored before it is sent."""
        messages: list[Message] = []

        async def hold(message: Message) -> None:
            messages.append(message)

        done = False
        try:
            await self._app(scope, receive, hold)
            done = await self._keep(digest, attempt, messages)
        finally:
            if not done:
                await self._drop(digest, attempt)
        for message in messages:
            await send(message)

    async def _keep(self, digest: str, attempt: str, messages: list[Message]) -> bool:
        """Store a successful answer. False when the attempt is to be dropped."""
        status = next((int(m["status"]) for m in messages if m["type"] == "http.response.start"), 500)
        body = b"".join(m.get("body", b"") for m in messages if m["type"] == "http.response.body")
        if not 200 <= status < 300 or len(body) > KEPT_BODY_BYTES_MAX:
            return False
        headers = next(m["headers"] for m in messages if m["type"] == "http.response.start")
        if b"no-store" in dict(headers).get(b"cache-control", b""):
            return False
        media_type = dict(headers).get(b"content-type", b"").decode("latin-1")

        def keep() -> None:
            keep_answer(
                self._catalog, digest, attempt, status=status, media_type=media_type, body=without_secrets(body)
            )

        try:
            await run_in_threadpool(keep)
        except CatalogUnavailable as e:  # done and answered; "in flight" until the catalog is back
            log.warning("answer not stored", error=str(e))
        return True

    async def _drop(self, digest: str, attempt: str) -> None:
        try:
            await run_in_threadpool(drop_answer, self._catalog, digest, attempt)
        except CatalogUnavailable as e:  # not done; a retry waits until this attempt expires
            log.warning("failed attempt not dropped", error=str(e))


def _stored_response(kept: KeptAnswer, request: str) -> Response:
    if kept.request_hash != request:
        raise AnotherRequest()
    if not kept.status:
        raise StillInFlight()
    headers: Mapping[str, str] = {"Idempotent-Replayed": "true", "Cache-Control": "no-store"}
    return Response(kept.body, kept.status, headers, kept.media_type or None)


async def _body(key: str, receive: Receive) -> bytes:
    if not 0 < len(key) <= _KEY_CHARS_MAX or not (key.isascii() and key.isprintable()):
        raise InvalidInput(f"Idempotency-Key: give 1 to {_KEY_CHARS_MAX} printable ASCII characters.")
    return await read_body(receive, KEPT_BODY_BYTES_MAX)


def _hash(*parts: str | bytes) -> str:
    """Hash of the parts and their lengths."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogateescape") if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()
