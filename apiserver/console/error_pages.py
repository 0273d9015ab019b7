"""Error pages in the console's layout for browsers; programs get the problem document.

ASGI middleware around everything else, because every layer refuses something: authentication, limits, routes. A request
that accepts HTML gets the page, except below `/v1/` and for `.json`, which are for programs. Status and headers stay.
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
        if scope["type"] != "http" or not _reads_pages(HTTPConnection(scope)):
            return await self._app(scope, receive, send)
        start: Message | None = None  # of a problem, until its document is whole
        document, begun = b"", False

        async def answer(told: Message, facts: Mapping[str, object]) -> None:
            page = self._template.render(facts, **page_context(HTTPConnection(scope)))
            await _answer(told, page.encode(), send)

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
        except Exception:  # a defect of ours: the layer around this one writes it down
            if not begun:
                failed = problem_response(TiStreamError())
                start = {"type": "http.response.start", "status": failed.status_code, "headers": failed.raw_headers}
                await answer(start, problem_body(TiStreamError()))
            raise


def _reads_pages(asked: HTTPConnection) -> bool:
    path = asked.scope["path"]
    is_for_programs = path.startswith("/v1/") or path.endswith(".json") or asked.scope["method"] == "HEAD"
    return not is_for_programs and "text/html" in asked.headers.get("accept", "")


def _is_problem(message: Message) -> bool:
    return (b"content-type", MEDIA_TYPE.encode()) in [(k.lower(), v) for k, v in message.get("headers", ())]


async def _answer(start: Message, page: bytes, send: Send) -> None:
    headers = MutableHeaders(scope=start)
    headers.update({**HEADERS, "Content-Type": "text/html; charset=utf-8", "Content-Length": str(len(page))})
    headers["Vary"] = "Accept, HX-Request"
    await send(start)
    await send({"type": "http.response.body", "body": page, "more_body": False})
