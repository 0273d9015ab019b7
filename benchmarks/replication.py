"""A changefeed from a keyspace to a recovery cluster: how old its checkpoint is under load, and how fast it catches up.

    python -m benchmarks replication                 one ratio: the checkpoint's age at 30 ms, p99, against the goal
    python -m benchmarks.replication [--table]       the default setting, or the table of all settings

Real processes: MariaDB and an S3 server, a meta server, a dispatcher, a sorter, an API server, a replication worker, a
pusher. The main cluster is the simulator's TiKV in this process, followed over gRPC and written to all the time; the
recovery cluster is in a process (`benchmarks.load.recovery`), and each of its answers takes a while. A setting is
changed one factor at a time round the default: latency of a request, keys in a request, requests at once.

under load    about ten times a second after the warm-up: the age of the checkpoint (the RPO), and how far it is behind
              the watermark, which is replication's part of it. Stores stamp RawKV writes with cached timestamps, so a
              watermark is itself up to three seconds old
catch up      the log of PUTS puts, and a changefeed that begins at its start: puts of the log a second, from the first
              request at the recovery cluster to the last. Of several puts of a key in a stretch one is written

Each changefeed starts with an empty recovery cluster; at the end that has exactly the pairs of the main one, or of the
log.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pyarrow as pa

from benchmarks.harness import Result
from benchmarks.load.deployment import Deployment, Shape, load_now, usage_of, wait_for
from benchmarks.load.recovery import Received, Recovery, digest_of
from simulator.chaos.servers.processes import TiStreamProcess
from simulator.raw_workload import STEADY, RawWorkload, raw_cluster
from simulator.serve.served import ServedCluster
from tests.kit.entry_log import PREFIX, EntryLog
from tests.kit.made_rows import table_of
from tistream import ts as tso
from tistream.catalog.rows.kinds import Keyspace, TenantKind
from tistream.catalog.tenancy.changefeeds import CHANGEFEEDS
from tistream.catalog.tenancy.tenants import register_tenant
from tistream.catalog.work.tasks import frontier
from tistream.codec.raw.keys import KeyMode, keyspace_range
from tistream.ids import Tenant
from tistream.model.change import COMMITTED, FLAG_OLD_VALUE_UNKNOWN, Op
from tistream.objectstore.metered import open_metered
from tistream.tikv.core.api_versions import Api

TENANT = Tenant(1, 1)
KEYS, VALUE_BYTES, REGIONS, PUTS_PER_STEP = 100_000, 100, 8, 200
PUTS, LOG_FILES = 1_000_000, 20  #: of the log to catch up with
WARM_S, SAMPLE_S, PATIENCE_S = 10.0, 0.05, 300.0
GOAL_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Of a changefeed and its destination."""

    latency_ms: int = 30
    batch: int = 1024
    concurrency: int = 4

    def __str__(self) -> str:
        return f"{self.latency_ms} ms, batch-size {self.batch}, concurrency {self.concurrency}"


DEFAULT = Setting()
TABLE = (
    DEFAULT,
    *(replace(DEFAULT, latency_ms=ms) for ms in (0, 100)),
    *(replace(DEFAULT, batch=keys) for keys in (256, 4096)),
    *(replace(DEFAULT, concurrency=n) for n in (1, 16)),
)


@contextmanager
def changefeed(d: Deployment, recovery: Recovery, setting: Setting, **more: str) -> Iterator[None]:
    """One from the beginning of the log, to a recovery cluster that is empty; deleted at the end."""
    recovery.begin(setting.latency_ms / 1000)
    path = f"{d.url}/v1/clusters/{TENANT.cluster_id}/tenants/{TENANT.tenant_id}/changefeeds"
    uri = f"tikv://{recovery.pd_address}?batch-size={setting.batch}&concurrency={setting.concurrency}"
    made = httpx2.post(path, json={"changefeed_id": "dr", "start_ts": "earliest", "sink_uri": uri, **more}, timeout=60)
    made.raise_for_status()
    yield
    httpx2.delete(f"{path}/dr", timeout=60).raise_for_status()


def _age_s(ts: int) -> float:
    return time.time() - tso.physical_ms(ts) / 1000


def _checkpoint(d: Deployment) -> int:
    return CHANGEFEEDS.get(d.catalog, TENANT, "dr").checkpoint_ts


class Main:
    """The main cluster, and a service that follows it."""

    def __init__(self, puts_per_s: float) -> None:
        profile = replace(
            STEADY,
            keyspaces=(1,),
            keys=KEYS,
            puts=PUTS_PER_STEP,
            value_bytes=VALUE_BYTES,
            deletes=0.0,
            expiries=0.0,
            hot=0.0,
        )
        cluster = raw_cluster(profile, floor_ts=tso.compose(int(time.time() * 1000)), regions=REGIONS)
        self._rate = puts_per_s / PUTS_PER_STEP
        self.workload = RawWorkload(7, cluster, profile)
        self.served = ServedCluster(cluster, raw=self.workload, api=Api.V2, keyspaces={"ks1": 1})

    @property
    def puts(self) -> int:
        return len(self.workload.committed)

    def go(self) -> None:
        self.served.steps_per_s = self._rate

    def pairs(self) -> dict[bytes, bytes]:
        with self.served.changing():
            return {k: v for k, v, _ in self.workload.writes.scan(keyspace_range(KeyMode.RAW, 1))}


def under_load(d: Deployment, main: Main, recovery: Recovery, setting: Setting, seconds: float) -> dict[str, Any]:
    """One setting."""
    main.go()
    with changefeed(d, recovery, setting):
        wait_for("it has caught up", lambda: _age_s(_checkpoint(d)) < GOAL_S, PATIENCE_S)
        time.sleep(WARM_S)
        began, puts, before, used = time.monotonic(), main.puts, recovery.report(), _used(d, recovery)
        seen = []
        while time.monotonic() - began < seconds:
            checkpoint_ts = _checkpoint(d)
            rpo_s, watermark_ts = _age_s(checkpoint_ts), min(row.durable_ts for row in frontier(d.catalog, TENANT))
            seen.append((rpo_s, (tso.physical_ms(watermark_ts) - tso.physical_ms(checkpoint_ts)) / 1000))
            time.sleep(SAMPLE_S)
        took, after, used_then = time.monotonic() - began, recovery.report(), _used(d, recovery)
        puts = main.puts - puts
        end_ts = main.served.settle()
        wait_for("the end is there", lambda: _checkpoint(d) >= end_ts, PATIENCE_S)
        equal = recovery.report().digest == digest_of(main.pairs())
    rpo, own = np.array(seen).T
    return {
        "puts_per_s": puts / took,
        "written_per_s": (after.writes - before.writes) / took,
        **_percentiles("rpo", rpo),
        **_percentiles("own", own),
        "cpu": {name: (used_then[name] - cpu_s) / took for name, cpu_s in used.items()},
        "equal": equal,
    }


def _percentiles(name: str, seconds: Any) -> dict[str, float]:
    return {f"{name}_p50_s": float(np.median(seconds)), f"{name}_p99_s": float(np.percentile(seconds, 99))}


def _used(d: Deployment, recovery: Recovery) -> dict[str, float]:
    used = {name: usage.cpu_s for name, usage in d.usage().items()}
    return {**used, "recovery": usage_of(recovery.pid).cpu_s, "main": time.process_time()}


def build_log(d: Deployment) -> tuple[int, str]:
    """PUTS puts of random keys; (the last timestamp, the digest of what they leave)."""
    rng = np.random.default_rng(5)
    keys = [PREFIX + b"k%08d" % n for n in range(KEYS)]
    values = [b"%0*d" % (VALUE_BYTES, n) for n in range(PUTS)]
    chosen = rng.integers(0, KEYS, PUTS)
    stamps = np.uint64(tso.compose(int(time.time() * 1000) - 3_600_000)) + np.arange(1, PUTS + 1).astype(np.uint64)
    rows = table_of(
        COMMITTED,
        op=Op.PUT,
        key=pa.array(keys, pa.binary()).take(pa.array(chosen)),
        start_ts=stamps,
        commit_ts=stamps,
        value=values,
        flags=FLAG_OLD_VALUE_UNKNOWN,
    )
    log = EntryLog(d.catalog, open_metered(d.bucket_url), tenant=TENANT, rows=rows).register()
    for ts in stamps[PUTS // LOG_FILES - 1 :: PUTS // LOG_FILES]:
        log.flush(int(ts))
    return int(stamps[-1]), digest_of(dict(zip((keys[n] for n in chosen), values, strict=True)))


def catch_up(d: Deployment, recovery: Recovery, setting: Setting, end_ts: int, digest: str) -> dict[str, Any]:
    """One setting."""
    used = _used(d, recovery)
    with changefeed(d, recovery, setting, target_ts=str(end_ts)):
        wait_for("it is finished", lambda: CHANGEFEEDS.get(d.catalog, TENANT, "dr").state == "finished", PATIENCE_S)
        received: Received = recovery.report()
    used_then = _used(d, recovery)
    took = received.last_s - received.first_s
    return {
        "log_per_s": PUTS / took,
        "written_per_s": received.writes / took,
        "request_keys": received.writes / received.requests,
        "seconds": took,
        "cpu": {name: (used_then[name] - used[name]) / took for name in ("replicate-1", "recovery")},
        "equal": received.digest == digest,
    }


def measure(
    settings: Sequence[Setting], shape: Shape, *, seconds: float, puts_per_s: float, folder: Path
) -> list[dict[str, Any]]:
    """A line for each setting."""
    lines: list[dict[str, Any]] = [{"setting": setting} for setting in settings]
    folder.mkdir(parents=True)
    with Recovery(folder, keys=KEYS, regions=REGIONS) as recovery:
        with Deployment(folder / "load", shape) as d:
            main = Main(puts_per_s)
            register_tenant(d.catalog, TENANT, kind=TenantKind.RAW, keyspace=Keyspace(id=1))
            push = ("push", "--pd", main.served.pd_address, "-c", "1", "-t", "1", "--url", d.url)
            with main.served, TiStreamProcess(*push, log=folder / "push.log", env=d.environment):
                wait_for("the tenant is served", lambda: frontier(d.catalog, TENANT)[0].durable_ts > 0, PATIENCE_S)
                for line in lines:
                    line["load"] = under_load(d, main, recovery, line["setting"], seconds)
                    _say(f"{line['setting']}: {line['load']}; machine's load {load_now():.1f}")
        with Deployment(folder / "log", replace(shape, sorters=0, dispatchers=0)) as d:
            end_ts, digest = build_log(d)
            for line in lines:
                line["log"] = catch_up(d, recovery, line["setting"], end_ts, digest)
                _say(f"{line['setting']}: {line['log']}; machine's load {load_now():.1f}")
    return lines


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def show(lines: Sequence[dict[str, Any]]) -> None:
    """As the docs have it."""
    columns = (
        "latency",
        "`batch-size`",
        "`concurrency`",
        "puts a second",
        "RPO p50",
        "p99",
        "behind the watermark p50",
        "p99",
        "catching up: puts a second",
    )
    print(f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}")
    for line in lines:
        setting, load, log = line["setting"], line["load"], line["log"]
        seconds = [f"{load[name]:.1f} s" for name in ("rpo_p50_s", "rpo_p99_s", "own_p50_s", "own_p99_s")]
        cells = (f"{setting.latency_ms} ms", setting.batch, setting.concurrency, f"{load['puts_per_s']:,.0f}", *seconds)
        print(f"| {' | '.join(map(str, cells))} | {log['log_per_s']:,.0f} |")


SHAPE = Shape(sorters=1, replicators=1)


def run() -> Iterator[Result]:
    """One ratio."""
    with tempfile.TemporaryDirectory(prefix="tistream-replication-") as folder:
        (line,) = measure([DEFAULT], SHAPE, seconds=30, puts_per_s=6000, folder=Path(folder) / "d")
    load = line["load"]
    if not load["equal"] or not line["log"]["equal"] or load["puts_per_s"] < 5000:
        raise ValueError(f"no measurement: {line}")
    yield Result.of("replication/rpo-p99-vs-10s", [load["rpo_p99_s"] / GOAL_S], 1.0, "lower")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replication", description="RPO and catching up.")
    parser.add_argument("--table", action="store_true", help="all settings")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--puts-per-s", type=float, default=6000)
    parser.add_argument("--sqlite", action="store_true", help="instead of MariaDB")
    parser.add_argument("--folder", action="store_true", help="instead of an S3 server")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    shape = replace(SHAPE, mariadb=not given.sqlite, s3=not given.folder)
    with tempfile.TemporaryDirectory(prefix="tistream-replication-") as folder:
        lines = measure(
            TABLE if given.table else [DEFAULT],
            shape, seconds=given.seconds, puts_per_s=given.puts_per_s, folder=Path(folder) / "d",
        )  # fmt: skip
    if given.json:
        print(json.dumps([{**line, "setting": str(line["setting"])} for line in lines], indent=2))
    else:
        show(lines)
    equal = all(line[part]["equal"] for line in lines for part in ("load", "log"))
    return 0 if equal and lines[0]["load"]["rpo_p99_s"] < GOAL_S else 1


if __name__ == "__main__":
    sys.exit(main())
