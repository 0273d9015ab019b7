"""Requests that mean no good: a problem answer or a clean close, and everybody else is served as before."""

from __future__ import annotations

import base64
import resource
import socket
import threading
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import orjson
import pytest

from apiserver.stream.followers import FollowLimits
from reading.rows.scope import Scope
from reading.served import position
from tests.kit.api_world import BASE
from tests.kit.log_builder import TENANT
from tests.kit.stream_world import StreamWorld, stream_world
from tests.kit.waiting import WAIT_S, eventually
from tistream.catalog.tenancy.consumers import CONSUMERS, add_consumer
from tistream.ids import Tenant

IDLE = 150


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StreamWorld]:
    follow = FollowLimits(streams_max=IDLE - 10, slow_consumer_s=5)
    with stream_world(tmp_path_factory.mktemp("hostile"), follow) as made:
        made.api.log.build(4)
        yield made
        assert made.api.ok(format="ndjson", limit=10).status_code == 200, "it still serves"


def made_by_hand(body: Any, version: bytes = b"1") -> str:
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    return base64.urlsafe_b64encode(version + zlib.crc32(data).to_bytes(4, "big") + data).rstrip(b"=").decode()


def raw(world: StreamWorld, request: bytes, *, read: int = 1 << 20) -> bytes:
    """What comes back for these bytes, until the server closes or answered."""
    host, port = world.server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=WAIT_S) as connection:
        answer = b""
        try:
            connection.sendall(request)
            while len(answer) < read and b"\r\n\r\n" not in answer:
                if not (piece := connection.recv(65536)):
                    break
                answer += piece
        except ConnectionError:
            pass  # closed while we were still talking
        return answer


MINE = position.encode_cursor(Scope(tenant=TENANT), 470613531252228096)
OTHERS = position.encode_cursor(Scope(tenant=Tenant(1, 2)), 470613531252228096)
BAD_CURSORS = [
    "", "=", "nonsense", "\u00e4", "%00", "A" * 5000, MINE[:-1], MINE[1:], MINE + "A",
    MINE[:20] + ("B" if MINE[20] != "B" else "C") + MINE[21:],
    OTHERS, position.encode_cursor(Scope(tenant=TENANT, database="shop"), 5),
    made_by_hand(b"not json"), made_by_hand(b"[1,1,null,null,%d]" % (1 << 80)), made_by_hand([1, 1, None, None]),
    made_by_hand({"a": 1}), made_by_hand([1, 1, None, None, "x"]), made_by_hand([1, 1, None, None, -5]),
    made_by_hand([1, 1, None, None, None]), made_by_hand([1, 1, [], {}, 5]), made_by_hand([1, 1, None, None, 5], b"9"),
    made_by_hand([-1, 1, None, None, 5]), made_by_hand(b"[%d,1,null,null,5]" % (1 << 70)),
    made_by_hand([1, 1, None, None, 1 << 62]),
    *(made_by_hand(b"[1,1,null,null,%s]" % values) for values in (
        b"1e400,0", b"5,1e400", b"1e18,0", b"true,0", b'"5",0', b"5.5,0", b"5,null", b"5,-1", b"5,9223372036854775808",
        b'5,0,1e300,"00"', b'5,0,1e400,"00"', b'5,0,-5,"00"', b'5,0,99999999999999999999999,""', b'5,0,true,""',
        b'5,0,5,"zz"', b"5,0,5,7", b'5,0,5,"",9', b"5,0,5",
    )),
    *(made_by_hand(b"[%s,null,null,5,0]" % ids) for ids in (b"1.9,1.9", b"true,true", b"1e400,1", b"[],{}")),
    *(made_by_hand(b"[1,1,null,null,5,0,%s]" % inside, b"2") for inside in (
        b"7", b'""', b'"1/1/1"', b'"1/1/9/00/1/1/m"', b'"1/1/0/zz/1/1/m"', b'"1e400/1/0/00/1/1/m"', b"null", b'"a","b"',
    )),
]  # fmt: skip
BAD_ACKNOWLEDGEMENTS = [
    b"{}", b"7", b'[1,1,"all"]', b'[1,1,"all",0,0,0,0,0,0,0]', b'[1,1,null,0,0,0,0]', b'[1,1,"other",0,0,0,0]',
    *(b'[1,1,"all",%s]' % values for values in (
        b"-1,0,0,0", b"1e300,0,0,0", b"1e400,0,0,0", b"0,1e400,0,0", b"0,null,0,0", b"0,0,1e400,0", b"true,0,0,0",
        b"0,9223372036854775808,0,0", b'0,0,0,"0"', b"0,0,0,0,7", b'0,0,0,0,"1/1"', b"0,0,0,0,{}",
    )),
]  # fmt: skip


@pytest.mark.parametrize("path", ["/changes", "/changes/splits"])
@pytest.mark.parametrize("text", BAD_CURSORS, ids=range(len(BAD_CURSORS)))
def test_a_cursor_of_somebody_else_is_refused(world: StreamWorld, path: str, text: str) -> None:
    answer = world.api.get(path, cursor=text)
    assert answer.status_code in (400, 410), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] in ("TS-1001", "TS-1003", "TS-1004", "TS-1005")


@pytest.mark.parametrize("body", BAD_ACKNOWLEDGEMENTS)
def test_a_consumer_acknowledges_nothing_with_a_cursor_that_is_none(world: StreamWorld, body: bytes) -> None:
    add_consumer(world.api.catalog, TENANT, "all", None)
    before = CONSUMERS.get(world.api.catalog, TENANT, "all")
    answer = world.api.http.post(f"{BASE}/consumers/all:acknowledge", json={"cursor": made_by_hand(body, b"c")})
    assert answer.status_code in (400, 409), answer.text
    assert answer.json()["code"] in ("TS-1003", "TS-1001", "TS-1014"), answer.text
    assert CONSUMERS.get(world.api.catalog, TENANT, "all").checkpoint_ts == before.checkpoint_ts


@pytest.mark.parametrize(
    "query",
    [
        "limit=0", "limit=-1", "limit=200001", "limit=1e9", f"limit={'9' * 400}", "limit=", "limit=1&limit=x",
        "wait=31", "wait=-1", "wait=nan", "wait=inf", "wait=1e400",
        "format=../../etc/passwd", f"format={'x' * 5000}",
        f"start_ts={'9' * 40}", "start_ts=-99999999999999999999d", "start_ts=1e18", "start_ts=%00",
        "start_ts=9999-12-31",
        "start_ts=0001-01-01", "start_ts=2026-02-30T00:00:00Z", "end_ts=-1", "end_ts=x", "compression=%F0%9F%98%80",
        "quote=%F0%9F%98%80&format=csv", "delimiter=&format=csv", "nonsense=1", "format=csv&null=%0D%0A&terminator=",
    ],
)  # fmt: skip
def test_a_query_that_is_nonsense_is_a_problem(world: StreamWorld, query: str) -> None:
    start = "" if "start_ts" in query else "start_ts=earliest&"
    answer = world.api.http.get(f"{BASE}/changes?{start}{query}")
    assert answer.status_code in (400, 410), answer.text[:300]
    assert answer.headers["content-type"] == "application/problem+json"
    assert len(answer.content) < 4000, "what was sent is not sent back at length"


@pytest.mark.parametrize(
    "path",
    [
        "/v1/clusters/1/tenants/1/../../../../etc/passwd", "/v1/clusters/1/tenants/1/files/..%2f..%2fcatalog.db",
        "/static/..%2f..%2fapp.py", "/static/%2e%2e/%2e%2e/app.py", "/v1//clusters/1", "/%00",
        "/v1/clusters/1/tenants/-1",
        f"/v1/clusters/1/tenants/{'9' * 30}", "/v1/clusters/0x1/tenants/1", "/v1/clusters/\xd9\xa1/tenants/1/x",
        "/v1/clusters/1/tenants/1/databases/%ff%fe/tables", f"/v1/clusters/1/tenants/1/databases/{'x' * 8000}/tables",
        "/problems/..%2f..%2f", "/docs/../../x", "//evil.example/v1/tenants",
    ],
)  # fmt: skip
def test_a_path_that_leads_elsewhere_leads_nowhere(world: StreamWorld, path: str) -> None:
    answer = raw(world, f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode("latin-1"))
    assert answer.split(b" ")[1] in (b"400", b"404"), answer[:300]
    assert b"root:" not in answer


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x00" * 1000, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        b"POST /v1/tenants HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X-Long: " + b"y" * 200_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: y\r\n" % n for n in range(20_000)) + b"\r\n",
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nHost: x\r\nBad Header: y\r\n\r\n",
        b"POST /v1/tenants HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n",
    ],
    ids=range(11),
)  # fmt: skip
def test_what_is_no_request_is_refused_or_closed(world: StreamWorld, request_bytes: bytes) -> None:
    answer = raw(world, request_bytes)
    assert not answer or answer.split(b" ")[1] in (b"400", b"404", b"413"), answer[:200]


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("Accept", ",;,;q=,=" * 500), ("Accept", "*/*;q=" + "9" * 3000), ("Accept", "\xff\xfe"),
        ("Accept-Encoding", ",;q=0" * 900), ("Accept-Encoding", "gzip;q=1e9"), ("Last-Event-ID", "\xff" * 50),
        ("Range", "bytes=0-" + "9" * 400), ("X-Forwarded-For", "1.2.3.4, x"),
    ],
)  # fmt: skip
def test_a_header_that_is_nonsense_breaks_nothing(world: StreamWorld, header: str, value: str) -> None:
    query = "start_ts=earliest&limit=1"
    head = f"GET {BASE}/changes?{query} HTTP/1.1\r\nHost: x\r\n{header}: {value}\r\nConnection: close\r\n\r\n"
    assert raw(world, head.encode("latin-1")).split(b" ")[1] in (b"200", b"400", b"406")


def test_idle_streams_and_unfinished_requests_leave_room_for_others(world: StreamWorld) -> None:
    host, port = world.server.url.removeprefix("http://").split(":")
    before, threads = resident_bytes(), threading.active_count()
    request = f"GET {BASE}/changes:stream?start_ts=latest HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    with ExitStack() as open_ones:
        for n in range(2 * IDLE):
            one = open_ones.enter_context(socket.create_connection((host, int(port)), timeout=WAIT_S))
            one.sendall(request if n % 2 else request[:30])
        eventually(lambda: world.followers.open_now("streams") == IDLE - 10, "as many as one caller may have")
        assert world.api.ok(limit=10).status_code == 200
        assert raw(world, request).startswith(b"HTTP/1.1 429 ")
        assert resident_bytes() - before < 200 << 20
        assert threading.active_count() - threads < 40
    eventually(lambda: world.followers.open_now("streams") == 0, "all are gone")
    eventually(lambda: world.followers.waker.waiting == 0, "nobody waits")


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_pages_that_a_caller_leaves_untaken_are_bounded(tmp_path: Path) -> None:
    host_of = "GET {}/changes?start_ts=earliest&limit=200000&format=ndjson HTTP/1.1\r\nHost: x\r\n\r\n"
    with (
        stream_world(tmp_path, FollowLimits(page_bytes_max=8 << 20, slow_consumer_s=WAIT_S)) as made,
        ExitStack() as ends,
    ):
        made.api.log.build(2)
        made.server._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        host, port = made.server.url.removeprefix("http://").split(":")
        first = ends.enter_context(socket.socket())
        first.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        first.connect((host, int(port)))
        first.settimeout(WAIT_S)
        first.sendall(host_of.format(BASE).encode())
        eventually(lambda: made.followers.open_now("page_bytes") > 4 << 20, "a page waits for its reader")
        refused = raw(made, host_of.format(BASE).encode())
        assert refused.startswith(b"HTTP/1.1 429 "), refused[:300]
        assert raw(made, host_of.replace("200000", "10").format(BASE).encode()).startswith(b"HTTP/1.1 200 ")
        first.close()
        eventually(lambda: made.followers.open_now("page_bytes") == 0, "who goes away holds nothing")
