"""A backlog matched in bulk by two Spark workers, against one live core that reads the same files.

The backlog is what three stores with 300 regions push: 24 batch files, 600,000 rows of 142 bytes, nothing consumed. The
live side is a dispatcher and a sorter in this process over one task, from taking the task until its `durable_ts` has
reached the end. The bulk side is a whole replay on `local[2]` in two partitions, from taking the task to the hand-over.
Both write to local folders in the same formats, and both must make exactly the prepared rows visible.

The session exists before the clock starts; workers are warm. Needs the extra `spark` and Java.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from backfill.job import Replay, ReplaySettings
from backfill.replay import SparkReplayExecutor
from benchmarks.harness import Result, compare
from benchmarks.store_batches import STORES, Workload, in_order, workload
from compactor.session import new_session
from dispatcher.worker import DispatcherWorker
from metaserver.loop import MetaOptions, MetaWorker
from sorter.worker.worker import SorterWorker
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.committed import find_segments
from tistream.catalog.rows.tenants import NewTask
from tistream.catalog.tenancy.tenants import activate_tenant, register_tenant
from tistream.catalog.work.stores import issue_incarnation
from tistream.catalog.work.tasks import list_tasks
from tistream.clock import SystemClock
from tistream.codec.batch_file import encode_batch_file
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.log.committed_log import SegmentSource
from tistream.objectstore.layout import BatchKey
from tistream.objectstore.local import LocalStore
from tistream.runtime.service import Service

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RUNS = 5
TICKS = 8
ROWS_PER_TICK = 25_000
TENANT = Tenant(1, 1)
PARTS = 2


def run() -> Iterator[Result]:
    """One ratio."""
    logging.getLogger("py4j").setLevel(logging.ERROR)
    given = workload(142, ticks=TICKS, rows_per_tick=ROWS_PER_TICK)
    with tempfile.TemporaryDirectory() as folder:
        backlog = Path(folder) / "backlog"
        _write(backlog, given)
        options = {"spark.ui.enabled": "false", "spark.log.level": "ERROR", "spark.python.worker.reuse": "true"}
        session = new_session(f"local[{PARTS}]", options)
        try:
            yield compare(
                "bulk-replay/two-parts-vs-one-live-core",
                lambda: _bulk(_copy(backlog, Path(folder) / "bulk"), session),
                lambda: _live(_copy(backlog, Path(folder) / "live"), given.last_ts),
                proof=lambda bulk, live: _log(bulk).equals(given.rows) and _log(live).equals(given.rows),
                target=1.3,
                runs=RUNS,
            )
        finally:
            session.stop()


def _write(folder: Path, given: Workload) -> None:
    """The catalog and the bucket before sorting."""
    store = LocalStore(folder / "bucket")
    catalog = Catalog(f"sqlite:///{folder}/catalog.db")
    catalog.migrate()
    register_tenant(catalog, TENANT)
    start_ts = int(given.batches[1][0].regions.column("checkpoint_ts")[0].as_py())
    activate_tenant(catalog, TENANT, start_ts, [NewTask(kind="data", range=KeyRange())])
    for store_id in range(1, STORES + 1):
        issue_incarnation(catalog, TENANT, store_id)
        for batch in given.batches[store_id]:
            key = BatchKey(tenant=TENANT, store_id=store_id, incarnation=1, seq=batch.seq)
            data = encode_batch_file(key, cut_ts=batch.cut_ts, rows=batch.rows, regions=batch.regions, write_id="w")
            store.put(str(key), data)
    catalog.close()


def _copy(backlog: Path, to: Path) -> Path:
    if to.exists():
        shutil.rmtree(to)
    shutil.copytree(backlog, to)
    return to


def _bulk(folder: Path, session: SparkSession) -> Path:
    catalog = Catalog(f"sqlite:///{folder}/catalog.db")
    executor = SparkReplayExecutor(session, f"file://{folder}/bucket", SystemClock())
    store = LocalStore(folder / "bucket")
    Replay(catalog, store, SystemClock(), TENANT, executor, ReplaySettings(partitions=PARTS)).run()
    catalog.close()
    return folder


def _live(folder: Path, upto: int) -> Path:
    catalog, store, clock = Catalog(f"sqlite:///{folder}/catalog.db"), LocalStore(folder / "bucket"), SystemClock()
    follow = DispatcherWorker(catalog, store, clock, "dispatcher-1", reclaim_s=3600.0)
    services: list[Service] = [
        MetaWorker(catalog, store, clock, "meta-1", MetaOptions(interval_s=0.02)),
        follow,
        SorterWorker(catalog, store, follow, clock, worker_id="sorter-1", snapshot_interval_s=3600.0),
    ]
    for service in services:
        service.start()
    while list_tasks(catalog)[0].durable_ts < upto:
        time.sleep(0.01)
    for service in reversed(services):
        service.stop()
    catalog.close()
    return folder


def _log(folder: Path) -> pa.Table:
    catalog = Catalog(f"sqlite:///{folder}/catalog.db")
    source = SegmentSource(LocalStore(folder / "bucket"))
    segments = find_segments(catalog, TENANT, after_ts=0, upto_ts=1 << 62, limit=1 << 20)
    table = in_order(pa.concat_tables([source.rows(segment) for segment in segments]))
    catalog.close()
    return table
