"""The gate for HTTP clients that resolve names themselves: it connects to the server of a pass, if a policy allows."""

from __future__ import annotations

import asyncio
import base64
import gc
import http.server
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.kit.certificates import certificate
from tistream.outbound.gate import Gate, Pass, open_pass
from tistream.outbound.policy import Policy, Terms
from tistream.outbound.rules import Rule, Target, TargetRefused, parse_networks


class Server(http.server.ThreadingHTTPServer):
    """It keeps the requests."""

    daemon_threads = True

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.seen.append((self.path, body.decode(), dict(self.headers)))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as new_server:
        thread = threading.Thread(target=new_server.serve_forever, args=(0.01,))
        thread.start()
        yield new_server
        new_server.shutdown()
        thread.join()


def allowing(rule: str, networks: str = "127.0.0.0/8") -> Policy:
    return Policy(terms=Terms(networks=parse_networks(networks)), rules=(Rule.parse(rule),), is_operated=False)


def passed(scheme: str, host: str, port: int, networks: str = "127.0.0.0/8") -> Pass:
    return open_pass(allowing(f"{scheme}://{host}:{port}", networks), Target.server(scheme, f"{host}:{port}"))


def ask(opened: Pass, request: str, secret: str | None = None) -> bytes:
    """The answer to a request with a body of two bytes."""
    token = base64.b64encode(f"pass:{secret or opened.secret}".encode()).decode()
    head = f"{request} HTTP/1.1\r\nHost: h\r\nProxy-Authorization: Basic {token}\r\nContent-Length: 2\r\n\r\n"
    with closing(socket.create_connection(("127.0.0.1", opened.gate.port), timeout=5)) as client:
        client.sendall(head.encode() + b"hi")
        answer = b""
        while data := client.recv(4096):
            answer += data
        return answer


def test_a_request_reaches_the_server_of_its_pass(server: Server) -> None:
    opened = passed("http", "localhost", server.server_port)
    answer = ask(opened, f"PUT http://localhost:{server.server_port}/b/k?x=1")
    assert (answer[:12], answer[-2:]) == (b"HTTP/1.1 200", b"ok")
    assert b"\r\nConnection: close\r\n" in answer, "so that its client does not use the connection again"
    [(path, body, headers)] = server.seen
    assert (path, body) == ("/b/k?x=1", "hi")
    assert "Proxy-Authorization" not in headers


@pytest.mark.parametrize("request_line", ["PUT http://127.0.0.1:{port}/", "PUT https://localhost:{port}/",
                                          "CONNECT localhost:{port}", "PUT http://localhost:{other}/", "PUT /b",
                                          "nonsense"])  # fmt: skip
def test_nothing_else_is_reached_by_it(server: Server, request_line: str) -> None:
    opened = passed("http", "localhost", server.server_port)
    answer = ask(opened, request_line.format(port=server.server_port, other=server.server_port + 1))
    assert answer.startswith((b"HTTP/1.1 403", b"HTTP/1.1 400"))
    assert server.seen == []


def test_a_pass_ends_with_its_object_and_others_are_none(server: Server) -> None:
    opened, port = passed("http", "localhost", server.server_port), server.server_port
    assert ask(opened, f"PUT http://localhost:{port}/", secret="guessed").startswith(b"HTTP/1.1 407")
    secret, also = opened.secret, passed("http", "localhost", port)
    del opened
    gc.collect()
    assert ask(also, f"PUT http://localhost:{port}/", secret=secret).startswith(b"HTTP/1.1 407")
    assert server.seen == []


def test_a_name_is_checked_when_it_is_connected_to(server: Server) -> None:
    """The name was public when the pass was opened, or nobody had asked."""
    port = server.server_port
    opened = passed("http", "localhost", port, networks="")
    assert ask(opened, f"PUT http://localhost:{port}/").startswith(b"HTTP/1.1 403")
    assert isinstance(opened.refusal, TargetRefused)
    assert server.seen == []


def test_a_mutant_that_connects_by_name_is_noticed(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    async def by_name(self: Gate, opened: Pass) -> Any:
        return await asyncio.open_connection(opened.target.host, opened.target.port)

    monkeypatch.setattr(Gate, "_connected", by_name)
    with pytest.raises(AssertionError):
        test_a_name_is_checked_when_it_is_connected_to(server)


def test_tls_is_between_the_client_and_the_server(tmp_path: Path) -> None:
    pem = certificate(tmp_path, "server", of="DNS:localhost")
    there = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    there.load_cert_chain(pem, pem.with_suffix(".key"))
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        port = listening.getsockname()[1]

        def serve() -> None:
            with there.wrap_socket(listening.accept()[0], server_side=True) as one:
                one.sendall(one.recv(100).upper())

        thread = threading.Thread(target=serve)
        thread.start()
        opened = passed("https", "localhost", port)
        token = base64.b64encode(f"pass:{opened.secret}".encode()).decode()
        with closing(socket.create_connection(("127.0.0.1", opened.gate.port), timeout=5)) as raw:
            raw.sendall(f"CONNECT localhost:{port} HTTP/1.1\r\nProxy-Authorization: Basic {token}\r\n\r\n".encode())
            assert raw.recv(100).startswith(b"HTTP/1.1 200")
            with ssl.create_default_context(cafile=str(pem)).wrap_socket(raw, server_hostname="localhost") as client:
                client.sendall(b"hello")
                assert client.recv(100) == b"HELLO"
        thread.join()


def test_a_server_that_is_away_is_a_bad_gateway() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    assert ask(passed("http", "localhost", port), f"PUT http://localhost:{port}/").startswith(b"HTTP/1.1 502")
