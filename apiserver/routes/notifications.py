"""POST /v1/notifications: the webhook of S3-compatible servers that tell of new objects.

It asks for the token of `notifications.webhook_token`, which opens nothing else: as `Authorization: Bearer TOKEN`, or
as the password of `Authorization: Basic`, for servers that know only an address with a password.
"""

from __future__ import annotations

import base64
import binascii
import hmac

from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool

from tistream.errors import Unauthenticated
from tistream.feed.hints import Notifications
from tistream.http.auth.access import NOTIFICATIONS_PATH, needs
from tistream.http.auth.bodies import read_body
from tistream.http.auth.core.roles import Right
from tistream.objectstore.notifications import BODY_BYTES_MAX


def router(notifications: Notifications, token: str) -> APIRouter:
    """The route; the token is checked before the body is read."""
    routes = APIRouter(dependencies=[needs(Right.OPEN, changes=False)], include_in_schema=False)

    @routes.post(NOTIFICATIONS_PATH, status_code=204)
    async def take(request: Request) -> Response:
        given = request.headers.getlist("authorization")
        if len(given) != 1 or not hmac.compare_digest(_token(given[0]), token.encode()):
            raise Unauthenticated("This address needs the token of notifications.webhook_token.")
        events = notifications.read(await read_body(request.receive, BODY_BYTES_MAX))
        await run_in_threadpool(notifications.pass_on, [events])
        return Response(status_code=204)

    return routes


def _token(header: str) -> bytes:
    """The token of an Authorization header; empty when it has none."""
    scheme, _, value = header.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip().encode("utf-8", "surrogateescape")
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).partition(b":")[2]
        except binascii.Error:
            return b""
    return b""
