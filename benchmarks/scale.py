"""Very many tables, or very many tenants, through real processes and real files.

    python -m benchmarks.scale tables [--tables 100000] [--active 10]
    python -m benchmarks.scale tenants [--tenants 1000] [--writing 20] [--tables 10]

MariaDB and an S3 server of the tests, the services as processes, and the real pushers of all tenants in one process,
with modelled feeds (`benchmarks.load.feed`). A region for each table, as TiDB splits them. Tenants that do not write
flush each 30 s, the others each second.

Reported: the time until all tenants are active and complete; for the steady state, of each process, processor time,
memory, threads, SQL statements and requests a second; the age of rows at a reader; and, after a SIGKILL of a sorter,
the time until that tenant's lag is below LAG_BACK_S again.
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

from benchmarks.load.deployment import Deployment, Shape, Usage, load_now, usage_of, wait_for
from benchmarks.load.process import PushProcess
from benchmarks.load.push import Load
from benchmarks.load.reader import Reader
from tistream.catalog.tenancy.tenants import register_tenant
from tistream.catalog.work.tasks import list_tasks, task_places
from tistream.ids import Tenant

LAG_BACK_S = 5.0
PATIENCE_S = 900.0
LOOK_S = 2.0  #: looking at all tasks costs something itself


def measure(load: Load, shape: Shape, *, seconds: float, kill: bool, folder: Path) -> dict[str, Any]:
    """One run. `load.url` is filled in."""
    found: dict[str, Any] = {"where": str(shape)}
    with ExitStack() as open_, Deployment(folder, shape) as d:
        began = time.monotonic()
        for i in range(load.tenants):
            register_tenant(d.catalog, Tenant(1, load.first_tenant + i))
        found["registered_s"] = time.monotonic() - began
        push = open_.enter_context(PushProcess(d, Load(**{**_fields(load), "url": d.url})))
        _say(f"{load.tenants} tenants registered; pushing")
        found["pushing_s"] = push.wait_until_ready()
        reader = Reader(d.url, load.first_tenant)
        reader.start()
        push.tell("start")
        behind_s = load.idle_s + 10
        _say("pushing; waiting until all tenants are complete")
        wait_for("all are complete", lambda: _behind(d, behind_s) == 0, PATIENCE_S, pause_s=LOOK_S)
        found["complete_s"] = time.monotonic() - began
        _say(f"complete after {found['complete_s']:.1f} s; steady state for {seconds:.0f} s")
        if load.tenants > load.writing:
            time.sleep(2.2 * load.idle_s)  # services learn that a store is idle from its second file
        wait_for("the reader is there", lambda: reader.lag_s < LAG_BACK_S, 120)
        reader.forget()
        found["steady"] = _steady(d, push, seconds)
        ages = reader.ages_s()
        found["p50_s"], found["p99_s"] = (float(np.percentile(ages, q)) for q in (50, 99))
        _say(f"p50 {found['p50_s']:.2f} s, p99 {found['p99_s']:.2f} s; load {load_now():.1f}")
        _say(json.dumps(found["steady"]))
        if kill:
            found["failover"] = _failover(d, reader)
        push.tell("stop")
        time.sleep(0.2)
        reported = push.tell("report")
        reader.stop()
        found["load"] = load_now()
        found["rows_read"], found["rows_committed"] = reader.rows, reported["committed"]
    return found


def _steady(d: Deployment, push: PushProcess, seconds: float) -> dict[str, Any]:
    """Of each process, a second: processor time, statements and requests; and memory and threads at the end."""
    before, used, reported = d.counters(), _used(d, push), push.tell("report")
    began = time.monotonic()
    time.sleep(seconds)
    after, used_then, reported_then = d.counters(), _used(d, push), push.tell("report")
    took = time.monotonic() - began
    rates: dict[str, Any] = {}
    for name, usage in used_then.items():
        counted = {
            what: (n - before[name][what]) / took for what, n in after.get(name, {}).items() if n > before[name][what]
        }
        cpu = (usage.cpu_s - used[name].cpu_s) / took
        rates[name] = {"cpu": cpu, "rss_mb": usage.rss_mb, "threads": usage.threads, **counted}
    rates["push"]["PUT"] = (reported_then["files"] - reported["files"]) / took
    rates["push"]["rows"] = (reported_then["committed"] - reported["committed"]) / took
    return rates


def _used(d: Deployment, push: PushProcess) -> dict[str, Usage]:
    return {**d.usage(), "push": usage_of(push.pid)}


def _behind(d: Deployment, seconds: float) -> int:
    """The number of incomplete tasks up to that age; -1 before there are any."""
    tasks = list_tasks(d.catalog)
    limit = int((time.time() - seconds) * 1000) << 18
    return sum(row.durable_ts < limit or row.durable_ts == row.start_ts for row in tasks) if tasks else -1


def _failover(d: Deployment, reader: Reader) -> dict[str, Any]:
    """Kill the sorter that has the reader's first task, and wait."""
    places = task_places(d.catalog)
    mine = [row for row in places if row.tenant == Tenant(1, reader.tenant_id)]
    dead = str(mine[-1].owner)
    had = sum(row.owner == dead for row in places)
    _say(f"killing {dead}, which has {had} of {len(places)} tasks")
    began = time.monotonic()
    d.processes[dead].kill()
    given_s = wait_for(
        "others have its tasks", lambda: all(row.owner != dead for row in task_places(d.catalog)), 300, pause_s=0.5
    )
    wait_for("the lag is back", lambda: reader.lag_s < LAG_BACK_S, PATIENCE_S)
    back_s = time.monotonic() - began
    wait_for("all are complete", lambda: _behind(d, 40) == 0, PATIENCE_S, pause_s=LOOK_S)
    all_s = time.monotonic() - began
    return {"killed": dead, "tasks": had, "given_s": given_s, "lag_back_s": back_s, "all_back_s": all_s}


def _fields(load: Load) -> dict[str, Any]:
    return {name: getattr(load, name) for name in Load.__dataclass_fields__}


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def show(found: dict[str, Any]) -> None:
    """For people."""
    print(f"{found['where']}; load {found['load']:.1f}")
    starts = ", ".join(f"{name} {found[f'{name}_s']:.1f} s" for name in ("registered", "pushing", "complete"))
    print(f"start: {starts}")
    print(f"commit to pull: p50 {found['p50_s']:.2f} s, p99 {found['p99_s']:.2f} s")
    columns = ("cpu", "rss_mb", "threads", "SQL", "transactions", "HTTP", "PUT", "GET", "LIST", "rows")
    print(f"{'a second':14}" + "".join(f"{c:>13}" for c in columns))
    for name, rates in found["steady"].items():
        print(f"{name:14}" + "".join(f"{rates[c]:13.2f}" if c in rates else f"{'':13}" for c in columns))
    if "failover" in found:
        f = found["failover"]
        print(
            f"failover: {f['killed']} with {f['tasks']} tasks killed; given out after {f['given_s']:.1f} s,"
            f" lag below {LAG_BACK_S:.0f} s after {f['lag_back_s']:.1f} s, all complete after {f['all_back_s']:.1f} s"
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description="Very many tables or tenants.")
    parser.add_argument("what", choices=("tables", "tenants"))
    parser.add_argument("--tables", type=int, help="of a tenant: 100,000, or 10")
    parser.add_argument("--active", type=int, default=10, help="of the tables of a tenant that writes")
    parser.add_argument("--tenants", type=int, default=1000)
    parser.add_argument("--writing", type=int, default=20, help="of the tenants")
    parser.add_argument("--rows-per-s", type=float, help="of a store that writes: 1,000, or 50")
    parser.add_argument("--idle-s", type=float, default=30.0, help="between the files of a tenant that does not write")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--sorters", type=int, default=2)
    parser.add_argument("--sqlite", action="store_true", help="instead of MariaDB")
    parser.add_argument("--folder", action="store_true", help="instead of an S3 server")
    parser.add_argument("--no-kill", action="store_true", help="without the failover")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.what == "tables":
        load = Load(url="", tables=given.tables or 100_000, active=given.active, rows_per_s=given.rows_per_s or 1000)
    else:
        load = Load(
            url="",
            tenants=given.tenants,
            writing=given.writing,
            tables=given.tables or 10,
            active=given.active,
            stores=1,
            rows_per_s=given.rows_per_s or 50,
            idle_s=given.idle_s,
        )
    shape = Shape(sorters=given.sorters, mariadb=not given.sqlite, s3=not given.folder)
    with tempfile.TemporaryDirectory(prefix="tistream-scale-") as folder:
        found = measure(load, shape, seconds=given.seconds, kill=not given.no_kill, folder=Path(folder) / "d")
    print(json.dumps(found, indent=2)) if given.json else show(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
