"""One connection against a real port: every byte that a client sends is bounded, and every wait; so is an address.

Each way to send without end is tried until the server closes; each way to send nothing, until it is disconnected.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import repeat
from pathlib import Path

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, StreamingResponse

from tests.kit.waiting import WAIT_S, eventually
from tistream.cli.server import ConnectionLimits, HttpServer

MIB = 1 << 20
LIMITS = ConnectionLimits(head_s=0.4, body_s=0.4, slow_s=0.4, address_max=40)
POST = b"POST /body HTTP/1.1\r\nHost: x\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
UNREAD = b"POST /none HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
GET = b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n"


@contextmanager
def port(folder: Path, limits: ConnectionLimits | None = None) -> Iterator[HttpServer]:
    app, file = FastAPI(), folder / "file"
    file.write_bytes(bytes(8 * MIB))

    @app.post("/body")
    async def body(request: Request) -> int:
        return len(await request.body())

    @app.post("/none")
    async def none() -> int:
        return 0

    @app.get("/slow")
    async def slow() -> StreamingResponse:
        async def pieces() -> Iterator[bytes]:  # type: ignore[misc]
            while True:
                yield bytes(MIB)
                await asyncio.sleep(0)

        return StreamingResponse(pieces())

    @app.get("/file")
    async def of_file() -> FileResponse:
        return FileResponse(file)

    @app.get("/small")
    async def small() -> str:
        return "x" * 1_000_000

    server = HttpServer(app, "127.0.0.1", 0, lambda: None, limits) if limits else HttpServer(app, "127.0.0.1", 0)
    for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        server._socket.setsockopt(socket.SOL_SOCKET, buffer, 65536)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def connected(server: HttpServer) -> socket.socket:
    connection = socket.socket()
    for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        connection.setsockopt(socket.SOL_SOCKET, buffer, 65536)
    connection.settimeout(WAIT_S)
    host, number = server.url.removeprefix("http://").split(":")
    connection.connect((host, int(number)))
    return connection


def closed(connection: socket.socket) -> bytes:
    """What comes until the server closes."""
    received = b""
    with suppress(ConnectionError):
        while piece := connection.recv(65536):
            received += piece
    return received


ENDLESS = {
    "headers": (b"GET / HTTP/1.1\r\n", b"a: " + b"b" * 1000 + b"\r\n"),
    "one header": (b"GET / HTTP/1.1\r\na: ", b"b" * 4096),
    "one header's name": (b"GET / HTTP/1.1\r\n", b"b" * 4096),
    "address": (b"GET /", b"b" * 4096),
    "empty lines": (b"", b"\r\n" * 4096),
    "trailers": (CHUNKED + b"0\r\n", b"a: " + b"b" * 1000 + b"\r\n"),
    "trailers without a name": (CHUNKED + b"0\r\n", b": " + b"b" * 1000 + b"\r\n"),
    "one trailer": (CHUNKED + b"0\r\na: ", b"b" * 4096),
    "one trailer's name": (CHUNKED + b"0\r\n", b"b" * 4096),
    "unread trailers": (UNREAD + b"0\r\n", b"a: " + b"b" * 1000 + b"\r\n"),
    "one extension of a chunk": (CHUNKED + b"5;a=", b"b" * 4096),
    "extensions of chunks": (CHUNKED, b"1;" + b"b" * 4000 + b"\r\nx\r\n"),
    "a chunk's size": (CHUNKED, b"0" * 4096),
    "requests": (GET, GET * 20),
    "requests with bodies": (GET, (POST + b"Content-Length: 2000\r\n\r\n" + b"x" * 2000) * 20),
    "an unread body": (UNREAD, b"10000\r\n" + b"x" * 65536 + b"\r\n"),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_nothing_can_be_sent_without_end(tmp_path: Path, name: str) -> None:
    head, piece = ENDLESS[name]
    most = (36 if name == "an unread body" else 2) * MIB  # what sockets hold is in it
    with port(tmp_path) as server, connected(server) as connection:
        sent = 0
        with suppress(ConnectionError):
            connection.sendall(head)
            for part in repeat(piece):
                connection.settimeout(2)
                try:
                    connection.sendall(part)
                except TimeoutError:
                    break  # nothing is taken any more
                sent += len(part)
                assert sent < most, "everything is taken"


def test_a_trailer_becomes_no_header(tmp_path: Path) -> None:
    with port(tmp_path) as server, connected(server) as connection:
        connection.sendall(CHUNKED + b"2\r\nab\r\n0\r\nauthorization: x\r\n\r\n" + CHUNKED + b"0\r\n\r\n")
        eventually(lambda: connection.recv(65536, socket.MSG_PEEK).count(b"200 OK") == 2, "both are answered")


@pytest.mark.parametrize("size", [65_000, 66_000])
def test_a_head_has_64_kib(tmp_path: Path, size: int) -> None:
    with port(tmp_path) as server, connected(server) as connection:
        long = b"a: " + b"b" * (size - 100) + b"\r\nConnection: close\r\n\r\n"
        connection.sendall(b"POST /none HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n" + long)
        assert closed(connection).startswith(b"HTTP/1.1 200 " if size < 65536 else b"HTTP/1.1 400 ")


SLOW = {
    "nothing": (b"", b""),
    "half a head": (b"GET /livez HT", b""),
    "a head by bytes": (b"GET /", b"x"),
    "empty lines after an answer": (POST + b"Content-Length: 0\r\n\r\n", b"\r\n"),
    "half a body": (POST + b"Content-Length: 20\r\n\r\nhalf", b""),
    "a body by bytes": (POST + b"Content-Length: 200000\r\n\r\n", b"x"),
    "a chunk by bytes": (CHUNKED + b"ffff\r\n", b"x"),
    "trailers by bytes": (CHUNKED + b"0\r\n", b"x"),
    "an unread body": (UNREAD + b"ffff\r\n", b"x"),
}


@pytest.mark.parametrize("name", SLOW)
def test_no_request_takes_for_ever(tmp_path: Path, name: str) -> None:
    head, piece = SLOW[name]
    with port(tmp_path, LIMITS) as server, connected(server) as connection:
        connection.sendall(head)
        began = time.monotonic()
        connection.settimeout(0.1)
        received = b"?"
        while received:
            assert time.monotonic() - began < 20, "still connected"
            try:
                connection.sendall(piece)
                received = connection.recv(65536)
            except TimeoutError:
                continue
            except ConnectionError:
                break


@pytest.mark.parametrize("path", ["/slow", "/file", "/small"])
def test_who_reads_nothing_is_disconnected(tmp_path: Path, path: str) -> None:
    request = f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    with port(tmp_path, LIMITS) as server, connected(server) as connection:
        connection.sendall(request * 30)
        connections = server._server.server_state.connections
        eventually(lambda: connections, "it is connected")
        eventually(lambda: not connections, "the server ends it")


def test_a_connection_that_is_closed_and_not_read_ends(tmp_path: Path) -> None:
    with port(tmp_path, LIMITS) as server, connected(server) as connection:
        connection.sendall(b"GET /small HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        connections = server._server.server_state.connections
        eventually(lambda: connections, "it is connected")
        eventually(lambda: not connections, "the server ends it")


def test_who_reads_slowly_gets_everything(tmp_path: Path) -> None:
    with port(tmp_path, LIMITS) as server, connected(server) as connection:
        connection.sendall(b"GET /file HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        received = 0
        while piece := connection.recv(256 << 10):
            received += len(piece)
            time.sleep(0.02)
        assert received > 8 * MIB


def test_an_address_has_a_bound_and_others_their_place(tmp_path: Path) -> None:
    with port(tmp_path, LIMITS) as server, ExitStack() as ends:
        for _ in range(LIMITS.address_max):
            ends.enter_context(connected(server)).sendall(b"GET /s")
        with connected(server) as one_more:
            assert closed(one_more) == b""
        with socket.socket() as other:
            other.bind(("127.0.0.2", 0))
            host, number = server.url.removeprefix("http://").split(":")
            other.connect((host, int(number)))
            other.settimeout(WAIT_S)
            other.sendall(POST + b"Content-Length: 0\r\nConnection: close\r\n\r\n")
            assert closed(other).startswith(b"HTTP/1.1 200 ")
        eventually(lambda: not server._server.server_state.connections, "all are timed out")
        with connected(server) as later:
            later.sendall(POST + b"Content-Length: 0\r\nConnection: close\r\n\r\n")
            assert closed(later).startswith(b"HTTP/1.1 200 "), "the places are free again"
