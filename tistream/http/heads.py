"""HEAD on every route that answers GET: the same status and headers, without the body.

A route sees a GET; one whose body is costly asks `is_head`. An answer without an end, such as a stream, ends when its
headers are sent.
"""

from __future__ import annotations

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_ASKED = "tistream.http.head"


def is_head(request: HTTPConnection) -> bool:
    """Whether only the headers of the answer are wanted."""
    return bool(request.scope.get(_ASKED))


class Heads:
    """The middleware."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            return await self._app(scope, receive, send)

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body", "body": b"", "more_body": False})

        await self._app({**scope, "method": "GET", _ASKED: True}, receive, sent)
