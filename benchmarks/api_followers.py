"""Many readers that follow the log: how soon they get a change, and what an idle stream costs.

    python -m benchmarks.api_followers [--waits 200] [--streams 50] [--seconds 15] [--every 1]

Three processes: a publisher of the recording in steps, the API server, and this one with the readers. Reported for
waits and streams: the time from a flush's commit to each reader's first byte of it; the share of flushes seen
separately (a busy server merges two); the server's CPU as a share of one core, per idle stream and while all readers
get changes.
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
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

from apiserver.app import create_app
from apiserver.stream.followers import FollowLimits
from reading.deps import Services
from tests.kit.api_world import BASE
from tests.kit.log_builder import LogBuilder, recording_end
from tests.kit.manual_clock import ManualClock
from tests.kit.stream_world import served
from tistream import ts as tso
from tistream.catalog.database.engine import Catalog
from tistream.objectstore.factory import open_store
from tistream.objectstore.protocol import ObjectStore

_CUTS = 400

Seen = dict[tuple[str, int], dict[int, float]]  #: reader -> timestamp -> when it came


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    for name, default in (("waits", 200), ("streams", 50), ("seconds", 15)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two flushes")
    asked = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "bucket").mkdir()
        pipes, processes = [], []
        for target in (publish, serve):
            ours, theirs = multiprocessing.Pipe()
            processes.append(spawn.Process(target=target, args=(theirs, folder), daemon=True))
            processes[-1].start()
            pipes.append(ours)
            said = ours.recv()  # the log is there; the port
        pid = processes[1].pid
        assert pid is not None
        asyncio.run(measure(pipes[0], pid, said, asked))
        for pipe, process in zip(pipes, processes, strict=True):
            pipe.send("stop")
            process.join(30)


def publish(parent: Connection, folder: str) -> None:
    """Half of the log exists; each "flush" publishes a little more and reports its time and timestamp."""
    catalog, store = _parts(folder)
    catalog.migrate()
    log = LogBuilder(catalog, store).register()
    cuts = log.cuts(_CUTS)
    log.build(4, upto=cuts[_CUTS // 4])
    parent.send(None)
    at = _CUTS // 4
    while parent.recv() == "flush":
        at += 1
        log.flush(cuts[at])
        parent.send((cuts[at], time.monotonic()))


def serve(parent: Connection, folder: str) -> None:
    """The API server."""
    catalog, store = _parts(folder)
    services = Services.create(catalog, store, ManualClock(tso.physical_ms(recording_end()) + 1000))
    with served(create_app(services, follow=FollowLimits(streams_max=1000))) as server:
        parent.send(int(server.url.rpartition(":")[2]))
        parent.recv()


def _parts(folder: str) -> tuple[Catalog, ObjectStore]:
    return Catalog(f"sqlite:///{folder}/catalog.db"), open_store(f"file://{folder}/bucket")


async def measure(publisher: Connection, pid: int, port: int, asked: argparse.Namespace) -> None:
    """Idle streams first, then all readers while the log grows."""
    seen: Seen = {}
    tasks = [asyncio.create_task(stream(port, seen.setdefault(("streams", n), {}))) for n in range(asked.streams)]
    await until(lambda: all(seen.values()))
    await asyncio.sleep(2)
    idle = await cpu_share(pid, 10)
    tasks += [asyncio.create_task(poll(port, seen.setdefault(("waits", n), {}))) for n in range(asked.waits)]
    await asyncio.sleep(3)
    flushed: dict[int, float] = {}
    before, start = cpu_s(pid), time.monotonic()
    while time.monotonic() < start + asked.seconds:
        publisher.send("flush")
        ts, at = await asyncio.to_thread(publisher.recv)
        flushed[ts] = at
        await asyncio.sleep(max(0.0, at + asked.every - time.monotonic()))
    busy = (cpu_s(pid) - before) / (time.monotonic() - start)
    with suppress(TimeoutError):
        await until(lambda: all(flushed.keys() & found for found in seen.values()), 20)
    for task in tasks:
        task.cancel()
    print(
        json.dumps(
            {
                "flushes": len(flushed),
                **{kind: shown(kind, seen, flushed) for kind in ("waits", "streams")},
                "idle_cpu_percent_per_stream": round(idle / max(1, asked.streams) * 100, 4),
                "cpu_percent_while_all_get_news": round(busy * 100),
                "load": os.getloadavg()[0],
            }
        )
    )


def shown(kind: str, seen: Seen, flushed: dict[int, float]) -> dict[str, object]:
    """Of the readers of one kind."""
    mine = [found for (of, _), found in seen.items() if of == kind]
    lags = sorted(found[ts] - at for found in mine for ts, at in flushed.items() if ts in found)
    if not lags:
        return {"readers": len(mine)}
    return {
        "readers": len(mine),
        "seen_by_itself": round(len(lags) / (len(flushed) * len(mine)), 3),
        "p50_ms": round(statistics.median(lags) * 1000),
        "p99_ms": round(lags[int(len(lags) * 0.99)] * 1000),
        "max_ms": round(lags[-1] * 1000),
    }


async def until(holds: Callable[[], bool], seconds: float = 120) -> None:
    """Wait for it."""
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.1)


async def cpu_share(pid: int, seconds: float) -> float:
    """CPU seconds a second of a process."""
    before = cpu_s(pid)
    await asyncio.sleep(seconds)
    return (cpu_s(pid) - before) / seconds


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def stream(port: int, seen: dict[int, float]) -> None:
    """Note when each watermark comes for the first time."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    writer.write(f"GET {BASE}/changes:stream?start_ts=latest HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    while line := await reader.readline():
        if line.startswith(b'{"type":"resolved"'):
            seen.setdefault(int(json.loads(line)["resolved_ts"]), time.monotonic())


async def poll(port: int, seen: dict[int, float]) -> None:
    """Ask again and again from the cursor of the answer before."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    position = "start_ts=latest"
    while True:
        writer.write(f"GET {BASE}/changes?format=ndjson&wait=30&{position} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        at = time.monotonic()
        facts = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
        await reader.readexactly(int(facts["content-length"]))
        seen.setdefault(int(facts["tistream-resolved-ts"]), at)
        position = f"cursor={facts['tistream-next-cursor']}"


if __name__ == "__main__":
    main()
