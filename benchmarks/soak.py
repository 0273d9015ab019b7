"""A long run on many tenants: does the deployment keep its size, its lag and its objects while processes are killed?

    python -m benchmarks.soak [--minutes 20] [--tenants 20] [--retention-minutes 5] [--kill-every 60]

MariaDB and an S3 server of the tests, the services and the maintenance role as processes, real pushers with modelled
feeds. All tenants write. Every `--kill-every` seconds one process is killed with SIGKILL and started again DOWN_S
later. One reader follows each tenant.

Reported: the lag of all readers outside kills (from a kill until RECOVERY_S later) and after each kill; objects in the
bucket, catalog rows and memory over time; finished maintenance jobs; rows committed and read; the audit. The exit
status is 0 when all lines hold:

    lag       p99 of the rows' age at the readers is below LAG_P99_S outside kills
    size      objects and catalog rows of the last quarter are on average at most GROWTH times those of the quarter
              before; the largest process of each service needs at most GROWTH times the memory that it needed then
    complete  every reader got every committed row once, in order
    audit     every object in the catalog exists
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import func, select

from benchmarks.load.deployment import Deployment, Shape, load_now, wait_for
from benchmarks.load.process import PushProcess
from benchmarks.load.push import Load
from benchmarks.load.reader import Reader
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.tables import metadata
from tistream.catalog.tenancy.tenants import register_tenant
from tistream.ids import Tenant
from tistream.objectstore.metered import open_metered

LAG_P99_S = 5.0
GROWTH = 1.1
DOWN_S = 5.0  #: from a kill to the restart
RECOVERY_S = 30.0  #: rows committed in this time after a kill do not count for the lag
SAMPLE_S = 15.0
WARM_S = 60.0  #: before the first kill
API_KILLS_S = 240.0  #: later none: the read lease of a dead API server keeps replaced objects for 15 minutes


@dataclass(slots=True)
class Sizes:
    """One sample of what should level off."""

    at_s: float
    objects: Counter[str]  #: by folder
    rows: Counter[str]  #: by catalog table
    rss_mb: dict[str, float]  #: by process

    def total(self) -> dict[str, float]:
        """The figures that are compared over time. Memory: of the largest process of each service."""
        memory: dict[str, float] = {}
        for name, mb in self.rss_mb.items():
            figure = f"MB of {name.partition('-')[0]}"
            memory[figure] = max(mb, memory.get(figure, 0.0))
        return {"objects": self.objects.total(), "catalog rows": self.rows.total(), **memory}


@dataclass(slots=True)
class Found:
    """The result of a run."""

    where: str
    kills: list[tuple[float, str]] = field(default_factory=list)  #: (Unix time, process)
    sizes: list[Sizes] = field(default_factory=list)
    p50_s: float = 0.0
    p99_s: float = 0.0
    p99_with_kills_s: float = 0.0
    committed: int = 0
    read: int = 0
    disorder: int = 0
    audit: str = ""
    jobs: dict[str, int] = field(default_factory=dict)
    load: float = 0.0

    def quarters(self) -> dict[str, tuple[float, float]]:
        """Figure -> its value in the third and in the last quarter: the largest for memory, else the mean."""
        count = len(self.sizes)
        halves = [sample.total() for sample in self.sizes[count // 2 :]]
        third, last = halves[: len(halves) // 2], halves[len(halves) // 2 :]
        return {name: (_one(third, name), _one(last, name)) for name in last[-1]}

    def verdicts(self) -> dict[str, bool]:
        """The lines of the module's docstring."""
        return {
            "lag": self.p99_s < LAG_P99_S,
            "size": all(last <= GROWTH * third for third, last in self.quarters().values()),
            "complete": self.read == self.committed and not self.disorder,
            "audit": self.audit == "clean",
        }


def _one(samples: list[dict[str, float]], name: str) -> float:
    """A killed process has no memory in a sample, so a service of one process may be missing there."""
    values = [sample[name] for sample in samples if name in sample]
    return float(np.max(values) if name.startswith("MB of ") else np.mean(values)) if values else 0.0


def sizes(d: Deployment, began: float) -> Sizes:
    """What the deployment holds now."""
    store = open_metered(d.bucket_url)
    objects = Counter(entry.key.partition("/")[0] for entry in store.list(""))
    with d.catalog.transaction() as conn:
        rows = Counter(
            {name: conn.execute(select(func.count()).select_from(table)).scalar_one() for name, table in _tables()}
        )
    rss = {name: usage.rss_mb for name, usage in d.usage().items() if name not in ("mariadb", "s3")}
    return Sizes(time.monotonic() - began, objects, rows, rss)


def _tables() -> list[tuple[str, Any]]:
    """Events are pruned by age (30 days), so they grow during any run."""
    return [(name, table) for name, table in metadata.tables.items() if name != "events"]


def run(args: argparse.Namespace, folder: Path) -> Found:
    """One run."""
    settings = {
        "TISTREAM_META_RETENTION_HOURS": str(args.retention_minutes / 60),
        "TISTREAM_META_RETENTION_INTERVAL_S": "30",
        "TISTREAM_META_COLLECT_INTERVAL_S": "30",
        "TISTREAM_META_COLLECT_GRACE_S": "60",  # an hour otherwise, longer than the run
    }
    shape = Shape(dispatchers=2, sorters=2, executor=args.executor, settings=tuple(settings.items()))
    found = Found(str(shape))
    with ExitStack() as open_, Deployment(folder, shape) as d:
        for n in range(args.tenants):
            register_tenant(d.catalog, Tenant(1, n + 1))
        load = Load(
            url=d.url, tenants=args.tenants, writing=args.tenants, tables=5, active=2, rows_per_s=args.rows_per_s
        )
        push = open_.enter_context(PushProcess(d, load))
        push.wait_until_ready()
        readers = [Reader(d.url, n + 1) for n in range(args.tenants)]
        for reader in readers:
            reader.start()
        wait_for("the readers are there", lambda: all(reader.marks for reader in readers), 120)
        push.tell("start")
        _load(d, found, args, random.Random(args.seed))
        push.tell("stop")
        found.load = load_now()
        end_ms = time.time() * 1000 + 1000  # by then the last transactions have committed
        wait_for("the readers are complete", lambda: all(r.marks[-1][1] >> 18 > end_ms for r in readers), 120)
        found.committed = push.tell("report")["committed"]
        for reader in readers:
            reader.stop()
        _judge(d, found, readers)
    return found


def _load(d: Deployment, found: Found, args: argparse.Namespace, rand: random.Random) -> None:
    """The time of the load: samples and kills."""
    began = time.monotonic()
    sample_at, kill_at = 0.0, WARM_S
    down: tuple[float, str] | None = None
    while (now := time.monotonic() - began) < args.minutes * 60:
        if down is not None and now >= down[0]:
            d.start(down[1])
            down = None
        if down is None and now >= kill_at:
            name = rand.choice(
                [each for each in sorted(d.processes) if now < API_KILLS_S or not each.startswith("api")]
            )
            found.kills.append((time.time(), name))
            d.processes[name].kill()
            down, kill_at = (now + DOWN_S, name), now + args.kill_every
        if now >= sample_at:
            found.sizes.append(sizes(d, began))
            sample_at = now + SAMPLE_S
            _say(found.sizes[-1], found.kills)
        time.sleep(0.2)
    if down is not None:
        d.start(down[1])
    d.wait_until_ready()


def _judge(d: Deployment, found: Found, readers: list[Reader]) -> None:
    seen = [reader.seen_ms() for reader in readers]
    committed_ms, here_ms = (np.concatenate([pair[n] for pair in seen]) for n in (0, 1))
    ages_s = (here_ms - committed_ms) / 1000
    calm = np.ones(len(ages_s), np.bool_)
    for at, _ in found.kills:
        calm &= ~((here_ms >= at * 1000) & (committed_ms < (at + RECOVERY_S) * 1000))
    found.p50_s, found.p99_s = (float(np.percentile(ages_s[calm], q)) for q in (50, 99))
    found.p99_with_kills_s = float(np.percentile(ages_s, 99))
    found.read = sum(reader.rows for reader in readers)
    found.disorder = sum(reader.disorder for reader in readers)
    found.jobs = _jobs(d.catalog)
    audit = subprocess.run(
        [Path(sys.executable).parent / "tistream", "audit"], env=d.environment, capture_output=True, text=True
    )
    found.audit = "clean" if audit.returncode == 0 else audit.stdout + audit.stderr


def _jobs(catalog: Catalog) -> dict[str, int]:
    """Maintenance jobs by kind and state."""
    jobs = metadata.tables["jobs"]
    query = select(jobs.c.kind, jobs.c.state, func.count()).group_by(jobs.c.kind, jobs.c.state)
    with catalog.transaction() as conn:
        return {f"{kind} {state}": number for kind, state, number in conn.execute(query)}


def _say(sample: Sizes, kills: list[tuple[float, str]]) -> None:
    shown = {name: round(value) for name, value in sample.total().items()}
    folders = json.dumps(dict(sample.objects))
    print(f"{sample.at_s:6.0f} s, {len(kills)} kills: {json.dumps(shown)} {folders}", file=sys.stderr, flush=True)


def show(found: Found) -> bool:
    """Print the result; whether all lines hold."""
    print(f"{found.where}; load {found.load:.1f}")
    print(f"lag p50 {found.p50_s:.2f} s, p99 {found.p99_s:.2f} s; with kills p99 {found.p99_with_kills_s:.2f} s")
    print(f"kills {dict(Counter(name for _, name in found.kills))}")
    print(f"rows committed {found.committed:,}, read {found.read:,}; pages out of order {found.disorder}")
    print(f"jobs {found.jobs}; audit {found.audit}")
    for name, (third, last) in found.quarters().items():
        print(f"{name:24} {third:12,.0f} {last:12,.0f}  {last / third if third else 0:.3f}")
    last = found.sizes[-1]
    print(f"objects {dict(last.objects)}")
    print(f"catalog rows {dict((last.rows).most_common(8))}")
    for line, holds in found.verdicts().items():
        print(f"{line:10} {'holds' if holds else 'NO'}")
    return all(found.verdicts().values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--tenants", type=int, default=20)
    parser.add_argument("--rows-per-s", type=float, default=50, help="of each of a tenant's two stores")
    parser.add_argument("--retention-minutes", type=float, default=5)
    parser.add_argument("--kill-every", type=float, default=60, help="seconds")
    parser.add_argument("--executor", choices=("maintain", "spark"), default="maintain")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tistream-soak-") as folder:
        return 0 if show(run(args, Path(folder) / "run")) else 1


if __name__ == "__main__":
    sys.exit(main())
