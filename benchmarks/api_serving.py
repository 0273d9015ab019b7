"""What the API adds to the bytes that it serves, over a real port.

The other side is the plainest way to give the same bytes: a route that streams them from memory. Answers are equal.
The log is the recording; its segments are in the cache of the reader.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import httpx2
from fastapi import APIRouter
from fastapi.responses import StreamingResponse

from apiserver.app import create_app
from benchmarks.harness import Result, compare
from tistream.testing.api_world import BASE, api_world
from tistream.testing.stream_world import served

_PIECE_BYTES = 256 << 10


def run() -> Iterator[Result]:
    """Undecoded rows as Arrow, and a committed file, each against its own bytes."""
    with ExitStack() as stack:
        world = stack.enter_context(api_world(Path(stack.enter_context(tempfile.TemporaryDirectory()))))
        world.log.build(1)
        plain: dict[str, bytes] = {}
        routes = APIRouter()

        @routes.get("/plain/{name}")
        async def bytes_of(name: str) -> StreamingResponse:
            content = plain[name]
            pieces = (content[at : at + _PIECE_BYTES] for at in range(0, len(content), _PIECE_BYTES))

            async def body() -> object:
                for piece in pieces:
                    yield piece

            return StreamingResponse(body())  # type: ignore[arg-type]

        server = stack.enter_context(served(create_app(world.services, [routes])))
        http = stack.enter_context(httpx2.Client(timeout=60, headers={"Accept-Encoding": "identity"}))
        listed = world.ok("/files", format="all").json()["items"]
        largest = max(listed, key=lambda item: int(item["bytes"]))["url"].removeprefix("http://testserver")
        addresses = {
            "raw-arrow": (f"{BASE}/changes?start_ts=earliest&limit=200000&format=raw-arrow", 0.9),
            "file": (largest, 0.9),
        }
        for name, (address, target) in addresses.items():
            ask = partial(_get, http, server.url + address)
            plain[name] = ask()
            base = partial(_get, http, f"{server.url}/plain/{name}")
            yield compare(f"api-serving {name} / its bytes", ask, base, proof=lambda a, b: a == b, target=target)


def _get(http: httpx2.Client, url: str) -> bytes:
    answer = http.get(url)
    assert answer.status_code == 200, answer.text
    return bytes(answer.content)
