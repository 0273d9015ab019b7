"""Refuses requests of clients that have presented no certificate, where mutual TLS is asked for.

A wrong certificate ends the connection before any request. A missing one is found here, so that the client gets an
error that says what to do, and the probes of an orchestrator, which has no certificate, get their answer.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from tistream.errors import CertificateNeeded
from tistream.http.problem import problem_response

CERTIFIED = "tistream.certified"  #: of the request's `extensions`: the connection has a certificate of the CA
OPEN_PATHS = ("/livez", "/readyz")


class MutualTls:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_open = scope["type"] != "http" or scope["path"] in OPEN_PATHS
        if is_open or scope.get("extensions", {}).get(CERTIFIED):
            await self._app(scope, receive, send)
        else:
            await problem_response(CertificateNeeded())(scope, receive, send)
