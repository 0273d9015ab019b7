"""Many readers that follow: how soon they have the news, and what an idle stream costs.

    python -m benchmarks.api_followers [--waits 200] [--streams 50] [--seconds 15]

A server in a process of its own publishes the recording piece by piece; the readers are sockets of this process. Shown:
from a flush's commit to the reader's first byte of it (p50, p99), and the server's CPU with idle streams only, each as
a share of one core.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

from apiserver.stream.following import FollowLimits
from tistream.testing.api_world import BASE
from tistream.testing.stream_world import stream_world

_EVERY_S = 0.5


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    for name, default in (("waits", 200), ("streams", 50), ("seconds", 15)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    port = ours.recv()
    assert server.pid is not None
    asyncio.run(measure(ours, server.pid, port, asked))
    ours.send("stop")
    server.join(30)


def serve(parent: Connection) -> None:
    """Half of the log is there; each "flush" publishes a little more and tells when and up to where."""
    with tempfile.TemporaryDirectory() as folder, stream_world(Path(folder), FollowLimits(streams_max=1000)) as world:
        cuts = world.api.log.cuts(400)
        world.api.log.build(4, upto=cuts[100])
        parent.send(int(world.server.url.rpartition(":")[2]))
        at = 100
        while parent.recv() == "flush":
            at += 1
            world.api.log.flush(cuts[at])
            parent.send((cuts[at], time.monotonic()))


async def measure(server: Connection, pid: int, port: int, asked: argparse.Namespace) -> None:
    """Idle streams first, then everybody while the log grows."""
    got: dict[int, list[float]] = {}
    streams = [asyncio.create_task(stream(port, got)) for _ in range(asked.streams)]
    await asyncio.sleep(3)
    idle = await cpu_share(pid, 10)
    waits = [asyncio.create_task(poll(port, got)) for _ in range(asked.waits)]
    await asyncio.sleep(3)
    got.clear()
    flushed: dict[int, float] = {}
    end = time.monotonic() + asked.seconds
    while time.monotonic() < end:
        server.send("flush")
        ts, at = await asyncio.to_thread(server.recv)
        flushed[ts] = at
        await asyncio.sleep(_EVERY_S)
    await asyncio.sleep(2)
    for task in (*streams, *waits):
        task.cancel()
    lags = sorted(seen - flushed[ts] for ts, all_seen in got.items() if ts in flushed for seen in all_seen)
    share = len(lags) / max(1, len(flushed) * (asked.waits + asked.streams))
    print(
        json.dumps(
            {
                "waits": asked.waits,
                "streams": asked.streams,
                "flushes": len(flushed),
                "seen_of_all": round(share, 3),
                "p50_ms": round(statistics.median(lags) * 1000),
                "p99_ms": round(lags[int(len(lags) * 0.99)] * 1000),
                "idle_cpu_percent_per_stream": round(idle / max(1, asked.streams) * 100, 4),
                "load": os.getloadavg()[0],
            }
        )
    )


async def cpu_share(pid: int, seconds: float) -> float:
    """CPU seconds a second of a process."""
    before = cpu_s(pid)
    await asyncio.sleep(seconds)
    return (cpu_s(pid) - before) / seconds


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def stream(port: int, got: dict[int, list[float]]) -> None:
    """Note when each watermark comes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    writer.write(f"GET {BASE}/changes:stream?start_ts=latest HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    while line := await reader.readline():
        if line.startswith(b'{"type":"resolved"'):
            got.setdefault(int(json.loads(line)["resolved_ts"]), []).append(time.monotonic())


async def poll(port: int, got: dict[int, list[float]]) -> None:
    """Ask again and again from the cursor of the answer before."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    position = "start_ts=latest"
    while True:
        writer.write(f"GET {BASE}/changes?format=ndjson&wait=30&{position} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        at = time.monotonic()
        facts = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
        await reader.readexactly(int(facts["content-length"]))
        got.setdefault(int(facts["tistream-resolved-ts"]), []).append(at)
        position = f"cursor={facts['tistream-next-cursor']}"


if __name__ == "__main__":
    main()
