"""What a request costs the process that answers it: processor time, memory at its highest, and bytes of the answer.

The application is called without a client, which would hold the answer itself. Linux only: the kernel counts the
memory.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlencode

import pyarrow as pa
from fastapi import FastAPI

_ANSWER_S_MAX = 60.0
_HEAD_KEPT = 128 << 10


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request."""

    method: str
    path: str  #: not yet quoted
    query: Sequence[tuple[str, str]] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def head_bytes(self) -> int:
        """Of the request line and the headers."""
        return (
            len(quote(self.path)) + len(urlencode(self.query)) + sum(len(n) + len(v) for n, v in self.headers.items())
        )


@dataclass(frozen=True, kw_only=True)
class Price:
    """What its answer cost."""

    status: int
    size: int  #: bytes of the body
    largest_piece: int  #: of it
    cpu_s: float  #: of all threads
    memory: int  #: bytes by which the process grew at most
    head: bytes  #: the beginning of the body


class Till:
    """Asks one application, one request after the other."""

    def __init__(self, app: FastAPI) -> None:
        self._app, self._runner = app, asyncio.Runner()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._app.state.followers.close()
        self._runner.close()

    def price(self, request: Asked, *, most: int) -> Price:
        """The price of the answer, or of its first `most` bytes, after which the client goes away."""
        with _memory() as memory:
            began = time.process_time()
            exchange = self._runner.run(_Exchange(request, most).run(self._app))
            cpu_s = time.process_time() - began
        return Price(
            status=exchange.status, size=exchange.size, largest_piece=exchange.largest, cpu_s=cpu_s, memory=memory[0],
            head=bytes(exchange.head),
        )  # fmt: skip


@contextmanager
def _memory() -> Any:
    """A list that holds by how many bytes the process grew at most meanwhile."""
    gc.collect(1)
    pa.default_memory_pool().release_unused()
    ctypes.CDLL(None).malloc_trim(0)
    grown: list[int] = []
    Path("/proc/self/clear_refs").write_text("5", "ascii")  # the highest is what is held now
    before = _resident("VmRSS")
    yield grown
    grown.append(max(0, _resident("VmHWM") - before))


def _resident(name: str) -> int:
    match = re.search(rf"{name}:\s*(\d+) kB", Path("/proc/self/status").read_text("ascii"))
    assert match is not None
    return int(match[1]) << 10


class _Exchange:
    """One request and what comes back."""

    def __init__(self, request: Asked, most: int) -> None:
        self._asked, self._most = request, most
        self._unsent = [request.body]
        self._left = asyncio.Event()
        self.status = self.size = self.largest = 0
        self.head = bytearray()

    async def run(self, app: FastAPI) -> _Exchange:
        request = self._asked
        headers = {"host": "localhost", "content-length": str(len(request.body)), **request.headers}
        scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1",
            "method": request.method, "scheme": "http", "path": request.path,
            "raw_path": quote(request.path, safe="/:").encode(), "query_string": urlencode(request.query).encode(),
            "root_path": "", "headers": [(n.lower().encode(), v.encode("latin-1")) for n, v in headers.items()],
            "client": ("127.0.0.1", 1), "server": ("localhost", 80), "state": {}, "extensions": {},
        }  # fmt: skip
        try:
            async with asyncio.timeout(_ANSWER_S_MAX):
                await app(scope, self._receive, self._send)
        except Exception:
            if self.status < 500:  # else the application has answered, and raises what a server logs
                raise
        return self

    async def _receive(self) -> dict[str, Any]:
        if self._unsent:
            return {"type": "http.request", "body": self._unsent.pop(), "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        body = message.get("body", b"")
        self.size, self.largest = self.size + len(body), max(self.largest, len(body))
        self.head += bytes(body[: max(0, _HEAD_KEPT - len(self.head))])
        if self.size >= self._most or not message.get("more_body"):
            self._left.set()
        await asyncio.sleep(0)
