"""A thousand idle streams and readers that crawl, on one real server process: others are served as ever, the memory is
bounded, the end is clean."""

from __future__ import annotations

import asyncio
import resource
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx2
import orjson
import pytest

from simulator.chaos.servers.ports import free_port
from simulator.chaos.servers.processes import TiStreamProcess, wait_until_ready
from tests.kit.api_world import BASE
from tests.kit.catalog_cases import new_catalog
from tests.kit.log_builder import LogBuilder, recording_end
from tistream.cli.server import allow_open_files
from tistream.objectstore.factory import open_store

STREAMS = 1000
WAIT_S = 120  # a busy machine is slow, not wrong
KIB_PER_STREAM = 200  # of the server's memory; about 60 are needed


@dataclass
class Site:
    """A process of the API server."""

    process: TiStreamProcess
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def resident_kib(self) -> int:
        assert self.process._process is not None
        status = Path(f"/proc/{self.process._process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0])

    async def opened(
        self, query: str, path: str = "changes:stream"
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 24)
        writer.write(f"GET {BASE}/{path}?{query} HTTP/1.1\r\nHost: x\r\nAccept-Encoding: identity\r\n\r\n".encode())
        return reader, writer


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    (tmp_path / "bucket").mkdir()
    catalog = new_catalog(tmp_path)
    LogBuilder(catalog, open_store(f"file://{tmp_path}/bucket")).register().build(2)
    catalog.close()
    port = free_port()
    env = {"TISTREAM_SERVER_CALLER_STREAMS_MAX": "2000", "TISTREAM_SERVER_SLOW_CONSUMER_S": "3"}
    where = ("--catalog", f"sqlite:///{tmp_path}/catalog.db", "--object-store", f"file://{tmp_path}/bucket")
    process = TiStreamProcess("serve", *where, "--port", str(port), "--auth", "none", log=tmp_path / "log", env=env)
    with process:
        new_site = Site(process, port)
        wait_until_ready(process, new_site.url)
        yield new_site


async def marks(reader: asyncio.StreamReader, count: int) -> None:
    """Read so many watermarks; only they come on an idle stream."""
    async with asyncio.timeout(WAIT_S):
        while count:
            line = await reader.readline()
            assert line, "an idle stream stays open"
            count -= line.startswith(b'{"type":"resolved"')


async def last_words(reader: asyncio.StreamReader) -> dict[str, str]:
    async with asyncio.timeout(WAIT_S):
        rest = await reader.read()
    assert rest.endswith(b"0\r\n\r\n"), "a clean end of the body"
    end: dict[str, str] = orjson.loads(rest[rest.rindex(b'{"type":"end"') :].split(b"\n")[0])
    return end


async def served_in_ms(site: Site, times: int) -> list[float]:
    """How long other readers wait for a page."""
    waits_ms = []
    async with httpx2.AsyncClient(timeout=WAIT_S) as http:
        for _ in range(times):
            begun = time.monotonic()
            answer = await http.get(f"{site.url}{BASE}/changes", params={"start_ts": "earliest", "limit": 10})
            assert answer.status_code == 200
            waits_ms.append((time.monotonic() - begun) * 1000)
    return waits_ms


def test_a_thousand_idle_streams_leave_room_for_others_and_end_cleanly(site: Site) -> None:
    allow_open_files(STREAMS + 1000)

    async def play() -> None:
        await served_in_ms(site, 3)
        before = site.resident_kib()
        # a hundred at a time: the machine's queue of new connections is short
        streams = []
        for _ in range(STREAMS // 100):
            streams += await asyncio.gather(*(site.opened("start_ts=latest") for _ in range(100)))
            await asyncio.gather(*(marks(reader, 1) for reader, _ in streams[-100:]))
        await asyncio.gather(*(marks(reader, 2) for reader, _ in streams))
        each = (site.resident_kib() - before) / STREAMS
        waited = await served_in_ms(site, 15)
        print(f"{each:.0f} KiB a stream; others wait {statistics.median(waited):.0f} ms, {max(waited):.0f} at most")
        assert each < KIB_PER_STREAM
        site.process.terminate()
        ends = await asyncio.gather(*(last_words(reader) for reader, _ in streams))
        assert {end["reason"] for end in ends} == {"shutdown"}
        assert {end["resolved_ts"] for end in ends} == {str(recording_end())}
        for _, writer in streams:
            writer.close()

    asyncio.run(play())
    assert site.process.wait(WAIT_S) == 0
    assert "Traceback" not in site.process.output()


def test_readers_that_take_a_byte_now_and_then_are_cut_off(site: Site) -> None:
    """What they get last is shown where streams are: here nobody reads that far."""
    ways = ["changes:stream"] * 20 + ["changes"] * 4

    async def crawl(path: str) -> None:
        loop = asyncio.get_running_loop()
        with socket.socket() as reader, suppress(ConnectionError):
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.setblocking(False)
            await loop.sock_connect(reader, ("127.0.0.1", site.port))
            query = "start_ts=earliest&limit=200000&format=ndjson"
            await loop.sock_sendall(reader, f"GET {BASE}/{path}?{query} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            while await loop.sock_recv(reader, 1):
                await asyncio.sleep(0.1)

    def cut_off() -> list[int]:
        return [site.process.output().count(f"{what} not read, disconnecting") for what in ("stream", "answer")]

    async def play() -> None:
        before, most, waited = site.resident_kib(), 0, [0.0]
        crawling = [asyncio.create_task(crawl(path)) for path in ways]
        async with asyncio.timeout(WAIT_S):
            while cut_off() != [20, 4]:
                waited += await served_in_ms(site, 3)
                most = max(most, site.resident_kib() - before)
                await asyncio.sleep(0.1)
        for task in crawling:
            task.cancel()
        print(f"{most >> 10} MiB for {len(ways)} readers that crawl; others wait {max(waited):.0f} ms at most")
        assert most < 600 << 10, "what waits for slow readers is bounded"

    asyncio.run(play())
    assert site.process.stop() == 0


def test_a_server_raises_its_own_bound_on_open_files() -> None:
    program = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 300));"
        "from tistream.cli.server import allow_open_files as allow;"
        "print(allow(200), allow(100), allow(10_000), resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] >= 300
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "200 200 300 (300, 300)"
