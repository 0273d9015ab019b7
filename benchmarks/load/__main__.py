"""A deployment of real processes under a load: `python -m benchmarks.load [tables | tenants | soak | capacity]`.

By default two stores with 5,000 committed rows a second each, a file each second, and one reader that follows the
tenant in NDJSON. MariaDB and an S3 server, a meta server, a dispatcher, two sorters, an API server, and a process with
the real pushers, whose feeds are modelled (`benchmarks.load.feed`).

    tables      one tenant with 100,000 tables, a region for each; at the end the sorter of the first is killed
    tenants     1,000 tenants: 20 write, the others flush each 30 s; likewise
    soak        20 tenants that write, each with a reader, retention and merges, and a SIGKILL each minute: whether
                objects, catalog rows and memory level off
    capacity    what a core of each service carries

The exit status is 0 when every row that was committed was read once and in order (where every tenant that writes has a
reader), its age was below the goal at p99, and in a soak the sizes levelled off and the audit is clean.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from benchmarks.load import soak
from benchmarks.load.capacity import capacity
from benchmarks.load.deployment import Shape
from benchmarks.load.measure import LAG_BACK_S, Report, Run, shown, under_load
from benchmarks.load.push import Load

GOAL_P99_S = {"lag": 2.5, "soak": 5.0}
LOADS = {
    "lag": Load(),
    "tables": Load(tables=100_000, rows_per_s=1000),
    "tenants": Load(tenants=1000, writing=20, stores=1, rows_per_s=50, idle_s=30),
    "soak": Load(tenants=20, writing=20, tables=5, active=2, rows_per_s=50),
}
HELP = {
    "tenants": "",
    "writing": "of the tenants",
    "tables": "of a tenant",
    "active": "of the tables of a tenant that writes",
    "stores": "of a tenant",
    "rows_per_s": "of a store that writes",
    "idle_s": "between the files of a tenant that does not write",
}
COLUMNS = ("cpu", "rss_mb", "threads", "SQL", "transactions", "HTTP", "PUT", "GET", "LIST", "rows")
SECONDS = {"lag": 60.0, "capacity": 30.0, "tables": 30.0, "tenants": 30.0, "soak": 1200.0}


def main() -> int:
    given = _given()
    seconds = given.seconds or SECONDS[given.what]
    if given.what == "capacity":
        capacity(seconds)
        return 0
    options = {name: value for name in HELP if (value := getattr(given, name)) is not None}
    load = replace(LOADS[given.what], **options)
    shape = Shape(sorters=given.sorters, mariadb=not given.sqlite, s3=not given.folder)
    is_soak, holds = given.what == "soak", True
    if is_soak:
        shape = replace(shape, dispatchers=2, executor=given.executor, settings=soak.settings(given.retention_minutes))
    readers = load.writing if is_soak else 1
    with (
        tempfile.TemporaryDirectory(prefix="tistream-load-") as folder,
        under_load(load, shape, readers, Path(folder) / "run") as run,
    ):
        if is_soak:
            samples = soak.endure(run, seconds, given.kill_every, given.seed)
            print(f"jobs {dict(soak.jobs(run.d))}")
            holds = soak.levels_off(samples) & soak.is_audited(run.d)
        else:
            run.steady(seconds)
            _explain(run)
            if given.what in ("tables", "tenants") and not given.no_kill:
                run.fail_over()
    report = run.report
    print(json.dumps(shown(report), indent=2)) if given.json else _show(report)
    on_time = report.lag["p99_s"] < GOAL_P99_S.get(given.what, float("inf"))
    return 0 if holds and on_time and (report.whole or readers < load.writing) else 1


def _given() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.load", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", choices=SECONDS, default="lag")
    parser.add_argument("--seconds", type=float, help="60, of a soak 1200, otherwise 30")
    for name, text in HELP.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(getattr(Load(), name)), help=text)
    parser.add_argument("--sorters", type=int, default=2)
    parser.add_argument("--sqlite", action="store_true", help="instead of MariaDB")
    parser.add_argument("--folder", action="store_true", help="instead of an S3 server")
    parser.add_argument("--no-kill", action="store_true", help="without killing a sorter")
    parser.add_argument("--kill-every", type=float, default=60, help="seconds, in a soak")
    parser.add_argument("--retention-minutes", type=float, default=5, help="in a soak")
    parser.add_argument("--executor", choices=("maintain", "spark"), default="maintain", help="in a soak")
    parser.add_argument("--seed", type=int, default=1, help="of the kills in a soak")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _explain(run: Run) -> None:
    """Where the time goes, as the service says itself."""
    words = ("explain", "lag", "-c", "1", "-t", "1", "--url", run.d.url)
    subprocess.run([Path(sys.executable).parent / "tistream", *words], stdout=sys.stderr, check=True)


def _show(report: Report) -> None:
    print(f"{report.where}; load {report.load:.1f}")
    print(f"pushing after {report.pushing_s:.1f} s, complete after {report.complete_s:.1f} s")
    print(f"{report.read:,} of {report.committed:,} rows read, {report.disorder} pages out of order")
    print(f"commit to pull: {', '.join(f'{name} {value:.2f}' for name, value in report.lag.items())}")
    if report.steady:
        print(f"{'a second':14}" + "".join(f"{column:>13}" for column in COLUMNS))
    for name, rates in report.steady.items():
        print(f"{name:14}" + "".join(f"{rates[c]:13.2f}" if c in rates else f"{'':13}" for c in COLUMNS))
    if report.kills:
        print(f"kills {[name for _, name in report.kills]}; with them p99 {report.p99_with_kills_s:.2f} s")
    if f := report.fail_over:
        print(
            f"{f['tasks']} tasks of the sorter that was killed given out after {f['given_s']:.1f} s,"
            f" lag below {LAG_BACK_S:.0f} s after {f['lag_back_s']:.1f} s, all complete after {f['all_back_s']:.1f} s"
        )


if __name__ == "__main__":
    sys.exit(main())
