"""A served API with sockets, and readers of its streams: what a follower sees, event by event."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import httpx2
import orjson
from fastapi import FastAPI

from apiserver.app import create_app
from apiserver.stream.followers import Followers, FollowLimits
from tests.kit.api_world import BASE, ApiWorld, api_world
from tests.kit.waiting import WAIT_S
from tistream.cli.server import ConnectionLimits, HttpServer


@dataclass
class StreamWorld:
    """An ApiWorld behind a port."""

    api: ApiWorld
    server: HttpServer
    followers: Followers

    @property
    def base(self) -> str:
        """The tenant's address."""
        return self.server.url + BASE

    @contextmanager
    def stream(self, path: str = "", headers: dict[str, str] | None = None, **params: Any) -> Iterator[httpx2.Response]:
        """An open stream of a scope; `path` is what stands before `/changes:stream`."""
        words = {k.replace("__", "-"): v for k, v in params.items()}
        given = {"Accept-Encoding": "identity", **(headers or {})}
        with (
            httpx2.Client(timeout=WAIT_S) as http,
            http.stream("GET", f"{self.base}{path}/changes:stream", params=words, headers=given) as answer,
        ):
            yield answer


@contextmanager
def stream_world(folder: Path, follow: FollowLimits | None = None) -> Iterator[StreamWorld]:
    """A port in front of a world whose log is for the test to build."""
    with api_world(folder) as api:
        app = create_app(api.services, follow=follow)
        with served(app) as server:
            yield StreamWorld(api, server, cast("Followers", app.state.followers))


@contextmanager
def served(app: FastAPI) -> Iterator[HttpServer]:
    """The application on a free port."""
    limits = ConnectionLimits(slow_s=app.state.followers.limits.slow_consumer_s)
    server = HttpServer(app, "127.0.0.1", 0, app.state.followers.close, limits)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def lines_of(answer: httpx2.Response) -> Iterator[bytes]:
    """The lines of a body as they come. (A client library's own splits at more than line ends.)"""
    rest = b""
    for piece in answer.iter_bytes():
        *lines, rest = (rest + piece).split(b"\n")
        yield from lines
    if rest:
        yield rest


def events_until(answer: httpx2.Response, last: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
    """The events of an NDJSON stream up to the first for which `last` holds."""
    events = []
    for line in lines_of(answer):
        events.append(orjson.loads(line))
        if last(events[-1]):
            return events
    raise AssertionError(f"the stream ended before it: {events[-1:]}")


def sse_of(answer: httpx2.Response) -> Iterator[dict[str, Any]]:
    """Server-sent events as {"event", "id", "data"} with the data parsed."""
    event: dict[str, Any] = {}
    for line in lines_of(answer):
        if line:
            name, _, value = line.decode().partition(": ")
            event[name] = orjson.loads(value) if name == "data" else value
        elif "data" in event:
            yield event
            event = {}
        else:
            event = {}
