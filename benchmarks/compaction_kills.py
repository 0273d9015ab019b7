"""Twenty SIGKILLs of `tistream compact` on two executors, at random times, with readers pulling. By hand:

    python -m benchmarks.compaction_kills --kills 20 --master 'local-cluster[2,1,1200]'

Every round publishes more of the recorded log and starts a job (merge and bases). Then either the driver with its
executors, or one executor, is killed; a job that lost an executor continues. A thread pulls the log and reads tables as
of timestamps, and compares each answer with that of the same log without compaction. At the end one job runs to its end
and the collector makes one round. Prints the counts as JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from compactor.base_job import BaseSettings, build_tenant_bases
from compactor.core.base_plan import BasePlanSettings
from compactor.core.plan import PlanSettings
from compactor.job import JobSettings, compact_tenant
from compactor.local import LocalExecutor
from metaserver.collect import Collector
from tests.kit.api_world import ApiWorld, api_world
from tests.kit.log_builder import TENANT
from tistream.catalog.database import tables
from tistream.clock import SystemClock
from tistream.objectstore.local import LocalStore

EXECUTOR = b"CoarseGrainedExecutorBackend"
TABLES = ("acct", "customers", "p_range", "evolve")


def main() -> int:
    """0 when nothing was lost, repeated, unreadable or left over."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--master", default="local-cluster[2,1,1200]")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    logging.disable(logging.INFO)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "twin").mkdir()
        with (
            api_world(folder, LocalStore(folder / "bucket")) as world,
            api_world(folder / "twin", LocalStore(folder / "twin" / "bucket")) as twin,
        ):
            found = _played(folder, world, twin, asked.kills, asked.master, random.Random(asked.seed))
    print(json.dumps(found, indent=2))
    return int(any(found[name] for name in ("wrong", "unreadable", "left over", "missing")))


def _played(
    folder: Path, world: ApiWorld, twin: ApiWorld, kills: int, master: str, rand: random.Random
) -> dict[str, int]:
    found: Counter[str] = Counter(dict.fromkeys(("wrong", "unreadable", "left over", "missing"), 0))
    for each in (world, twin):
        each.log.activate().seed()
    cuts = world.log.cuts(4 * (kills + 1))
    steps = [cuts[4 * n : 4 * n + 4] for n in range(kills + 1)]
    served, over = [twin.log.start_ts], threading.Event()
    reading = threading.Thread(target=_read, args=(world, twin, served, over, found))
    reading.start()
    try:
        for number, step in enumerate(steps[:kills]):
            for ts in step:
                twin.log.flush(ts)
                world.log.flush(ts)
                served.append(ts)
            _one(folder, master, rand, found, is_driver=number % 2 == 0)
            print(dict(found), file=sys.stderr, flush=True)
    finally:
        over.set()
        reading.join()
    _end(world, found)
    over.clear()
    last = threading.Thread(target=_read, args=(world, twin, served, over, found, 1))
    last.start()
    last.join()
    return dict(found)


def _one(folder: Path, master: str, rand: random.Random, found: Counter[str], *, is_driver: bool) -> None:
    driver = _started(folder, master)
    deadline = time.monotonic() + 300
    try:
        while driver.poll() is None and not _executors(driver.pid) and time.monotonic() < deadline:
            time.sleep(0.2)
        time.sleep(rand.random() * 20)
        if is_driver:
            found["drivers killed"] += driver.poll() is None
        elif victims := _executors(driver.pid):
            os.kill(rand.choice(victims), signal.SIGKILL)
            found["executors killed"] += 1
            while driver.poll() is None and time.monotonic() < deadline:
                time.sleep(0.2)
            found["jobs that ended well after it"] += driver.returncode == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()


def _started(folder: Path, master: str) -> subprocess.Popen[bytes]:
    path = os.pathsep.join(p for p in [os.getcwd(), *sys.path] if p)
    conf = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "700m",
        "spark.executor.memory": "700m",
        "spark.executorEnv.PYTHONPATH": path,
        "spark.local.dir": str(folder / "spark"),
    }
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "tistream.cli.main", "compact", "--cluster=1", "--tenant=1", f"--master={master}"),
            *(f"--catalog=sqlite:///{folder}/catalog.db", f"--object-store=file://{folder}/bucket"),
            *("--lag-s=0", "--inputs-min=2", "--target-mb=1", "--base-tail-mb=0", "--base-tail-ratio=0.1"),
            *(f"--spark-conf={name}={value}" for name, value in conf.items()),
        ],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        start_new_session=True,
    )


def _executors(group: int) -> list[int]:
    """The executors among the processes of a group."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if EXECUTOR in (folder / "cmdline").read_bytes() and os.getpgid(int(folder.name)) == group:
                found.append(int(folder.name))
        except (OSError, ProcessLookupError):
            continue
    return found


def _read(
    world: ApiWorld,
    twin: ApiWorld,
    served: list[int],
    over: threading.Event,
    found: Counter[str],
    rounds: int | None = None,
) -> None:
    """Pulls of all that was served, and tables as they were, against the twin's."""
    rand = random.Random(2)
    while rounds != 0 and not over.is_set():
        upto = served[-1]
        asked: list[tuple[str, dict[str, object]]] = [
            (f"/databases/shop/tables/{name}/rows", {"as_of": rand.choice(served)}) for name in TABLES
        ]
        asked.append(("/changes", {"start_ts": "earliest", "limit": 200_000, "format": "ndjson"}))
        for path, params in asked:
            mine, theirs = world.get(path, **params), twin.get(path, **params)
            found["reads"] += 1
            if mine.status_code != theirs.status_code:
                found["unreadable"] += 1
                print(path, params, mine.text[:500], file=sys.stderr)
            elif path == "/changes":
                found["wrong"] += _lines(mine.content, upto) != _lines(theirs.content, upto)
            else:
                found["wrong"] += mine.content != theirs.content if mine.status_code == 200 else 0
        if rounds is not None:
            rounds -= 1


def _lines(body: bytes, upto: int) -> list[bytes]:
    """The changes up to a timestamp that both sides had served before they were asked."""
    rows = (line for line in body.split(b"\n") if b'"commit_ts":"' in line)
    return [line for line in rows if int(line.split(b'"commit_ts":"')[1].split(b'"')[0]) <= upto]


def _end(world: ApiWorld, found: Counter[str]) -> None:
    """A complete job in threads, then the collector; the differences between catalog and bucket."""
    executor, clock = LocalExecutor(world.store), SystemClock()
    merging = JobSettings(lag_ms=0, plan=PlanSettings(inputs_min=2))
    compact_tenant(world.catalog, TENANT, executor, merging, clock)
    building = BaseSettings(lag_ms=0, window_ms=0, plan=BasePlanSettings(tail_bytes_min=0))
    build_tenant_bases(world.catalog, world.services.registry, TENANT, executor.bases, building, clock)
    with world.catalog.transaction() as conn:
        conn.execute(tables.read_leases.delete())
    before = len(_kept(world))
    Collector(world.catalog, world.store, clock, grace_ms=0).step()
    with world.catalog.reading() as conn:
        live = {row.object_key for row in conn.execute(tables.objects.select()) if row.state == "live"}
    there = set(_kept(world))
    found["collected"] = before - len(there)
    found["left over"] = len(there - live)
    found["missing"] = len({key for key in live if key.startswith(("committed/", "compacted/", "bases/"))} - there)


def _kept(world: ApiWorld) -> list[str]:
    return [info.key for prefix in ("committed/", "compacted/", "bases/") for info in world.store.list(prefix)]


if __name__ == "__main__":
    sys.exit(main())
