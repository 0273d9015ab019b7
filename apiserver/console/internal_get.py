"""Requests to this application from inside the process, with the credentials of another request.

They pass all middleware and the checks of the route, so access is decided as for a request from outside.
"""

from __future__ import annotations

import asyncio
import string
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, unquote

import structlog
from starlette.requests import Request
from starlette.types import Message, Scope

log = structlog.get_logger(__name__)

_CARRIED = frozenset({b"authorization", b"cookie", b"host"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer of the application."""

    status: int
    headers: Mapping[str, str]  #: names in lower case
    body: bytes


async def get_as(request: Request, address: str, headers: Mapping[str, str]) -> Answer:
    """GET `address` (path and query) with the credentials of `request`. Never raises: a failure is a 500."""
    status, answered, pieces = 500, {}, []
    sent = False

    async def receive() -> Message:
        nonlocal sent
        if sent:
            await asyncio.Event().wait()  # no disconnect: the caller cancels
        sent = True
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status, answered
        if message["type"] == "http.response.start":
            status = message["status"]
            answered = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in message.get("headers", ())}
        elif message["type"] == "http.response.body":
            pieces.append(bytes(message.get("body", b"")))

    try:
        await request.app(_scope(request, address, headers), receive, send)
    except Exception:  # already answered with a 500; the calling stream continues
        log.exception("internal request failed", address=address)
        status = 500
    return Answer(status=status, headers=answered, body=b"".join(pieces))


def _scope(request: Request, address: str, headers: Mapping[str, str]) -> Scope:
    of = request.scope
    path, _, query = address.partition("?")
    carried = [(name, value) for name, value in of["headers"] if name in _CARRIED]
    return {
        "type": "http",
        "asgi": of["asgi"],
        "http_version": "1.1",
        "method": "GET",
        "scheme": of["scheme"],
        "path": unquote(path),
        "raw_path": quote(path, safe=string.punctuation).encode("ascii"),
        "query_string": quote(query, safe=string.punctuation).encode("ascii"),
        "root_path": of.get("root_path", ""),
        "headers": [*carried, *((k.lower().encode("ascii"), v.encode("ascii")) for k, v in headers.items())],
        "client": of.get("client"),
        "server": of.get("server"),
        "state": {},
        "extensions": {},
    }
