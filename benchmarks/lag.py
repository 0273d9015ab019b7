"""How old a row is when a reader has it: p50 and p99 from commit to pull, and where the time goes.

    python -m benchmarks.lag [--seconds 60] [--pushers 2] [--rows-per-s 5000] [--sqlite] [--folder]

Real processes: MariaDB and an S3 server, a meta server, a dispatcher, two sorters, an API server, and a process with a
real pusher for each store, whose feed is modelled (`benchmarks.load.feed`): transactions of five rows with current
commit timestamps, open for 5 to 50 ms, each region resolved five times a second, a batch file each second. One reader
follows the tenant in NDJSON and must get every committed row once and in order.

The bars add up to the mean age of a row. Each stage is the difference of two ages: from the pushers and the processes'
metrics (`tistream_stage_seconds`, `tistream_file_age_seconds`), from the catalog, polled fifty times a second, and from
the reader.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.load.deployment import Deployment, Shape, bars, load_now, wait_for
from benchmarks.load.process import PushProcess
from benchmarks.load.push import Load
from benchmarks.load.reader import Reader
from tistream.catalog.tenancy.tenants import register_tenant
from tistream.catalog.work.tasks import frontier
from tistream.ids import Tenant

TENANT = Tenant(1, 1)
WARM_S = 10.0
GOAL_P99_S = 2.5

Sums = dict[str, tuple[float, float]]  #: family and labels -> sum, count
Floats = npt.NDArray[np.float64]


def measure(shape: Shape, *, seconds: float, pushers: int, rows_per_s: float, folder: Path) -> dict[str, Any]:
    """One run."""
    with ExitStack() as open_, Deployment(folder, shape) as d:
        register_tenant(d.catalog, TENANT)
        loads = [
            Load(url=d.url, stores=pushers, only_store=n + 1, rows_per_s=rows_per_s, active=10, tables=10)
            for n in range(pushers)
        ]
        pushes = [open_.enter_context(PushProcess(d, load)) for load in loads]
        for push in pushes:
            push.wait_until_ready()
        wait_for("the tenant is complete", lambda: _complete(d))
        reader, eye = Reader(d.url, TENANT.tenant_id), Eye(d)
        reader.start()
        eye.start()
        for push in pushes:
            push.tell("start")
        time.sleep(WARM_S)
        before, reported, used = _snapshot(d), [push.tell("report") for push in pushes], d.usage()
        reader.forget()
        began, load = time.monotonic(), load_now()
        time.sleep(seconds)
        took = time.monotonic() - began
        ages, shown = reader.ages_s(), eye.ages_s(*reader.seen_ms())
        after, then, used_then = _snapshot(d), [push.tell("report") for push in pushes], d.usage()
        load = max(load, load_now())
        for push in pushes:
            push.tell("stop")
        time.sleep(0.2)
        committed = sum(push.tell("report")["committed"] for push in pushes)
        with suppress(TimeoutError):
            wait_for("everything has come", lambda: reader.rows >= committed, 60)
        reader.stop()
        eye.stop()
    return {
        "where": str(shape),
        "seconds": took,
        "load": load,
        "committed_per_s": sum(t["committed"] - b["committed"] for t, b in zip(then, reported, strict=True)) / took,
        "committed": committed,
        "read": reader.rows,
        "disorder": reader.disorder,
        "p50_s": float(np.percentile(ages, 50)),
        "p99_s": float(np.percentile(ages, 99)),
        "max_s": float(ages.max()),
        "mean_s": float(ages.mean()),
        "stages": _stages(float(ages.mean()), float(shown.mean()), before, after, reported, then),
        "cpu": {name: (used_then[name].cpu_s - u.cpu_s) / took for name, u in used.items()},
    }


def _complete(d: Deployment) -> bool:
    rows = frontier(d.catalog, TENANT)
    return bool(rows) and min(row.durable_ts for row in rows) > (int((time.time() - 5) * 1000) << 18)


def _snapshot(d: Deployment) -> Sums:
    """(sum, count) of the metrics of all processes."""
    found: Sums = {}
    for name in d.processes:
        for (family, labels), value in d.metrics(name).items():
            head, _, what = family.rpartition("_")
            if what in ("sum", "count") and head.startswith("tistream_"):
                key = head.removeprefix("tistream_") + "".join(f" {v}" for _, v in labels)
                total, n = found.get(key, (0.0, 0.0))
                found[key] = (total + value, n) if what == "sum" else (total, n + value)
    return found


def _mean(key: str, before: Sums, after: Sums) -> float:
    total, n = (a - b for a, b in zip(after[key], before.get(key, (0.0, 0.0)), strict=True))
    return total / n if n else 0.0


def _stages(
    mean_s: float, visible: float, before: Sums, after: Sums, reported: list[dict[str, Any]], then: list[dict[str, Any]]
) -> dict[str, float]:
    def of_push(name: str) -> float:
        return sum(float(t[name]) - float(b[name]) for t, b in zip(then, reported, strict=True))

    in_file = of_push("waited_ms") / of_push("committed") / 1000
    uploaded = of_push("upload_sum") / of_push("upload_count")
    fetched = _mean("file_age_seconds fetched", before, after)
    absorbed = _mean("file_age_seconds absorbed", before, after)
    flushed = _mean("stage_seconds flush", before, after)
    return {
        "waits for its batch file": in_file,
        "file encoded and uploaded": uploaded,
        "dispatched": fetched - uploaded,
        "taken in by a sorter": absorbed - fetched,
        "waits for locks, other stores": visible - in_file - absorbed - flushed,
        "flushed and visible": flushed,
        "pulled": mean_s - visible,
    }


class Eye:
    """Polls the catalog for the durable watermark."""

    def __init__(self, d: Deployment) -> None:
        self._d, self._stop = d, threading.Event()
        self._seen: list[tuple[float, int]] = []  # (unix ms, lowest durable watermark)
        self._thread = threading.Thread(target=self._run, name="eye", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def ages_s(self, commit_ms: Floats, pulled_ms: Floats) -> Floats:
        """Of these rows, when they were visible; no later than when they were pulled."""
        at, upto = (np.array(x, np.float64) for x in zip(*self._seen, strict=True))
        first = np.minimum(np.searchsorted(upto, commit_ms), len(at) - 1)
        ages: Floats = (np.minimum(at[first], pulled_ms) - commit_ms) / 1000
        return ages

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            rows = frontier(self._d.catalog, TENANT)
            self._seen.append((time.time() * 1000, min(row.durable_ts for row in rows) >> 18))


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
            shape, seconds=given.seconds, pushers=given.pushers, rows_per_s=given.rows_per_s, folder=Path(folder) / "d"
        )
    print(json.dumps(found, indent=2)) if given.json else show(found)
    whole = found["read"] == found["committed"] and not found["disorder"]
    return 0 if whole and found["p99_s"] < GOAL_P99_S else 1


if __name__ == "__main__":
    sys.exit(main())
