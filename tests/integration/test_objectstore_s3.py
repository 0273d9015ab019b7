"""The S3 store: on a real server, and against one that misbehaves as S3 may (lost replies, 409, 503, refusals)."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from simulator.chaos.servers.s3server import S3Server
from tests.kit.objectstore_suite import KEY, ObjectStoreSuite
from tistream.errors import ObjectConflict, StoreUnavailable
from tistream.objectstore.factory import open_store
from tistream.objectstore.protocol import ObjectStore
from tistream.objectstore.s3 import S3Store

_number = itertools.count(1)
pytestmark = pytest.mark.usefixtures("server")


class TestS3Store(ObjectStoreSuite):
    many_keys = 1050

    @pytest.fixture
    def store(self, server: S3Server) -> ObjectStore:
        bucket = f"bucket-{next(_number)}"
        server.create_bucket(bucket)
        return open_store(server.url(bucket))

    def test_a_prefix_keeps_two_deployments_apart(self, server: S3Server) -> None:
        server.create_bucket("shared")
        one, two, whole = (open_store(server.url("shared", prefix)) for prefix in ("one", "two/deep", ""))
        one.put("a/b", b"1")
        two.put("a/b", b"2")
        assert (one.get("a/b"), two.get("a/b")) == (b"1", b"2")
        assert [info.key for info in one.list("a/")] == ["a/b"]
        assert [info.key for info in whole.list("")] == ["one/a/b", "two/deep/a/b"]

    def test_a_missing_bucket_is_not_a_missing_object(self, server: S3Server) -> None:
        store = open_store(server.url("no-such-bucket"))
        for ask in (
            lambda: store.get(KEY),
            lambda: store.get_range(KEY, 0, 1),
            lambda: store.put(KEY, b"x"),
            lambda: list(store.list("a/")),
        ):
            with pytest.raises(StoreUnavailable, match="bucket"):
                ask()


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
        status, reply = self.perform(body)
        if fault == "lose":
            self.close_connection = True
            return None
        return self.answer(status, reply)

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
def faulty() -> Iterator[Server]:
    with Server() as faulty:
        thread = threading.Thread(target=faulty.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield faulty
        faulty.shutdown()
        thread.join()


@pytest.fixture
def store(faulty: Server) -> S3Store:
    endpoint = f"http://127.0.0.1:{faulty.server_port}"
    return S3Store("bucket", endpoint=endpoint, region="us-east-1", path_style=True)


def test_a_put_whose_reply_was_lost_meets_itself(faulty: Server, store: S3Store) -> None:
    faulty.faults["PUT"] = ["lose"]
    store.put("a/b", b"mine")
    assert faulty.requests == ["PUT", "PUT", "GET"]
    assert store.get("a/b") == b"mine"


def test_a_put_that_meets_another_writer_is_a_conflict(faulty: Server, store: S3Store) -> None:
    faulty.faults["PUT"] = [503]
    faulty.objects["/bucket/a/b"] = b"theirs"
    with pytest.raises(ObjectConflict):
        store.put("a/b", b"mine")
    assert faulty.objects["/bucket/a/b"] == b"theirs"


def test_a_409_while_nobody_has_won_is_tried_again(faulty: Server, store: S3Store) -> None:
    faulty.faults["PUT"] = [409, 409]
    store.put("a/b", b"mine")
    assert faulty.requests == ["PUT", "GET"] * 2 + ["PUT"]
    assert faulty.objects["/bucket/a/b"] == b"mine"


def test_a_store_that_contradicts_itself_is_given_up(faulty: Server, store: S3Store) -> None:
    faulty.faults["PUT"] = [412] * 100
    with pytest.raises(StoreUnavailable) as caught:
        store.put("a/b", b"mine")
    assert caught.value.facts["determinate"] is False
    assert faulty.requests == ["PUT", "GET"] * 5


@pytest.mark.parametrize("fault", [503, 500, "lose"])
def test_retries_are_bounded_and_the_outcome_is_unknown(faulty: Server, store: S3Store, fault: int | str) -> None:
    faulty.faults["PUT"] = [fault] * 100
    faulty.faults["GET"] = [503] * 100
    with pytest.raises(StoreUnavailable) as caught:
        store.put("a/b", b"mine")
    assert caught.value.facts["determinate"] is False
    assert caught.value.facts["key"] == "a/b"
    assert 2 <= faulty.requests.count("PUT") <= 5


def test_a_read_back_that_fails_leaves_the_outcome_unknown(faulty: Server, store: S3Store) -> None:
    faulty.faults["PUT"] = ["lose"]
    faulty.faults["GET"] = [403]
    with pytest.raises(StoreUnavailable) as caught:
        store.put("a/b", b"mine")
    assert caught.value.facts["determinate"] is False


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_put_did_not_happen(faulty: Server, store: S3Store, status: int) -> None:
    faulty.faults["PUT"] = [status]
    with pytest.raises(StoreUnavailable, match="the store refused") as caught:
        store.put("a/b", b"mine")
    assert caught.value.facts["determinate"] is True
    assert faulty.objects == {}


def test_a_get_is_retried(faulty: Server, store: S3Store) -> None:
    faulty.objects["/bucket/a/b"] = b"data"
    faulty.faults["GET"] = [503, "lose"]
    assert store.get("a/b") == b"data"


def test_a_dead_server_is_unavailable(faulty: Server) -> None:
    store = S3Store("bucket", endpoint="http://127.0.0.1:1", region="us-east-1", path_style=True)
    with pytest.raises(StoreUnavailable) as caught:
        store.get("a/b")
    assert caught.value.facts["key"] == "a/b"
