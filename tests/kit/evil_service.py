"""A service whose answers try to steer the reader's terminal: every text that it may say is EVIL.

Its answers are the examples of the API's description, so each route has one. `Texts` says which of their texts are
EVIL.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

#: starts with what is visible in any case: a title, a hidden colour, a link, C1 controls, bidi, markup of rich
MARK = "evilname"
EVIL = (
    f"{MARK}\x1b]0;owned\x07\x1b[8m\x1b[2J\x1b]8;;http://evil.example\x1b\\go\x9b1A\x9d52;c;eA==\x9c"
    "\u202e\u2066\u200b\x85\x7f\b\r\x00\u2028[link=http://evil.example]x[/link][bold][/]\n\tlast"
)
DESCRIPTION = Path(__file__).parents[2] / "docs" / "reference" / "openapi.json"
#: what an answer has when the query asks for it
_ASKED: dict[str, dict[str, Any]] = {
    "why=true": {
        "sentence": "a",
        "slowest": "b",
        "stages": [
            {"stages": ["b"], "duration_s": 1.0, "where": "c"},
            {"stages": ["d"], "duration_s": 0.5, "where": "f"},
        ],
        "waits_for": ["e"],
    }
}
_METHODS = frozenset({"get", "post", "put", "patch", "delete"})
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ].*")
_NUMBER = re.compile(r"-?\d+(\.\d+)?")


class Texts(Enum):
    """Which texts of an answer are EVIL."""

    FREE = "free"  #: all but numbers, times and words of a fixed list, so that commands take the answer
    ALL = "all"
    PROBLEM = "problem"  #: the answer is a problem
    NO_JSON = "no-json"  #: the answer is an error that is not even a problem document


class Answers:
    """The answer of each route, as bytes with a media type."""

    def __init__(self, texts: Texts) -> None:
        self._texts = texts
        described = json.loads(DESCRIPTION.read_text("utf-8"))
        self._words = _WORDS | {word for words in _enumerations(described["components"]) for word in words}
        self._routes = [
            (method.upper(), re.compile(_pattern(path)), operation)
            for path, operations in described["paths"].items()
            for method, operation in operations.items()
            if method in _METHODS
        ]
        self._routes.sort(key=lambda route: -len(route[1].pattern))  # `.../tenants` before `.../{name}`

    def of(self, method: str, path: str, query: str) -> tuple[int, str, bytes]:
        """(status, media type, body). `query` names its format."""
        if self._texts is Texts.NO_JSON:
            return 400, "text/plain", EVIL.encode()
        if self._texts is Texts.PROBLEM:
            return 400, "application/problem+json", json.dumps(_problem()).encode()
        for of_route, pattern, operation in self._routes:
            if of_route == method and pattern.fullmatch(path):
                return self._answer(operation, query)
        return 404, "application/problem+json", json.dumps(_problem()).encode()

    def _answer(self, operation: dict[str, Any], query: str) -> tuple[int, str, bytes]:
        status, described = next((s, d) for s, d in operation["responses"].items() if s.startswith("2"))
        contents = described.get("content", {})
        if "application/x-ndjson" in contents and "format=json" not in query:
            line = self._evil_in(json.loads(contents["application/x-ndjson"]["example"].splitlines()[0]))
            return int(status), "application/x-ndjson", _raw(line) + b"\n"
        if "application/json" not in contents:
            return int(status), "text/plain", EVIL.encode() if contents else b""
        body = self._evil_in(contents["application/json"]["example"])
        for words, more in _ASKED.items():
            body |= self._evil_in(more) if words in query else {}
        return int(status), "application/json", json.dumps(body).encode()

    def _evil_in(self, value: Any) -> Any:
        """The example with other texts."""
        if isinstance(value, dict):
            return {name: None if name == "next_cursor" else self._evil_in(each) for name, each in value.items()}
        if isinstance(value, list):
            return [self._evil_in(each) for each in value]
        return EVIL if isinstance(value, str) and not self._is_fixed(value) else value

    def _is_fixed(self, text: str) -> bool:
        is_hex = len(text) >= 16 and re.fullmatch(r"([0-9a-f]{2})+", text)
        is_fixed = _NUMBER.fullmatch(text) or _TIME.fullmatch(text) or text in self._words or is_hex
        return self._texts is Texts.FREE and bool(is_fixed)


def _enumerations(node: Any) -> Iterator[list[str]]:
    """The lists of words that a schema allows, of all schemas."""
    if isinstance(node, dict):
        yield from (each for name, each in node.items() if name == "enum")
        for each in node.values():
            yield from _enumerations(each)
    elif isinstance(node, list):
        for each in node:
            yield from _enumerations(each)


#: words by which a command decides, of members whose schema lists no words
_WORDS = frozenset(
    {"ok", "update", "insert", "delete", "ddl", "put", "table", "created", "added", "dropped", "changed", "ACTIVE",
     "tidb", "raw", "txn", "service"}
)  # fmt: skip


def _raw(value: Any) -> bytes:
    """JSON in UTF-8, as the service writes rows: C1 controls and bidi characters are not escaped."""
    return json.dumps(value, ensure_ascii=False).encode()


def _problem() -> dict[str, Any]:
    return {
        "type": EVIL,
        "title": EVIL,
        "status": 400,
        "code": EVIL,
        "detail": EVIL,
        "hint": EVIL,
        "facts": {"a": EVIL},
    }


def _pattern(path: str) -> str:
    return re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(path))


_HEADERS = {
    "TiStream-Next-Cursor": f"{MARK}\x9b2J\x85",
    "TiStream-Resolved-Ts": "470613531000000001",
    "TiStream-Has-More": "false",
    "TiStream-Quarantined": "1",
    "TiStream-End-Ts": "470613531000000001",
    "TiStream-Session": "5",
    "TiStream-Partition": "0",
    "TiStream-Epoch": "1",
}


@contextmanager
def evil_service(texts: Texts) -> Iterator[str]:
    """Serves the answers; yields the address."""
    answers, passed = Answers(texts), set[str]()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _do(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            address = urlsplit(self.path)
            status, media, body = answers.of(self.command, address.path, address.query)
            self.send_response(status, MARK + "\x9b2J")
            passed.add(address.path.rpartition(":")[2])
            checkpoint = _HEADERS["TiStream-Resolved-Ts"] if "acknowledge" in passed else "1"  # else pulls never end
            for name, value in {
                **_HEADERS,
                "TiStream-Checkpoint-Ts": checkpoint,
                "Content-Type": media,
                "Content-Length": str(len(body)),
            }.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _do

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
