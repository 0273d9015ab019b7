"""Worlds whose log is given up from its old end: the recording in forty files, with or without bases."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from compactor.base_job import BaseSettings, build_tenant_bases
from compactor.core.base_plan import BasePlanSettings
from compactor.core.plan import PlanSettings
from compactor.job import JobSettings, compact_tenant
from compactor.local import LocalExecutor
from metaserver.collect import Collector
from metaserver.retention import Retention
from reading.log.reader import LogReader
from schemas.registry.log_start import LogStarts
from tests.kit import replica
from tests.kit.api_world import ApiWorld, api_world, rows_path
from tests.kit.log_builder import TENANT, recording_end
from tests.kit.open_folder import OpenFolder
from tests.kit.recording import EXPECTED, changed_rows
from tistream import ts as tso
from tistream.catalog.database import tables
from tistream.catalog.log.retention import raise_floor, retire_below_floor
from tistream.catalog.tenancy.tenants import get_tenant, set_retention
from tistream.clock import SystemClock
from tistream.codec.table_key import DDL_JOB_TABLE_ID, record_range
from tistream.keyrange import KeyRange
from tistream.model import change

END = recording_end()
EVER_MS = 10 * 365 * 24 * 3_600_000
LAG_MS = 1500  # of the bases below the watermark: above every DDL that copies rows
KEPT_S = 1
OLDEST = tso.compose(tso.physical_ms(END) - KEPT_S * 1000)  # what retention leaves to be read


def truth() -> npt.NDArray[np.uint64]:
    """The commit_ts of every change that the data tasks hold."""
    rows = changed_rows()
    hidden = pc.bit_wise_and(rows["flags"], pa.scalar(change.FLAG_NOT_A_CHANGE, pa.uint8()))
    ours = pc.and_(pc.equal(hidden, 0), pc.greater_equal(rows["key"], DATA_TASKS.start))
    timestamps: npt.NDArray[np.uint64] = rows.filter(pc.and_(ours, pc.less(rows["key"], DATA_TASKS.end)))[
        "commit_ts"
    ].to_numpy()
    return np.sort(timestamps)


DATA_TASKS = KeyRange(b"t", record_range(DDL_JOB_TABLE_ID).start)
TRUTH = truth()


@dataclass(frozen=True)
class Kept:
    """A world as a file and objects, to begin from."""

    catalog: Path
    objects: dict[str, bytes]
    start_ts: int


def kept(folder: Path, more: Callable[[ApiWorld], None]) -> Kept:
    store = OpenFolder()
    with api_world(folder, store) as world:
        world.log.build(40).seed()
        more(world)
        world.services.registry.history(TENANT)
    return Kept(folder / "catalog.db", store.objects, world.log.start_ts)


@contextmanager
def begun(folder: Path, what: Kept) -> Iterator[ApiWorld]:
    shutil.copy(what.catalog, folder / "catalog.db")
    store = OpenFolder()
    store.objects.update(what.objects)
    with api_world(folder, store) as world:
        world.log.start_ts = what.start_ts
        yield world


def starts(world: ApiWorld) -> LogStarts:
    return world.services.log_starts


def retention(world: ApiWorld) -> Retention:
    return Retention(world.catalog, world.services.registry, default_hours=0)


def keep(world: ApiWorld, seconds: int) -> Retention:
    """Let the tenant keep so much, and run a round."""
    set_retention(world.catalog, TENANT, seconds)
    keeper = retention(world)
    keeper.step()
    return keeper


def earliest(world: ApiWorld) -> int:
    return get_tenant(world.catalog, TENANT).earliest_ts


def give_up(world: ApiWorld, to_ts: int) -> None:
    """Raise the floor without asking who needs what, and retire what lies below."""
    row = get_tenant(world.catalog, TENANT)
    assert raise_floor(world.catalog, TENANT, seen_floor=row.floor_ts, to_ts=to_ts)
    while retire_below_floor(world.catalog, TENANT).objects:
        pass


def build(world: ApiWorld) -> None:
    """Bases of all tables a little below the watermark, because they are due."""
    plan = BasePlanSettings(tail_ratio=1e9, tail_bytes_min=1 << 40)
    settings = BaseSettings(lag_ms=LAG_MS, window_ms=EVER_MS, due_ms=1, plan=plan)
    executor = LocalExecutor(world.store).bases
    build_tenant_bases(world.catalog, world.services.registry, TENANT, executor, settings, SystemClock())


def compact(world: ApiWorld) -> None:
    settings = JobSettings(lag_ms=0, plan=PlanSettings(inputs_min=2))
    compact_tenant(world.catalog, TENANT, LocalExecutor(world.store), settings, SystemClock())


def collect(world: ApiWorld) -> int:
    return Collector(world.catalog, world.store, world.clock, grace_ms=0).step()


def path_of(table: dict[str, Any]) -> str:
    return rows_path(table["db"], table["table"])


def end_leases(world: ApiWorld) -> None:
    """The readers so far are done."""
    with world.catalog.transaction() as conn:
        conn.execute(tables.read_leases.delete())


def judged(log: LogReader, after: int, rows: int = 10**6) -> int:
    """Read a page and compare it with the recording; where it ends. TsExpired is an answer as well."""
    page = log.page(TENANT, after=after, upto=END, rows=rows)
    want = TRUTH[(after < TRUTH) & (page.upto >= TRUTH)]
    read = page.rows["commit_ts"].to_numpy()
    assert np.array_equal(read, want), f"{len(read)} rows in ({after}, {page.upto}] instead of {len(want)}"
    return page.upto


def oldest(world: ApiWorld) -> dict[str, tuple[int, bytes]]:
    """Tables as of the oldest moment that is to stay."""
    names = [t for t in replica.moments(EXPECTED)[-1].tables if t["kind"] == "table"][::4]
    answers = {t["table"]: world.get(path_of(t), as_of=OLDEST) for t in names}
    return {name: (answer.status_code, answer.content) for name, answer in answers.items()}
