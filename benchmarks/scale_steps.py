"""Sorters and dispatchers come and go under load: 2 -> 4 -> 2 sorters, 1 -> 3 -> 1 dispatchers.

    python -m benchmarks.scale_steps [--rows-per-s 1000] [--data-tasks 8]

The deployment and the load are those of `benchmarks.lag`. Before each step everything has rested. Printed for each: how
many tasks and stores moved and how many had to (those that the newcomers have in the end, or that the leavers had), the
largest age of the reader's watermark, and after how long it was below LAG_BACK_S for good. The exit status is 0 when
every row that was committed was read once and in order, nothing moved without need, and the lag was back within BACK_S
after every step.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from benchmarks.load.deployment import Deployment, Shape, load_now, wait_for
from benchmarks.load.process import PushProcess
from benchmarks.load.push import Load
from benchmarks.load.reader import Reader
from tests.kit.service_cluster import Held, moved, owners
from tistream.catalog.tenancy.tenants import register_tenant
from tistream.catalog.work.stores import store_places
from tistream.catalog.work.tasks import task_places
from tistream.ids import Tenant

LAG_BACK_S = 5.0
BACK_S = 30.0
RESTS_S = 5.0
SPARE = 2  #: moves more than needed that are fair: what is even again is evened out in passing
STORES = 3

SORTERS, DISPATCHERS = ("sorter-3", "sorter-4"), ("dispatcher-2", "dispatcher-3")


def tasks(d: Deployment) -> Held:
    """Who has which task, at which epoch."""
    return {row.task_id: (row.owner, row.epoch) for row in task_places(d.catalog)}


def stores(d: Deployment) -> Held:
    """Who has which store, at which epoch."""
    return {(row.tenant, row.store_id): (row.dispatcher, row.epoch) for row in store_places(d.catalog)}


class Steps:
    """A change of scale, and its effect on the reader's lag."""

    def __init__(self, d: Deployment, reader: Reader) -> None:
        self._d, self._reader = d, reader
        self.found: list[dict[str, Any]] = []

    def add(self, names: Sequence[str], held: Callable[[Deployment], Held]) -> None:
        """Start these; it is over when each has something."""
        self._step(
            f"+ {', '.join(names)}",
            held,
            lambda: self._d.start(*names),
            lambda: {*names} <= owners(held(self._d)),
            lambda was, now: {key for key, (owner, _) in now.items() if owner in names},
        )

    def remove(self, names: Sequence[str], held: Callable[[Deployment], Held]) -> None:
        """Have these drain and end."""
        leaving = [self._d.processes[name] for name in names]
        self._step(
            f"- {', '.join(names)}",
            held,
            lambda: [process.terminate() for process in leaving],
            lambda: not any(process.alive for process in leaving),
            lambda was, now: {key for key, (owner, _) in was.items() if owner in names},
        )

    def _step(
        self,
        name: str,
        held: Callable[[Deployment], Held],
        act: Callable[[], object],
        over: Callable[[], bool],
        needed: Callable[[Held, Held], set[object]],
    ) -> None:
        was, began = held(self._d), time.monotonic()
        act()
        seen, since, late_at, largest = was, began, began, 0.0
        done_s = 0.0
        while not done_s or time.monotonic() - since < RESTS_S or time.monotonic() - late_at < RESTS_S:
            time.sleep(0.1)
            now_s = time.monotonic()
            lag_s = self._reader.lag_s
            largest = max(largest, lag_s)
            late_at = now_s if lag_s >= LAG_BACK_S else late_at
            now = held(self._d)
            if now != seen:
                seen, since = now, now_s
            if not done_s and over():
                done_s = now_s - began
            if now_s - began > 180:
                raise TimeoutError(f"{name} does not settle")
        went, must = moved(was, seen), needed(was, seen)
        found = {"step": name, "done_s": done_s, "largest_lag_s": largest, "lag_back_s": late_at - began}
        found |= {"of": len(seen), "moved": len(went), "moves": sum(went.values()), "needed": len(must)}
        self.found.append(found)
        print(
            f"{name:28} done after {done_s:5.1f} s; {found['moves']} moves of {len(seen)}, {len(must)} needed;"
            f" largest lag {largest:.1f} s, below {LAG_BACK_S:.0f} s for good after {found['lag_back_s']:.1f} s",
            flush=True,
        )


def measure(shape: Shape, rows_per_s: float, folder: Path) -> dict[str, Any]:
    """One run through all steps."""
    with ExitStack() as open_, Deployment(folder, shape) as d:
        register_tenant(d.catalog, Tenant(1, 1))
        load = Load(url=d.url, stores=STORES, rows_per_s=rows_per_s, active=12, tables=12)
        push = open_.enter_context(PushProcess(d, load))
        push.wait_until_ready()
        reader = Reader(d.url, 1)
        reader.start()
        push.tell("start")
        wait_for("the reader is there", lambda: reader.lag_s < 2.5, 120)
        time.sleep(RESTS_S)
        steps, began = Steps(d, reader), load_now()
        steps.add(SORTERS, tasks)
        steps.remove(SORTERS, tasks)
        steps.add(DISPATCHERS, stores)
        steps.remove(DISPATCHERS, stores)
        push.tell("stop")
        time.sleep(0.2)
        committed = push.tell("report")["committed"]
        with suppress(TimeoutError):
            wait_for("everything has come", lambda: reader.rows >= committed, 60)
        reader.stop()
        return {
            "where": str(shape),
            "load": max(began, load_now()),
            "steps": steps.found,
            "committed": committed,
            "read": reader.rows,
            "disorder": reader.disorder,
        }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale_steps", description="Scaling under load.")
    parser.add_argument("--rows-per-s", type=float, default=1000, help="of each of three stores")
    parser.add_argument("--data-tasks", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    shape = Shape(settings=(("TISTREAM_META_DATA_TASKS", str(given.data_tasks)),))
    with tempfile.TemporaryDirectory(prefix="tistream-steps-") as folder:
        found = measure(shape, given.rows_per_s, Path(folder) / "d")
    print(f"{found['where']}; load {found['load']:.1f}")
    print(f"{found['read']:,} of {found['committed']:,} rows read, {found['disorder']} pages out of order")
    if given.json:
        print(json.dumps(found, indent=2))
    whole = found["read"] == found["committed"] and not found["disorder"]
    needless = [s["step"] for s in found["steps"] if s["moves"] > s["needed"] + SPARE]
    late = [s["step"] for s in found["steps"] if s["lag_back_s"] > BACK_S]
    for what, steps in (("moved without need", needless), ("lag not back in time", late)):
        if steps:
            print(f"{what}: {', '.join(steps)}")
    return 0 if whole and not needless and not late else 1


if __name__ == "__main__":
    sys.exit(main())
