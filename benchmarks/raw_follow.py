"""Follows a keyspace of the modelled cluster with `tistream push --pd`: puts a second, and how old what is served is.

    python -m benchmarks.raw_follow [--seconds 20] [--puts-per-s 8000]

Real processes: a meta server, a dispatcher, a sorter, an API server (SQLite, a folder), and the pusher. This process
serves PD and three stores over gRPC and writes to them; their timestamps are cached, so they are up to three seconds
old, and so is a resolved ts. Twenty times a second two ages are taken, from the same clock:

    resolved    the lowest resolved ts that the stores have announced of the keyspace
    served      the watermark that the service serves

What lies between them is the service's own. At the end the writes stop, and the state that the log gives must be the
one that a scan of the stores gives.
"""

from __future__ import annotations

import argparse
import base64
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import httpx2
import numpy as np
import orjson

from benchmarks.load.deployment import Deployment, Shape, load_now, usage_of, wait_for
from simulator.chaos.servers.processes import TiStreamProcess
from simulator.core.cluster import Subscription
from simulator.raw_workload import STEADY, RawWorkload, raw_cluster
from simulator.serve.served import ServedCluster
from tistream import ts as tso
from tistream.catalog.tenancy.kinds import Keyspace, TenantKind
from tistream.catalog.tenancy.tenants import register_tenant
from tistream.catalog.work.tasks import frontier
from tistream.codec.raw.keys import PREFIX_BYTES, KeyMode, keyspace_range
from tistream.ids import Tenant
from tistream.tikv.core.api_versions import Api

TENANT = Tenant(1, 1)
RAW = keyspace_range(KeyMode.RAW, 1)
PUTS_PER_STEP, WARM_S, PAGE_ROWS = 20, 6.0, 10_000
_State = dict[bytes, tuple[bytes, int | None]]


def _age_s(ts: int) -> float:
    return time.time() - tso.physical_ms(ts) / 1000


def _announced(served: ServedCluster) -> int:
    """The lowest resolved ts of the subscriptions of the keyspace; 0 while there is none."""
    with served.changing() as cluster:
        found: list[Subscription] = [
            subscription
            for region in cluster.regions_touching(RAW)
            for subscription in cluster._subscriptions.get(region.region_id, ())
        ]
    return min((subscription.resolved_ts for subscription in found), default=0)


class Eye:
    """Takes both ages until it is closed."""

    def __init__(self, served: ServedCluster, d: Deployment) -> None:
        self._served, self._d, self._stop = served, d, threading.Event()
        self.ages: list[tuple[float, float]] = []  #: resolved, served
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            resolved_ts = _announced(self._served)
            served_ts = min(row.durable_ts for row in frontier(self._d.catalog, TENANT))
            if resolved_ts and served_ts:
                self.ages.append((_age_s(resolved_ts), _age_s(served_ts)))

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


def _state(url: str, since_ts: int, end_ts: int) -> tuple[_State, int]:
    """(what the log gives: key -> value and expiry, the number of its changes above `since_ts`)."""
    state: _State = {}
    changes, cursor = 0, ""
    where = f"{url}/v1/clusters/{TENANT.cluster_id}/tenants/{TENANT.tenant_id}/kv/changes"
    while True:
        place = {"cursor": cursor} if cursor else {"start_ts": "earliest"}
        asked = {"format": "ndjson", "key_format": "base64", "end_ts": str(end_ts), "limit": str(PAGE_ROWS), **place}
        answer = httpx2.get(where, params=asked, timeout=60)
        answer.raise_for_status()
        for line in map(orjson.loads, answer.content.splitlines()):
            if "key" not in line:
                continue
            changes += int(line["ts"]) > since_ts
            key = base64.b64decode(line["key"])
            if line["op"] == "delete":
                state.pop(key, None)
            else:
                state[key] = base64.b64decode(line["value"]), line["expire_ts"]
        cursor = answer.headers["TiStream-Next-Cursor"]
        if answer.headers.get("TiStream-Has-More") != "true":
            return state, changes


def measure(folder: Path, seconds: float, puts_per_s: float) -> bool:
    """One run; whether the log and the stores agree."""
    profile = replace(STEADY, keyspaces=(1,), keys=20_000, puts=PUTS_PER_STEP, value_bytes=200)
    cluster = raw_cluster(profile, floor_ts=tso.compose(int(time.time() * 1000)), regions=8)
    workload = RawWorkload(7, cluster, profile)
    with Deployment(folder, Shape(sorters=1, mariadb=False, s3=False)) as d:
        register_tenant(d.catalog, TENANT, kind=TenantKind.RAW, keyspace=Keyspace(id=1))
        with ServedCluster(
            cluster, raw=workload, api=Api.V2, keyspaces={"ks1": 1}, steps_per_s=puts_per_s / PUTS_PER_STEP
        ) as served:
            pusher = TiStreamProcess(
                *("push", "--pd", served.pd_address, "-c", "1", "-t", "1", "--url", d.url),
                log=folder / "pusher.log",
                env=d.environment,
            )
            pusher.start()
            try:
                wait_for("the tenant is served", lambda: frontier(d.catalog, TENANT)[0].durable_ts > 0, 60)
                time.sleep(WARM_S)
                began, before, cpu_s = time.monotonic(), len(workload.committed), usage_of(pusher.pid).cpu_s
                since_ts = served.tso()  # no region changes: everything above it was followed live
                eye = Eye(served, d)
                time.sleep(seconds)
                eye.close()
                took, puts = time.monotonic() - began, len(workload.committed) - before
                cpu_s = usage_of(pusher.pid).cpu_s - cpu_s
                end_ts = served.settle()
                wait_for("all is served", lambda: frontier(d.catalog, TENANT)[0].durable_ts >= end_ts, 60)
                state, changes = _state(d.url, since_ts, end_ts)
                with served.changing():
                    wanted = {
                        k[PREFIX_BYTES:]: (value, expire_ts or None)
                        for k, value, expire_ts in workload.writes.scan(RAW)
                    }
            finally:
                pusher.kill()
    resolved, lag = np.array(eye.ages).T
    own = lag - resolved
    print(f"{puts / took:,.0f} puts/s for {took:.0f} s; load {load_now():.1f}; pusher {cpu_s / took:.0%} of a core")
    for name, ages in (("resolved ts of the stores", resolved), ("served watermark", lag), ("of the service", own)):
        print(f"{name:26} mean {ages.mean():.2f} s, p50 {np.median(ages):.2f} s, p99 {np.percentile(ages, 99):.2f} s")
    writes = sum(row.commit_ts > since_ts for row in workload.committed)
    print(f"{changes:,} changes of {writes:,} live writes; {len(state):,} keys, equal: {state == wanted}")
    return state == wanted and changes == writes


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.raw_follow", description="Follows a keyspace.")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--puts-per-s", type=float, default=8000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tistream-raw-") as folder:
        return 0 if measure(Path(folder) / "d", given.seconds, given.puts_per_s) else 1


if __name__ == "__main__":
    sys.exit(main())
