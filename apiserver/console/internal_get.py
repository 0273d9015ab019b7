"""Asks this application, inside of the process, in the name of one who has asked already.

The question takes the whole way that one from outside takes: wall, bounds on how often, the route's own look at what
the key may. So who no longer may is refused here as there. It carries credentials and nothing else of the first one.
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
    """What the application said."""

    status: int
    headers: Mapping[str, str]  #: names in small letters
    body: bytes


async def get_as(request: Request, address: str, headers: Mapping[str, str]) -> Answer:
    """GET `address` (path and query) of the application that answers `request`. Never fails: what does is a 500."""
    status, told, pieces = 500, {}, []
    given = False

    async def receive() -> Message:
        nonlocal given
        if given:
            await asyncio.Event().wait()  # who asks does not hang up: it cancels
        given = True
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status, told
        if message["type"] == "http.response.start":
            status = message["status"]
            told = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in message.get("headers", ())}
        elif message["type"] == "http.response.body":
            pieces.append(bytes(message.get("body", b"")))

    try:
        await request.app(_scope(request, address, headers), receive, send)
    except Exception:  # answered with a 500 already; the requesting stream continues
        log.exception("a part could not be made", address=address)
        status = 500
    return Answer(status=status, headers=told, body=b"".join(pieces))


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
