"""Live updates: one stream of server-sent events per browser tab replaces the changed parts of a page.

    GET /live?part=/overview&part=/tenants/1/1/waterfall      the parts that the page shows
    GET /live?part=/tenants/1/1&tail=1/1&tail_start=TS        with the newest rows of a tenant, or
    &tail_keys=true                                           with the newest changes of a keyspace

    event: begin     {}                                   the stream is open; parts follow
    event: part      {"part", "status", "over", "html"}   it changed; `over`: refused or gone, not polled again
    event: trouble   {"part", "status"}                   it cannot be rendered now; retried
    event: tail      {"cursor", "events", "over", "words"}
    event: beat      {}                                   nothing changed for a while
    event: end       {"reason": "shutdown" | "signed-out"}

A part is the address of a route registered with `LiveParts.every`; other addresses are refused. It is requested inside
the process with the credentials of the stream, as a browser would, so the route itself checks access each time. A
stream sends at most twice a second, and only changes. It ends at shutdown and when key or session end. Idle, it costs
no thread.
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
from tistream.http.auth.core.roles import OfLimited, Right

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
    """Routes of live parts, and how often each is polled."""

    def __init__(self) -> None:
        self._seconds: dict[Callable[..., Any], float] = {}
        self._routes: list[APIRoute] = []

    def every(self, seconds: float) -> Callable[[Endpoint], Endpoint]:
        """Decorator of a route's function: poll it every `seconds`."""

        def mark(endpoint: Endpoint) -> Endpoint:
            self._seconds[endpoint] = seconds
            return endpoint

        return mark

    def register(self, app: FastAPI) -> None:
        """Read the application's routes. Call it after all live routes are added."""
        self._routes = [r for r in every_route(app) if isinstance(r, APIRoute) and "GET" in (r.methods or ())]

    def patterns(self) -> Iterator[tuple[str, float]]:
        """Path patterns of live routes, with seconds."""
        for route in self._routes:
            if route.endpoint in self._seconds:
                yield route.path, self._seconds[route.endpoint]

    def find(self, address: str) -> Part:
        """The part at an address. InvalidInput unless a live route answers it."""
        path = unquote(address.partition("?")[0])  # as the router reads it: a %2F must not match
        if (address + path).isprintable() and "#" not in address:
            answers = next((r for r in self._routes if r.path_regex.match(path)), None)
            if answers is not None and answers.endpoint in self._seconds:
                return Part(address=address, every_s=self._seconds[answers.endpoint])
        raise InvalidInput(f"'{address}' is not a live part of a page.", part=address)


def router(live: LiveParts, followers: Followers) -> APIRouter:
    """The stream."""
    routes = APIRouter(include_in_schema=False)

    @routes.get("/live", dependencies=[needs(Right.LOOK, filtered=True, limited=OfLimited.REFUSED)])
    async def stream(
        request: Request,
        part: _Parts = [],  # noqa: B006  (FastAPI copies it)
        tail: _TailOf = None,
        tail_start: _TailStart = "latest",
        tail_cursor: _TailCursor = None,
        tail_keys: bool = False,
    ) -> Response:
        parts = [live.find(address) for address in dict.fromkeys(part)]
        if not parts and tail is None:
            raise InvalidInput("A live stream needs a part: give part=/overview, for example.")
        newest = None if tail is None else Tail(tenant=tail, start_ts=tail_start, cursor=tail_cursor, keys=tail_keys)
        with ExitStack() as on_error:
            on_error.enter_context(followers.counted("tabs", caller_of(request), followers.limits.streams_max))
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
                held=on_error.pop_all(),
            )

    return routes
