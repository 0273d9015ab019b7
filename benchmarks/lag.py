"""How old a row is when a reader has it: p50 and p99 from commit to pull, and where the time goes.

    python -m benchmarks.lag [--seconds 60] [--pushers 2] [--rows-per-s 5000] [--sqlite] [--folder]

Real processes: MariaDB and an S3 server of the tests, a meta server, a dispatcher, two sorters, an API server, and a
process with a real pusher for each store, whose feed is modelled (`benchmarks.load.feed`): transactions of five rows
with commit timestamps of now, open for 5 to 50 ms, each region resolved five times a second, a batch file each second.
One reader follows the tenant in NDJSON. What it gets is counted: all rows that were committed, in order, each once.

The bars add up to the mean age of a row. Each stage is the difference of two ages that the processes measure of
themselves (`tistream_file_age_seconds`, `tistream_commit_to_flush_seconds`), and of what the reader sees.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.load.deployment import Deployment, Shape, bars, load_now, wait_for
from benchmarks.load.process import PushProcess
from benchmarks.load.push import Load
from benchmarks.load.reader import Reader
from tistream.catalog.tasks import frontier
from tistream.catalog.tenants import register_tenant
from tistream.ids import Tenant

TENANT = Tenant(1, 1)
WARM_S = 10.0
GOAL_P99_S = 2.5


def measure(shape: Shape, *, seconds: float, pushers: int, rows_per_s: float, folder: Path) -> dict[str, Any]:
    """One run."""
    with ExitStack() as open_, Deployment(folder, shape) as d:
        register_tenant(d.catalog, TENANT)
        loads = [
            Load(url=d.control, stores=pushers, only_store=n + 1, rows_per_s=rows_per_s, active=10, tables=10)
            for n in range(pushers)
        ]
        pushes = [open_.enter_context(PushProcess(d, load)) for load in loads]
        for push in pushes:
            push.wait_until_ready()
        wait_for("the tenant is complete", lambda: _complete(d))
        reader = Reader(d.pull, TENANT.tenant_id)
        reader.start()
        for push in pushes:
            push.tell("start")
        time.sleep(WARM_S)
        before, told, used = _snapshot(d), [push.tell("report") for push in pushes], d.usage()
        reader.forget()
        began, load = time.monotonic(), load_now()
        time.sleep(seconds)
        took = time.monotonic() - began
        ages, marks = reader.ages_s(), list(reader.marks)
        after, then, used_then = _snapshot(d), [push.tell("report") for push in pushes], d.usage()
        load = max(load, load_now())
        ended = [push.tell("stop") for push in pushes]
        time.sleep(0.2)
        committed = sum(push.tell("report")["committed"] for push in pushes)
        try:
            wait_for("everything has come", lambda: reader.rows >= committed, 60)
        except TimeoutError:
            pass
        reader.stop()
    del ended
    return {
        "where": str(shape),
        "seconds": took,
        "load": load,
        "committed_per_s": sum(t["committed"] - b["committed"] for t, b in zip(then, told, strict=True)) / took,
        "committed": committed,
        "read": reader.rows,
        "disorder": reader.disorder,
        "p50_s": float(np.percentile(ages, 50)),
        "p99_s": float(np.percentile(ages, 99)),
        "max_s": float(ages.max()),
        "mean_s": float(ages.mean()),
        "stages": _stages(float(ages.mean()), marks, before, after, told, then),
        "cpu": {name: (used_then[name].cpu_s - u.cpu_s) / took for name, u in used.items()},
    }


def _complete(d: Deployment) -> bool:
    rows = frontier(d.catalog, TENANT)
    return bool(rows) and min(row.upper for row in rows) > (int((time.time() - 5) * 1000) << 18)


def _snapshot(d: Deployment) -> dict[str, tuple[float, float]]:
    """(sum, count) of what matters, of all processes."""
    found: dict[str, tuple[float, float]] = {}
    for name in d.processes:
        for (family, labels), value in d.metrics(name).items():
            head, _, what = family.rpartition("_")
            if what in ("sum", "count") and head.startswith("tistream_"):
                key = head.removeprefix("tistream_") + "".join(f" {v}" for _, v in labels)
                total, n = found.get(key, (0.0, 0.0))
                found[key] = (total + value, n) if what == "sum" else (total, n + value)
    return found


def _mean(key: str, before: dict[str, tuple[float, float]], after: dict[str, tuple[float, float]]) -> float:
    total, n = (a - b for a, b in zip(after[key], before.get(key, (0.0, 0.0)), strict=True))
    return total / n if n else 0.0


def _stages(
    mean_s: float,
    marks: list[tuple[float, int]],
    before: dict[str, tuple[float, float]],
    after: dict[str, tuple[float, float]],
    told: list[dict[str, Any]],
    then: list[dict[str, Any]],
) -> dict[str, float]:
    def of_push(name: str) -> float:
        return sum(float(t[name]) - float(b[name]) for t, b in zip(then, told, strict=True))

    in_file = of_push("waited_ms") / of_push("committed") / 1000
    uploaded = of_push("upload_sum") / of_push("upload_count")
    fetched = _mean("file_age_seconds fetched", before, after)
    absorbed = _mean("file_age_seconds absorbed", before, after)
    hole = _mean("stage_seconds hole_wait", before, after)
    visible = _mean("commit_to_flush_seconds", before, after) - hole
    moved = [(at, ts) for (at, ts), (_, last) in zip(marks[1:], marks[:-1], strict=True) if ts > last]
    pulled = float(np.mean([at - (ts >> 18) for at, ts in moved])) / 1000 - hole
    return {
        "waits for its batch file": in_file,
        "file encoded and uploaded": uploaded,
        "dispatched": fetched - uploaded,
        "taken in by a sorter": absorbed - fetched,
        "flushed and visible": visible - absorbed,
        "pulled": pulled - visible,
        "waits for open locks, other stores": mean_s - in_file - pulled,
    }


def show(found: dict[str, Any]) -> None:
    """For people."""
    print(f"{found['where']}; load {found['load']:.1f}")
    print(f"{found['committed_per_s']:,.0f} rows/s committed for {found['seconds']:.0f} s")
    print(f"{found['read']:,} of {found['committed']:,} rows read, {found['disorder']} pages out of order")
    goal = "met" if found["p99_s"] < GOAL_P99_S else "NOT met"
    ages = ", ".join(f"{name} {found[f'{name}_s']:.2f} s" for name in ("p50", "p99", "max", "mean"))
    print(f"commit to pull: {ages}; goal p99 < {GOAL_P99_S} s {goal}")
    for line in bars(found["stages"], "s"):
        print(line)
    cpu = ", ".join(f"{name} {share:.0%}" for name, share in found["cpu"].items())
    print(f"processor time, of a core: {cpu}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lag", description="Age of rows when they are pulled.")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--pushers", type=int, default=2)
    parser.add_argument("--rows-per-s", type=float, default=5000, help="of each pusher")
    parser.add_argument("--sqlite", action="store_true", help="instead of MariaDB")
    parser.add_argument("--folder", action="store_true", help="instead of an S3 server")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    shape = Shape(mariadb=not given.sqlite, s3=not given.folder)
    with tempfile.TemporaryDirectory(prefix="tistream-lag-") as folder:
        found = measure(
            shape,
            seconds=given.seconds,
            pushers=given.pushers,
            rows_per_s=given.rows_per_s,
            folder=Path(folder) / "d",
        )
    print(json.dumps(found, indent=2)) if given.json else show(found)
    whole = found["read"] == found["committed"] and not found["disorder"]
    return 0 if whole and found["p99_s"] < GOAL_P99_S else 1


if __name__ == "__main__":
    sys.exit(main())
