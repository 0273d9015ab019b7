"""A page of the console is kept up to date by one stream of server-sent events per browser tab.

    GET /live?part=/overview&part=/tenants/1/1/waterfall      the parts that the page shows
    GET /live?part=/tenants/1/1&tail=1/1&tail_start=TS        with the newest rows of a tenant

    event: begin     {}                                   the stream is there; parts follow as they are made
    event: part      {"part", "status", "over", "html"}   it changed; `over`: refused or gone, never asked for again
    event: trouble   {"part", "status"}                   it cannot be made now; it is tried again
    event: tail      {"cursor", "events", "over", "words"}
    event: beat      {}                                   nothing changed for a while
    event: end       {"reason": "shutdown" | "signed-out"}

A part is the address of a route that said `@live.every(seconds)`, and no other address is let through. It is asked for
inside of the process with the credentials of whoever opened the stream, the way a browser would: the route itself
decides each time what they may see. A stream sends at most twice a second, and only what is not what it sent before.
It ends when the process stops and when key or session end; meanwhile it costs no thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Annotated, Any, TypeVar
from urllib.parse import unquote

from fastapi import APIRouter, FastAPI, Query, Request, Response
from fastapi.routing import APIRoute
from pydantic import StringConstraints

from apiserver.callers import caller_of
from apiserver.console.internal_get import get_as
from apiserver.console.tab import Part, Tab, Tail
from apiserver.stream.answer import StreamAnswer
from apiserver.stream.followers import Followers
from tistream.errors import InvalidInput
from tistream.http.auth.access import check_key, every_route, needs
from tistream.http.auth.core.roles import Right

PARTS_MAX = 8
_ADDRESS_CHARS_MAX = 1000
_HEADERS = {"Cache-Control": "no-store", "Connection": "close", "X-Accel-Buffering": "no"}

_Address = Annotated[str, StringConstraints(max_length=_ADDRESS_CHARS_MAX)]
_Parts = Annotated[list[_Address], Query(max_length=PARTS_MAX, description="Addresses of live parts.")]
_TailOf = Annotated[str | None, Query(pattern=r"^[0-9]{1,19}/[0-9]{1,19}$", description="A tenant, CLUSTER/TENANT.")]
_TailStart = Annotated[str, Query(max_length=40)]
_TailCursor = Annotated[str | None, Query(max_length=_ADDRESS_CHARS_MAX)]

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


class LiveParts:
    """Which routes answer with a part of a page that is renewed by itself, and how often."""

    def __init__(self) -> None:
        self._seconds: dict[Callable[..., Any], float] = {}
        self._routes: list[APIRoute] = []

    def every(self, seconds: float) -> Callable[[Endpoint], Endpoint]:
        """Says it of a route's function; stands below the line that makes the route."""

        def said(endpoint: Endpoint) -> Endpoint:
            self._seconds[endpoint] = seconds
            return endpoint

        return said

    def know(self, app: FastAPI) -> None:
        """Look at the routes; call it when all that have parts are there."""
        self._routes = [r for r in every_route(app) if isinstance(r, APIRoute) and "GET" in (r.methods or ())]

    def patterns(self) -> Iterator[tuple[str, float]]:
        """The addresses as routes write them, with seconds."""
        for route in self._routes:
            if route.endpoint in self._seconds:
                yield route.path, self._seconds[route.endpoint]

    def find(self, address: str) -> Part:
        """The part behind an address. InvalidInput unless the route that would answer it is a live one."""
        path = unquote(address.partition("?")[0])  # as the application reads it: a %2F must not pass for a name
        if (address + path).isprintable() and "#" not in address:
            answers = next((r for r in self._routes if r.path_regex.match(path)), None)
            if answers is not None and answers.endpoint in self._seconds:
                return Part(address=address, every_s=self._seconds[answers.endpoint])
        raise InvalidInput(f"'{address}' is no live part of a page.", part=address)


def router(live: LiveParts, followers: Followers) -> APIRouter:
    """The stream."""
    routes = APIRouter(include_in_schema=False)

    @routes.get("/live", dependencies=[needs(Right.LOOK, filtered=True)])
    async def stream(
        request: Request,
        part: _Parts = [],  # noqa: B006  (FastAPI copies it)
        tail: _TailOf = None,
        tail_start: _TailStart = "latest",
        tail_cursor: _TailCursor = None,
    ) -> Response:
        parts = [live.find(address) for address in dict.fromkeys(part)]
        if not parts and tail is None:
            raise InvalidInput("A live stream is about something: give part=/overview, for example.")
        newest = None if tail is None else Tail(tenant=tail, start_ts=tail_start, cursor=tail_cursor)
        with ExitStack() as failing:
            failing.enter_context(followers.counted("tabs", caller_of(request), followers.limits.streams_max))
            return StreamAnswer(
                lambda send: Tab(
                    parts,
                    newest,
                    ask=partial(get_as, request),
                    send=send,
                    check_key=partial(check_key, request),
                    is_closing=lambda: followers.waker.closing,
                ),
                media_type="text/event-stream",
                headers=_HEADERS,
                slow_s=followers.limits.slow_consumer_s,
                held=failing.pop_all(),
            )

    return routes
