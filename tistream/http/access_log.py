"""Request ids, the access log and request counts of every HTTP server.

A caller's X-Request-ID is used if it is plain (8 to 64 letters, digits and `._-`); otherwise one is made. The id and
the tenant of the path are bound to everything logged during the request, and the id is returned in X-Request-ID.

A request that a stopping server gives up is answered by 503, so that its client asks the next server.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import structlog

from tistream.http.problem import ServerStops, problem_response
from tistream.runtime import metrics

log = structlog.get_logger(__name__)

HEADER = b"x-request-id"
REQUEST_ID = "tistream.http.request_id"  #: key of the id in a request's scope

_SANE = re.compile(rb"[A-Za-z0-9._-]{8,64}")
_TENANT = re.compile(r"/v1/clusters/(\d+)/tenants/(\d+)(?:/|$)")
_METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]
App = Callable[[_Message, _Receive, _Send], Awaitable[None]]


class RequestLog:
    """ASGI middleware around a whole application."""

    def __init__(self, app: App, *, access_log: bool = False) -> None:
        self._app = app
        self._access_log = access_log

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        scope[REQUEST_ID] = request_id.decode()
        bound = {"request_id": scope[REQUEST_ID]} | _tenant(scope["path"])
        status, size, began, started = 500, 0, time.perf_counter(), False

        async def answer(message: _Message) -> None:
            nonlocal status, size, started
            if message["type"] == "http.response.start":
                status, started = message["status"], True
                message["headers"] = [*message.get("headers", ()), (HEADER, request_id)]
            elif message["type"] == "http.response.body":
                size += len(message.get("body", b""))
            await send(message)

        with structlog.contextvars.bound_contextvars(**bound):
            try:
                await self._app(scope, receive, answer)
            except asyncio.CancelledError:
                if not started:
                    await problem_response(ServerStops())(scope, receive, answer)
                raise
            finally:
                method = scope["method"] if scope["method"] in _METHODS else "other"
                metrics.HTTP_REQUESTS.labels(method, f"{status // 100}xx").inc()
                if self._access_log:
                    log.info(
                        "request",
                        method=method,
                        path=scope["path"],
                        status=status,
                        bytes=size,
                        ms=round((time.perf_counter() - began) * 1000, 1),
                    )


def _request_id(scope: _Message) -> bytes:
    for name, value in scope["headers"]:
        if name == HEADER and _SANE.fullmatch(value):
            return bytes(value)
    return secrets.token_hex(8).encode()


def _tenant(path: str) -> dict[str, str]:
    match = _TENANT.match(path)
    return {"tenant": f"{match[1]}/{match[2]}"} if match else {}
