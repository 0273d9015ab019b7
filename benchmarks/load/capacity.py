"""What one core of each service carries: the differences of five runs that differ in one thing each.

The processor time of a service is taken as

    base + rows x (rows a second) + writing x (tenants that write) + idle x (tenants that do not) + tables x (tables)

It depends on the load of the machine much less than wall-clock time does. Memory likewise. A core "carries" what fills
it: 1 / factor.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from benchmarks.load.deployment import Shape
from benchmarks.load.measure import Report, say, under_load
from benchmarks.load.push import Load

SERVICES = ("meta-1", "dispatcher-1", "sorter-1", "api-1", "mariadb", "s3")
ROWS_PER_S, WRITERS, IDLE, TABLES = 10_000.0, 20, 60, 20_000
SLOW = 10.0  #: rows a second of each store, where rows are not what is measured


def loads() -> dict[str, Load]:
    """The runs, by what each has more of. A tenant that does not write flushes each 30 s."""
    base = Load(stores=2, tables=10, rows_per_s=SLOW)
    return {
        "base": base,
        "row/s": replace(base, rows_per_s=ROWS_PER_S),
        "writing tenant": replace(base, tenants=WRITERS, writing=WRITERS),
        "idle tenant": replace(base, tenants=IDLE, idle_s=30.0),
        "table": replace(base, tables=TABLES),
    }


def capacity(seconds: float) -> None:
    """Print, per service and unit: share of a core, what a core carries, memory."""
    reports = {}
    for name, load in loads().items():
        say(f"-- {name}")
        with (
            tempfile.TemporaryDirectory(prefix="tistream-capacity-") as folder,
            under_load(load, Shape(sorters=1), 1, Path(folder) / "run") as run,
        ):
            run.steady(seconds)
        reports[name] = run.report
    _show(reports)


def _show(reports: dict[str, Report]) -> None:
    base = reports["base"].steady
    rows = reports["row/s"].steady["push"]["rows"] - base["push"]["rows"]  # as many as were committed, not asked for
    more = {"row/s": rows, "writing tenant": WRITERS - 1, "idle tenant": IDLE - 1, "table": TABLES - 10}
    for service in SERVICES:
        print(f"{service}: base {base[service]['cpu']:.1%} of a core, {base[service]['rss_mb']:.0f} MB")
        for name, by in more.items():
            steady = reports[name].steady[service]
            cpu, mb = ((steady[what] - base[service][what]) / by for what in ("cpu", "rss_mb"))
            carries = f"{1 / cpu:12,.0f}" if cpu > 0 else "  not visible"
            print(f"    {name:16} {cpu * 1e6:10.1f} us of a core, a core carries {carries}; {mb * 1000:8.1f} kB")
    for name, report in reports.items():
        print(f"{name}: {report.lag} at the reader; load {report.load:.1f}")
