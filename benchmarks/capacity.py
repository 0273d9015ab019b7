"""What one core of each service carries: rows a second, tenants and tables.

    python -m benchmarks.capacity [--seconds 30]

Five runs of `benchmarks.scale` with one process of each service, MariaDB and an S3 server. The processor time of a
service is taken as

    base + rows x (rows a second) + writing x (tenants that write) + idle x (tenants that do not) + tables x (tables)

and each factor is the difference of two runs that differ in one of these. Processor time depends on the load of the
machine much less than wall-clock time does. Memory likewise. A core "carries" what fills it: 1 / factor.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.load.deployment import Shape
from benchmarks.load.push import Load
from benchmarks.scale import measure

SERVICES = ("meta-1", "dispatcher-1", "sorter-1", "api-1", "mariadb", "s3")
ROWS_PER_S, WRITERS, IDLE, TABLES = 10_000.0, 20, 60, 20_000
SLOW = 10.0  #: rows a second of each store, where rows are not what is measured


@dataclass(frozen=True, slots=True)
class Step:
    """One more unit of something: the run with more of it, the run with less, and by how many they differ."""

    name: str
    more: str
    less: str
    by: float


def loads() -> dict[str, Load]:
    """The runs. A tenant that does not write flushes each 30 s."""
    one = {"url": "", "stores": 2, "tables": 10, "rows_per_s": SLOW}
    return {
        "one": Load(**one),
        "rows": Load(**{**one, "rows_per_s": ROWS_PER_S}),
        "writing": Load(**one, tenants=WRITERS, writing=WRITERS),
        "idle": Load(**one, tenants=IDLE, idle_s=30.0),
        "tables": Load(**{**one, "tables": TABLES}),
    }


def steps(found: dict[str, dict[str, Any]]) -> list[Step]:
    """The differences. Rows: as many as were committed, not as many as were asked for."""
    rows = found["rows"]["steady"]["push"]["rows"] - found["one"]["steady"]["push"]["rows"]
    return [
        Step("row/s", "rows", "one", rows),
        Step("writing tenant", "writing", "one", WRITERS - 1),
        Step("idle tenant", "idle", "one", IDLE - 1),
        Step("table", "tables", "one", TABLES - 10),
    ]


def show(found: dict[str, dict[str, Any]]) -> None:
    """Per service and unit: percent of a core, what a core carries, memory."""
    base = found["one"]["steady"]
    for service in SERVICES:
        print(f"{service}: base {base[service]['cpu']:.1%} of a core, {base[service]['rss_mb']:.0f} MB")
        for step in steps(found):
            more, less = found[step.more]["steady"][service], found[step.less]["steady"][service]
            cpu, mb = (more["cpu"] - less["cpu"]) / step.by, (more["rss_mb"] - less["rss_mb"]) / step.by
            carries = f"{1 / cpu:12,.0f}" if cpu > 0 else "  not visible"
            print(f"    {step.name:16} {cpu * 1e6:10.1f} us of a core, a core carries {carries}; {mb * 1000:8.1f} kB")
    for name, run in found.items():
        print(f"{name}: p50 {run['p50_s']:.2f} s, p99 {run['p99_s']:.2f} s at the reader; load {run['load']:.1f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30)
    args = parser.parse_args()
    found = {}
    for name, load in loads().items():
        print(f"-- {name}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="tistream-capacity-") as folder:
            shape = Shape(sorters=1)
            found[name] = measure(load, shape, seconds=args.seconds, kill=False, folder=Path(folder) / "run")
    show(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
