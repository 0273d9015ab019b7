"""Renders errors as console pages for browsers; programs get the problem document.

The outermost ASGI middleware, since every layer may refuse a request. A request gets a page if it accepts HTML, except
below `/v1/` and for `.json`. Status and headers are kept.
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson
from jinja2 import Template
from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from apiserver.console.page_context import HEADERS, page_context
from tistream.errors import TiStreamError
from tistream.http.problem import MEDIA_TYPE, problem_body, problem_response


class ErrorPages:
    """The middleware."""

    def __init__(self, app: ASGIApp, template: Template) -> None:
        self._app, self._template = app, template

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _wants_page(HTTPConnection(scope)):
            return await self._app(scope, receive, send)
        start: Message | None = None  # of a problem, until its document is complete
        document, begun = b"", False

        async def answer(start: Message, problem: Mapping[str, object]) -> None:
            page = self._template.render(problem, **page_context(HTTPConnection(scope)))
            await _answer(start, page.encode(), send)

        async def sent(message: Message) -> None:
            nonlocal start, document, begun
            if message["type"] == "http.response.start" and _is_problem(message):
                start, begun = message, True
            elif start is None:
                begun = True
                await send(message)
            else:
                document += message.get("body", b"")
                if not message.get("more_body"):
                    await answer(start, orjson.loads(document))

        try:
            await self._app(scope, receive, sent)
        except Exception:  # a defect: the layer outside logs it
            if not begun:
                failed = problem_response(TiStreamError())
                start = {"type": "http.response.start", "status": failed.status_code, "headers": failed.raw_headers}
                await answer(start, problem_body(TiStreamError()))
            raise


def _wants_page(request: HTTPConnection) -> bool:
    path = request.scope["path"]
    is_for_programs = path.startswith("/v1/") or path.endswith(".json")
    return not is_for_programs and "text/html" in request.headers.get("accept", "")


def _is_problem(message: Message) -> bool:
    return (b"content-type", MEDIA_TYPE.encode()) in [(k.lower(), v) for k, v in message.get("headers", ())]


async def _answer(start: Message, page: bytes, send: Send) -> None:
    headers = MutableHeaders(scope=start)
    headers.update({**HEADERS, "Content-Type": "text/html; charset=utf-8", "Content-Length": str(len(page))})
    headers["Vary"] = "Accept, HX-Request"
    await send(start)
    await send({"type": "http.response.body", "body": page, "more_body": False})
