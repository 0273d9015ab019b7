"""The S3 store against a server that misbehaves as S3 may: lost replies, 409, 503, refusals.

The server is twenty lines of HTTP: one object a key, and a script of what to do wrong next.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from simulator.chaos.servers.s3server import CREDENTIALS
from tistream.errors import ObjectConflict, StoreUnavailable
from tistream.objectstore.s3 import S3Store


class Server(ThreadingHTTPServer):
    """Objects and, for the next requests of a method, faults: a status to answer, or "lose" (do it, send no reply)."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects: dict[str, bytes] = {}
        self.faults: dict[str, list[int | str]] = {"PUT": [], "GET": []}
        self.requests: list[str] = []


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def handle_one(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.requests.append(self.command)
        faults = self.server.faults[self.command]
        fault = faults.pop(0) if faults else None
        if isinstance(fault, int):
            return self.answer(fault)
        status, found = self.perform(body)
        if fault == "lose":
            self.close_connection = True
            return None
        return self.answer(status, found)

    do_PUT = do_GET = handle_one

    def perform(self, body: bytes) -> tuple[int, bytes]:
        objects = self.server.objects
        if self.command == "PUT":
            assert self.headers["If-None-Match"] == "*"
            if self.path in objects:
                return 412, b""
            objects[self.path] = body
            return 200, b""
        return (200, objects[self.path]) if self.path in objects else (404, b"<Error><Code>NoSuchKey</Code></Error>")

    def answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"1"')
        self.send_header("Last-Modified", "Wed, 01 Jul 2026 10:00:00 GMT")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def store(server: Server, monkeypatch: pytest.MonkeyPatch) -> S3Store:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    endpoint = f"http://127.0.0.1:{server.server_port}"
    return S3Store("bucket", endpoint=endpoint, region="us-east-1", path_style=True)


def test_a_put_whose_reply_was_lost_meets_itself(server: Server, store: S3Store) -> None:
    server.faults["PUT"] = ["lose"]
    store.put("a/b", b"mine")
    assert server.requests == ["PUT", "PUT", "GET"]
    assert store.get("a/b") == b"mine"


def test_a_put_that_meets_another_writer_is_a_conflict(server: Server, store: S3Store) -> None:
    server.faults["PUT"] = [503]
    server.objects["/bucket/a/b"] = b"theirs"
    with pytest.raises(ObjectConflict):
        store.put("a/b", b"mine")
    assert server.objects["/bucket/a/b"] == b"theirs"


def test_a_409_while_nobody_has_won_is_tried_again(server: Server, store: S3Store) -> None:
    server.faults["PUT"] = [409, 409]
    store.put("a/b", b"mine")
    assert server.requests == ["PUT", "GET"] * 2 + ["PUT"]
    assert server.objects["/bucket/a/b"] == b"mine"


def test_a_store_that_contradicts_itself_is_given_up(server: Server, store: S3Store) -> None:
    server.faults["PUT"] = [412] * 100
    with pytest.raises(StoreUnavailable) as caught:
        store.put("a/b", b"mine")
    assert caught.value.facts["determinate"] is False
    assert server.requests == ["PUT", "GET"] * 5


@pytest.mark.parametrize("fault", [503, 500, "lose"])
def test_retries_are_bounded_and_the_outcome_is_unknown(server: Server, store: S3Store, fault: int | str) -> None:
    server.faults["PUT"] = [fault] * 100
    server.faults["GET"] = [503] * 100
    with pytest.raises(StoreUnavailable) as caught:
        store.put("a/b", b"mine")
    assert caught.value.facts["determinate"] is False
    assert caught.value.facts["key"] == "a/b"
    assert 2 <= server.requests.count("PUT") <= 5


def test_a_read_back_that_fails_leaves_the_outcome_unknown(server: Server, store: S3Store) -> None:
    server.faults["PUT"] = ["lose"]
    server.faults["GET"] = [403]
    with pytest.raises(StoreUnavailable) as caught:
        store.put("a/b", b"mine")
    assert caught.value.facts["determinate"] is False


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_put_did_not_happen(server: Server, store: S3Store, status: int) -> None:
    server.faults["PUT"] = [status]
    with pytest.raises(StoreUnavailable, match="the store refused") as caught:
        store.put("a/b", b"mine")
    assert caught.value.facts["determinate"] is True
    assert server.objects == {}


def test_a_get_is_retried(server: Server, store: S3Store) -> None:
    server.objects["/bucket/a/b"] = b"data"
    server.faults["GET"] = [503, "lose"]
    assert store.get("a/b") == b"data"


def test_a_dead_server_is_unavailable(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    store = S3Store("bucket", endpoint="http://127.0.0.1:1", region="us-east-1", path_style=True)
    with pytest.raises(StoreUnavailable) as caught:
        store.get("a/b")
    assert caught.value.facts["key"] == "a/b"
