"""Holds every JSON answer of a service against its description: what OpenAPI says of it must be all that it is.

    judge = judged(app)      before the app is used
    ...                      an answer that its model does not fit fails its request
    judge.check()            and here, where no client passes the failure on

Additions to an answer are compatible, so the description allows unknown fields; the judge refuses them, because a field
that the model lacks is undocumented. The description is docs/reference/openapi.json, which
`tools/reference.py` writes and a test compares with the code: to make it takes longer than most tests.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import zstandard
from fastapi import FastAPI
from jsonschema import Draft202012Validator
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_DESCRIPTION = Path(__file__).parents[2] / "docs" / "reference" / "openapi.json"
_JSON = b"application/json"
_DECODERS: dict[bytes, Callable[[bytes], bytes]] = {
    b"": bytes,
    b"gzip": gzip.decompress,
    b"zstd": lambda body: zstandard.ZstdDecompressor().decompressobj().decompress(body),
}


class AnswerJudge:
    """What was seen of one app's answers."""

    def __init__(self) -> None:
        self.seen: set[str] = set()  #: operations that have answered JSON
        self.wrong: list[str] = []

    def look(self, operation: str, status: int, content: bytes) -> None:
        """AssertionError when the answer is not as described. After a change of a model: python tools/reference.py."""
        self.seen.add(operation)
        validator = _validators().get((operation, status))
        if validator is None:
            faults = ["there is no model of it"]
        else:
            faults = [f"{e.json_path}: {e.message[:300]}" for e in validator.iter_errors(json.loads(content))]
        if faults:
            self.wrong.append(f"{operation}, {status}: {'; '.join(faults[:5])}")
            raise AssertionError(self.wrong[-1])

    def check(self) -> None:
        """AssertionError when an answer was not as described."""
        assert not self.wrong, "\n".join(self.wrong)


def judged(app: FastAPI) -> AnswerJudge:
    """A judge of the app's answers. It stands directly around the routes, so it sees what they answer to any client."""
    judge = AnswerJudge()
    app.user_middleware.append(Middleware(_Judged, judge=judge))
    return judge


class _Judged:
    """The middleware: JSON answers of routes that the description has, and that are no problem."""

    def __init__(self, app: ASGIApp, judge: AnswerJudge) -> None:
        self._app, self._judge = app, judge

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        messages: list[Message] = []

        async def seen(message: Message) -> None:
            if message["type"] == "http.response.start" and not _is_json(message):
                return await send(message)
            if message["type"] != "http.response.start" and not messages:
                return await send(message)
            messages.append(message)
            if message["type"] == "http.response.start" or message.get("more_body"):
                return None
            route, body = scope.get("route"), b"".join(part.get("body", b"") for part in messages[1:])
            if route is not None and getattr(route, "include_in_schema", False):
                coding = dict(messages[0]["headers"]).get(b"content-encoding", b"")
                self._judge.look(route.operation_id or route.name, messages[0]["status"], _DECODERS[coding](body))
            for each in messages:
                await send(each)

        await self._app(scope, receive, seen)


def _is_json(start: Message) -> bool:
    headers = dict(start["headers"])
    return start["status"] != 204 and headers.get(b"content-type") == _JSON


@cache
def _validators() -> Mapping[tuple[str, int], Draft202012Validator]:
    """(operation, status) -> what its JSON answer must be."""
    document = json.loads(_DESCRIPTION.read_text("utf-8"))
    components = document["components"]
    for schema in components["schemas"].values():
        if "properties" in schema:
            schema["additionalProperties"] = False
    return {
        (operation["operationId"], int(status)): Draft202012Validator({**content["schema"], "components": components})
        for methods in document["paths"].values()
        for operation in methods.values()
        for status, answer in operation["responses"].items()
        for media, content in answer.get("content", {}).items()
        if media == _JSON.decode()
    }
