"""Answers of a service, written down, for both clients. A client's question for a first sign is answered apart."""

from __future__ import annotations

from typing import TypeAlias

import httpx2
import orjson

from tistream.client.core.requests import ALIVE

Answer: TypeAlias = httpx2.Response | Exception


class Script(httpx2.BaseTransport, httpx2.AsyncBaseTransport):
    """Answers in order; the last one for ever."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.asked: list[httpx2.Request] = []
        self.first_signs = 0  #: times that a client asked for one

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.url.path == ALIVE:
            self.first_signs += 1
            return httpx2.Response(404)
        self.asked.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return httpx2.Response(answer.status_code, headers=answer.headers, content=answer.content)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        return self.handle_request(request)


def page(
    cursor: str, *, more: bool = False, content: bytes = b"", resolved: int = 9, **headers: str
) -> httpx2.Response:
    """A page of a pull."""
    facts = {
        "TiStream-Next-Cursor": cursor,
        "TiStream-Resolved-Ts": str(resolved),
        "TiStream-Has-More": "true" if more else "false",
    }
    return httpx2.Response(200, headers={**facts, **headers}, content=content)


def problem(status: int, headers: dict[str, str] | None = None, **members: object) -> httpx2.Response:
    """A problem document."""
    body = {"status": status, "title": "Title.", **members}
    return httpx2.Response(status, headers=headers, content=orjson.dumps(body))


def events(*lines: str, **headers: str) -> httpx2.Response:
    """A stream."""
    return httpx2.Response(200, headers=headers, content="".join(line + "\n" for line in lines).encode())


def resolved(cursor: str, ts: int) -> list[str]:
    """The lines of a watermark in a stream."""
    return ["event: resolved", f"id: {cursor}", f'data: {{"resolved_ts":"{ts}","cursor":"{cursor}"}}', ""]
